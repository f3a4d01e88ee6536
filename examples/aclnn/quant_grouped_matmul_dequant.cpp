// Rows sorted by expert, quantized row by row, each times the int8 weights of its expert, scaled back to float16.
#include <aclnnop/aclnn_quant_grouped_matmul_dequant.h>

#include "common.h"

int main() {
  Session session;
  const int64_t experts = 2, m = 3, n = 16, k = 16;
  // Rows 0 and 1 are of the first and the second expert, row 2 is padding: it lies behind the last end.
  std::vector<aclFloat16> x_values(static_cast<size_t>(m * k), aclFloatToFloat16(0));
  const float rows[3][4] = {{1, -2, .5f, .25f}, {1, 0, 0, 0}, {9, 9, 9, 9}};
  for (size_t i = 0; i < 3; ++i)
    for (size_t j = 0; j < 4; ++j) x_values[i * static_cast<size_t>(k) + j] = aclFloatToFloat16(rows[i][j]);
  // W[0][0] = 1, 1, 1, 1, 0, ... and W[1][0] = 2, 0, ...
  std::vector<int8_t> weights(static_cast<size_t>(experts * n * k), 0);
  for (size_t j = 0; j < 4; ++j) weights[j] = 1;
  weights[static_cast<size_t>(n * k)] = 2;
  std::vector<float> scales(static_cast<size_t>(experts * n), .5f);
  for (size_t j = static_cast<size_t>(n); j < scales.size(); ++j) scales[j] = .25f;

  const Tensor<aclFloat16> x({m, k}, ACL_FLOAT16, x_values);
  const Tensor<int8_t> weight({experts, n, k}, ACL_INT8, weights);
  const Tensor<float> weight_scale({experts, n}, ACL_FLOAT, scales);
  const Tensor<int64_t> group_list({experts}, ACL_INT64, {1, 2});
  const Tensor<aclFloat16> out({m, n}, ACL_FLOAT16, std::vector<aclFloat16>(static_cast<size_t>(m * n)));
  uint64_t size = 0;
  aclOpExecutor *executor = nullptr;
  char mode[] = "pertoken";
  check(aclnnQuantGroupedMatmulDequantGetWorkspaceSize(x, weight, weight_scale, group_list, nullptr, nullptr, nullptr,
                                                       nullptr, mode, true, out, &size, &executor),
        "aclnnQuantGroupedMatmulDequantGetWorkspaceSize");
  run(aclnnQuantGroupedMatmulDequant, size, executor, session.stream);

  // Row 0 has the scale 2/127 and the codes 64, -127, 32, 16, which sum up to -15; row 1 has 1/127 and 127, 0, 0, 0.
  Report report;
  const std::vector<aclFloat16> result = out.values();
  const size_t columns = static_cast<size_t>(n);
  report.value("out[0][0]", aclFloat16ToFloat(result[0]), -.11810303, 1e-4);
  report.value("out[1][0]", aclFloat16ToFloat(result[columns]), .5, 1e-3);
  report.value("out[1][1]", aclFloat16ToFloat(result[columns + 1]), 0, 0);
  report.value("out[2][0]", aclFloat16ToFloat(result[2 * columns]), 0, 0);
  return report.finish();
}
