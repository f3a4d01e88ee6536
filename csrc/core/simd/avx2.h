// AVX2 with F16C.
#pragma once
#include <immintrin.h>
#define ANYFUSE_VECTOR_BYTES 32
#include "core/simd/vectors.h"

using portable::load_part;
using portable::store_part;
using portable::upper_halves;

ANYFUSE_INLINE void store_past_caches(float *p, vf v) { _mm256_stream_ps(p, (__m256)v); }
ANYFUSE_INLINE void flush_past_caches() { _mm_sfence(); }

ANYFUSE_INLINE vf sqrt(vf v) { return (vf)_mm256_sqrt_ps((__m256)v); }

ANYFUSE_INLINE bool any_above(vu v, uint32_t limit) {
  return _mm256_movemask_ps((__m256)((vi)v > (vi)set_bits(limit))) != 0;
}

ANYFUSE_INLINE void store_bytes(int8_t *to, const vi *v) {
  const __m256i low = _mm256_packs_epi32((__m256i)v[0], (__m256i)v[1]);
  const __m256i high = _mm256_packs_epi32((__m256i)v[2], (__m256i)v[3]);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packing works within each half
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
  memcpy(to, &bytes, sizeof bytes);
}

ANYFUSE_INLINE vu join(const four *part) { return (vu)_mm256_set_m128i((__m128i)part[1], (__m128i)part[0]); }

ANYFUSE_INLINE void store_bytes(uint8_t *to, vu v) {
  const __m128i low = _mm256_castsi256_si128((__m256i)v), high = _mm256_extracti128_si256((__m256i)v, 1);
  const __m128i words = _mm_packus_epi32(low, high);
  _mm_storel_epi64((__m128i *)to, _mm_packus_epi16(words, words));
}

ANYFUSE_INLINE vu widen_bits(vh h) { return (vu)_mm256_cvtepu16_epi32((__m128i)h); }
ANYFUSE_INLINE vh narrow_bits(vu v) {
  const __m256i packed = _mm256_packus_epi32((__m256i)v, (__m256i)v);
  return (vh)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}

ANYFUSE_INLINE vf fp16_to_float(vh h) { return (vf)_mm256_cvtph_ps((__m128i)h); }
ANYFUSE_INLINE vh float_to_fp16(vf v) {
  const vh half = (vh)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
  return narrow_bits(v == v ? widen_bits(half) : set_bits(0x7e00));
}

// ---- dot.h: vpmaddwd of 16-bit values is exact (vpmaddubsw saturates): 4 columns, their even and odd pairs of k
// apart ----

typedef int16_t dot_code;
typedef __m256i DotSum;
typedef __m256i DotWeights;
typedef __m256i DotCodes;
constexpr int kDotColumns = 4, kDotParts = 2, kDotOffset = 0;
constexpr int dot_vectors(int rows) { return rows <= 2 ? 4 : 2; }

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
