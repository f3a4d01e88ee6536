// step of shape {2, 2}: the first element counts.
#include "acl/acl.h"
#include "acl/acl_mdl.h"
#include "acl/acl_op_compiler.h"
#include "aclnn_apply_fused_ema_adam.h"
#include "sample.h"

int main() {
  aclrtStream stream;
  CHECK_OK(aclInit(nullptr));
  aclrtRunMode runMode;
  CHECK_OK(aclrtGetRunMode(&runMode));
  LOG_PRINT("device: %d\n", runMode == ACL_DEVICE);
  CHECK_OK(aclrtSetDevice(0));
  CHECK_OK(aclrtCreateStream(&stream));
  std::vector<int64_t> shape = {2}, stepShape = {2, 2};
  std::vector<float> gradData = {.5f, -1}, varData = {1, 2}, zeros = {0, 0};
  std::vector<int64_t> stepData = {1, 7, 7, 7};
  void *gradAddr, *varAddr, *mAddr, *vAddr, *sAddr, *stepAddr;
  aclTensor *grad, *var, *m, *v, *s, *step;
  CHECK_RET(CreateAclTensor(gradData, shape, &gradAddr, ACL_FLOAT, &grad) == 0, return 1);
  CHECK_RET(CreateAclTensor(varData, shape, &varAddr, ACL_FLOAT, &var) == 0, return 1);
  CHECK_RET(CreateAclTensor(zeros, shape, &mAddr, ACL_FLOAT, &m) == 0, return 1);
  CHECK_RET(CreateAclTensor(zeros, shape, &vAddr, ACL_FLOAT, &v) == 0, return 1);
  CHECK_RET(CreateAclTensor(varData, shape, &sAddr, ACL_FLOAT, &s) == 0, return 1);
  CHECK_RET(CreateAclTensor(stepData, stepShape, &stepAddr, ACL_INT64, &step) == 0, return 1);

  uint64_t workspaceSize = 0;
  aclOpExecutor *executor = nullptr;
  CHECK_OK(aclnnApplyFusedEmaAdamGetWorkspaceSize(grad, var, m, v, s, step, 0.1, 0.9, 0.9, 0.999, 1e-8, 1, true, 0.01,
                                                  &workspaceSize, &executor));
  void *workspace = nullptr;
  if (workspaceSize != 0) CHECK_OK(aclrtMalloc(&workspace, workspaceSize, ACL_MEM_MALLOC_NORMAL_ONLY));
  CHECK_OK(aclnnApplyFusedEmaAdam(workspace, workspaceSize, executor, stream));
  CHECK_OK(aclrtSynchronizeStreamWithTimeout(stream, 5000));
  float result[2];
  CHECK_OK(aclrtMemcpy(result, sizeof(result), varAddr, sizeof(result), ACL_MEMCPY_DEVICE_TO_HOST));
  LOG_PRINT("var: %.4f %.4f\n", result[0], result[1]);
  aclrtDestroyStream(stream);
  aclrtResetDevice(0);
  return aclFinalize();
}
