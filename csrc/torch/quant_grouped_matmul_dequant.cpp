#include "torch/quant_matmul_dequant.h"

namespace anyfuse::door {

using namespace schemas::quant_grouped_matmul_dequant;

bool quant_grouped_matmul_dequant(Arguments &in) {
  const Tensor ends = in.tensor(group_list);
  in.require(ends.is(ANYFUSE_INT64) && ends.dim == 1);
  if (!in.plain()) return false;
  anyfuse_quant_matmul_dequant_params matmul = {};
  bool own_smooth_scale = false;
  read_product(in,
               {x, weight, weight_scale, bias, x_scale, smooth_scale, quant_mode, transpose_weight, packed, out_dtype,
                convention},
               ends.numel, &matmul, &own_smooth_scale);
  anyfuse_quant_grouped_matmul_dequant_params p = {};
  p.size = sizeof p;
  p.matmul = &matmul;
  p.groups = ends.numel;
  p.group_list = static_cast<const int64_t *>(ends.data);
  p.own_smooth_scale = own_smooth_scale;
  return in.plain() && run<anyfuse_quant_grouped_matmul_dequant>(p);
}

}  // namespace anyfuse::door
