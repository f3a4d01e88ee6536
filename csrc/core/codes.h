// From fp32 values to codes of 8 and 4 bits, for the kernel pass. A code comes in a lane of 32 bits, sign-extended from
// its byte, as store_bytes takes it. What each format means, and the same in PyTorch, is in
// src/anyfuse/formats/lowbits.py.
#pragma once
#include "core/simd.h"

// An 8-bit float with infinities given up for saturation: round half to even, NaN is 0x7f.
struct Float8 {
  int mantissa_bits;
  uint32_t rebias;      // difference of the exponent biases, at the place of the code's exponent
  uint32_t min_normal;  // bits of the smallest normal value in fp32
  float magic;          // a power of two whose fp32 ulp is the format's subnormal step
  float max;
};
constexpr Float8 kE4M3 = {3, (127 - 7) << 3, (127 - 6) << 23, 16384.0f, 448.0f};
constexpr Float8 kE5M2 = {2, (127 - 15) << 2, (127 - 14) << 23, 128.0f, 57344.0f};

// The code's sign bit, and all bits above it.
ANYFUSE_INLINE vu code_sign(vf v) { return (vu)((vi)bits(v) >> 31) & 0xffffff80u; }

ANYFUSE_INLINE vi float8_code(Float8 format, vf v) {
  const int dropped = 23 - format.mantissa_bits;
  const vf magnitude = abs(v), max = set(format.max);
  const vf a = magnitude < max ? magnitude : max;
  const vu u = bits(a);
  const vu normal = ((u + ((1u << (dropped - 1)) - 1u) + ((u >> dropped) & 1u)) >> dropped) - format.rebias;
  const vu small = bits(a + format.magic) - bits(set(format.magic));  // the addition is the rounding
  const vu code = (vi)u < (vi)set_bits(format.min_normal) ? small : normal;
  return (vi)(v == v ? code | code_sign(v) : set_bits(0x7f));
}

// HiFloat8: 3, 2 or 1 mantissa bits as the exponent grows in magnitude, none below 2^-15; round half away from zero,
// saturating at 2^15; no -0; NaN is 0x80.
ANYFUSE_INLINE vi hifloat8_code(vf v) {
  const vf magnitude = abs(v), max = set(32768.0f);
  const vu u = bits(magnitude < max ? magnitude : max);
  const vi raw = (vi)(u >> 23) - 127;
  // Half of the last kept bit. From [2^-23, 2^-22) everything goes up to 2^-22, which a whole exponent step does.
  const vi slope = raw < 0 ? -raw : raw;
  vu half = slope > 3 ? set_bits(1u << 20) : set_bits(1u << 19);
  half = slope > 7 ? set_bits(1u << 21) : half;
  half = raw < -15 ? set_bits(1u << 22) : half;
  half = raw < -22 ? set_bits(1u << 23) : half;
  const vu rounded = u + half;
  const vi exponent = (vi)(rounded >> 23) - 127;
  const vi negative = exponent >> 31, size = (exponent ^ negative) - negative;
  const vi mantissa = (vi)(rounded >> 20) & 7;
  vi code = size == 0 ? (mantissa | 0x08) : (mantissa | 0x10 | (negative & 0x08));
  const vi wide_sign = negative & 0x10;
  code = size > 1 ? (mantissa | 0x20 | wide_sign | ((size & 1) << 3)) : code;
  code = size > 3 ? ((mantissa >> 1) | 0x40 | wide_sign | ((size & 3) << 2)) : code;
  code = size > 7 ? ((mantissa >> 2) | 0x60 | wide_sign | ((size & 7) << 1)) : code;
  code = exponent < -15 ? exponent + 23 : code;
  code = code | (vi)code_sign(v);
  code = raw < -23 ? (vi){} : code;
  return v == v ? code : (vi)set_bits(0xffffff80u);
}

// 64 int4 codes, one a byte, as 32 bytes: the even ones in the low nibbles.
ANYFUSE_INLINE void pack_nibbles(const int8_t *codes, uint8_t *to) {
  for (int i = 0; i < 64; i += 4 * kWidth) {
    vu word;
    memcpy(&word, codes + i, sizeof word);
    const vu packed = (word & 0xfu) | ((word >> 4) & 0xf0u) | ((word >> 8) & 0xf00u) | ((word >> 12) & 0xf000u);
    const vh halves = narrow_bits(packed);
    memcpy(to + i / 2, &halves, sizeof halves);
  }
}
