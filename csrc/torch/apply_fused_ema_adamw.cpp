#include "torch/door.h"

namespace anyfuse::door {

using namespace schemas::apply_fused_ema_adamw;

bool apply_fused_ema_adamw(Arguments &in) {
  const int64_t count = in.count(var);
  for (int list : {grad, m, v, s}) in.require(in.count(list) == count);
  in.require(in.count(step) == 1 || in.count(step) == count);
  const bool stochastic = in.has_numbers(stochastic_rounding);
  in.require(!stochastic || in.numbers(stochastic_rounding) == count);
  Array<anyfuse_apply_fused_ema_adamw_row> rows(count);
  Ranges memory(5 * count);
  if (!in.plain() || rows.failed()) return false;

  for (int64_t i = 0; i < count; ++i) {
    auto &row = rows[i];
    const Tensor var_ = in.at(var, i);
    row.numel = var_.numel;
    const auto put = [&](int list, auto *data, anyfuse_dtype *dtype) {
      const Tensor tensor = list == var ? var_ : in.at(list, i);
      in.require(tensor.is_float() && tensor.has_shape_of(var_));
      list == grad ? memory.reads(tensor) : memory.writes(tensor);
      *data = tensor.data;
      *dtype = tensor.dtype;
    };
    put(grad, &row.grad, &row.grad_dtype);
    put(var, &row.var, &row.var_dtype);
    put(m, &row.m, &row.m_dtype);
    put(v, &row.v, &row.v_dtype);
    put(s, &row.s, &row.s_dtype);
    row.step = in.step(in.shared_at(step, i));
    row.seed = stochastic ? static_cast<uint32_t>(in.number_at(stochastic_rounding, i)) : 0;
    if (!in.plain()) return false;
  }

  anyfuse_apply_fused_ema_adamw_params p = {};
  p.lr = in.scalar_or(lr_tensor, in.number(lr));
  p.ema_decay = in.number(ema_decay);
  p.beta1 = in.number(beta1);
  p.beta2 = in.number(beta2);
  p.eps = in.number(eps);
  p.weight_decay = in.scalar_or(weight_decay_tensor, in.number(weight_decay));
  p.grad_scale = in.scalar_or(grad_scale, 1.0);
  p.mode = static_cast<int32_t>(in.integer(adam_mode));
  p.bias_correction = in.flag(bias_correction);
  p.convention = in.choice(convention);
  p.maximize = in.flag(maximize);
  p.stochastic_rounding = stochastic;
  p.correction1 = in.scalar_or(correction1, 0.0);
  p.correction2 = in.scalar_or(correction2, 0.0);
  in.require(p.grad_scale != 0.0 && (p.mode == 0 || p.mode == 1));
  const bool skipped = in.scalar_or(found_inf, 0.0) != 0.0;
  if (!in.plain() || !memory.lie_apart()) return false;
  return skipped || run<anyfuse_apply_fused_ema_adamw>(p, rows.data(), count);
}

}  // namespace anyfuse::door
