// AArch64 with NEON; with the int8 dot product where the target has it.
#pragma once
#include <arm_neon.h>
#define ANYFUSE_VECTOR_BYTES 16
#include "core/simd/vectors.h"

using portable::flush_past_caches;
using portable::load_part;
using portable::narrow_bits;
using portable::store_bytes;
using portable::store_part;
using portable::store_past_caches;
using portable::upper_halves;
using portable::widen_bits;

ANYFUSE_INLINE vf sqrt(vf v) { return (vf)vsqrtq_f32((float32x4_t)v); }

ANYFUSE_INLINE bool any_above(vu v, uint32_t limit) {
  return vmaxvq_u32((uint32x4_t)((vi)v > (vi)set_bits(limit))) != 0;
}

ANYFUSE_INLINE void store_bytes(int8_t *to, const vi *v) {
  const int16x8_t low = vcombine_s16(vmovn_s32((int32x4_t)v[0]), vmovn_s32((int32x4_t)v[1]));
  const int16x8_t high = vcombine_s16(vmovn_s32((int32x4_t)v[2]), vmovn_s32((int32x4_t)v[3]));
  vst1q_s8(to, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}

ANYFUSE_INLINE vu join(const four *part) { return (vu)part[0]; }

ANYFUSE_INLINE vf fp16_to_float(vh h) { return (vf)vcvt_f32_f16((float16x4_t)h); }
ANYFUSE_INLINE vh float_to_fp16(vf v) {
  const vh half = (vh)vcvt_f16_f32((float32x4_t)v);
  return narrow_bits(v == v ? widen_bits(half) : set_bits(0x7e00));
}

// ---- dot.h ----

typedef int8_t dot_code;
typedef int32x4_t DotSum;
// "memory": GCC otherwise loads the codes of all rows first, and a sum is spilled for want of a register.
#define ANYFUSE_KEEP_IN_REGISTER(sum) __asm__ volatile("" : "+w"(sum) : : "memory")

#if defined(__ARM_FEATURE_DOTPROD)

typedef int8x16_t DotWeights;
typedef int8x16_t DotCodes;
constexpr int kDotColumns = 4, kDotParts = 1, kDotOffset = 0;
constexpr int dot_vectors(int) { return 4; }

ANYFUSE_INLINE DotWeights dot_weights(const int8_t *p) { return vld1q_s8(p); }
ANYFUSE_INLINE DotCodes dot_codes(const dot_code *p) {
  int32_t four;
  memcpy(&four, p, sizeof four);
  return vreinterpretq_s8_s32(vdupq_n_s32(four));
}
ANYFUSE_INLINE DotSum dot_add(DotSum sum, DotWeights w, DotCodes c) { return vdotq_s32(sum, w, c); }

#else

// Each product is widened to 16 bits and added in pairs at once: two products of -128 by -128 already overflow int16.
typedef int8x8_t DotWeights;
typedef int8x8_t DotCodes;
constexpr int kDotColumns = 2, kDotParts = 2, kDotOffset = 0;
constexpr int dot_vectors(int rows) { return rows <= 3 ? 8 : 4; }

ANYFUSE_INLINE DotWeights dot_weights(const int8_t *p) { return vld1_s8(p); }
ANYFUSE_INLINE DotCodes dot_codes(const dot_code *p) {
  int32_t four;
  memcpy(&four, p, sizeof four);
  return vreinterpret_s8_s32(vdup_n_s32(four));
}
ANYFUSE_INLINE DotSum dot_add(DotSum sum, DotWeights w, DotCodes c) { return vpadalq_s16(sum, vmull_s8(w, c)); }

#endif
