// aclnnLazyAdam, which computes by anyfuse_lazy_adam.
#include <cmath>
#include <cstring>

#include "aclnnop/aclnn_lazy_adam.h"
#include "anyfuse.h"
#include "checks.h"

using namespace anyfuse::acl;

namespace {

constexpr const char *kName = "aclnnLazyAdam";
enum Position : size_t { kGradient, kIndices, kM, kV, kVar, kLr };

aclnnStatus check_dtypes(const Call &call) {
  const std::vector<aclDataType> floats = {ACL_FLOAT, ACL_FLOAT16, ACL_BF16};
  ANYFUSE_TRY(require_dtypes(call, {{kGradient, floats},
                                    {kIndices, {ACL_INT32, ACL_INT64}},
                                    {kM, {ACL_FLOAT}},
                                    {kV, {ACL_FLOAT}},
                                    {kVar, floats},
                                    {kLr, {ACL_FLOAT}}}));
  return require_product_dtypes(call);
}

aclnnStatus check(const Call &call, double epsilon) {
  ANYFUSE_TRY(require_given(call, {kGradient, kIndices, kM, kV, kVar, kLr}));
  ANYFUSE_TRY(require_product(call));
  ANYFUSE_TRY(check_dtypes(call));
  ANYFUSE_TRY(require_nd(call));
  ANYFUSE_TRY(require_rank(call, kM, 2, 2));
  const int64_t dim = call[kM].shape[1];
  ANYFUSE_TRY(require_product_number(call, "dim", static_cast<double>(dim), ACLNN_ERR_PARAM_INVALID));
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

// The refusal of the first index beyond its table.
template <typename Index>
aclnnStatus refuse_index(const anyfuse_lazy_adam_row &row) {
  for (int64_t i = 0; i < row.n; ++i) {
    Index index;
    std::memcpy(&index, static_cast<const char *>(row.indices) + static_cast<size_t>(i) * sizeof index, sizeof index);
    ANYFUSE_REQUIRE(index < row.rows, ACLNN_ERR_PARAM_INVALID,
                    "%s: indices[%lld] is %lld; accepted: below %lld, the rows of inputMRef", kName,
                    static_cast<long long>(i), static_cast<long long>(index), static_cast<long long>(row.rows));
  }
  return from_core(ANYFUSE_INVALID_INDEX, kName);
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
  params.convention = call.settings().lazy_adam_convention;
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
    const anyfuse_status status = anyfuse_lazy_adam(&p);
    if (status != ANYFUSE_INVALID_INDEX) return from_core(status, kName);
    return row.indices_dtype == ANYFUSE_INT64 ? refuse_index<int64_t>(r) : refuse_index<int32_t>(r);
  });
}

aclnnStatus aclnnLazyAdam(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream) {
  return run(kName, workspace, workspaceSize, executor, stream);
}
