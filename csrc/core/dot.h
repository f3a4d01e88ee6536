// int8 x int8 -> int32, exact for every value on every target. For the kernel pass only.
//
// Weights lie in panels of 16 columns, one order for every target: a step is 4 values of k, a line is one step of a
// panel, and column j of a panel has its 4 values at byte 4 j of the line. A line is one vector of the widest
// instruction set, and every narrower one cuts it into whole columns. Codes (the quantized rows) lie in tiles: 4 values
// of k of each row of the tile, then the next step.
//
// A sum vector holds kDotColumns columns with kDotParts partial sums each, side by side. The columns' sums are the
// parts added up, less kDotOffset times the sum of the row's codes, all modulo 2^32: a sum over k <= 131071 fits int32,
// and what overflows on the way to it wraps and comes back.
//
// A target's file in simd/ gives the types of a code in a tile (dot_code), of a sum vector and of what is multiplied
// (DotSum, DotWeights, DotCodes), the three constants above, and:
//
//   dot_weights(p), dot_codes(p)   from memory: a step of kDotColumns columns, a step of one row
//   dot_add(sum, w, c)             sum + w c
//   dot_vectors(rows)              sum vectors side by side in one tile: with few rows more of them, so that a narrow
//                                  target reads whole lines of weights; with many rows as many as leave the sums in
//                                  registers
//   ANYFUSE_KEEP_IN_REGISTER(sum)  the compiler neither spills the sum nor moves its additions apart
#pragma once
#include "core/simd.h"

constexpr int kDotDepth = 4;                     // values of k in a step
constexpr int kDotPanel = 16;                    // columns in a panel
constexpr int kDotLine = kDotPanel * kDotDepth;  // bytes
constexpr int kDotRows = 6;                      // most rows in a tile of codes

constexpr int kDotLanes = kDotColumns * kDotParts;            // int32 in a sum vector
constexpr int kDotPanelVectors = kDotPanel / kDotColumns;     // sum vectors of a panel, for one row
constexpr int kDotPanelLanes = kDotPanelVectors * kDotLanes;  // int32 of a panel, for one row
static_assert(sizeof(DotSum) == kDotLanes * sizeof(int32_t), "a sum vector is its lanes");

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
