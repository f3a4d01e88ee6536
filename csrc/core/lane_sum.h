// The row sum of the contract, for the kernel pass: 64 lanes, element k to lane k mod 64, then lane i + lane i+half,
// half = 32 ... 1.
#pragma once
#include "core/simd.h"

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
