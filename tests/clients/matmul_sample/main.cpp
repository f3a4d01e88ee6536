// float16 output printed as if it were float, from a buffer of half the size; a weight scale of 512 floats in 1024
// bytes.
#include <cstring>

#include "acl/acl.h"
#include "aclnn/opdev/fp16_t.h"
#include "aclnn_util.h"
#include "aclnnop/aclnn_quant_matmul_dequant.h"
#include "hccl/hccl.h"
#include "sample.h"

ACLNN_API int64_t Rows() { return 4; }

int main() {
  aclrtStream stream;
  CHECK_RET(Init(0, &stream) == 0, return 1);
  const int64_t m = Rows(), n = 512, k = 64;
  std::vector<op::fp16_t> xData(m * k, op::fp16_t(1.0f)), outData(m * n);
  std::vector<int8_t> weightData(n * k, 1);
  std::vector<uint16_t> scaleData(n, 0);  // in two bytes each
  void *xAddr, *weightAddr, *scaleAddr, *outAddr;
  aclTensor *x, *weight, *scale, *out;
  CHECK_RET(CreateAclTensor(xData, {m, k}, &xAddr, ACL_FLOAT16, &x) == 0, return 1);
  CHECK_RET(CreateAclTensor(weightData, {n, k}, &weightAddr, ACL_INT8, &weight) == 0, return 1);
  CHECK_RET(CreateAclTensor(scaleData, {n}, &scaleAddr, ACL_FLOAT, &scale) == 0, return 1);
  CHECK_RET(CreateAclTensor(outData, {m, n}, &outAddr, ACL_FLOAT16, &out) == 0, return 1);
  const std::vector<float> scales(n, 2.0f);
  CHECK_OK(aclrtMemcpy(scaleAddr, n * 4, scales.data(), n * 4, ACL_MEMCPY_HOST_TO_DEVICE));

  char mode[] = "pertoken";
  uint64_t workspaceSize = 0;
  aclOpExecutor *executor;
  CHECK_OK(aclnnQuantMatmulDequantGetWorkspaceSize(x, weight, scale, nullptr, nullptr, nullptr, nullptr, mode, true,
                                                   out, &workspaceSize, &executor));
  void *workspaceAddr = nullptr;
  if (workspaceSize > 0) CHECK_OK(aclrtMalloc(&workspaceAddr, workspaceSize, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK_OK(aclnnQuantMatmulDequant(workspaceAddr, workspaceSize, executor, stream));
  CHECK_OK(aclrtSynchronizeStream(stream));

  std::vector<float> resultData(m * n, 0);
  CHECK_OK(aclrtMemcpy(resultData.data(), resultData.size() * sizeof(resultData[0]), outAddr, m * n * sizeof(float),
                       ACL_MEMCPY_DEVICE_TO_HOST));
  op::fp16_t first;
  memcpy(&first, resultData.data(), sizeof(first));
  LOG_PRINT("first: %.1f\n", static_cast<float>(first));
  HcclComm comm;
  int32_t device = 0;
  LOG_PRINT("hccl: %d\n", HcclCommInitAll(1, &device, &comm) != HCCL_SUCCESS);
  aclrtDestroyStream(stream);
  aclrtResetDevice(0);
  return aclFinalize();
}
