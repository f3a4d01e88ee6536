// 257 parameters, maps of shape {256}, profiling around the call, a repeatable executor.
#include "acl/acl.h"
#include "acl/acl_prof.h"
#include "aclnnop/aclnn_apply_adam_w_quant.h"
#include "sample.h"

int main() {
  aclrtStream stream;
  CHECK_RET(Init(0, &stream) == 0, return 1);
  CHECK_OK(aclprofInit("./prof", 6));
  const int64_t n = 257, blocks = 2;
  std::vector<float> varData(n, 1), gradData(n, .5f), absmaxData(blocks, 0), map(256), positive(256);
  for (int i = 0; i < 256; i++) map[i] = -1 + i * 2.0f / 255, positive[i] = i / 255.0f;
  std::vector<uint8_t> codes(n, 127), zeros(n, 0);
  std::vector<int64_t> stepData(1, 1);
  void *addr[9];
  aclTensor *var, *grad, *m, *v, *qmapM, *qmapV, *absmaxM, *absmaxV, *step;
  CHECK_RET(CreateAclTensor(varData, {n}, &addr[0], ACL_FLOAT, &var) == 0, return 1);
  CHECK_RET(CreateAclTensor(gradData, {n}, &addr[1], ACL_FLOAT, &grad) == 0, return 1);
  CHECK_RET(CreateAclTensor(codes, {n}, &addr[2], ACL_UINT8, &m) == 0, return 1);
  CHECK_RET(CreateAclTensor(zeros, {n}, &addr[3], ACL_UINT8, &v) == 0, return 1);
  CHECK_RET(CreateAclTensor(map, {256}, &addr[4], ACL_FLOAT, &qmapM) == 0, return 1);
  CHECK_RET(CreateAclTensor(positive, {256}, &addr[5], ACL_FLOAT, &qmapV) == 0, return 1);
  CHECK_RET(CreateAclTensor(absmaxData, {blocks}, &addr[6], ACL_FLOAT, &absmaxM) == 0, return 1);
  CHECK_RET(CreateAclTensor(absmaxData, {blocks}, &addr[7], ACL_FLOAT, &absmaxV) == 0, return 1);
  CHECK_RET(CreateAclTensor(stepData, {1}, &addr[8], ACL_INT64, &step) == 0, return 1);

  uint64_t workspaceSize = 0;
  aclOpExecutor *executor;
  char mode[] = "BLOCKWISE";
  CHECK_OK(aclnnApplyAdamWQuantGetWorkspaceSize(var, grad, m, v, qmapM, qmapV, absmaxM, absmaxV, step, 0.1, 0.9, 0.999,
                                                0, 1e-8, 1, mode, 256, &workspaceSize, &executor));
  CHECK_OK(aclSetAclOpExecutorRepeatable(executor));
  void *workspaceAddr = nullptr;
  if (workspaceSize > 0) CHECK_OK(aclrtMalloc(&workspaceAddr, workspaceSize, ACL_MEM_MALLOC_HUGE_FIRST));
  for (int64_t number = 1; number <= 2; number++) {
    CHECK_OK(aclrtMemcpy(addr[8], 8, &number, 8, ACL_MEMCPY_HOST_TO_DEVICE));
    CHECK_OK(aclnnApplyAdamWQuant(workspaceAddr, workspaceSize, executor, stream));
    CHECK_OK(aclrtSynchronizeStream(stream));
    float last;
    CHECK_OK(aclrtMemcpy(&last, 4, static_cast<float *>(addr[0]) + n - 1, 4, ACL_MEMCPY_DEVICE_TO_HOST));
    LOG_PRINT("step %ld: %.4f\n", number, last);
  }
  CHECK_OK(aclDestroyAclOpExecutor(executor));
  CHECK_OK(aclprofFinalize());
  aclrtDestroyStream(stream);
  aclrtResetDevice(0);
  return aclFinalize();
}
