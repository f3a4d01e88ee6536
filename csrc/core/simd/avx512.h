// AVX-512 F, BW, DQ, VL and VNNI.
#pragma once
#include <immintrin.h>
#define ANYFUSE_VECTOR_BYTES 64
#include "core/simd/vectors.h"

ANYFUSE_INLINE void store_past_caches(float *p, vf v) { _mm512_stream_ps(p, (__m512)v); }
ANYFUSE_INLINE void flush_past_caches() { _mm_sfence(); }

ANYFUSE_INLINE vf load_part(const float *p, int64_t n) {
  return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
}
ANYFUSE_INLINE void store_part(float *p, vf v, int64_t n) {
  _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), (__m512)v);
}

ANYFUSE_INLINE vf sqrt(vf v) { return (vf)_mm512_sqrt_ps((__m512)v); }

ANYFUSE_INLINE bool any_above(vu v, uint32_t limit) {
  return _mm512_movepi32_mask((__m512i)((vi)v > (vi)set_bits(limit))) != 0;
}

ANYFUSE_INLINE void store_bytes(int8_t *to, const vi *v) {
  for (int i = 0; i < 4; ++i) {
    const __m128i bytes = _mm512_cvtepi32_epi8((__m512i)v[i]);
    memcpy(to + i * kWidth, &bytes, sizeof bytes);
  }
}

ANYFUSE_INLINE vu join(const four *part) {
  const __m512i low = _mm512_inserti32x4(_mm512_castsi128_si512((__m128i)part[0]), (__m128i)part[1], 1);
  return (vu)_mm512_inserti32x4(_mm512_inserti32x4(low, (__m128i)part[2], 2), (__m128i)part[3], 3);
}

// Two from one load (18 % of the whole 8-bit AdamW step); narrower vectors take more instructions an element already.
ANYFUSE_INLINE void upper_halves(const float *lanes, uint16_t *half) {
  uint64_t two[2];
  memcpy(two, lanes, sizeof two);
  for (int k = 0; k < 4; ++k) half[k] = (uint16_t)(two[k / 2] >> (k % 2 == 0 ? 16 : 48));
}

ANYFUSE_INLINE void store_bytes(uint8_t *to, vu v) {
  _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8((__m512i)v));
}

ANYFUSE_INLINE vu widen_bits(vh h) { return (vu)_mm512_cvtepu16_epi32((__m256i)h); }
ANYFUSE_INLINE vh narrow_bits(vu v) { return (vh)_mm512_cvtepi32_epi16((__m512i)v); }

ANYFUSE_INLINE vf fp16_to_float(vh h) { return (vf)_mm512_cvtph_ps((__m256i)h); }
ANYFUSE_INLINE vh float_to_fp16(vf v) {
  const __m512i half = _mm512_cvtepu16_epi32(_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
  return narrow_bits(v == v ? (vu)half : set_bits(0x7e00));
}

// ---- dot.h: vpdpbusd multiplies unsigned by signed bytes: the weights are taken as w + 128, and the sum is too large
// by 128 times the sum of the codes, which is one number for a whole row ----

typedef int8_t dot_code;
typedef __m512i DotSum;
typedef __m512i DotWeights;
typedef __m512i DotCodes;
constexpr int kDotColumns = 16, kDotParts = 1, kDotOffset = 128;
constexpr int dot_vectors(int) { return 4; }

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
