// Vectors of the target's native width, for the kernel pass only. Arithmetic is written with the operators of the
// compiler's vector types (+ - * / compare and ?:), which round each operation once; what they lack is here. This file
// and dot.h are the only ones with intrinsics. Everything is forced inline: nothing here may become a symbol.
#pragma once
#include <stdint.h>
#include <string.h>

#include "anyfuse.h"

#if defined(ANYFUSE_TARGET_IS_avx512)
#define ANYFUSE_VECTOR_BYTES 64
#include <immintrin.h>
#elif defined(ANYFUSE_TARGET_IS_avx2)
#define ANYFUSE_VECTOR_BYTES 32
#include <immintrin.h>
#else
#define ANYFUSE_VECTOR_BYTES 16
#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(ANYFUSE_TARGET_IS_neon) || defined(ANYFUSE_TARGET_IS_neon_dot)
#define ANYFUSE_NEON 1
#include <arm_neon.h>
#endif
#endif

#define ANYFUSE_INLINE static inline __attribute__((always_inline))

// Native-width vectors: wider ones (a 64-byte vector under AVX2) are spilled to the stack by GCC, measured 5 times
// slower.
typedef float vf __attribute__((vector_size(ANYFUSE_VECTOR_BYTES)));
typedef int32_t vi __attribute__((vector_size(ANYFUSE_VECTOR_BYTES)));
typedef uint32_t vu __attribute__((vector_size(ANYFUSE_VECTOR_BYTES)));
typedef uint16_t vh __attribute__((vector_size(ANYFUSE_VECTOR_BYTES / 2)));
typedef int8_t vb __attribute__((vector_size(ANYFUSE_VECTOR_BYTES / 4)));

constexpr int kWidth = ANYFUSE_VECTOR_BYTES / 4;  // fp32 lanes

ANYFUSE_INLINE vf set(float x) {
  vf v;
  for (int i = 0; i < kWidth; ++i) v[i] = x;
  return v;
}
ANYFUSE_INLINE vu set_bits(uint32_t x) { return x - (vu){}; }

ANYFUSE_INLINE vf load(const float *p) {
  vf v;
  memcpy(&v, p, sizeof v);
  return v;
}
ANYFUSE_INLINE void store(float *p, vf v) { memcpy(p, &v, sizeof v); }

// A store that does not bring its line into the caches first, where the target has one. `p` is aligned to the vector.
// Other threads see it after flush_past_caches.
ANYFUSE_INLINE void store_past_caches(float *p, vf v) {
#if defined(ANYFUSE_TARGET_IS_avx512)
  _mm512_stream_ps(p, (__m512)v);
#elif defined(ANYFUSE_TARGET_IS_avx2)
  _mm256_stream_ps(p, (__m256)v);
#elif defined(__SSE2__)
  _mm_stream_ps(p, (__m128)v);
#else
  store(p, v);
#endif
}
ANYFUSE_INLINE void flush_past_caches() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// n < kWidth elements in powers of two: a memcpy of a size that is not constant would be a call for every row.
template <typename T>
ANYFUSE_INLINE void copy_part(T *to, const T *from, int64_t n) {
  for (int64_t block = kWidth / 2; block > 0; block /= 2) {
    if ((n & block) == 0) continue;
    __builtin_memcpy(to, from, block * sizeof(T));
    to += block;
    from += block;
  }
}

// The first n < kWidth lanes from memory, zero in the others; and to memory. Nothing beyond those n elements is
// touched.
ANYFUSE_INLINE vf load_part(const float *p, int64_t n) {
#if defined(ANYFUSE_TARGET_IS_avx512)
  return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
#else
  float lanes[kWidth] = {};
  copy_part(lanes, p, n);
  return load(lanes);
#endif
}
ANYFUSE_INLINE void store_part(float *p, vf v, int64_t n) {
#if defined(ANYFUSE_TARGET_IS_avx512)
  _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), (__m512)v);
#else
  float lanes[kWidth];
  store(lanes, v);
  copy_part(p, lanes, n);
