// x, quantized row by row, times int8 weights in FRACTAL_NZ, scaled back to float16.
#include <aclnnop/aclnn_quant_matmul_dequant.h>

#include "common.h"

int main() {
  Session session;
  const int64_t m = 2, n = 16, k = 32;
  std::vector<aclFloat16> x_values(static_cast<size_t>(m * k), aclFloatToFloat16(0));
  const float row[4] = {1, -2, .5f, .25f};
  for (size_t i = 0; i < 4; ++i) x_values[i] = aclFloatToFloat16(row[i]);
  // W[0] = 1, 1, 1, 1, 0, ... and W[1] = 127, -128, 3, -4, 0, ...; block column j / 32, then row, then column in the
  // block.
  std::vector<int8_t> blocks(static_cast<size_t>(n * k), 0);
  const int8_t rows[2][4] = {{1, 1, 1, 1}, {127, -128, 3, -4}};
  for (size_t i = 0; i < 2; ++i)
    for (size_t j = 0; j < 4; ++j) blocks[i * 32 + j] = rows[i][j];

  const Tensor<aclFloat16> x({m, k}, ACL_FLOAT16, x_values);
  const Tensor<aclFloat16> out({m, n}, ACL_FLOAT16, std::vector<aclFloat16>(static_cast<size_t>(m * n)));
  const Tensor<float> weight_scale({n}, ACL_FLOAT, std::vector<float>(static_cast<size_t>(n), .5f));
  const Tensor<int8_t> memory({1, 1, 16, 32}, ACL_INT8, blocks);
  void *address = nullptr;
  check(aclGetRawTensorAddr(memory, &address), "aclGetRawTensorAddr");
  const int64_t nz[4] = {1, 1, 16, 32};
  aclTensor *weight = aclCreateTensor(nz, 4, ACL_INT8, nullptr, 0, ACL_FORMAT_FRACTAL_NZ, nz, 4, address);
  uint64_t size = 0;
  aclOpExecutor *executor = nullptr;
  char mode[] = "pertoken";
  check(aclnnQuantMatmulDequantGetWorkspaceSize(x, weight, weight_scale, nullptr, nullptr, nullptr, nullptr, mode, true,
                                                out, &size, &executor),
        "aclnnQuantMatmulDequantGetWorkspaceSize");
  run(aclnnQuantMatmulDequant, size, executor, session.stream);
  aclDestroyTensor(weight);

  // The row's scale is 2/127 and its codes are 64, -127, 32, 16: the sums -15 and 24416, each times .5 * 2/127.
  Report report;
  const std::vector<aclFloat16> result = out.values();
  report.value("out[0][0]", aclFloat16ToFloat(result[0]), -.11810303, 1e-4);
  report.value("out[0][1]", aclFloat16ToFloat(result[1]), 192.25, .2);
  report.value("out[0][2]", aclFloat16ToFloat(result[2]), 0, 0);
  report.value("out[1][0]", aclFloat16ToFloat(result[static_cast<size_t>(n)]), 0, 0);
  return report.finish();
}
