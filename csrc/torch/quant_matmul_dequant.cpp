#include "torch/quant_matmul_dequant.h"

namespace anyfuse::door {

namespace {

constexpr int64_t kMaxDim = 64;

int64_t blocks(int64_t size, int64_t of) { return (size + of - 1) / of; }

// A weight's sizes from dimension `first` on.
bool are_sizes(const Tensor &weight, int64_t first, std::initializer_list<int64_t> sizes) {
  if (weight.dim != first + static_cast<int64_t>(sizes.size())) return false;
  for (int64_t size : sizes)
    if (weight.sizes[first++] != size) return false;
  return true;
}

// The number of the layout that a weight of (n, k) has; -1 for none.
int32_t layout_of(const Tensor &weight, int64_t first, int64_t n, int64_t k, bool packed, bool transpose) {
  if (packed)
    return are_sizes(weight, first, {blocks(n, 16), blocks(k, 4), 16, 4}) ? int32_t{ANYFUSE_WEIGHT_PACKED} : -1;
  if (transpose && are_sizes(weight, first, {n, k})) return ANYFUSE_WEIGHT_NK;
  if (!transpose && are_sizes(weight, first, {k, n})) return ANYFUSE_WEIGHT_KN;
  if (transpose && are_sizes(weight, first, {blocks(k, 32), blocks(n, 16), 16, 32})) return ANYFUSE_WEIGHT_NZ_NK;
  if (!transpose && are_sizes(weight, first, {blocks(n, 32), blocks(k, 16), 16, 32})) return ANYFUSE_WEIGHT_NZ_KN;
  return -1;
}

}  // namespace

void read_product(Arguments &in, const ProductArguments &at, int64_t groups, anyfuse_quant_matmul_dequant_params *p,
                  bool *own_smooth_scale) {
  const Tensor x = in.tensor(at.x), weight = in.tensor(at.weight), weight_scale = in.tensor(at.weight_scale);
  const Tensor bias = in.optional(at.bias), x_scale = in.optional(at.x_scale), smooth = in.optional(at.smooth_scale);
  const int64_t lead = groups < 0 ? 0 : 1, group = groups < 0 ? 1 : groups;
  in.require(x.dim >= 2 && x.dim <= kMaxDim && weight_scale.dim >= 1 && weight.is(ANYFUSE_INT8));
  if (!in.plain()) return;
  p->size = sizeof *p;
  p->k = x.sizes[x.dim - 1];
  p->n = weight_scale.sizes[weight_scale.dim - 1];
  p->m = 1;
  for (int64_t d = 0; d + 1 < x.dim; ++d) p->m *= x.sizes[d];
  in.require(groups < 0 ? weight_scale.dim == 1 || (weight_scale.dim == 2 && weight_scale.sizes[0] == 1)
                        : weight_scale.has_shape(groups, p->n));
  in.require(groups < 0 || (weight.dim > 0 && weight.sizes[0] == groups));

  const int64_t sizes = in.numbers(at.packed);
  in.require(sizes == 0 || sizes == 2 + lead);
  if (!in.plain()) return;
  if (sizes != 0)
    in.require(in.number_at(at.packed, lead) == p->n && in.number_at(at.packed, lead + 1) == p->k &&
               (lead == 0 || in.number_at(at.packed, 0) == groups));
  p->weight_layout = layout_of(weight, lead, p->n, p->k, sizes != 0, in.flag(at.transpose_weight));

  in.require(p->weight_layout >= 0);
  in.require(!bias.given() || (bias.is(ANYFUSE_INT32) && bias.numel == group * p->n && bias.dim == 1 + lead &&
                               bias.sizes[bias.dim - 1] == p->n));
  *own_smooth_scale = groups >= 0 && smooth.given() && smooth.dim == 2;
  in.require(!smooth.given() || (*own_smooth_scale ? smooth.has_shape(groups, p->k) : smooth.has_shape(p->k)));
  p->quant_mode = in.choice(at.quant_mode);
  const bool per_tensor = p->quant_mode == ANYFUSE_PER_TENSOR;
  in.require(!x_scale.given() || x_scale.numel == (per_tensor ? 1 : p->m));
  if (x_scale.given() && in.plain())
    in.require(per_tensor ? x_scale.dim <= 1
                          : x_scale.has_shape(p->m) || x_scale.has_shape(p->m, 1) ||
                                (x_scale.dim == x.dim - 1 &&
                                 std::memcmp(x_scale.sizes, x.sizes, static_cast<size_t>(x_scale.dim) * 8) == 0));
  // What the core leaves open: rows that are quantized already have a scale each, and no factors.
  const bool quantized = x.is(ANYFUSE_INT8);
  in.require(!quantized || (x_scale.given() && !per_tensor && !smooth.given() && !in.is_absent(at.out_dtype)));
  in.require(x_scale.given() || !per_tensor);
  p->x = x.data;
  p->weight = weight.data;
  p->weight_scale = weight_scale.data;
  p->bias = static_cast<const int32_t *>(bias.data);
  p->x_scale = x_scale.data;
  p->smooth_scale = smooth.data;
  p->x_dtype = x.dtype;
  p->weight_scale_dtype = weight_scale.dtype;
  p->x_scale_dtype = x_scale.dtype;
  p->smooth_scale_dtype = smooth.dtype;
  p->out_dtype = in.dtype_or(at.out_dtype, x.dtype);
  p->convention = in.choice(at.convention);
  p->threads = Arguments::threads();
  in.require(p->out_dtype == ANYFUSE_FLOAT32 || p->out_dtype == ANYFUSE_FLOAT16 || p->out_dtype == ANYFUSE_BFLOAT16);
  if (!in.plain()) return;
  int64_t out[kMaxDim];
  std::memcpy(out, x.sizes, static_cast<size_t>(x.dim) * sizeof *out);
  out[x.dim - 1] = p->n;
  p->out = in.result(0, x.dim, out, p->out_dtype);
}

bool quant_matmul_dequant(Arguments &in) {
  using namespace schemas::quant_matmul_dequant;
  anyfuse_quant_matmul_dequant_params p = {};
  bool own_smooth_scale = false;
  read_product(in,
               {x, weight, weight_scale, bias, x_scale, smooth_scale, quant_mode, transpose_weight, packed, out_dtype,
                convention},
               -1, &p, &own_smooth_scale);
  return in.plain() && run<anyfuse_quant_matmul_dequant>(p);
}

}  // namespace anyfuse::door
