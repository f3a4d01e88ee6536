// Reading structs that a caller with an older or newer header has filled.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "anyfuse.h"
#include "core/fenv.h"

namespace anyfuse {

// Copies a params struct of `given` bytes into `out`, whose unknown tail is zero. A longer one is from a newer header:
// it is taken only while the fields that this library does not know are zero, for it could not honour them.
template <typename Params>
anyfuse_status read_struct(const void *source, size_t given, Params *out) {
  const char *bytes = static_cast<const char *>(source);
  for (size_t i = sizeof(Params); i < given; ++i)
    if (bytes[i] != 0) return ANYFUSE_INVALID_SIZE;
  std::memset(static_cast<void *>(out), 0, sizeof(Params));
  std::memcpy(static_cast<void *>(out), source, given < sizeof(Params) ? given : sizeof(Params));
  return ANYFUSE_OK;
}

template <typename Params>
anyfuse_status read_params(const Params *source, Params *out) {
  if (source == nullptr) return ANYFUSE_INVALID_POINTER;
  if (source->size < sizeof(size_t) || source->size > 4096) return ANYFUSE_INVALID_SIZE;
  return read_struct(source, source->size, out);
}

// What every entry point does: it reads its params, and calls run(params) in the default floating-point mode, so that
// the scalars of the call, too, are computed in it.
template <typename Params>
anyfuse_status enter(anyfuse_status (*run)(const Params &), const Params *source) {
  Params p;
  if (anyfuse_status status = read_params(source, &p)) return status;
  return in_default_mode<anyfuse_status, const Params &>(run, p);
}

// The struct of one tensor of a list.
template <typename Params, typename Row>
anyfuse_status read_row(const Params &p, int64_t index, Row *row) {
  const char *rows = reinterpret_cast<const char *>(p.rows);
  return read_struct(rows + index * static_cast<int64_t>(p.row_size), p.row_size, row);
}

inline bool is_float(anyfuse_dtype dtype) {
  return dtype == ANYFUSE_FLOAT32 || dtype == ANYFUSE_FLOAT16 || dtype == ANYFUSE_BFLOAT16;
}

}  // namespace anyfuse
