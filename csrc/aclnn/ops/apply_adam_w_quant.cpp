// aclnnApplyAdamWQuant, which computes by anyfuse_apply_adam_w_quant.
#include <cstring>

#include "aclnnop/aclnn_apply_adam_w_quant.h"
#include "anyfuse.h"
#include "checks.h"
#include "nz.h"

using namespace anyfuse::acl;

namespace {

constexpr const char *kName = "aclnnApplyAdamWQuant";
constexpr uint32_t kProducts = kAscend910B | kAscend910_93 | kAscend950;
constexpr int64_t kMapSize = 256;
enum Position : size_t { kVar, kGrad, kM, kV, kQmapM, kQmapV, kAbsmaxM, kAbsmaxV, kStep };

bool accepts_block(Soc soc, int64_t size) {
  if (soc != kAny) return size == 256;
  return size >= 64 && size <= 2048 && (size & (size - 1)) == 0;
}

aclnnStatus check(const Call &call, int64_t block_size) {
  const bool any = call.settings().soc == kAny;
  const std::vector<aclDataType> floats = {ACL_FLOAT, ACL_FLOAT16, ACL_BF16};
  ANYFUSE_TRY(require_given(call, {kVar, kGrad, kM, kV, kQmapM, kQmapV, kAbsmaxM, kAbsmaxV, kStep}));
  ANYFUSE_TRY(require_product(call, kProducts));
  ANYFUSE_TRY(require_dtypes(call, {{kVar, floats},
                                    {kGrad, floats},
                                    {kM, {ACL_UINT8}},
                                    {kV, {ACL_UINT8}},
                                    {kQmapM, {ACL_FLOAT}},
                                    {kQmapV, {ACL_FLOAT}},
                                    {kAbsmaxM, {ACL_FLOAT}},
                                    {kAbsmaxV, {ACL_FLOAT}},
                                    {kStep, {ACL_INT64}}}));
  if (!any) ANYFUSE_TRY(require_one_dtype(call, {kVar, kGrad}));
  ANYFUSE_TRY(require_nd(call));
  ANYFUSE_REQUIRE(accepts_block(call.settings().soc, block_size), kPlanner, "%s: blockSize is %lld; accepted: %s",
                  kName, static_cast<long long>(block_size), any ? "64, 128, 256, 512, 1024, 2048" : "256");
  if (!any) ANYFUSE_TRY(require_rank(call, kVar, 1, 8));
  ANYFUSE_TRY(require_same_shape(call, {kVar, kGrad, kM, kV}));
  ANYFUSE_TRY(require_numel(call, kQmapM, kMapSize, "one value for each code"));
  ANYFUSE_TRY(require_same_shape(call, {kQmapM, kQmapV}));
  ANYFUSE_TRY(require_shape(call, kStep, {1}, "the number of the step"));
  const int64_t blocks = ceil_div(call[kVar].numel(), block_size);
  ANYFUSE_TRY(require_numel(call, kAbsmaxM, blocks, "one for each block of varRef"));
  return require_numel(call, kAbsmaxV, blocks, "one for each block of varRef");
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
    return from_core(anyfuse_apply_adam_w_quant(&p), kName);
  });
}

aclnnStatus aclnnApplyAdamWQuant(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream) {
  return run(kName, workspace, workspaceSize, executor, stream);
}
