#include "torch/door.h"

namespace anyfuse::door {

using namespace schemas::add_rms_norm_dynamic_quant;

namespace {

constexpr struct {
  anyfuse_dtype code, carrier;
} kCodes[] = {  // in the order of the record's choices
    {ANYFUSE_INT8, ANYFUSE_INT8},
    {ANYFUSE_INT4, ANYFUSE_UINT8},
    {ANYFUSE_FLOAT8_E4M3FN, ANYFUSE_FLOAT8_E4M3FN},
    {ANYFUSE_FLOAT8_E5M2, ANYFUSE_FLOAT8_E5M2},
    {ANYFUSE_HIFLOAT8, ANYFUSE_UINT8},
};

constexpr int64_t kMaxDim = 64;

}  // namespace

bool add_rms_norm_dynamic_quant(Arguments &in) {
  const Tensor x1_ = in.tensor(x1), x2_ = in.optional(x2);
  const Tensor weights[] = {in.tensor(gamma), in.optional(smooth_scale1), in.optional(smooth_scale2),
                            in.optional(beta)};
  const int32_t code = in.choice(y_dtype);
  in.require(x1_.dim > 0 && x1_.dim < kMaxDim && x1_.is_float());
  if (!in.plain()) return false;
  in.require(!x2_.given() || (x2_.has_shape_of(x1_) && x2_.dtype == x1_.dtype));
  anyfuse_add_rms_norm_dynamic_quant_params p = {};
  p.size = sizeof p;
  p.cols = x1_.sizes[x1_.dim - 1];
  for (const Tensor &weight : weights)
    in.require(!weight.given() ||
               (weight.has_shape(p.cols) && (weight.dtype == x1_.dtype || weight.is(ANYFUSE_FLOAT32))));
  p.rows = 1;
  for (int64_t d = 0; d + 1 < x1_.dim; ++d) p.rows *= x1_.sizes[d];
  p.x1 = x1_.data;
  p.x2 = x2_.data;
  p.gamma = weights[0].data;
  p.smooth_scale1 = weights[1].data;
  p.smooth_scale2 = weights[2].data;
  p.beta = weights[3].data;
  p.epsilon = in.number(epsilon);
  p.x_dtype = x1_.dtype;
  p.gamma_dtype = weights[0].dtype;
  p.smooth_scale1_dtype = weights[1].dtype;
  p.smooth_scale2_dtype = weights[2].dtype;
  p.beta_dtype = weights[3].dtype;
  p.y_dtype = kCodes[code].code;
  p.convention = in.choice(convention);
  p.threads = Arguments::threads();

  int64_t codes[kMaxDim];
  std::memcpy(codes, x1_.sizes, static_cast<size_t>(x1_.dim) * sizeof *codes);
  const bool halves = p.y_dtype == ANYFUSE_INT4;
  in.require(!halves || p.cols % 2 == 0);
  if (halves) codes[x1_.dim - 1] /= 2;
  const auto branch = [&](bool wanted, int y, int scale, void **codes_at, float **scale_at) {
    if (!wanted) {
      in.empty_result(y, kCodes[code].carrier);
      in.empty_result(scale, ANYFUSE_FLOAT32);
      return;
    }
    *codes_at = in.result(y, x1_.dim, codes, kCodes[code].carrier);
    *scale_at = static_cast<float *>(in.result(scale, x1_.dim - 1, x1_.sizes, ANYFUSE_FLOAT32));
  };
  branch(in.flag(output1), 0, 3, &p.y1, &p.scale1);
  branch(in.flag(output2), 1, 4, &p.y2, &p.scale2);
  if (x2_.given())
    p.x = in.result(2, x1_.dim, x1_.sizes, x1_.dtype);
  else
    in.empty_result(2, x1_.dtype);
  return in.plain() && run<anyfuse_add_rms_norm_dynamic_quant>(p);
}

}  // namespace anyfuse::door
