// AdamW with moments of 8 bits, scaled block by block. The mathematics, and its reference in a few lines of PyTorch, is
// in src/anyfuse/ops/apply_adam_w_quant.py; the two must agree to the last bit.
#include "anyfuse.h"
#include "core/codebook.h"
#include "core/dispatch.h"

namespace anyfuse {

// One tensor and the numbers of its step, all of them rounded to fp32 once.
struct AdamWQuantStep {
  anyfuse_apply_adam_w_quant_row row;
  const Codebook *map_m, *map_v;
  int64_t block_size;
  float unscale, gnorm_scale;
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float step_size, eps;  // -lr*c2/c1 and eps*c2
  float decay;           // 1 - lr*weight_decay
  float ema_decay, one_minus_ema_decay;
  bool device, skip_nonfinite, nonzero_v, stochastic;
  struct AdamWQuantScratch *scratch;  // of the thread that works
};

constexpr int64_t kMaxBlock = 2048;

// What one kernel call works in; it stays in L1.
struct AdamWQuantScratch {
  alignas(64) float grad[kMaxBlock], var[kMaxBlock], m[kMaxBlock], v[kMaxBlock];
  alignas(64) float m_ratio[kMaxBlock], v_ratio[kMaxBlock], s[kMaxBlock];
  alignas(64) uint8_t m_code[kMaxBlock], v_code[kMaxBlock];
};

}  // namespace anyfuse

#if defined(ANYFUSE_TARGET)  // ---- the kernel, once per target ----

#include "core/convert.h"
#include "core/rounding.h"

