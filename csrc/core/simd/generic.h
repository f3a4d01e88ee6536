// Any processor: what the compiler's vector types give.
#pragma once
#define ANYFUSE_VECTOR_BYTES 16
#include "core/simd/vectors.h"

using namespace portable;

ANYFUSE_INLINE vf sqrt(vf v) {
  for (int i = 0; i < kWidth; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
}

ANYFUSE_INLINE bool any_above(vu v, uint32_t limit) {
  const vi above = (vi)v > (vi)set_bits(limit);
  int32_t any = 0;
  for (int i = 0; i < kWidth; ++i) any |= above[i];
  return any != 0;
}

ANYFUSE_INLINE void store_bytes(int8_t *to, const vi *v) {
  for (int i = 0; i < 4; ++i) {
    const vb bytes = __builtin_convertvector(v[i], vb);
    memcpy(to + i * kWidth, &bytes, sizeof bytes);
  }
}

ANYFUSE_INLINE vu join(const four *part) { return (vu)part[0]; }

// ---- dot.h ----

typedef int8_t dot_code;
typedef int8_t DotBytes __attribute__((vector_size(4)));
typedef int32_t DotSum __attribute__((vector_size(16)));
typedef DotSum DotWeights;
typedef DotSum DotCodes;
constexpr int kDotColumns = 1, kDotParts = 4, kDotOffset = 0;
constexpr int dot_vectors(int rows) { return rows <= 2 ? 4 : 2; }

ANYFUSE_INLINE DotSum dot_widen(const int8_t *p) {
  DotBytes four;
  memcpy(&four, p, sizeof four);
  return __builtin_convertvector(four, DotSum);
}
ANYFUSE_INLINE DotWeights dot_weights(const int8_t *p) { return dot_widen(p); }
ANYFUSE_INLINE DotCodes dot_codes(const dot_code *p) { return dot_widen(p); }
ANYFUSE_INLINE DotSum dot_add(DotSum sum, DotWeights w, DotCodes c) { return sum + w * c; }
#define ANYFUSE_KEEP_IN_REGISTER(sum) (void)(sum)
