// Two rows; 4 bytes for the scales, of shape {2, 1}; the unused outputs hold one element.
#include "acl/acl.h"
#include "aclnnop/aclnn_add_rms_norm_dynamic_quant.h"
#include "sample.h"

int main() {
  aclrtStream stream;
  CHECK_RET(Init(0, &stream) == 0, return 1);
  std::vector<int64_t> xShape = {2, 8}, gammaShape = {8}, scaleShape = {2, 1};
  std::vector<uint16_t> ones(16, 0x3C00), gammaData(8, 0x3C00), sum(16, 0);
  std::vector<int8_t> yData(16, 0);
  std::vector<float> scaleData(1, 0);  // of two rows
  void *x1Addr, *x2Addr, *gammaAddr, *y1Addr, *y2Addr, *xAddr, *scale1Addr, *scale2Addr;
  aclTensor *x1, *x2, *gamma, *y1, *y2, *x, *scale1, *scale2;
  CHECK_RET(CreateAclTensor(ones, xShape, &x1Addr, aclDataType::ACL_FLOAT16, &x1) == 0, return 1);
  CHECK_RET(CreateAclTensor(ones, xShape, &x2Addr, aclDataType::ACL_FLOAT16, &x2) == 0, return 1);
  CHECK_RET(CreateAclTensor(gammaData, gammaShape, &gammaAddr, aclDataType::ACL_FLOAT16, &gamma) == 0, return 1);
  CHECK_RET(CreateAclTensor(yData, xShape, &y1Addr, aclDataType::ACL_INT8, &y1) == 0, return 1);
  CHECK_RET(CreateAclTensor(yData, xShape, &y2Addr, aclDataType::ACL_INT8, &y2) == 0, return 1);
  CHECK_RET(CreateAclTensor(sum, xShape, &xAddr, aclDataType::ACL_FLOAT16, &x) == 0, return 1);
  CHECK_RET(CreateAclTensor(scaleData, scaleShape, &scale1Addr, aclDataType::ACL_FLOAT, &scale1) == 0, return 1);
  CHECK_RET(CreateAclTensor(scaleData, scaleShape, &scale2Addr, aclDataType::ACL_FLOAT, &scale2) == 0, return 1);

  uint64_t workspaceSize = 0;
  aclOpExecutor *executor;
  CHECK_OK(aclnnAddRmsNormDynamicQuantGetWorkspaceSize(x1, x2, gamma, nullptr, nullptr, 1e-6, y1, y2, x, scale1, scale2,
                                                       &workspaceSize, &executor));
  void *workspaceAddr = nullptr;
  if (workspaceSize > 0) CHECK_OK(aclrtMalloc(&workspaceAddr, workspaceSize, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK_OK(aclnnAddRmsNormDynamicQuant(workspaceAddr, workspaceSize, executor, stream));
  CHECK_OK(aclrtSynchronizeStream(stream));

  std::vector<int8_t> codes(16);
  std::vector<float> scales(2);
  CHECK_OK(aclrtMemcpy(codes.data(), 16, y1Addr, 16, ACL_MEMCPY_DEVICE_TO_HOST));
  CHECK_OK(aclrtMemcpy(scales.data(), 8, scale1Addr, 8, ACL_MEMCPY_DEVICE_TO_HOST));
  for (int64_t i = 0; i < 2; i++) LOG_PRINT("row %ld: code %d scale %.6f\n", i, codes[8 * i], scales[i]);
  aclDestroyTensor(x1), aclDestroyTensor(x2), aclDestroyTensor(gamma), aclDestroyTensor(y1), aclDestroyTensor(y2);
  aclDestroyTensor(x), aclDestroyTensor(scale1), aclDestroyTensor(scale2);
  for (void *addr : {x1Addr, x2Addr, gammaAddr, y1Addr, y2Addr, xAddr, scale1Addr, scale2Addr}) aclrtFree(addr);
  aclrtDestroyStream(stream);
  aclrtResetDevice(0);
  aclFinalize();
  return 0;
}
