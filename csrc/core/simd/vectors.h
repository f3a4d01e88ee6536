// The types of one target's vectors, and what the compiler's vector types give every target alike. A file of this
// folder defines ANYFUSE_VECTOR_BYTES and includes this one; then it gives the whole vocabulary of simd.h and dot.h, in
// the instructions of its target or from `portable`.
#pragma once
#include <stdint.h>
#include <string.h>

#include "anyfuse.h"

#define ANYFUSE_INLINE static inline __attribute__((always_inline))

// Native-width vectors: wider ones (a 64-byte vector under AVX2) are spilled to the stack by GCC, measured 5 times
// slower.
typedef float vf __attribute__((vector_size(ANYFUSE_VECTOR_BYTES)));
typedef int32_t vi __attribute__((vector_size(ANYFUSE_VECTOR_BYTES)));
typedef uint32_t vu __attribute__((vector_size(ANYFUSE_VECTOR_BYTES)));
typedef uint16_t vh __attribute__((vector_size(ANYFUSE_VECTOR_BYTES / 2)));
typedef int8_t vb __attribute__((vector_size(ANYFUSE_VECTOR_BYTES / 4)));
typedef uint32_t four __attribute__((vector_size(16)));

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

ANYFUSE_INLINE vu bits(vf v) { return (vu)v; }
ANYFUSE_INLINE vf from_bits(vu v) { return (vf)v; }
ANYFUSE_INLINE vf abs(vf v) { return from_bits(bits(v) & 0x7fffffffu); }

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

// What several targets have no better instruction for.
namespace portable {

ANYFUSE_INLINE void store_past_caches(float *p, vf v) { store(p, v); }
ANYFUSE_INLINE void flush_past_caches() {}

ANYFUSE_INLINE vf load_part(const float *p, int64_t n) {
  float lanes[kWidth] = {};
  copy_part(lanes, p, n);
  return load(lanes);
}
ANYFUSE_INLINE void store_part(float *p, vf v, int64_t n) {
  float lanes[kWidth];
  store(lanes, v);
  copy_part(p, lanes, n);
}

ANYFUSE_INLINE void upper_halves(const float *lanes, uint16_t *half) {
  for (int k = 0; k < 4; ++k) memcpy(half + k, (const char *)(lanes + k) + 2, sizeof *half);
}

ANYFUSE_INLINE void store_bytes(uint8_t *to, vu v) {
  for (int i = 0; i < kWidth; ++i) to[i] = (uint8_t)v[i];
}

ANYFUSE_INLINE vu widen_bits(vh h) { return __builtin_convertvector(h, vu); }
ANYFUSE_INLINE vh narrow_bits(vu v) { return __builtin_convertvector(v, vh); }

ANYFUSE_INLINE vf fp16_to_float(vh h) {
  const vu w = widen_bits(h), magnitude = (w & 0x7fffu) << 13, sign = (w & 0x8000u) << 16;
  const vu normal = magnitude + (112u << 23);
  // Subnormal: put the mantissa below an exponent of 2^-14 and subtract that 2^-14 again.
  const vu small = bits(from_bits(magnitude + (113u << 23)) - from_bits(set_bits(113u << 23)));
  const vu special = magnitude + (224u << 23);
  const vu value = magnitude < (1u << 23) ? small : (magnitude >= (31u << 23) ? special : normal);
  return from_bits(value | sign);
}

ANYFUSE_INLINE vh float_to_fp16(vf v) {
  const vu u = bits(v), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  // Normal results: rebias the exponent, and round at bit 13. Subnormal ones: adding 0.5 leaves the mantissa of a half.
  const vu normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const vu small = bits(from_bits(magnitude) + 0.5f) - bits(set(0.5f));
  const vu finite = magnitude < (113u << 23) ? small : normal;
  const vu value = magnitude >= 0x477ff000u ? set_bits(0x7c00) : finite;
  return narrow_bits(v == v ? value | sign : set_bits(0x7e00));
}

}  // namespace portable
