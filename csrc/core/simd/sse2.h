// SSE2, which every x86-64 processor has.
#pragma once
#include <emmintrin.h>
#define ANYFUSE_VECTOR_BYTES 16
#include "core/simd/vectors.h"

using portable::float_to_fp16;
using portable::fp16_to_float;
using portable::load_part;
using portable::narrow_bits;
using portable::store_part;
using portable::upper_halves;
using portable::widen_bits;

ANYFUSE_INLINE void store_past_caches(float *p, vf v) { _mm_stream_ps(p, (__m128)v); }
ANYFUSE_INLINE void flush_past_caches() { _mm_sfence(); }

ANYFUSE_INLINE vf sqrt(vf v) { return (vf)_mm_sqrt_ps((__m128)v); }

ANYFUSE_INLINE bool any_above(vu v, uint32_t limit) {
  return _mm_movemask_ps((__m128)((vi)v > (vi)set_bits(limit))) != 0;
}

ANYFUSE_INLINE void store_bytes(int8_t *to, const vi *v) {
  const __m128i low = _mm_packs_epi32((__m128i)v[0], (__m128i)v[1]);
  const __m128i high = _mm_packs_epi32((__m128i)v[2], (__m128i)v[3]);
  const __m128i bytes = _mm_packs_epi16(low, high);
  memcpy(to, &bytes, sizeof bytes);
}

ANYFUSE_INLINE vu join(const four *part) { return (vu)part[0]; }

ANYFUSE_INLINE void store_bytes(uint8_t *to, vu v) {
  const __m128i words = _mm_packs_epi32((__m128i)v, (__m128i)v);
  const int32_t bytes = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
  memcpy(to, &bytes, sizeof bytes);
}

// ---- dot.h: as avx2.h, half as wide ----

typedef int16_t dot_code;
typedef __m128i DotSum;
typedef __m128i DotWeights;
typedef __m128i DotCodes;
constexpr int kDotColumns = 2, kDotParts = 2, kDotOffset = 0;
constexpr int dot_vectors(int rows) { return rows <= 2 ? 4 : 2; }

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
