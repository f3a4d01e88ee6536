// int8 weights as they lie in a matrix, brought into the panels of core/dot.h. For the kernel pass only.
#pragma once
#include "anyfuse.h"
#include "core/dot.h"

typedef int8_t b16 __attribute__((vector_size(16)));
typedef int16_t h8 __attribute__((vector_size(16)));
typedef int32_t w4 __attribute__((vector_size(16)));

// `count` bytes of a vector, the rest 0.
ANYFUSE_INLINE b16 load_bytes(const int8_t *from, int64_t count) {
  b16 v = {};
  if (count >= 16)
    memcpy(&v, from, 16);
  else if (count > 0)
    memcpy(&v, from, count);
  return v;
}

// 16 values of k of 4 columns: column j at from + j·stride, of which `depth` are there; columns from `columns` on are
// 0.
template <bool whole>
ANYFUSE_INLINE void pack_group(const int8_t *from, int64_t stride, int64_t columns, int64_t depth, int8_t *to) {
  w4 r[4];
  for (int i = 0; i < 4; ++i) r[i] = (w4)load_bytes(from + i * stride, whole ? 16 : i < columns ? depth : 0);
  const w4 a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5), b = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
  const w4 c = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5), d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
  const w4 step[4] = {__builtin_shufflevector(a, c, 0, 1, 4, 5), __builtin_shufflevector(a, c, 2, 3, 6, 7),
                      __builtin_shufflevector(b, d, 0, 1, 4, 5), __builtin_shufflevector(b, d, 2, 3, 6, 7)};
  for (int i = 0; i < 4; ++i) memcpy(to + i * kDotLine, &step[i], 16);
}

// One panel of up to 16 columns from rows of k: column j at from + j·stride. Writes whole groups of 16 values of k. The
// same columns `ahead` values of k further on are fetched.
ANYFUSE_INLINE void pack_rows_of_k(const int8_t *from, int64_t stride, int64_t columns, int64_t depth, int64_t ahead,
                                   int8_t *to) {
  for (int64_t line = 0; line < depth; line += 64)  // a cache line of a column at a time: columns may lie 4 KiB apart
    for (int64_t j = 0; j < kDotPanel; j += 4) {
      const int8_t *column = from + j * stride;
      int8_t *group = to + 4 * j;
      for (int i = 0; i < 4; ++i)  // the next block of k; no stream that the hardware would follow
        if (j + i < columns) __builtin_prefetch(column + i * stride + line + ahead, 0, 2);
      const int64_t end = line + 64 < depth ? line + 64 : depth;
      int64_t k = line;
      if (j + 4 <= columns)
        for (; k + 16 <= end; k += 16) pack_group<true>(column + k, stride, 4, 16, group + k * kDotPanel);
      for (; k < end; k += 16) pack_group<false>(column + k, stride, columns - j, end - k, group + k * kDotPanel);
    }
}

// 4 values of k of 16 columns: value i at from + i·stride, of which `depth` are there.
template <bool whole>
ANYFUSE_INLINE void pack_step(const int8_t *from, int64_t stride, int64_t columns, int64_t depth, int8_t *to) {
  b16 r[4];
  for (int i = 0; i < 4; ++i) r[i] = load_bytes(from + i * stride, whole ? 16 : i < depth ? columns : 0);
#define ANYFUSE_LOW(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define ANYFUSE_HIGH(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
  const h8 a = (h8)ANYFUSE_LOW(r[0], r[1]), b = (h8)ANYFUSE_HIGH(r[0], r[1]);
  const h8 c = (h8)ANYFUSE_LOW(r[2], r[3]), d = (h8)ANYFUSE_HIGH(r[2], r[3]);
#undef ANYFUSE_LOW
#undef ANYFUSE_HIGH
  const h8 line[4] = {__builtin_shufflevector(a, c, 0, 8, 1, 9, 2, 10, 3, 11),
                      __builtin_shufflevector(a, c, 4, 12, 5, 13, 6, 14, 7, 15),
                      __builtin_shufflevector(b, d, 0, 8, 1, 9, 2, 10, 3, 11),
                      __builtin_shufflevector(b, d, 4, 12, 5, 13, 6, 14, 7, 15)};
  memcpy(to, line, sizeof line);
}

// One panel of up to 16 columns from rows of columns: value k at from + k·stride. Writes whole steps.
ANYFUSE_INLINE void pack_rows_of_columns(const int8_t *from, int64_t stride, int64_t columns, int64_t depth,
                                         int8_t *to) {
  int64_t k = 0;
  if (columns == kDotPanel)
    for (; k + 4 <= depth; k += 4) pack_step<true>(from + k * stride, stride, 16, 4, to + k * kDotPanel);
  for (; k < depth; k += 4) pack_step<false>(from + k * stride, stride, columns, depth - k, to + k * kDotPanel);
}

// A weight W[n, k] in one of the layouts of anyfuse.h that are not packed.
struct PlainWeight {
  const int8_t *data;
  int32_t layout;
  int64_t n, k;
};

// Columns of `panel`, values [begin, begin + depth) of k; begin is a multiple of 32. `ahead`: how much of k is packed
// at a time.
ANYFUSE_INLINE void pack_panel(const PlainWeight &weight, int64_t panel, int64_t begin, int64_t depth, int64_t ahead,
                               int8_t *to) {
  const int64_t n = weight.n, k = weight.k, j = panel * kDotPanel;
  const int64_t columns = n - j < kDotPanel ? n - j : kDotPanel;
  switch (weight.layout) {
    case ANYFUSE_WEIGHT_NK:
      return pack_rows_of_k(weight.data + j * k + begin, k, columns, depth, ahead, to);
    case ANYFUSE_WEIGHT_KN:
      return pack_rows_of_columns(weight.data + begin * n + j, n, columns, depth, to);
    case ANYFUSE_WEIGHT_NZ_NK: {
      const int64_t panels = (n + 15) / 16;
      for (int64_t i = 0; i < depth; i += 32)
        pack_rows_of_k(weight.data + ((begin + i) / 32 * panels + panel) * 512, 32, columns,
                       depth - i < 32 ? depth - i : 32, ahead, to + i * kDotPanel);
      return;
    }
    default: {  // ANYFUSE_WEIGHT_NZ_KN
      const int64_t k_blocks = (k + 15) / 16;
      for (int64_t i = 0; i < depth; i += 16)
        pack_rows_of_columns(weight.data + (j / 32 * k_blocks + (begin + i) / 16) * 512 + j % 32, 32, columns,
                             depth - i < 16 ? depth - i : 16, to + i * kDotPanel);
    }
  }
}
