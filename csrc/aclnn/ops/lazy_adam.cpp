// aclnnLazyAdam, which computes by anyfuse_lazy_adam.
#include <cmath>
#include <cstring>

#include "aclnnop/aclnn_lazy_adam.h"
#include "anyfuse.h"
#include "checks.h"

using namespace anyfuse::acl;

namespace {

constexpr const char *kName = "aclnnLazyAdam";
constexpr uint32_t kProducts = kAscend910B | kAscend910_93 | kAscend950;
enum Position : size_t { kGradient, kIndices, kM, kV, kVar, kLr };

aclnnStatus check_dtypes(const Call &call) {
  const bool any = call.settings().soc == kAny;
  const std::vector<aclDataType> floats = {ACL_FLOAT, ACL_FLOAT16, ACL_BF16};
  const std::vector<aclDataType> values = any ? floats : std::vector<aclDataType>{ACL_FLOAT};
  const std::vector<aclDataType> ids =
      any ? std::vector<aclDataType>{ACL_INT32, ACL_INT64} : std::vector<aclDataType>{ACL_INT32};
  return require_dtypes(
      call,
      {{kGradient, values}, {kIndices, ids}, {kM, {ACL_FLOAT}}, {kV, {ACL_FLOAT}}, {kVar, values}, {kLr, {ACL_FLOAT}}});
}

aclnnStatus check(const Call &call, double epsilon) {
  ANYFUSE_TRY(require_given(call, {kGradient, kIndices, kM, kV, kVar, kLr}));
  ANYFUSE_TRY(require_product(call, kProducts));
  ANYFUSE_TRY(check_dtypes(call));
  ANYFUSE_TRY(require_nd(call));
  ANYFUSE_TRY(require_rank(call, kM, 2, 2));
  const int64_t dim = call[kM].shape[1];
  ANYFUSE_REQUIRE(call.settings().soc == kAny || dim % 8 == 0, ACLNN_ERR_PARAM_INVALID,
                  "%s: the tables have %lld columns; accepted: multiples of 8", kName, static_cast<long long>(dim));
  ANYFUSE_TRY(require_same_shape(call, {kM, kV, kVar}));
  ANYFUSE_TRY(require_rank(call, kIndices, 1, 2));
  const int64_t n = call[kIndices].shape[0];
  ANYFUSE_TRY(require_numel(call, kIndices, n, "one index for each row"));
  ANYFUSE_TRY(require_shape(call, kGradient, {n, dim}, "indices and inputMRef ask for"));
  ANYFUSE_TRY(require_numel(call, kLr, 1, "the learning rate"));
  const bool large = in_default_mode([=] { return std::fabs(static_cast<float>(epsilon)) >= 1e-8f; });
  ANYFUSE_REQUIRE(large, kPlanner, "%s: epsilon is %g; accepted: a magnitude of at least 1e-8", kName, epsilon);
  return ACLNN_SUCCESS;
}

}  // namespace

aclnnStatus aclnnLazyAdamGetWorkspaceSize(const aclTensor *gradient, const aclTensor *indices, aclTensor *inputMRef,
                                          aclTensor *inputVRef, aclTensor *inputVarRef, const aclTensor *lr,
                                          double beta1, double beta2, double epsilon, uint64_t *workspaceSize,
                                          aclOpExecutor **executor) {
  Call call(kName, workspaceSize, executor);
  call.input("gradient", gradient).input("indices", indices).in_place("inputMRef", inputMRef);
  call.in_place("inputVRef", inputVRef).in_place("inputVarRef", inputVarRef).input("lr", lr);
  ANYFUSE_TRY(call.begin());
  ANYFUSE_TRY(check(call, epsilon));
  if (call[kIndices].numel() == 0) return call.finish_empty();

  anyfuse_lazy_adam_row row = {};
  row.n = call[kIndices].shape[0];
  row.rows = call[kM].shape[0];
  row.dim = call[kM].shape[1];
  row.gradient_dtype = call[kGradient].dtype;
  row.indices_dtype = call[kIndices].dtype;
  row.var_dtype = call[kVar].dtype;
  anyfuse_lazy_adam_params params = {};
  params.size = sizeof params;
  params.row_size = sizeof row;
  params.count = 1;
  params.beta1 = beta1;
  params.beta2 = beta2;
  params.epsilon = epsilon;
  params.convention = call.settings().convention;
  params.threads = call.settings().threads;
  return call.finish([row, params](const Pointers &at, void *) {
    auto r = row;
    auto p = params;
    r.gradient = at[kGradient];
    r.indices = at[kIndices];
    r.m = at[kM];
    r.v = at[kV];
    r.var = at[kVar];
    float rate;
    std::memcpy(&rate, at[kLr], sizeof rate);
    r.lr = rate;
    p.rows = &r;
    return from_core(anyfuse_lazy_adam(&p), kName);
  });
}

aclnnStatus aclnnLazyAdam(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream) {
  return run(kName, workspace, workspaceSize, executor, stream);
}
