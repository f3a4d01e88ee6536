// aclnnApplyFusedEmaAdam, which computes by anyfuse_apply_fused_ema_adamw.
#include <cstring>

#include "aclnnop/aclnn_apply_fused_ema_adam.h"
#include "anyfuse.h"
#include "checks.h"

using namespace anyfuse::acl;

namespace {

constexpr const char *kName = "aclnnApplyFusedEmaAdam";
enum Position : size_t { kGrad, kVar, kM, kV, kS, kStep };

aclnnStatus check(const Call &call, int64_t mode) {
  const std::vector<aclDataType> floats = {ACL_FLOAT, ACL_FLOAT16, ACL_BF16};
  ANYFUSE_TRY(require_given(call, {kGrad, kVar, kM, kV, kS, kStep}));
  ANYFUSE_TRY(require_product(call));
  ANYFUSE_TRY(require_dtypes(
      call, {{kGrad, floats}, {kVar, floats}, {kM, floats}, {kV, floats}, {kS, floats}, {kStep, {ACL_INT64}}}));
  ANYFUSE_TRY(require_product_dtypes(call));
  ANYFUSE_TRY(require_nd(call));
  ANYFUSE_REQUIRE(mode == 0 || mode == 1, ACLNN_ERR_PARAM_INVALID, "%s: mode is %lld; accepted: 0, 1", kName,
                  static_cast<long long>(mode));
  ANYFUSE_TRY(require_product_ranks(call));
  ANYFUSE_TRY(require_same_shape(call, {kGrad, kVar, kM, kV, kS}));
  ANYFUSE_REQUIRE(call[kStep].numel() > 0, kPlanner, "%s: step has shape %s; accepted: at least one element", kName,
                  text_of(call[kStep].shape).c_str());
  return ACLNN_SUCCESS;
}

}  // namespace

aclnnStatus aclnnApplyFusedEmaAdamGetWorkspaceSize(const aclTensor *grad, aclTensor *varRef, aclTensor *mRef,
                                                   aclTensor *vRef, aclTensor *sRef, const aclTensor *step, double lr,
                                                   double emaDecay, double beta1, double beta2, double eps,
                                                   int64_t mode, bool biasCorrection, double weightDecay,
                                                   uint64_t *workspaceSize, aclOpExecutor **executor) {
  Call call(kName, workspaceSize, executor);
  call.input("grad", grad).in_place("varRef", varRef).in_place("mRef", mRef).in_place("vRef", vRef);
  call.in_place("sRef", sRef).input("step", step);
  ANYFUSE_TRY(call.begin());
  ANYFUSE_TRY(check(call, mode));
  if (call[kGrad].numel() == 0) return call.finish_empty();

  anyfuse_apply_fused_ema_adamw_row row = {};
  row.numel = call[kGrad].numel();
  row.grad_dtype = call[kGrad].dtype;
  row.var_dtype = call[kVar].dtype;
  row.m_dtype = call[kM].dtype;
  row.v_dtype = call[kV].dtype;
  row.s_dtype = call[kS].dtype;
  anyfuse_apply_fused_ema_adamw_params params = {};
  params.size = sizeof params;
  params.row_size = sizeof row;
  params.count = 1;
  params.lr = lr;
  params.ema_decay = emaDecay;
  params.beta1 = beta1;
  params.beta2 = beta2;
  params.eps = eps;
  params.weight_decay = weightDecay;
  params.mode = static_cast<int32_t>(mode);
  params.bias_correction = biasCorrection;
  params.convention = call.settings().convention;
  params.threads = call.settings().threads;
  return call.finish([row, params](const Pointers &at, void *) {
    auto r = row;
    auto p = params;
    r.grad = at[kGrad];
    r.var = at[kVar];
    r.m = at[kM];
    r.v = at[kV];
    r.s = at[kS];
    std::memcpy(&r.step, at[kStep], sizeof r.step);
    p.rows = &r;
    return from_core(anyfuse_apply_fused_ema_adamw(&p), kName);
  });
}

aclnnStatus aclnnApplyFusedEmaAdam(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                   aclrtStream stream) {
  return run(kName, workspace, workspaceSize, executor, stream);
}
