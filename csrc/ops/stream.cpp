// The memory traffic of a kernel without its arithmetic: what the machine gives at best for so many arrays read,
// updated and written side by side. No operator: `anyfuse bench` runs it between them and calls its rate the roofline.
#include "anyfuse_internal.h"
#include "core/dispatch.h"

namespace anyfuse {

struct StreamWork {
  anyfuse_stream_params params;
};

}  // namespace anyfuse

#if defined(ANYFUSE_TARGET)  // ---- the kernel, once per target ----

#include "core/simd.h"

namespace {

constexpr int64_t kLine = 64, kRowsAhead = 8;
constexpr int kLineVectors = kLine / ANYFUSE_VECTOR_BYTES;

// What is done with a line is a template argument: inside the loop there is nothing but memory.
template <int access, bool past_caches = false>
ANYFUSE_INLINE void touch(char *line, const char *end, vf *sum) {
  for (; line < end; line += kLine)
    for (int i = 0; i < kLineVectors; ++i) {
      float *at = reinterpret_cast<float *>(line) + i * kWidth;
      if (access == ANYFUSE_STREAM_READ)
        sum[i] = from_bits(bits(sum[i]) ^ bits(load(at)));
      else if (access == ANYFUSE_STREAM_UPDATE)
        store(at, from_bits(bits(load(at)) ^ 1u));
      else if (past_caches)
        store_past_caches(at, sum[i]);
      else
        store(at, sum[i]);
    }
}

ANYFUSE_INLINE void touch_array(const anyfuse_stream_array &array, int64_t unit, int64_t units, bool past_caches,
                                vf *sum) {
  char *begin = static_cast<char *>(array.data) + unit * array.width, *end = begin + units * array.width;
  if (array.access == ANYFUSE_STREAM_READ) return touch<ANYFUSE_STREAM_READ>(begin, end, sum);
  if (array.access == ANYFUSE_STREAM_UPDATE) return touch<ANYFUSE_STREAM_UPDATE>(begin, end, sum);
  if (past_caches) return touch<ANYFUSE_STREAM_WRITE, true>(begin, end, sum);
  touch<ANYFUSE_STREAM_WRITE>(begin, end, sum);
}

void prefetch_row(const anyfuse_stream_array &array, int64_t row) {
  const char *begin = static_cast<const char *>(array.data) + row * array.width;
  for (int64_t i = 0; i < array.width; i += kLine) __builtin_prefetch(begin + i);
}

}  // namespace

ANYFUSE_KERNEL(stream, StreamWork) {
  const anyfuse_stream_params &p = args.params;
  vf sum[kLineVectors] = {};
  const int64_t tile = p.index != nullptr ? 1 : p.tile;
  for (int64_t unit = begin; unit < end; unit += tile)
    for (int64_t i = 0; i < p.count; ++i) {
      const anyfuse_stream_array &array = p.arrays[i];
      if (array.by_index && unit + kRowsAhead < end) prefetch_row(array, p.index[unit + kRowsAhead]);
      touch_array(array, array.by_index ? p.index[unit] : unit, tile, p.nontemporal != 0, sum);
    }
  if (p.nontemporal) flush_past_caches();
  asm volatile("" : : "m"(sum));  // the reads have happened
}

#else  // ---- the entry point, once ----

#include "core/parallel.h"
#include "core/params.h"

ANYFUSE_DISPATCH(stream, StreamWork)

namespace {

constexpr int64_t kPieceUnits = 16384, kPieceRows = 1024;

anyfuse_status check(const anyfuse_stream_params &p) {
  if (p.units < 0 || p.count < 0) return ANYFUSE_INVALID_SIZE;
  if (p.count > 0 && p.arrays == nullptr) return ANYFUSE_INVALID_POINTER;
  if (p.index == nullptr && (p.tile <= 0 || kPieceUnits % p.tile != 0 || p.units % p.tile != 0))
    return ANYFUSE_INVALID_SIZE;
  for (int64_t i = 0; i < p.count; ++i) {
    const anyfuse_stream_array &array = p.arrays[i];
    if (array.data == nullptr || (array.by_index && p.index == nullptr)) return ANYFUSE_INVALID_POINTER;
    if (reinterpret_cast<uintptr_t>(array.data) % 64 != 0) return ANYFUSE_INVALID_POINTER;
    if (array.access < ANYFUSE_STREAM_READ || array.access > ANYFUSE_STREAM_WRITE) return ANYFUSE_INVALID_VALUE;
    const int64_t granule = array.width * (p.index != nullptr ? 1 : p.tile);
    if (granule <= 0 || granule % 64 != 0) return ANYFUSE_INVALID_SIZE;
  }
  return ANYFUSE_OK;
}

anyfuse_status run(const anyfuse_stream_params &p) {
  if (anyfuse_status status = check(p)) return status;
  const auto kernel = stream_kernel();
  if (kernel == nullptr) return ANYFUSE_NO_TARGET;
  const anyfuse::StreamWork work = {p};
  const int64_t piece = p.index != nullptr ? kPieceRows : kPieceUnits;
  anyfuse::parallel_for((p.units + piece - 1) / piece, p.threads, [&](int64_t i) {
    const int64_t begin = i * piece, end = begin + piece;
    kernel(work, begin, end < p.units ? end : p.units);
  });
  return ANYFUSE_OK;
}

}  // namespace

extern "C" anyfuse_status anyfuse_stream(const anyfuse_stream_params *params) { return anyfuse::enter(run, params); }

#endif
