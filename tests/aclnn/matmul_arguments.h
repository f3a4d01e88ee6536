// What the calls of both matmuls are given in their tables of errors.
#pragma once
#include "errors.h"

struct MatmulArguments {
  Arg x{{4, 64}, ACL_FLOAT16}, weight{{32, 64}, ACL_INT8}, scale{{32}}, bias{{32}, ACL_INT32}, x_scale{{4}},
      offset{{4}}, smooth{{64}, ACL_FLOAT16}, out{{4, 32}, ACL_FLOAT16};
  const char *mode = "pertoken";
  bool transpose = true;
  MatmulArguments() { bias.null = x_scale.null = offset.null = smooth.null = true; }

  void static_scale(const Dims &shape, aclDataType dtype = ACL_FLOAT) {
    x_scale.null = false;
    x_scale.shape = shape;
    x_scale.dtype = dtype;
  }
  void per_tensor() {
    mode = "pertensor";
    static_scale({1});
  }
  void packed() {
    per_tensor();
    scale.dtype = ACL_INT64;
    x_scale.dtype = ACL_FLOAT16;
  }
  void blocked(const Dims &shape, aclFormat format = ACL_FORMAT_FRACTAL_NZ) {
    weight.shape = shape;
    weight.format = format;
  }
};