namespace {

using Scratch = anyfuse::AdamWQuantScratch;

// One block's elements, whole vectors of them: where they lie, or copies.
struct Block {
  int64_t n;
  const float *grad;
  float *var, *s;  // s: the EMA, or null
  uint8_t *m_code, *v_code;
  float *m, *v, *m_ratio, *v_ratio;  // the new moments (of 32 bits: the old ones first), and these over their scales
};

ANYFUSE_INLINE int64_t whole_vectors(int64_t n) { return (n + kWidth - 1) / kWidth * kWidth; }

// The last vector of a partial block is filled up with its last element, which changes no maximum.
template <typename T>
ANYFUSE_INLINE void repeat_last(T *values, int64_t n) {
  for (int64_t i = n; i < whole_vectors(n); ++i) values[i] = values[n - 1];
}

ANYFUSE_INLINE float *read_floats(anyfuse_dtype dtype, const void *data, int64_t index, int64_t n, float *scratch) {
  if (dtype == ANYFUSE_FLOAT32) {
    const float *from = static_cast<const float *>(data) + index;
    if (n % kWidth == 0) return const_cast<float *>(from);
    memcpy(scratch, from, n * sizeof(float));
  } else if (dtype == ANYFUSE_BFLOAT16) {
    halves_to_floats(ANYFUSE_BFLOAT16, static_cast<const uint16_t *>(data) + index, scratch, n);
  } else {
    halves_to_floats(ANYFUSE_FLOAT16, static_cast<const uint16_t *>(data) + index, scratch, n);
  }
  repeat_last(scratch, n);
  return scratch;
}

ANYFUSE_INLINE void write_floats(anyfuse_dtype dtype, void *data, int64_t index, int64_t n, const float *from) {
  if (dtype == ANYFUSE_BFLOAT16)
    floats_to_halves(ANYFUSE_BFLOAT16, from, static_cast<uint16_t *>(data) + index, n);
  else if (dtype == ANYFUSE_FLOAT16)
    floats_to_halves(ANYFUSE_FLOAT16, from, static_cast<uint16_t *>(data) + index, n);
  else if (n % kWidth != 0)
    memcpy(static_cast<float *>(data) + index, from, n * sizeof(float));
}

// var (stream 0) or s (stream 1).
ANYFUSE_INLINE void write_weights(const anyfuse::AdamWQuantStep &p, anyfuse_dtype dtype, void *data, int64_t index,
                                  int64_t n, const float *from, uint32_t stream) {
  if (!p.stochastic || dtype == ANYFUSE_FLOAT32) return write_floats(dtype, data, index, n, from);
  floats_to_halves_randomly(dtype, from, static_cast<uint16_t *>(data), index, n,
                            dither_of(p.row.seed, p.row.step, index, stream));
}

ANYFUSE_INLINE uint8_t *read_codes(void *data, int64_t index, int64_t n, uint8_t *scratch) {
  uint8_t *from = static_cast<uint8_t *>(data) + index;
  if (n % kWidth == 0) return from;
  memcpy(scratch, from, n);
  repeat_last(scratch, n);
  return scratch;
}

ANYFUSE_INLINE void write_codes(void *data, int64_t index, int64_t n, const uint8_t *from) {
  if (n % kWidth != 0) memcpy(static_cast<uint8_t *>(data) + index, from, n);
}

ANYFUSE_INLINE bool all_finite(const float *values, int64_t n) {
  vu largest = {};
  for (int64_t i = 0; i < n; i += kWidth) largest = max_magnitude(largest, bits(abs(load(values + i))));
  return horizontal_max(largest) < 0x7f800000u;
}

struct Scales {
  float m, v;
};

// Division and square root take a vector longest from start to end. What needs one, or its result, runs this many
// elements behind, so that the processor's window holds work that need not wait.
constexpr int64_t kLag = 64;

// Calls ahead(i) for every vector in order, and behind(i) kLag elements later.
template <typename Ahead, typename Behind>
ANYFUSE_INLINE void in_two_steps(int64_t n, Ahead ahead, Behind behind) {
  const int64_t lag = n < kLag ? n : kLag;
  for (int64_t i = 0; i < lag; i += kWidth) ahead(i);
  for (int64_t i = lag; i < n; i += kWidth) {
    ahead(i);
    behind(i - lag);
  }
  for (int64_t i = n - lag; i < n; i += kWidth) behind(i);
}

// Steps the moments (dequantized where they are codes), the parameters and their EMA, and returns the largest
// magnitudes of the new moments.
template <bool device, bool codes, bool ema>
ANYFUSE_INLINE Scales step_block(const anyfuse::AdamWQuantStep &args, const Block &block, Scales old) {
  const anyfuse::AdamWQuantStep p = args;  // copies of this function's own need no second load after a store
  const Block b = block;
  vu largest_m = {}, largest_v = {};
  const auto moments = [&](int64_t i) __attribute__((always_inline)) {
    const vf g = load(b.grad + i) * p.unscale * p.gnorm_scale;
    const vf m_old = codes ? lookup_bytes(p.map_m->value, b.m_code + i) * old.m : load(b.m + i);
    const vf v_old = codes ? lookup_bytes(p.map_v->value, b.v_code + i) * old.v : load(b.v + i);
    const vf m = m_old * p.beta1 + g * p.one_minus_beta1;
    const vf v = v_old * p.beta2 + (g * g) * p.one_minus_beta2;
    store(b.m + i, m);
    store(b.v + i, v);
    if (!codes) return;
    largest_m = max_magnitude(largest_m, bits(abs(m)));
    largest_v = max_magnitude(largest_v, bits(abs(v)));
  };
  const auto parameters = [&](int64_t i) __attribute__((always_inline)) {
    const vf update = (load(b.m + i) * p.step_size) / (sqrt(load(b.v + i)) + p.eps);
    const vf var = load(b.var + i);
    const vf next = device ? (var + update) * p.decay : var * p.decay + update;
    store(b.var + i, next);
    if (ema) store(b.s + i, p.ema_decay * load(b.s + i) + p.one_minus_ema_decay * next);
  };
  in_two_steps(b.n, moments, parameters);
  const uint32_t largest[2] = {horizontal_max(largest_m), horizontal_max(largest_v)};
  Scales scales;
  memcpy(&scales, largest, sizeof scales);
  return scales;
}

// The definition of a code: eight halvings of the map, then the nearer of the two neighbours, the lower one in a tie.
ANYFUSE_INLINE vu code_by_search(const anyfuse::Codebook &map, vf n) {
  vu lower = {}, upper = set_bits(255);
  for (int i = 0; i < 8; ++i) {
    const vu pivot = (lower + upper) >> 1;
    const vi above = n > lookup(map.value, pivot);
    lower = above ? pivot : lower;
    upper = above ? upper : pivot;
  }
  const vu code = abs(n - lookup(map.value, lower)) <= abs(n - lookup(map.value, upper)) ? lower : upper;
  if (!map.keep_sign) return code;
  const vf q = lookup(map.value, code);
  const vu up = (vu)((n > 0.0f) & (q < 0.0f) & (code < 255u)), down = (vu)((n < 0.0f) & (q > 0.0f) & (code > 0u));
  return code - up + down;  // a true lane is -1
}

ANYFUSE_INLINE vu code_by_table(const anyfuse::Codebook &map, const float *n) {
  const vu u = bits(load(n)), folded = (lookup_upper_half(map.edge, n) + u) >> 16;
  return folded ^ ((vu)((vi)u >> 31) & 0xffu);
}

template <bool by_table>
ANYFUSE_INLINE vu code_of(const anyfuse::Codebook &map, const float *n) {
  return by_table ? code_by_table(map, n) : code_by_search(map, load(n));
}

// Codes of both moments over their scales. With `nonzero_v` a v above 0 does not get an entry that is 0 but the
// first one after them.
template <bool by_table>
ANYFUSE_INLINE void encode_block(const anyfuse::AdamWQuantStep &p, const Block &block, Scales divisor) {
  const Block b = block;
  const bool nonzero_v = p.nonzero_v;
  const anyfuse::Codebook &map_m = *p.map_m, &map_v = *p.map_v;
  const uint32_t zero_begin = map_v.zero_begin, zero_end = map_v.zero_end;
  const auto divide = [&](int64_t i) __attribute__((always_inline)) {
    store(b.m_ratio + i, load(b.m + i) / divisor.m);
    store(b.v_ratio + i, load(b.v + i) / divisor.v);
  };
  const auto encode = [&](int64_t i) __attribute__((always_inline)) {
    store_bytes(b.m_code + i, code_of<by_table>(map_m, b.m_ratio + i));
    vu code = code_of<by_table>(map_v, b.v_ratio + i);
    if (nonzero_v) code = (load(b.v + i) > 0.0f) & (code >= zero_begin) & (code < zero_end) ? set_bits(zero_end) : code;
    store_bytes(b.v_code + i, code);
  };
  in_two_steps(b.n, divide, encode);
}

ANYFUSE_INLINE bool finite(float x) { return x - x == 0.0f; }

ANYFUSE_INLINE void encode(const anyfuse::AdamWQuantStep &p, const Block &b, Scales scales) {
  const Scales divisor = {scales.m == 0.0f ? 1.0f : scales.m, scales.v == 0.0f ? 1.0f : scales.v};
  // A scale that is not finite brings about NaN, which the tables do not know.
  if (p.map_m->by_table && p.map_v->by_table && finite(scales.m) && finite(scales.v))
    encode_block<true>(p, b, divisor);
  else
    encode_block<false>(p, b, divisor);
}

template <bool codes>
ANYFUSE_INLINE Scales step_any(const anyfuse::AdamWQuantStep &p, const Block &b, Scales old) {
  if (b.s != nullptr)
    return p.device ? step_block<true, codes, true>(p, b, old) : step_block<false, codes, true>(p, b, old);
  return p.device ? step_block<true, codes, false>(p, b, old) : step_block<false, codes, false>(p, b, old);
}

// The moments as codes: read, stepped, and written under their new scales.
ANYFUSE_INLINE void step_codes(const anyfuse::AdamWQuantStep &p, Block &b, int64_t index, int64_t n, Scratch &scratch) {
  const auto &row = p.row;
  const int64_t number = index / p.block_size;
  b.m_code = read_codes(row.m, index, n, scratch.m_code);
  b.v_code = read_codes(row.v, index, n, scratch.v_code);
  b.m = scratch.m;
  b.v = scratch.v;
  b.m_ratio = scratch.m_ratio;
  b.v_ratio = scratch.v_ratio;
  const Scales scales = step_any<true>(p, b, {row.absmax_m[number], row.absmax_v[number]});
  row.absmax_m[number] = scales.m;
  row.absmax_v[number] = scales.v;
  encode(p, b, scales);
  write_codes(row.m, index, n, b.m_code);
  write_codes(row.v, index, n, b.v_code);
}

ANYFUSE_INLINE void step_floats(const anyfuse::AdamWQuantStep &p, Block &b, int64_t index, int64_t n,
                                Scratch &scratch) {
  const auto &row = p.row;
  b.m = read_floats(ANYFUSE_FLOAT32, row.m, index, n, scratch.m);
  b.v = read_floats(ANYFUSE_FLOAT32, row.v, index, n, scratch.v);
  step_any<false>(p, b, {});
  write_floats(ANYFUSE_FLOAT32, row.m, index, n, b.m);
  write_floats(ANYFUSE_FLOAT32, row.v, index, n, b.v);
}

ANYFUSE_INLINE void run_block(const anyfuse::AdamWQuantStep &p, int64_t index, int64_t n, Scratch &scratch) {
  const auto &row = p.row;
  Block b;
  b.n = whole_vectors(n);
  b.grad = read_floats(row.grad_dtype, row.grad, index, n, scratch.grad);
  if (p.skip_nonfinite && !all_finite(b.grad, b.n)) return;
  b.var = read_floats(row.var_dtype, row.var, index, n, scratch.var);
  b.s = row.s == nullptr ? nullptr : read_floats(row.s_dtype, row.s, index, n, scratch.s);
  row.state_bits == 32 ? step_floats(p, b, index, n, scratch) : step_codes(p, b, index, n, scratch);
  write_weights(p, row.var_dtype, row.var, index, n, b.var, 0);
  if (b.s != nullptr) write_weights(p, row.s_dtype, row.s, index, n, b.s, 1);
}

}  // namespace

