// Vectors of the target's native width, for the kernel pass only. Arithmetic is written with the operators of the
// compiler's vector types (+ - * / compare and ?:), which round each operation once; what they lack is here. The
// files in simd/, one for each instruction set, are the only ones with intrinsics; CMakeLists.txt says which one a
// target has. Everything is forced inline: nothing here may become a symbol.
//
// Beside the types and the plain loads of simd/vectors.h each of them has (v = a vector, n < kWidth):
//
//   sqrt(v)                          correctly rounded
//   any_above(v, limit)              whether any lane is above the limit; all lanes and the limit below 2^31
//   load_part(p, n)                  the first n lanes from memory, zero in the others; nothing beyond them is touched
//   store_part(p, v, n)              the first n lanes to memory
//   store_past_caches(p, v)          a store that does not bring its line into the caches first, where the target has
//                                    one. p is aligned to the vector
//   flush_past_caches()              after it other threads see those stores
//   store_bytes(int8_t *, vi[4])     four vectors of lanes in [-128, 127] as 4 * kWidth bytes
//   store_bytes(uint8_t *, vu)       the lanes, each below 2^8, as kWidth bytes
//   widen_bits(vh), narrow_bits(vu)  16-bit lanes from and to 32-bit ones below 2^16
//   fp16_to_float, float_to_fp16     the latter rounds half to even and writes one NaN, 0x7E00
//   join(four[])                     kWidth / 4 vectors of four lanes as one
//   upper_halves(p, half)            the upper halves of four floats in memory
#pragma once
#include ANYFUSE_SIMD

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
typedef uint32_t __attribute__((may_alias)) any32;  // the bits of a float where they lie

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
