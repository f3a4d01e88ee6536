// AdamW and an EMA of the weights in one pass. The mathematics, and its reference in a few lines of PyTorch, is in
// src/anyfuse/ops/apply_fused_ema_adamw.py; the two must agree to the last bit.
#include "anyfuse.h"
#include "core/dispatch.h"

namespace anyfuse {

// One tensor and the numbers of its step, all of them rounded to fp32 once.
struct EmaAdamWStep {
  anyfuse_apply_fused_ema_adamw_row row;
  float grad_factor;
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float correction1, correction2;  // formula: divisors; device: reciprocals, to multiply with
  float eps, weight_decay, lr, ema_decay, one_minus_ema_decay;
  bool decoupled, device, stochastic;
};

}  // namespace anyfuse

#if defined(ANYFUSE_TARGET)  // ---- the kernel, once per target ----

#include "core/rounding.h"
#include "core/tile.h"

namespace {

// Elements from here to what is asked for early. Three divisions and a root fill the processor's window, so that it
// sees the next loads late: about 1.15 times faster than without, between builds run in turn.
constexpr int kAhead = 128;

struct Tile {
  float *grad, *var, *m, *v, *s;
};

// The switches are template arguments: inside the loop there is only arithmetic.
template <bool decoupled, bool device>
ANYFUSE_INLINE void step_tile(const anyfuse::EmaAdamWStep &p, const Tile &t) {
  const float *const streams[] = {t.grad, t.var, t.m, t.v, t.s};
  for (int i = 0; i < kTile; i += kWidth) {
    for (const float *stream : streams) __builtin_prefetch(stream + i + kAhead);
    const vf var = load(t.var + i);
    vf g = load(t.grad + i) * p.grad_factor;
    if (!decoupled) g = g + p.weight_decay * var;
    const vf m = p.beta1 * load(t.m + i) + p.one_minus_beta1 * g;
    const vf square = device ? (g * g) * p.one_minus_beta2 : p.one_minus_beta2 * g * g;
    const vf v = p.beta2 * load(t.v + i) + square;
    const vf m_hat = device ? m * p.correction1 : m / p.correction1;
    const vf v_hat = device ? v * p.correction2 : v / p.correction2;
    vf update = m_hat / (sqrt(v_hat) + p.eps);
    if (decoupled) update = update + p.weight_decay * var;
    const vf next = var - p.lr * update;
    store(t.m + i, m);
    store(t.v + i, v);
    store(t.var + i, next);
    store(t.s + i, p.ema_decay * load(t.s + i) + p.one_minus_ema_decay * next);
  }
}

ANYFUSE_INLINE void write(const anyfuse::EmaAdamWStep &p, anyfuse_dtype dtype, void *data, int64_t index, int64_t n,
                          const float *tile, uint32_t stream) {
  if (!p.stochastic || dtype == ANYFUSE_FLOAT32) return tile_write(dtype, data, index, n, tile);
  floats_to_halves_randomly(dtype, tile, static_cast<uint16_t *>(data), index, n,
                            dither_of(p.row.seed, p.row.step, index, stream));
}

}  // namespace

ANYFUSE_KERNEL(apply_fused_ema_adamw, EmaAdamWStep) {
  alignas(64) float scratch[5][kTile];
  const auto &row = args.row;
  for (int64_t i = begin; i < end; i += kTile) {
    const int64_t n = end - i < kTile ? end - i : kTile;
    const Tile tile = {tile_read(row.grad_dtype, row.grad, i, n, scratch[0]),
                       tile_read(row.var_dtype, row.var, i, n, scratch[1]),
                       tile_read(row.m_dtype, row.m, i, n, scratch[2]), tile_read(row.v_dtype, row.v, i, n, scratch[3]),
                       tile_read(row.s_dtype, row.s, i, n, scratch[4])};
    if (args.device)
      args.decoupled ? step_tile<true, true>(args, tile) : step_tile<false, true>(args, tile);
    else
      args.decoupled ? step_tile<true, false>(args, tile) : step_tile<false, false>(args, tile);
    write(args, row.var_dtype, row.var, i, n, tile.var, 0);
    tile_write(row.m_dtype, row.m, i, n, tile.m);
    tile_write(row.v_dtype, row.v, i, n, tile.v);
    write(args, row.s_dtype, row.s, i, n, tile.s, 1);
  }
}

#else  // ---- the entry point, once ----

#include <algorithm>
#include <cmath>

#include "core/chunks.h"
#include "core/parallel.h"
#include "core/params.h"

ANYFUSE_DISPATCH(apply_fused_ema_adamw, EmaAdamWStep)