#endif
}

ANYFUSE_INLINE vu bits(vf v) { return (vu)v; }
ANYFUSE_INLINE vf from_bits(vu v) { return (vf)v; }
ANYFUSE_INLINE vf abs(vf v) { return from_bits(bits(v) & 0x7fffffffu); }

// Correctly rounded.
ANYFUSE_INLINE vf sqrt(vf v) {
#if defined(ANYFUSE_TARGET_IS_avx512)
  return (vf)_mm512_sqrt_ps((__m512)v);
#elif defined(ANYFUSE_TARGET_IS_avx2)
  return (vf)_mm256_sqrt_ps((__m256)v);
#elif defined(__SSE2__)
  return (vf)_mm_sqrt_ps((__m128)v);
#elif defined(ANYFUSE_NEON)
  return (vf)vsqrtq_f32((float32x4_t)v);
#else
  for (int i = 0; i < kWidth; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
#endif
}

// Nearest integer, ties to even, for |v| < 2^22 (beyond it, and for NaN, a value of that size or NaN). The addition of
// 1.5 * 2^23 leaves no bit below one, so that it is the rounding; a zero comes out as +0.
ANYFUSE_INLINE vf rint_small(vf v) { return (v + 12582912.0f) - 12582912.0f; }

// The larger magnitude, where NaN is the largest: compared as integers, the bits of |x| order numbers, inf and NaN so.
// The sign bit is clear, so that the signed comparison, which every target has, is the same one.
ANYFUSE_INLINE vu max_magnitude(vu a, vu b) { return (vi)a > (vi)b ? a : b; }

ANYFUSE_INLINE uint32_t horizontal_max(vu v) {
  uint32_t lanes[kWidth], m = 0;
  memcpy(lanes, &v, sizeof v);
  for (int i = 0; i < kWidth; ++i) m = lanes[i] > m ? lanes[i] : m;
  return m;
}

// Whether any lane is above the limit; all lanes and the limit below 2^31.
ANYFUSE_INLINE bool any_above(vu v, uint32_t limit) {
  const vi above = (vi)v > (vi)set_bits(limit);
#if defined(ANYFUSE_TARGET_IS_avx512)
  return _mm512_movepi32_mask((__m512i)above) != 0;
#elif defined(ANYFUSE_TARGET_IS_avx2)
  return _mm256_movemask_ps((__m256)above) != 0;
#elif defined(__SSE2__)
  return _mm_movemask_ps((__m128)above) != 0;
#elif defined(ANYFUSE_NEON)
  return vmaxvq_u32((uint32x4_t)above) != 0;
#else
  int32_t any = 0;
  for (int i = 0; i < kWidth; ++i) any |= above[i];
  return any != 0;
#endif
}

// Four vectors of lanes in [-128, 127] as 4 * kWidth bytes.
ANYFUSE_INLINE void store_bytes(int8_t *to, const vi *v) {
#if defined(ANYFUSE_TARGET_IS_avx512)
  for (int i = 0; i < 4; ++i) {
    const __m128i bytes = _mm512_cvtepi32_epi8((__m512i)v[i]);
    memcpy(to + i * kWidth, &bytes, sizeof bytes);
  }
#elif defined(ANYFUSE_TARGET_IS_avx2)
  const __m256i low = _mm256_packs_epi32((__m256i)v[0], (__m256i)v[1]);
  const __m256i high = _mm256_packs_epi32((__m256i)v[2], (__m256i)v[3]);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packing works within each half
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
  memcpy(to, &bytes, sizeof bytes);
#elif defined(__SSE2__)
  const __m128i low = _mm_packs_epi32((__m128i)v[0], (__m128i)v[1]);
  const __m128i high = _mm_packs_epi32((__m128i)v[2], (__m128i)v[3]);
  const __m128i bytes = _mm_packs_epi16(low, high);
  memcpy(to, &bytes, sizeof bytes);
#elif defined(ANYFUSE_NEON)
  const int16x8_t low = vcombine_s16(vmovn_s32((int32x4_t)v[0]), vmovn_s32((int32x4_t)v[1]));
  const int16x8_t high = vcombine_s16(vmovn_s32((int32x4_t)v[2]), vmovn_s32((int32x4_t)v[3]));
  vst1q_s8(to, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
#else
  for (int i = 0; i < 4; ++i) {
    const vb bytes = __builtin_convertvector(v[i], vb);
    memcpy(to + i * kWidth, &bytes, sizeof bytes);
  }
#endif
}

// ---- tables, kWidth entries at a time ----

// From memory: scalar loads, which cost less than a gather instruction on the CPUs measured.
ANYFUSE_INLINE vf lookup(const float *table, vu index) {
  uint32_t at[kWidth];
  memcpy(at, &index, sizeof at);
  vf v;
  for (int i = 0; i < kWidth; ++i) v[i] = table[at[i]];
  return v;
}

// Several indices are taken from one load: the loads are the limit. Vectors are put together four entries at a time:
// GCC would fill a 64-byte one by a masked broadcast a lane.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "indices are cut out of loaded words");
typedef uint32_t four __attribute__((vector_size(16)));
typedef uint32_t __attribute__((may_alias)) any32;  // the bits of a float where they lie
ANYFUSE_INLINE vu join(const four *part) {
#if defined(ANYFUSE_TARGET_IS_avx512)
  const __m512i low = _mm512_inserti32x4(_mm512_castsi128_si512((__m128i)part[0]), (__m128i)part[1], 1);
  return (vu)_mm512_inserti32x4(_mm512_inserti32x4(low, (__m128i)part[2], 2), (__m128i)part[3], 3);
#elif defined(ANYFUSE_TARGET_IS_avx2)
  return (vu)_mm256_set_m128i((__m128i)part[1], (__m128i)part[0]);
#else
  return (vu)part[0];
#endif
}

// The upper halves of four lanes in memory: under AVX-512 two from one load (18 % of the whole 8-bit AdamW step), with
// narrower vectors, which take more instructions an element already, a load each.
ANYFUSE_INLINE void upper_halves(const float *lanes, uint16_t *half) {
#if defined(ANYFUSE_TARGET_IS_avx512)
  uint64_t two[2];
  memcpy(two, lanes, sizeof two);
  for (int k = 0; k < 4; ++k) half[k] = (uint16_t)(two[k / 2] >> (k % 2 == 0 ? 16 : 48));
#else
  for (int k = 0; k < 4; ++k) memcpy(half + k, (const char *)(lanes + k) + 2, sizeof *half);
#endif
}

// table[upper half of key[i]].
ANYFUSE_INLINE vu lookup_upper_half(const uint32_t *table, const float *key) {
  four part[kWidth / 4];
  for (int i = 0; i < kWidth / 4; ++i) {
    uint16_t h[4];
    upper_halves(key + 4 * i, h);
    part[i] = (four){table[h[0]], table[h[1]], table[h[2]], table[h[3]]};
  }
  return join(part);
}

// table[byte[i]].
ANYFUSE_INLINE vf lookup_bytes(const float *table, const uint8_t *byte) {
  const any32 *t = (const any32 *)table;
  four part[kWidth / 4];
  for (int i = 0; i < kWidth / 4; ++i) {
    uint32_t b;
    memcpy(&b, byte + 4 * i, sizeof b);
    part[i] = (four){t[b & 255], t[(b >> 8) & 255], t[(b >> 16) & 255], t[b >> 24]};
  }
  return from_bits(join(part));
}

// The lanes, each below 2^8, as kWidth bytes.
ANYFUSE_INLINE void store_bytes(uint8_t *to, vu v) {
#if defined(ANYFUSE_TARGET_IS_avx512)
  _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8((__m512i)v));
#elif defined(ANYFUSE_TARGET_IS_avx2)
  const __m128i low = _mm256_castsi256_si128((__m256i)v), high = _mm256_extracti128_si256((__m256i)v, 1);
  const __m128i words = _mm_packus_epi32(low, high);
  _mm_storel_epi64((__m128i *)to, _mm_packus_epi16(words, words));
#elif defined(__SSE2__)
  const __m128i words = _mm_packs_epi32((__m128i)v, (__m128i)v);
  const int32_t bytes = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
  memcpy(to, &bytes, sizeof bytes);
#else
  for (int i = 0; i < kWidth; ++i) to[i] = (uint8_t)v[i];
#endif
}

// ---- bf16 and fp16, W at a time. Stores round half to even and write one NaN (0x7FC0, 0x7E00). ----

ANYFUSE_INLINE vu widen_bits(vh h) {
#if defined(ANYFUSE_TARGET_IS_avx512)
  return (vu)_mm512_cvtepu16_epi32((__m256i)h);
#elif defined(ANYFUSE_TARGET_IS_avx2)
  return (vu)_mm256_cvtepu16_epi32((__m128i)h);
#else
  return __builtin_convertvector(h, vu);
#endif
}

// Lanes must be below 2^16.
ANYFUSE_INLINE vh narrow_bits(vu v) {
#if defined(ANYFUSE_TARGET_IS_avx512)
  return (vh)_mm512_cvtepi32_epi16((__m512i)v);
#elif defined(ANYFUSE_TARGET_IS_avx2)
  const __m256i packed = _mm256_packus_epi32((__m256i)v, (__m256i)v);
  return (vh)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#else
  return __builtin_convertvector(v, vh);
#endif
}

ANYFUSE_INLINE vf bf16_to_float(vh h) { return from_bits(widen_bits(h) << 16); }

ANYFUSE_INLINE vh float_to_bf16(vf v) {
  const vu u = bits(v);
  const vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return narrow_bits(v == v ? rounded : set_bits(0x7fc0));
}

ANYFUSE_INLINE vf fp16_to_float(vh h) {
#if defined(ANYFUSE_TARGET_IS_avx512)
  return (vf)_mm512_cvtph_ps((__m256i)h);
#elif defined(ANYFUSE_TARGET_IS_avx2)
  return (vf)_mm256_cvtph_ps((__m128i)h);
#elif defined(ANYFUSE_NEON)
  return (vf)vcvt_f32_f16((float16x4_t)h);
#else
  const vu w = widen_bits(h), magnitude = (w & 0x7fffu) << 13, sign = (w & 0x8000u) << 16;
  const vu normal = magnitude + (112u << 23);
  // Subnormal: put the mantissa below an exponent of 2^-14 and subtract that 2^-14 again.
  const vu small = bits(from_bits(magnitude + (113u << 23)) - from_bits(set_bits(113u << 23)));
  const vu special = magnitude + (224u << 23);
  const vu value = magnitude < (1u << 23) ? small : (magnitude >= (31u << 23) ? special : normal);
  return from_bits(value | sign);
#endif
}

ANYFUSE_INLINE vh float_to_fp16(vf v) {
#if defined(ANYFUSE_TARGET_IS_avx512)
  const __m512i half = _mm512_cvtepu16_epi32(_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
  return narrow_bits(v == v ? (vu)half : set_bits(0x7e00));
#elif defined(ANYFUSE_TARGET_IS_avx2)
  const vh half = (vh)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
  return narrow_bits(v == v ? widen_bits(half) : set_bits(0x7e00));
#elif defined(ANYFUSE_NEON)
  const vh half = (vh)vcvt_f16_f32((float32x4_t)v);
  return narrow_bits(v == v ? widen_bits(half) : set_bits(0x7e00));
#else
  const vu u = bits(v), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  // Normal results: rebias the exponent, and round at bit 13. Subnormal ones: adding 0.5 leaves the mantissa of a half.
  const vu normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const vu small = bits(from_bits(magnitude) + 0.5f) - bits(set(0.5f));
  const vu finite = magnitude < (113u << 23) ? small : normal;
  const vu value = magnitude >= 0x477ff000u ? set_bits(0x7c00) : finite;
  return narrow_bits(v == v ? value | sign : set_bits(0x7e00));
#endif
}

// ---- conversion of runs of elements, any length ----

ANYFUSE_INLINE vf half_to_float(anyfuse_dtype dtype, vh h) {
  return dtype == ANYFUSE_BFLOAT16 ? bf16_to_float(h) : fp16_to_float(h);
}
ANYFUSE_INLINE vh float_to_half(anyfuse_dtype dtype, vf v) {
  return dtype == ANYFUSE_BFLOAT16 ? float_to_bf16(v) : float_to_fp16(v);
}

// Elements [i, i + n) of an array of fp32, fp16 or bf16 as fp32 lanes, n <= kWidth; lanes from n on are zero, and not
// written.
template <anyfuse_dtype dtype>
ANYFUSE_INLINE vf read_lanes(const void *data, int64_t i, int64_t n) {
  if (dtype == ANYFUSE_FLOAT32) {
    const float *p = static_cast<const float *>(data) + i;
    return n == kWidth ? load(p) : load_part(p, n);
  }
  const uint16_t *p = static_cast<const uint16_t *>(data) + i;
  uint16_t lanes[kWidth] = {};
  if (n == kWidth)
    memcpy(lanes, p, sizeof lanes);
  else
    copy_part(lanes, p, n);
  vh h;
  memcpy(&h, lanes, sizeof h);
  return half_to_float(dtype, h);
}
template <anyfuse_dtype dtype>
ANYFUSE_INLINE void write_lanes(void *data, int64_t i, int64_t n, vf v) {
  if (dtype == ANYFUSE_FLOAT32) {
    float *p = static_cast<float *>(data) + i;
    return n == kWidth ? store(p, v) : store_part(p, v, n);
  }
  uint16_t *p = static_cast<uint16_t *>(data) + i;
  const vh h = float_to_half(dtype, v);
  uint16_t lanes[kWidth];
  memcpy(lanes, &h, sizeof lanes);
  if (n == kWidth)
    memcpy(p, lanes, sizeof lanes);
  else
    copy_part(p, lanes, n);
}

// to[0, n) from elements of a 16-bit dtype; the lanes up to the next multiple of kWidth become zero.
ANYFUSE_INLINE void halves_to_floats(anyfuse_dtype dtype, const uint16_t *from, float *to, int64_t n) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    vh h;
    memcpy(&h, from + i, sizeof h);
    store(to + i, half_to_float(dtype, h));
  }
  if (i < n) {
    vh h = {};
    memcpy(&h, from + i, (n - i) * sizeof(uint16_t));
    store(to + i, half_to_float(dtype, h));
  }
}

// to[0, n) in a 16-bit dtype; `from` is readable up to the next multiple of kWidth.
ANYFUSE_INLINE void floats_to_halves(anyfuse_dtype dtype, const float *from, uint16_t *to, int64_t n) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const vh h = float_to_half(dtype, load(from + i));
    memcpy(to + i, &h, sizeof h);
  }
  if (i < n) {
    const vh h = float_to_half(dtype, load(from + i));
    memcpy(to + i, &h, (n - i) * sizeof(uint16_t));
  }
}

// ---- the row sum of the contract: 64 lanes, element k to lane k mod 64, then lane i + lane i+half, half = 32 ... 1
// ----

constexpr int kLanes = 64, kLaneVectors = kLanes / kWidth;

struct LaneSum {
  vf lane[kLaneVectors];
};

ANYFUSE_INLINE float total(const LaneSum &sum) {
  float lanes[kLanes];
  memcpy(lanes, sum.lane, sizeof lanes);
  for (int half = kLanes / 2; half >= kWidth; half /= 2)
    for (int i = 0; i < half; i += kWidth) store(lanes + i, load(lanes + i) + load(lanes + i + half));
  for (int half = kWidth / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i] + lanes[i + half];
  return lanes[0];
}
