// What the product reads from its arguments, for the plain operator and the grouped one, whose records name them alike.
#pragma once
#include "torch/door.h"

namespace anyfuse::door {

struct ProductArguments {
  int x, weight, weight_scale, bias, x_scale, smooth_scale, quant_mode, transpose_weight, packed, out_dtype, convention;
};

// Fills the params, all but `out`, and makes the result. `groups` is -1 where there are none.
void read_product(Arguments &in, const ProductArguments &at, int64_t groups, anyfuse_quant_matmul_dequant_params *p,
                  bool *own_smooth_scale);

}  // namespace anyfuse::door