namespace {

using Params = anyfuse_apply_fused_ema_adamw_params;
using Row = anyfuse_apply_fused_ema_adamw_row;

constexpr int64_t kPiece = 16384;     // elements; 9 streams of 64 KiB each keep a core busy for about 10 us
constexpr int64_t kParallel = 32768;  // below this a second thread costs more than it saves

anyfuse_status check(const Row &row) {
  if (row.numel < 0) return ANYFUSE_INVALID_SIZE;
  if (row.numel > 0 && !(row.grad && row.var && row.m && row.v && row.s)) return ANYFUSE_INVALID_POINTER;
  for (anyfuse_dtype dtype : {row.grad_dtype, row.var_dtype, row.m_dtype, row.v_dtype, row.s_dtype})
    if (!anyfuse::is_float(dtype)) return ANYFUSE_INVALID_DTYPE;
  return ANYFUSE_OK;
}

// 1 - beta^t in the document's way: beta rounded to fp32, the power in double, then fp32. The caller's own if it is not
// 0.
float correction(double beta, int64_t step, bool enabled, double given) {
  if (!enabled) return 1.0f;
  if (given != 0.0) return static_cast<float>(given);
  return 1.0f - static_cast<float>(std::pow(static_cast<double>(static_cast<float>(beta)), static_cast<double>(step)));
}

anyfuse::EmaAdamWStep prepare(const Params &p, const Row &row) {
  const bool device = p.convention == ANYFUSE_DEVICE;
  // Formula: 1 - x in double, rounded once. Device: x is rounded to fp32 first.
  const auto complement = [device](double x) {
    return device ? 1.0f - static_cast<float>(x) : static_cast<float>(1.0 - x);
  };
  anyfuse::EmaAdamWStep step = {};
  step.row = row;
  step.grad_factor = static_cast<float>(1.0 / (p.grad_scale == 0.0 ? 1.0 : p.grad_scale));
  if (p.maximize) step.grad_factor = -step.grad_factor;
  step.beta1 = static_cast<float>(p.beta1);
  step.beta2 = static_cast<float>(p.beta2);
  step.one_minus_beta1 = complement(p.beta1);
  step.one_minus_beta2 = complement(p.beta2);
  step.correction1 = correction(p.beta1, row.step, p.bias_correction != 0, p.correction1);
  step.correction2 = correction(p.beta2, row.step, p.bias_correction != 0, p.correction2);
  if (device) {
    step.correction1 = 1.0f / step.correction1;
    step.correction2 = 1.0f / step.correction2;
  }
  step.eps = static_cast<float>(p.eps);
  step.weight_decay = static_cast<float>(p.weight_decay);
  step.lr = static_cast<float>(p.lr);
  step.ema_decay = static_cast<float>(p.ema_decay);
  step.one_minus_ema_decay = complement(p.ema_decay);
  step.decoupled = p.mode == 1;
  step.device = device;
  step.stochastic = p.stochastic_rounding != 0;
  return step;
}

anyfuse_status run(const Params &p) {
  if (p.count < 0 || p.row_size > 4096) return ANYFUSE_INVALID_SIZE;
  if (p.count > 0 && p.rows == nullptr) return ANYFUSE_INVALID_POINTER;
  if ((p.mode != 0 && p.mode != 1) || (p.convention != ANYFUSE_FORMULA && p.convention != ANYFUSE_DEVICE))
    return ANYFUSE_INVALID_VALUE;
  const auto kernel = apply_fused_ema_adamw_kernel();
  if (kernel == nullptr) return ANYFUSE_NO_TARGET;

  anyfuse::Chunks chunks(p.count, kPiece);
  if (!chunks.allocated()) return ANYFUSE_OUT_OF_MEMORY;
  for (int64_t i = 0; i < p.count; ++i) {
    Row row;
    if (anyfuse_status status = anyfuse::read_row(p, i, &row)) return status;
    if (anyfuse_status status = check(row)) return status;
    chunks.set(i, row.numel);
  }
  if (chunks.pieces() == 0) return ANYFUSE_OK;
  // The powers of the corrections cost as much as a tile: tensors at the first one's step share them.
  Row row;
  anyfuse::read_row(p, 0, &row);
  const anyfuse::EmaAdamWStep first = prepare(p, row);
  anyfuse::parallel_for(chunks.pieces(), chunks.elements() < kParallel ? 1 : p.threads, [&](int64_t i) {
    const auto piece = chunks.at(i);
    anyfuse::EmaAdamWStep step = first;
    anyfuse::read_row(p, piece.tensor, &step.row);
    if (step.row.step != first.row.step) step = prepare(p, step.row);
    kernel(step, piece.begin, std::min(piece.limit, step.row.numel));
  });
  return ANYFUSE_OK;
}

}  // namespace

extern "C" anyfuse_status anyfuse_apply_fused_ema_adamw(const Params *params) { return anyfuse::enter(run, params); }

#endif
