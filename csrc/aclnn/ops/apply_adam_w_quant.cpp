// aclnnApplyAdamWQuant, which computes by anyfuse_apply_adam_w_quant.
#include <cmath>
#include <cstring>
#include <limits>

#include "aclnnop/aclnn_apply_adam_w_quant.h"
#include "anyfuse.h"
#include "checks.h"
#include "nz.h"

using namespace anyfuse::acl;

namespace {

constexpr const char *kName = "aclnnApplyAdamWQuant";
constexpr int64_t kMapSize = 256;
enum Position : size_t { kVar, kGrad, kM, kV, kQmapM, kQmapV, kAbsmaxM, kAbsmaxV, kStep };

bool accepts_block(int64_t size) { return size >= 64 && size <= 2048 && (size & (size - 1)) == 0; }

aclnnStatus check(const Call &call, int64_t block_size) {
  const std::vector<aclDataType> floats = {ACL_FLOAT, ACL_FLOAT16, ACL_BF16};
  ANYFUSE_TRY(require_given(call, {kVar, kGrad, kM, kV, kQmapM, kQmapV, kAbsmaxM, kAbsmaxV, kStep}));
  ANYFUSE_TRY(require_product(call));
  ANYFUSE_TRY(require_dtypes(call, {{kVar, floats},
                                    {kGrad, floats},
                                    {kM, {ACL_UINT8}},
                                    {kV, {ACL_UINT8}},
                                    {kQmapM, {ACL_FLOAT}},
                                    {kQmapV, {ACL_FLOAT}},
                                    {kAbsmaxM, {ACL_FLOAT}},
                                    {kAbsmaxV, {ACL_FLOAT}},
                                    {kStep, {ACL_INT64}}}));
  ANYFUSE_TRY(require_product_dtypes(call));
  ANYFUSE_TRY(require_nd(call));
  ANYFUSE_TRY(require_product_number(call, "blockSize", static_cast<double>(block_size)));
  ANYFUSE_REQUIRE(accepts_block(block_size), kPlanner, "%s: blockSize is %lld; accepted: 64, 128, 256, 512, 1024, 2048",
                  kName, static_cast<long long>(block_size));
  ANYFUSE_TRY(require_product_ranks(call));
  ANYFUSE_TRY(require_same_shape(call, {kVar, kGrad, kM, kV}));
  ANYFUSE_TRY(require_numel(call, kQmapM, kMapSize, "one value for each code"));
  ANYFUSE_TRY(require_same_shape(call, {kQmapM, kQmapV}));
  ANYFUSE_TRY(require_shape(call, kStep, {1}, "the number of the step"));
  const int64_t blocks = ceil_div(call[kVar].numel(), block_size);
  ANYFUSE_TRY(require_numel(call, kAbsmaxM, blocks, "one for each block of varRef"));
  return require_numel(call, kAbsmaxV, blocks, "one for each block of varRef");
}

// The refusal of the first value of a map that the core does not take; 0 where there is none.
aclnnStatus refuse_map(const char *name, const float *map) {
  float before = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < kMapSize; ++i) {
    float value;
    std::memcpy(&value, map + i, sizeof value);
    ANYFUSE_REQUIRE(std::isfinite(value) && value >= before, ACLNN_ERR_PARAM_INVALID,
                    "%s: %s[%lld] is %g, after %g; accepted: 256 finite values in ascending order", kName, name,
                    static_cast<long long>(i), static_cast<double>(value), static_cast<double>(before));
    before = value;
  }
  return ACLNN_SUCCESS;
}

}  // namespace

aclnnStatus aclnnApplyAdamWQuantGetWorkspaceSize(aclTensor *varRef, const aclTensor *grad, aclTensor *mRef,
                                                 aclTensor *vRef, const aclTensor *qmapM, const aclTensor *qmapV,
                                                 aclTensor *absmaxMRef, aclTensor *absmaxVRef, const aclTensor *step,
                                                 double lr, double beta1, double beta2, double weightDecay, double eps,
                                                 double gnormScale, char *, int64_t blockSize, uint64_t *workspaceSize,
                                                 aclOpExecutor **executor) {
  Call call(kName, workspaceSize, executor);
  call.in_place("varRef", varRef).input("grad", grad).in_place("mRef", mRef).in_place("vRef", vRef);
  call.input("qmapM", qmapM).input("qmapV", qmapV).in_place("absmaxMRef", absmaxMRef);
  call.in_place("absmaxVRef", absmaxVRef).input("step", step);
  ANYFUSE_TRY(call.begin());
  ANYFUSE_TRY(check(call, blockSize));
  if (call[kVar].numel() == 0) return call.finish_empty();

  anyfuse_apply_adam_w_quant_row row = {};
  row.numel = call[kVar].numel();
  row.grad_dtype = call[kGrad].dtype;
  row.var_dtype = call[kVar].dtype;
  anyfuse_apply_adam_w_quant_params params = {};
  params.size = sizeof params;
  params.row_size = sizeof row;
  params.count = 1;
  params.block_size = blockSize;
  params.lr = lr;
  params.beta1 = beta1;
  params.beta2 = beta2;
  params.weight_decay = weightDecay;
  params.eps = eps;
  params.gnorm_scale = gnormScale;
  params.convention = call.settings().convention;
  params.threads = call.settings().threads;
  return call.finish([row, params](const Pointers &at, void *) {
    auto r = row;
    auto p = params;
    r.var = at[kVar];
    r.grad = at[kGrad];
    r.m = at[kM];
    r.v = at[kV];
    r.absmax_m = static_cast<float *>(at[kAbsmaxM]);
    r.absmax_v = static_cast<float *>(at[kAbsmaxV]);
    std::memcpy(&r.step, at[kStep], sizeof r.step);
    p.qmap_m = static_cast<const float *>(at[kQmapM]);
    p.qmap_v = static_cast<const float *>(at[kQmapV]);
    p.rows = &r;
    const anyfuse_status status = anyfuse_apply_adam_w_quant(&p);
    if (status == ANYFUSE_INVALID_VALUE) {
      ANYFUSE_TRY(refuse_map("qmapM", p.qmap_m));
      ANYFUSE_TRY(refuse_map("qmapV", p.qmap_v));
    }
    return from_core(status, kName);
  });
}

aclnnStatus aclnnApplyAdamWQuant(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream) {
  return run(kName, workspace, workspaceSize, executor, stream);
}
