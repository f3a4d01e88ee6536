// A residual sum, its RMS norm, and the norm in int8 twice, with two smooth scales.
#include <aclnnop/aclnn_add_rms_norm_dynamic_quant_v2.h>

#include "common.h"

std::vector<aclFloat16> halves(std::initializer_list<float> values) {
  std::vector<aclFloat16> result;
  for (float value : values) result.push_back(aclFloatToFloat16(value));
  return result;
}

int main() {
  Session session;
  const Tensor<aclFloat16> x1({1, 4}, ACL_FLOAT16, halves({1, 2, 3, 4})),
      x2({1, 4}, ACL_FLOAT16, halves({1, 0, -1, 4}));
  const Tensor<aclFloat16> gamma({4}, ACL_FLOAT16, halves({1, 1, 1, 1})),
      beta({4}, ACL_FLOAT16, halves({.5f, 0, 0, -1}));
  const Tensor<aclFloat16> smooth1({4}, ACL_FLOAT16, halves({1, 2, 1, 1})),
      smooth2({4}, ACL_FLOAT16, halves({.5f, .5f, .5f, .5f}));
  const Tensor<aclFloat16> x({1, 4}, ACL_FLOAT16, halves({0, 0, 0, 0}));
  const Tensor<int8_t> y1({1, 4}, ACL_INT8, {0, 0, 0, 0}), y2({1, 4}, ACL_INT8, {0, 0, 0, 0});
  const Tensor<float> scale1({1}, ACL_FLOAT, {0}), scale2({1}, ACL_FLOAT, {0});
  uint64_t size = 0;
  aclOpExecutor *executor = nullptr;
  check(aclnnAddRmsNormDynamicQuantV2GetWorkspaceSize(x1, x2, gamma, smooth1, smooth2, beta, 1e-6, nullptr, y1, y2, x,
                                                      scale1, scale2, &size, &executor),
        "aclnnAddRmsNormDynamicQuantV2GetWorkspaceSize");
  run(aclnnAddRmsNormDynamicQuantV2, size, executor, session.stream);

  Report report;
  const int expected[2][4] = {{127, 122, 61, 111}, {127, 61, 61, 111}};
  for (size_t i = 0; i < 4; ++i) {
    report.value("y1", y1.values()[i], expected[0][i], 1);
    report.value("y2", y2.values()[i], expected[1][i], 1);
  }
  report.value("x[3]", aclFloat16ToFloat(x.values()[3]), 8, 0);
  report.value("scale1", scale1.values()[0], .007549854, 1e-7);
  report.value("scale2", scale2.values()[0], .003774927, 1e-7);
  return report.finish();
}
