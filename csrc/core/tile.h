// Elementwise kernels work on tiles of kTile elements as fp32. A full tile of an fp32 tensor is used where it lies;
// another dtype, or the short tile at a tensor's end, passes through a scratch tile in L1, so that no kernel has a
// scalar tail.
#pragma once
#include "core/convert.h"

constexpr int kTile = 256;

ANYFUSE_INLINE bool tile_in_place(anyfuse_dtype dtype, int64_t n) { return dtype == ANYFUSE_FLOAT32 && n == kTile; }

// Elements [index, index + n) as fp32; the rest of the scratch tile, where it is used, is zero up to kTile.
ANYFUSE_INLINE float *tile_read(anyfuse_dtype dtype, const void *data, int64_t index, int64_t n, float *scratch) {
  if (tile_in_place(dtype, n)) return const_cast<float *>(static_cast<const float *>(data) + index);
  if (n < kTile) memset(scratch, 0, kTile * sizeof(float));
  if (dtype == ANYFUSE_FLOAT32)
    memcpy(scratch, static_cast<const float *>(data) + index, n * sizeof(float));
  else if (dtype == ANYFUSE_BFLOAT16)
    halves_to_floats(ANYFUSE_BFLOAT16, static_cast<const uint16_t *>(data) + index, scratch, n);
  else
    halves_to_floats(ANYFUSE_FLOAT16, static_cast<const uint16_t *>(data) + index, scratch, n);
  return scratch;
}

// Writes back a tile that tile_read gave out; what was changed in place is already there.
ANYFUSE_INLINE void tile_write(anyfuse_dtype dtype, void *data, int64_t index, int64_t n, const float *tile) {
  if (tile_in_place(dtype, n)) return;
  if (dtype == ANYFUSE_FLOAT32)
    memcpy(static_cast<float *>(data) + index, tile, n * sizeof(float));
  else if (dtype == ANYFUSE_BFLOAT16)
    floats_to_halves(ANYFUSE_BFLOAT16, tile, static_cast<uint16_t *>(data) + index, n);
  else
    floats_to_halves(ANYFUSE_FLOAT16, tile, static_cast<uint16_t *>(data) + index, n);
}
