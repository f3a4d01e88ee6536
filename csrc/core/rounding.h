// Stochastic rounding to 16 bits, for the kernel pass: the bits that a store drops are added to by as many random bits
// first, so that the mean of many roundings is the value. The random bits are a hash of a seed, a step and an element's
// index, the same for every target and number of threads. The same in PyTorch is in src/anyfuse/ops/_rounding.py.
#pragma once
#include "core/simd.h"

// A bijection of 32 bits in which every bit of x changes about half of the result's. One number or a vector of them.
template <typename Bits>
ANYFUSE_INLINE Bits mix(Bits x, uint32_t between = 0) {
  x = (x ^ (x >> 16)) * 0x7feb352du + between;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// What the random bits of a run of elements have in common.
struct Dither {
  uint32_t first, between;
};

// `stream` keeps several tensors of one row apart. Elements that share a Dither have one upper half of the index.
ANYFUSE_INLINE Dither dither_of(uint32_t seed, int64_t step, int64_t index, uint32_t stream) {
  uint32_t key = mix(seed + 0x9e3779b9u * stream);
  key = mix(key ^ (uint32_t)step);
  key = mix(key ^ (uint32_t)((uint64_t)step >> 32));
  key = mix(key ^ (uint32_t)((uint64_t)index >> 32));
  return {key, mix(key + 0x9e3779b9u)};
}

ANYFUSE_INLINE vu random_bits(Dither dither, int64_t index) {
  uint32_t lanes[kWidth];
  for (int i = 0; i < kWidth; ++i) lanes[i] = (uint32_t)i;
  vu lane;
  memcpy(&lane, lanes, sizeof lane);
  return mix((lane + (uint32_t)index) ^ dither.first, dither.between);
}

// A finite value becomes no infinity; infinities and NaN stay what they are.
ANYFUSE_INLINE vh float_to_bf16_randomly(vf v, vu random) {
  const vu u = bits(v), magnitude = u & 0x7fffffffu;
  const vu up = (magnitude + (random & 0xffffu)) >> 16;
  const vu finite = (vi)up > (vi)set_bits(0x7f7f) ? set_bits(0x7f7f) : up;
  const vu value = (vi)magnitude < (vi)set_bits(0x7f800000u) ? finite : set_bits(0x7f80);
  return narrow_bits(v == v ? value | ((u >> 16) & 0x8000u) : set_bits(0x7fc0));
}

ANYFUSE_INLINE vh float_to_fp16_randomly(vf v, vu random) {
  const vu u = bits(v), magnitude = u & 0x7fffffffu, dither = random & 0x1fffu;
  const vi is_small = (vi)magnitude < (vi)set_bits(113u << 23);
  const vu normal = (magnitude - (112u << 23) + dither) >> 13;
  // Below 2^-14 a half has the step 2^-24: as whole multiples of 2^-37, of which 13 bits are dropped.
  const vf scaled = from_bits(is_small ? magnitude : (vu){}) * 137438953472.0f;
  const vu small = ((vu) __builtin_convertvector(scaled, vi) + dither) >> 13;
  const vu up = is_small ? small : normal;
  const vu finite = (vi)up > (vi)set_bits(0x7bff) ? set_bits(0x7bff) : up;
  const vu value = (vi)magnitude < (vi)set_bits(0x7f800000u) ? finite : set_bits(0x7c00);
  return narrow_bits(v == v ? value | ((u >> 16) & 0x8000u) : set_bits(0x7e00));
}

// Elements [index, index + n) of a tensor of 16 bits; `from` is readable up to the next multiple of kWidth.
ANYFUSE_INLINE void floats_to_halves_randomly(anyfuse_dtype dtype, const float *from, uint16_t *data, int64_t index,
                                              int64_t n, Dither dither) {
  for (int64_t i = 0; i < n; i += kWidth) {
    const vf v = load(from + i);
    const vu random = random_bits(dither, index + i);
    const vh h = dtype == ANYFUSE_BFLOAT16 ? float_to_bf16_randomly(v, random) : float_to_fp16_randomly(v, random);
    memcpy(data + index + i, &h, (n - i < kWidth ? n - i : kWidth) * sizeof(uint16_t));
  }
}
