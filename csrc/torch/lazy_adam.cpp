#include "torch/door.h"

namespace anyfuse::door {

using namespace schemas::lazy_adam;

namespace {

// Tables together with others may have any number of dimensions, of which the first is that of the rows: an optimizer
// need not make views of its parameters.
bool is_table(const Tensor &var) { return var.dim == 2 || together(); }
int64_t rows_of(const Tensor &var) { return var.dim == 0 ? 1 : var.sizes[0]; }
int64_t dim_of(const Tensor &var) {
  int64_t dim = 1;
  for (int64_t d = 1; d < var.dim; ++d) dim *= var.sizes[d];
  return dim;
}
bool has_rows_of(const Tensor &gradient, const Tensor &var, int64_t n) {
  if (gradient.dim != var.dim || rows_of(gradient) != n) return false;
  for (int64_t d = 1; d < var.dim; ++d)
    if (gradient.sizes[d] != var.sizes[d]) return false;
  return true;
}

bool is_mask(const Tensor &ids) { return !ids.given() || ids.is(ANYFUSE_BOOL); }

// Whether the ids lie in their table; the core asks as well, but when it runs.
template <typename Id>
bool ids_fit(const Id *ids, int64_t n, const anyfuse_lazy_adam_row &row, bool refuse_negative) {
  const int64_t padding = row.padding_idx == INT64_MIN ? 0 : row.padding_idx;  // 0: of no negative id
  for (int64_t i = 0; i < n; ++i)
    if (ids[i] >= row.rows || (refuse_negative && ids[i] < 0 && ids[i] != padding)) return false;
  return true;
}

bool ids_fit(const Tensor &ids, const anyfuse_lazy_adam_row &row, bool refuse_negative) {
  if (is_mask(ids)) return true;
  return ids.is(ANYFUSE_INT32) ? ids_fit(static_cast<const int32_t *>(ids.data), row.n, row, refuse_negative)
                               : ids_fit(static_cast<const int64_t *>(ids.data), row.n, row, refuse_negative);
}

}  // namespace

bool lazy_adam(Arguments &in) {
  const int64_t count = in.count(var);
  for (int list : {gradient, indices, m, v}) in.require(in.count(list) == count || in.is_optional(list));
  const bool counts_rows = in.count(row_step) != 0, has_step = in.count(step) != 0, has_lr = in.count(lr_tensor) != 0;
  in.require(!counts_rows || in.count(row_step) == count);
  for (int list : {step, lr_tensor}) in.require(in.count(list) <= 1 || in.count(list) == count);
  const bool stochastic = in.has_numbers(stochastic_rounding);
  in.require(!stochastic || in.numbers(stochastic_rounding) == count);
  anyfuse_lazy_adam_params p = {};
  p.beta1 = in.number(beta1);
  p.beta2 = in.number(beta2);
  p.epsilon = in.number(epsilon);
  p.assume_unique = in.flag(assume_unique);
  p.convention = in.choice(convention);
  p.weight_decay = in.number(weight_decay);
  p.grad_scale = in.scalar_or(grad_scale, 1.0);
  p.bias_correction = in.choice(bias_correction);
  p.eps_outside = in.choice(eps_mode);
  p.catch_up = in.choice(decay_mode);
  p.refuse_negative = in.flag(refuse_negative);
  p.maximize = in.flag(maximize);
  p.stochastic_rounding = stochastic;
  const bool needs_rows = p.bias_correction == ANYFUSE_CORRECTED_BY_ROW || p.catch_up != 0;
  const bool needs_step = p.bias_correction == ANYFUSE_CORRECTED_BY_STEP || p.catch_up != 0 || stochastic;
  in.require(p.grad_scale != 0.0 && needs_rows == counts_rows && (has_step || !needs_step));
  in.require(p.refuse_negative != 0 || in.is_absent(padding_idx));
  Array<anyfuse_lazy_adam_row> rows(count);
  Ranges memory(6 * count);
  if (!in.plain() || rows.failed()) return false;

  for (int64_t i = 0; i < count; ++i) {
    auto &row = rows[i];
    const Tensor var_ = in.at(var, i), gradient_ = in.at(gradient, i), ids = in.at(indices, i), m_ = in.at(m, i),
                 v_ = in.at(v, i);
    in.require(in.plain() && is_table(var_) && var_.is_float() && gradient_.is_float());
    if (!in.plain()) return false;
    row.rows = rows_of(var_);
    row.dim = dim_of(var_);
    for (const Tensor &state : {m_, v_}) in.require(state.is(ANYFUSE_FLOAT32) && state.has_shape_of(var_));
    in.require(is_mask(ids) || ids.is(ANYFUSE_INT32) || ids.is(ANYFUSE_INT64));
    in.require(!ids.given() || ids.dim == 1 || (ids.dim == 2 && ids.sizes[1] == 1));
    row.n = ids.given() && in.plain() ? ids.sizes[0] : row.rows;
    in.require((!is_mask(ids) || (row.n == row.rows && ids.dim < 2)) && has_rows_of(gradient_, var_, row.n));
    row.gradient = gradient_.data;
    row.indices = ids.data;
    row.m = m_.data;
    row.v = v_.data;
    row.var = var_.data;
    row.lr = has_lr ? in.scalar(in.shared_at(lr_tensor, i)) : in.number(lr);
    row.gradient_dtype = gradient_.dtype;
    row.indices_dtype = ids.given() ? ids.dtype : ANYFUSE_BOOL;
    row.var_dtype = var_.dtype;
    row.step = has_step ? in.step(in.shared_at(step, i)) : 0;
    in.require(!needs_step || (row.step >= 1 && (p.catch_up == 0 || row.step <= INT32_MAX)));
    if (counts_rows) {
      const Tensor counts = in.at(row_step, i);
      in.require(counts.is(ANYFUSE_INT32) && counts.has_shape(row.rows));
      row.row_step = static_cast<int32_t *>(counts.data);
      memory.writes(counts);
    }
    row.padding_idx = in.integer_or(padding_idx, INT64_MIN);
    row.seed = stochastic ? static_cast<uint32_t>(in.number_at(stochastic_rounding, i)) : 0;
    for (const Tensor &tensor : {var_, m_, v_}) memory.writes(tensor);
    for (const Tensor &tensor : {gradient_, ids}) memory.reads(tensor);
    in.require(in.plain() && (!together() || ids_fit(ids, row, p.refuse_negative != 0)));
    if (!in.plain()) return false;
  }
  const bool skipped = in.scalar_or(found_inf, 0.0) != 0.0;
  if (!in.plain() || !memory.lie_apart()) return false;
  return skipped || run<anyfuse_lazy_adam>(p, rows.data(), count);
}

}  // namespace anyfuse::door
