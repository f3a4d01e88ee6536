#include "torch/door.h"

namespace anyfuse::door {

using namespace schemas::apply_adam_w_quant;

bool apply_adam_w_quant(Arguments &in) {
  const int64_t count = in.count(var), blocks = in.integer(block_size), emas = in.count(s);
  for (int list : {grad, m, v, absmax_m, absmax_v}) in.require(in.count(list) == count);
  in.require((in.count(step) == 1 || in.count(step) == count) && (emas == 0 || emas == count));
  in.require(blocks >= 64 && blocks <= 2048 && (blocks & (blocks - 1)) == 0);
  const bool stochastic = in.has_numbers(stochastic_rounding);
  in.require(!stochastic || in.numbers(stochastic_rounding) == count);
  const int32_t convention_ = in.choice(convention);
  const Tensor maps[] = {in.tensor(qmap_m), in.tensor(qmap_v)};
  Array<anyfuse_apply_adam_w_quant_row> rows(count);
  Ranges memory(7 * count + 2);
  if (!in.plain() || rows.failed()) return false;
  for (const Tensor &map : maps) {
    in.require(map.is(ANYFUSE_FLOAT32) && map.has_shape(256));
    memory.reads(map);
  }

  for (int64_t i = 0; i < count; ++i) {
    auto &row = rows[i];
    const Tensor var_ = in.at(var, i), grad_ = in.at(grad, i), m_ = in.at(m, i), v_ = in.at(v, i);
    const Tensor absmax_m_ = in.at(absmax_m, i), absmax_v_ = in.at(absmax_v, i), s_ = in.at_if(s, i);
    const bool coded = m_.is(ANYFUSE_UINT8);
    const int64_t scales = coded ? (var_.numel + blocks - 1) / blocks : 0;
    in.require(in.plain() && var_.is_float() && grad_.is_float() && (coded || m_.is(ANYFUSE_FLOAT32)));
    in.require(v_.dtype == m_.dtype && (!s_.given() || s_.is_float()));
    for (const Tensor &tensor : {grad_, m_, v_}) in.require(tensor.given() && tensor.has_shape_of(var_));
    in.require(!s_.given() || s_.has_shape_of(var_));
    for (const Tensor &absmax : {absmax_m_, absmax_v_})
      in.require(absmax.given() && absmax.is(ANYFUSE_FLOAT32) && absmax.has_shape(scales));
    memory.reads(grad_);
    for (const Tensor &tensor : {var_, m_, v_, absmax_m_, absmax_v_, s_}) memory.writes(tensor);
    row.numel = var_.numel;
    row.grad = grad_.data;
    row.var = var_.data;
    row.m = m_.data;
    row.v = v_.data;
    row.absmax_m = static_cast<float *>(absmax_m_.data);
    row.absmax_v = static_cast<float *>(absmax_v_.data);
    row.step = in.step(in.shared_at(step, i));
    in.require(row.step >= (convention_ == ANYFUSE_DEVICE ? 0 : 1));
    row.grad_dtype = grad_.dtype;
    row.var_dtype = var_.dtype;
    row.s = s_.data;
    row.s_dtype = s_.dtype;
    row.state_bits = coded ? 8 : 32;
    row.seed = stochastic ? static_cast<uint32_t>(in.number_at(stochastic_rounding, i)) : 0;
    if (!in.plain()) return false;
  }

  anyfuse_apply_adam_w_quant_params p = {};
  p.qmap_m = static_cast<const float *>(maps[0].data);
  p.qmap_v = static_cast<const float *>(maps[1].data);
  p.block_size = blocks;
  p.lr = in.scalar_or(lr_tensor, in.number(lr));
  p.beta1 = in.number(beta1);
  p.beta2 = in.number(beta2);
  p.weight_decay = in.number(weight_decay);
  p.eps = in.number(eps);
  p.gnorm_scale = in.number(gnorm_scale);
  p.grad_scale = in.scalar_or(grad_scale, 1.0);
  p.convention = convention_;
  p.maximize = in.flag(maximize);
  p.skip_nonfinite = in.flag(skip_nonfinite);
  p.nonzero_v = in.flag(nonzero_v);
  p.stochastic_rounding = stochastic;
  p.ema_decay = in.number(ema_decay);
  in.require(p.grad_scale != 0.0);
  const bool skipped = in.scalar_or(found_inf, 0.0) != 0.0;
  if (!in.plain() || !memory.lie_apart()) return false;
  if (skipped || together()) {  // the maps' values, before others of the calls that are together have run
    anyfuse_apply_adam_w_quant_params none = p;
    none.size = sizeof none;
    none.row_size = sizeof rows[0];
    if (!run<anyfuse_apply_adam_w_quant>(none)) return false;
  }
  return skipped || run<anyfuse_apply_adam_w_quant>(p, rows.data(), count);
}

}  // namespace anyfuse::door
