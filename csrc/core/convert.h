// fp32 from and to bf16 and fp16, a vector or a run of any length at a time, for the kernel pass. Stores round half to
// even and write one NaN (0x7FC0, 0x7E00).
#pragma once
#include "core/simd.h"

ANYFUSE_INLINE vf bf16_to_float(vh h) { return from_bits(widen_bits(h) << 16); }

ANYFUSE_INLINE vh float_to_bf16(vf v) {
  const vu u = bits(v);
  const vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return narrow_bits(v == v ? rounded : set_bits(0x7fc0));
}

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