// `begin` is the start of a block.
ANYFUSE_KERNEL(apply_adam_w_quant, AdamWQuantStep) {
  for (int64_t i = begin; i < end; i += args.block_size)
    run_block(args, i, end - i < args.block_size ? end - i : args.block_size, *args.scratch);
}

#else  // ---- the entry point, once ----

#include <algorithm>
#include <cmath>

#include "core/arena.h"
#include "core/chunks.h"
#include "core/parallel.h"
#include "core/params.h"

ANYFUSE_DISPATCH(apply_adam_w_quant, AdamWQuantStep)

namespace {

using Params = anyfuse_apply_adam_w_quant_params;
using Row = anyfuse_apply_adam_w_quant_row;

constexpr int64_t kPiece = 16384;     // elements, whole blocks of every size: about 30 us of work
constexpr int64_t kParallel = 16384;  // below this a second thread costs more than it saves

anyfuse_status check(const Row &row) {
  if (row.numel < 0) return ANYFUSE_INVALID_SIZE;
  if (row.state_bits != 0 && row.state_bits != 8 && row.state_bits != 32) return ANYFUSE_INVALID_VALUE;
  const bool scales = row.state_bits == 32 || (row.absmax_m && row.absmax_v);
  if (row.numel > 0 && !(row.grad && row.var && row.m && row.v && scales)) return ANYFUSE_INVALID_POINTER;
  if (row.s != nullptr && !anyfuse::is_float(row.s_dtype)) return ANYFUSE_INVALID_DTYPE;
  return anyfuse::is_float(row.grad_dtype) && anyfuse::is_float(row.var_dtype) ? ANYFUSE_OK : ANYFUSE_INVALID_DTYPE;
}

anyfuse_status check(const Params &p) {
  if (p.count < 0 || p.row_size > 4096) return ANYFUSE_INVALID_SIZE;
  if ((p.count > 0 && p.rows == nullptr) || p.qmap_m == nullptr || p.qmap_v == nullptr) return ANYFUSE_INVALID_POINTER;
  if (p.block_size < 64 || p.block_size > 2048 || (p.block_size & (p.block_size - 1)) != 0) return ANYFUSE_INVALID_SIZE;
  if (p.convention != ANYFUSE_FORMULA && p.convention != ANYFUSE_DEVICE) return ANYFUSE_INVALID_VALUE;
  return ANYFUSE_OK;
}

// Formula: everything in double, rounded once.
void prepare_formula(const Params &p, double t, anyfuse::AdamWQuantStep *step) {
  const double c1 = 1.0 - std::pow(p.beta1, t), c2 = std::sqrt(1.0 - std::pow(p.beta2, t));
  step->one_minus_beta1 = static_cast<float>(1.0 - p.beta1);
  step->one_minus_beta2 = static_cast<float>(1.0 - p.beta2);
  step->step_size = static_cast<float>(-p.lr * c2 / c1);
  step->eps = static_cast<float>(p.eps * c2);
  step->decay = static_cast<float>(1.0 - p.lr * p.weight_decay);
}

// Device: attributes and every result in fp32; the decay only where it is positive.
void prepare_device(const Params &p, float t, anyfuse::AdamWQuantStep *step) {
  const auto power = [t](float beta) { return static_cast<float>(std::pow(static_cast<double>(beta), t)); };
  const float lr = static_cast<float>(p.lr), weight_decay = static_cast<float>(p.weight_decay);
  const float c1 = 1.0f - power(step->beta1), c2 = std::sqrt(1.0f - power(step->beta2));
  step->one_minus_beta1 = 1.0f - step->beta1;
  step->one_minus_beta2 = 1.0f - step->beta2;
  step->step_size = -lr * c2 / c1;
  step->eps = static_cast<float>(p.eps) * c2;
  step->decay = weight_decay > 0.0f ? 1.0f - lr * weight_decay : 1.0f;
}

anyfuse::AdamWQuantStep prepare(const Params &p, const Row &row) {
  anyfuse::AdamWQuantStep step = {};
  step.row = row;
  step.block_size = p.block_size;
  step.unscale = static_cast<float>(1.0 / (p.grad_scale == 0.0 ? 1.0 : p.grad_scale));
  if (p.maximize) step.unscale = -step.unscale;
  step.gnorm_scale = static_cast<float>(p.gnorm_scale);
  step.beta1 = static_cast<float>(p.beta1);
  step.beta2 = static_cast<float>(p.beta2);
  step.device = p.convention == ANYFUSE_DEVICE;
  step.skip_nonfinite = p.skip_nonfinite != 0;
  step.nonzero_v = p.nonzero_v != 0;
  step.stochastic = p.stochastic_rounding != 0;
  step.ema_decay = static_cast<float>(p.ema_decay);
  step.one_minus_ema_decay = step.device ? 1.0f - step.ema_decay : static_cast<float>(1.0 - p.ema_decay);
  if (step.device)
    prepare_device(p, static_cast<float>(row.step) + 1.0f, &step);
  else
    prepare_formula(p, static_cast<double>(row.step), &step);
  return step;
}

anyfuse_status run(const Params &p) {
  if (anyfuse_status status = check(p)) return status;
  const auto kernel = apply_adam_w_quant_kernel();
  if (kernel == nullptr) return ANYFUSE_NO_TARGET;

  anyfuse::Chunks chunks(p.count, kPiece);
  if (!chunks.allocated()) return ANYFUSE_OUT_OF_MEMORY;
  for (int64_t i = 0; i < p.count; ++i) {
    Row row;
    if (anyfuse_status status = anyfuse::read_row(p, i, &row)) return status;
    if (anyfuse_status status = check(row)) return status;
    chunks.set(i, row.numel);
  }
  const anyfuse::CodebookLease map_m(p.qmap_m, true), map_v(p.qmap_v, false);
  if (map_m.status()) return map_m.status();
  if (map_v.status()) return map_v.status();
  const int32_t threads = chunks.elements() < kParallel ? 1 : p.threads;
  const anyfuse::Arena arena(anyfuse::workers_of(chunks.pieces(), threads), sizeof(anyfuse::AdamWQuantScratch));
  if (!arena.allocated()) return ANYFUSE_OUT_OF_MEMORY;
  anyfuse::parallel_for(chunks.pieces(), threads, [&](int64_t i, int32_t worker) {
    const auto piece = chunks.at(i);
    Row row;
    anyfuse::read_row(p, piece.tensor, &row);
    anyfuse::AdamWQuantStep step = prepare(p, row);
    step.map_m = map_m.get();
    step.map_v = map_v.get();
    step.scratch = static_cast<anyfuse::AdamWQuantScratch *>(arena.of(worker));
    kernel(step, piece.begin, std::min(piece.limit, step.row.numel));
  });
  return ANYFUSE_OK;
}

}  // namespace

extern "C" anyfuse_status anyfuse_apply_adam_w_quant(const Params *params) { return anyfuse::enter(run, params); }

#endif
