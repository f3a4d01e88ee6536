// The memory traffic of a kernel without its arithmetic: what the machine gives at best for so many arrays read,
// updated and written side by side. `anyfuse bench` runs it between the operators and calls its rate the roofline.
#include <cstdlib>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "core/parallel.h"
#include "core/params.h"

namespace {

using Params = anyfuse_stream_params;
using Array = anyfuse_stream_array;

typedef uint32_t Line __attribute__((vector_size(16), aligned(16), may_alias));
constexpr int64_t kUnroll = 4;  // 64 bytes, a cache line
constexpr int64_t kPieceUnits = 16384, kPieceRows = 1024;
constexpr int64_t kRowsAhead = 8;

void touch(const Array &array, int64_t offset, int64_t bytes, bool nontemporal, Line &sum) {
  Line *line = reinterpret_cast<Line *>(static_cast<char *>(array.data) + offset);
  const int64_t lines = bytes / static_cast<int64_t>(sizeof(Line));
  if (array.access == ANYFUSE_STREAM_READ) {
    Line partial[kUnroll] = {};
    for (int64_t i = 0; i < lines; i += kUnroll)
      for (int64_t j = 0; j < kUnroll; ++j) partial[j] ^= line[i + j];
    for (const Line &value : partial) sum ^= value;
  } else if (array.access == ANYFUSE_STREAM_UPDATE) {
    for (int64_t i = 0; i < lines; ++i) line[i] ^= 1u;
#if defined(__SSE2__)
  } else if (nontemporal) {
    for (int64_t i = 0; i < lines; ++i) _mm_stream_si128(reinterpret_cast<__m128i *>(line + i), (__m128i)sum);
#endif
  } else {
    for (int64_t i = 0; i < lines; ++i) line[i] = sum;
  }
}

void prefetch(const Array &array, int64_t row) {
  const char *address = static_cast<const char *>(array.data) + row * array.width;
  for (int64_t i = 0; i < array.width; i += 64) __builtin_prefetch(address + i);
}

void walk(const Params &p, int64_t begin, int64_t end) {
  Line sum = {};
  const int64_t tile = p.index != nullptr ? 1 : p.tile;
  for (int64_t unit = begin; unit < end; unit += tile) {
    const int64_t units = end - unit < tile ? end - unit : tile;
    for (int64_t i = 0; i < p.count; ++i) {
      const Array &array = p.arrays[i];
      if (array.by_index && unit + kRowsAhead < end) prefetch(array, p.index[unit + kRowsAhead]);
      touch(array, (array.by_index ? p.index[unit] : unit) * array.width, units * array.width, p.nontemporal != 0, sum);
    }
  }
#if defined(__SSE2__)
  if (p.nontemporal) _mm_sfence();
#endif
  asm volatile("" : : "m"(sum));  // the reads have happened
}

anyfuse_status check(const Params &p) {
  if (p.units < 0 || p.count < 0) return ANYFUSE_INVALID_SIZE;
  if (p.count > 0 && p.arrays == nullptr) return ANYFUSE_INVALID_POINTER;
  for (int64_t i = 0; i < p.count; ++i) {
    const Array &array = p.arrays[i];
    if (array.data == nullptr || (array.by_index && p.index == nullptr)) return ANYFUSE_INVALID_POINTER;
    if (reinterpret_cast<uintptr_t>(array.data) % 64 != 0) return ANYFUSE_INVALID_POINTER;
    if (array.access < ANYFUSE_STREAM_READ || array.access > ANYFUSE_STREAM_WRITE) return ANYFUSE_INVALID_VALUE;
    const int64_t granule = p.index != nullptr ? array.width : array.width * p.tile;
    if (granule <= 0 || granule % 64 != 0) return ANYFUSE_INVALID_SIZE;
  }
  if (p.index != nullptr) return ANYFUSE_OK;
  return p.tile <= 0 || kPieceUnits % p.tile != 0 || p.units % p.tile != 0 ? ANYFUSE_INVALID_SIZE : ANYFUSE_OK;
}

}  // namespace

extern "C" anyfuse_status anyfuse_stream(const anyfuse_stream_params *params) {
  Params p;
  if (anyfuse_status status = anyfuse::read_params(params, &p)) return status;
  if (anyfuse_status status = check(p)) return status;
  const int64_t piece = p.index != nullptr ? kPieceRows : kPieceUnits;
  anyfuse::parallel_for((p.units + piece - 1) / piece, p.threads, [&](int64_t i) {
    const int64_t begin = i * piece;
    walk(p, begin, begin + piece < p.units ? begin + piece : p.units);
  });
  return ANYFUSE_OK;
}
