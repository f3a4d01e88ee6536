// int8 x int8 -> int32, exact for every value on every target. For the kernel pass only; with simd.h the only
// intrinsics.
//
// Weights lie in panels of 16 columns, one order for every target: a step is 4 values of k, a line is one step of a
// panel, and column j of a panel has its 4 values at byte 4 j of the line. A line is one vector of the widest
// instruction set, and every narrower one cuts it into whole columns. Codes (the quantized rows) lie in tiles: 4 values
// of k of each row of the tile, then the next step.
//
// A sum vector holds kDotColumns columns with kDotParts partial sums each, side by side. The columns' sums are the
// parts added up, less kDotOffset times the sum of the row's codes, all modulo 2^32: a sum over k <= 131071 fits int32,
// and what overflows on the way to it wraps and comes back.
#pragma once
#include "core/simd.h"

constexpr int kDotDepth = 4;                     // values of k in a step
constexpr int kDotPanel = 16;                    // columns in a panel
constexpr int kDotLine = kDotPanel * kDotDepth;  // bytes
constexpr int kDotRows = 6;                      // most rows in a tile of codes

#if defined(ANYFUSE_TARGET_IS_avx512)

// vpdpbusd multiplies unsigned by signed bytes: the weights are taken as w + 128, and the sum is too large by 128 times
// the sum of the codes, which is one number for a whole row.
typedef int8_t dot_code;
typedef __m512i DotSum;
typedef __m512i DotWeights;
typedef __m512i DotCodes;
constexpr int kDotColumns = 16, kDotParts = 1, kDotOffset = 128;

ANYFUSE_INLINE DotWeights dot_weights(const int8_t *p) {
  return _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128));
}
ANYFUSE_INLINE DotCodes dot_codes(const dot_code *p) {
  int32_t four;
  memcpy(&four, p, sizeof four);
  return _mm512_set1_epi32(four);
}
ANYFUSE_INLINE DotSum dot_add(DotSum sum, DotWeights w, DotCodes c) { return _mm512_dpbusd_epi32(sum, w, c); }
#define ANYFUSE_KEEP_IN_REGISTER(sum) __asm__("" : "+v"(sum))

#elif defined(ANYFUSE_TARGET_IS_avx2)

// vpmaddwd of 16-bit values is exact (vpmaddubsw saturates): 4 columns, their even and odd pairs of k apart.
typedef int16_t dot_code;
typedef __m256i DotSum;
typedef __m256i DotWeights;
typedef __m256i DotCodes;
constexpr int kDotColumns = 4, kDotParts = 2, kDotOffset = 0;

ANYFUSE_INLINE DotWeights dot_weights(const int8_t *p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
}
ANYFUSE_INLINE DotCodes dot_codes(const dot_code *p) {
  long long four;
  memcpy(&four, p, sizeof four);
  return _mm256_set1_epi64x(four);
}
ANYFUSE_INLINE DotSum dot_add(DotSum sum, DotWeights w, DotCodes c) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(w, c));
}
// GCC may otherwise move all products in front of the sums and spill the sums: measured 2.4 times slower.
#define ANYFUSE_KEEP_IN_REGISTER(sum) __asm__("" : "+x"(sum))

#elif defined(__SSE2__)

typedef int16_t dot_code;
typedef __m128i DotSum;
typedef __m128i DotWeights;
typedef __m128i DotCodes;
constexpr int kDotColumns = 2, kDotParts = 2, kDotOffset = 0;

ANYFUSE_INLINE DotWeights dot_weights(const int8_t *p) {
  const __m128i w = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(p));
  return _mm_srai_epi16(_mm_unpacklo_epi8(w, w), 8);
}
ANYFUSE_INLINE DotCodes dot_codes(const dot_code *p) {
  const __m128i c = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(p));
  return _mm_unpacklo_epi64(c, c);
}
ANYFUSE_INLINE DotSum dot_add(DotSum sum, DotWeights w, DotCodes c) { return _mm_add_epi32(sum, _mm_madd_epi16(w, c)); }
#define ANYFUSE_KEEP_IN_REGISTER(sum) __asm__("" : "+x"(sum))

#elif defined(ANYFUSE_TARGET_IS_neon_dot)

typedef int8_t dot_code;
typedef int32x4_t DotSum;
typedef int8x16_t DotWeights;
typedef int8x16_t DotCodes;
constexpr int kDotColumns = 4, kDotParts = 1, kDotOffset = 0;

ANYFUSE_INLINE DotWeights dot_weights(const int8_t *p) { return vld1q_s8(p); }
ANYFUSE_INLINE DotCodes dot_codes(const dot_code *p) {
  int32_t four;
  memcpy(&four, p, sizeof four);
  return vreinterpretq_s8_s32(vdupq_n_s32(four));
}
ANYFUSE_INLINE DotSum dot_add(DotSum sum, DotWeights w, DotCodes c) { return vdotq_s32(sum, w, c); }
// "memory": GCC otherwise loads the codes of all rows first, and a sum is spilled for want of a register.
#define ANYFUSE_KEEP_IN_REGISTER(sum) __asm__ volatile("" : "+w"(sum) : : "memory")

#elif defined(ANYFUSE_TARGET_IS_neon)

// Each product is widened to 16 bits and added in pairs at once: two products of -128 by -128 already overflow int16.
typedef int8_t dot_code;
typedef int32x4_t DotSum;
typedef int8x8_t DotWeights;
typedef int8x8_t DotCodes;
constexpr int kDotColumns = 2, kDotParts = 2, kDotOffset = 0;

ANYFUSE_INLINE DotWeights dot_weights(const int8_t *p) { return vld1_s8(p); }
ANYFUSE_INLINE DotCodes dot_codes(const dot_code *p) {
  int32_t four;
  memcpy(&four, p, sizeof four);
  return vreinterpret_s8_s32(vdup_n_s32(four));
}
ANYFUSE_INLINE DotSum dot_add(DotSum sum, DotWeights w, DotCodes c) { return vpadalq_s16(sum, vmull_s8(w, c)); }
#define ANYFUSE_KEEP_IN_REGISTER(sum) __asm__ volatile("" : "+w"(sum) : : "memory")

#else

typedef int8_t dot_code;
typedef int8_t DotBytes __attribute__((vector_size(4)));
typedef int32_t DotSum __attribute__((vector_size(16)));
typedef DotSum DotWeights;
typedef DotSum DotCodes;
constexpr int kDotColumns = 1, kDotParts = 4, kDotOffset = 0;

ANYFUSE_INLINE DotSum dot_widen(const int8_t *p) {
  DotBytes four;
  memcpy(&four, p, sizeof four);
  return __builtin_convertvector(four, DotSum);
}
ANYFUSE_INLINE DotWeights dot_weights(const int8_t *p) { return dot_widen(p); }
ANYFUSE_INLINE DotCodes dot_codes(const dot_code *p) { return dot_widen(p); }
ANYFUSE_INLINE DotSum dot_add(DotSum sum, DotWeights w, DotCodes c) { return sum + w * c; }
#define ANYFUSE_KEEP_IN_REGISTER(sum) (void)(sum)

#endif

constexpr int kDotLanes = kDotColumns * kDotParts;            // int32 in a sum vector
constexpr int kDotPanelVectors = kDotPanel / kDotColumns;     // sum vectors of a panel, for one row
constexpr int kDotPanelLanes = kDotPanelVectors * kDotLanes;  // int32 of a panel, for one row
static_assert(sizeof(DotSum) == kDotLanes * sizeof(int32_t), "a sum vector is its lanes");

// Sum vectors side by side in one tile: with few rows more of them, so that a narrow target reads whole lines of
// weights; with many rows as many as leave the sums in registers.
#if defined(ANYFUSE_TARGET_IS_avx512) || defined(ANYFUSE_TARGET_IS_neon_dot)
constexpr int dot_vectors(int) { return 4; }
#elif defined(ANYFUSE_TARGET_IS_neon)
constexpr int dot_vectors(int rows) { return rows <= 3 ? 8 : 4; }
#else
constexpr int dot_vectors(int rows) { return rows <= 2 ? 4 : 2; }
#endif

// Panels that are worked on together, tile after tile: their weights of 256 values of k, and those that come next, fit
// L1 (a panel) or, where a product takes several panels at once, L2.
constexpr int kDotGroup = kDotPanelVectors == 1 ? 4 : 1;

// Weights that will be needed next: each product fetches a part of them from memory, so that reading and computing
// overlap. A panel is cut into 2^shift parts, so that the parts are spread over the products that there are.
struct DotAhead {
  const int8_t *weights;
  int shift;
  int64_t part, parts;
};

// Lines that a product of that many vectors fetches in each step: wide ones are few, and their steps long.
constexpr int dot_ahead_lines(int vectors) { return vectors > kDotPanelVectors ? 2 : 1; }

// Lines that all products of a tile of so many rows can fetch in each of their steps.
constexpr int64_t dot_ahead_lines(int rows, int panels) {
  const int vectors = dot_vectors(rows);
  return (panels * kDotPanelVectors + vectors - 1) / vectors * dot_ahead_lines(vectors);
}

// One tile of codes against panels of weights.
struct DotWork {
  const dot_code *codes;
  const int8_t *weights;  // the panel to the right is panel_bytes further on
  int64_t panel_bytes;
  int panels;
  int64_t steps;
  int32_t *sums;       // of all panels of a row side by side
  int64_t sum_stride;  // from row to row
  bool add;            // to what is in sums
  DotAhead ahead;
};

// sums[row][vector] (+)= codes · weights. `panel` and `vector` are where the tile begins.
template <int rows, int vectors>
static __attribute__((noinline)) void dot_tile(DotWork &work, int panel, int vector) {
  constexpr int kAheadLines = dot_ahead_lines(vectors);
  const dot_code *codes = work.codes;
  const int8_t *weights = work.weights + panel * work.panel_bytes + vector * (kDotColumns * kDotDepth);
  const int64_t panel_bytes = work.panel_bytes, steps = work.steps;
  const int8_t *ahead[kAheadLines];
  const int shift = work.ahead.shift;
  for (int i = 0; i < kAheadLines; ++i) {
    const int64_t part = work.ahead.part++;
    const int64_t begin = (part >> shift) * panel_bytes + (part & ((1 << shift) - 1)) * (steps * kDotLine >> shift);
    ahead[i] = part < work.ahead.parts ? work.ahead.weights + begin : weights;
  }
  int32_t *sums = work.sums + panel * kDotPanelLanes + vector * kDotLanes;
  DotSum sum[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      sum[r][v] = DotSum{};
      if (work.add) memcpy(&sum[r][v], sums + r * work.sum_stride + v * kDotLanes, sizeof(DotSum));
    }
  for (int64_t step = 0; step < steps; ++step) {
    DotWeights w[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v)
      w[v] =
          dot_weights(weights + v / kDotPanelVectors * panel_bytes + v % kDotPanelVectors * (kDotColumns * kDotDepth));
#pragma GCC unroll 8
    for (int i = 0; i < kAheadLines; ++i)
      __builtin_prefetch(ahead[i] + (step * kDotLine >> shift), 0, kDotGroup == 1 ? 3 : 2);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const DotCodes c = dot_codes(codes + r * kDotDepth);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sum[r][v] = dot_add(sum[r][v], w[v], c);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) ANYFUSE_KEEP_IN_REGISTER(sum[r][v]);
    }
    codes += rows * kDotDepth;
    weights += kDotLine;
  }
#if defined(ANYFUSE_INJECT_DOT_MISMATCH)  // for the test of what happens when a kernel is wrong
  sum[0][0] = dot_add(sum[0][0], dot_weights(weights - kDotLine), dot_codes(codes - kDotDepth));
#endif
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) memcpy(sums + r * work.sum_stride + v * kDotLanes, &sum[r][v], sizeof(DotSum));
}

template <int rows>
ANYFUSE_INLINE void dot_row_of_tiles(DotWork &work) {
  constexpr int vectors = dot_vectors(rows);
  if constexpr (vectors <= kDotPanelVectors) {  // a panel is one tile or more
    for (int panel = 0; panel < work.panels; ++panel)
      for (int v = 0; v < kDotPanelVectors; v += vectors) dot_tile<rows, vectors>(work, panel, v);
  } else {  // a panel is one vector
    static_assert(vectors == 4 && kDotPanelVectors == 1, "tiles of 1 to 4 panels");
    int panel = 0;
    for (; panel + 4 <= work.panels; panel += 4) dot_tile<rows, 4>(work, panel, 0);
    if (work.panels - panel == 3) dot_tile<rows, 3>(work, panel, 0);
    if (work.panels - panel == 2) dot_tile<rows, 2>(work, panel, 0);
    if (work.panels - panel == 1) dot_tile<rows, 1>(work, panel, 0);
  }
}

// A tile of 1 to kDotRows rows.
ANYFUSE_INLINE void dot_panels(int rows, DotWork &work) {
  switch (rows) {
    case 1:
      return dot_row_of_tiles<1>(work);
    case 2:
      return dot_row_of_tiles<2>(work);
    case 3:
      return dot_row_of_tiles<3>(work);
    case 4:
      return dot_row_of_tiles<4>(work);
    case 5:
      return dot_row_of_tiles<5>(work);
    default:
      return dot_row_of_tiles<6>(work);
  }
}
