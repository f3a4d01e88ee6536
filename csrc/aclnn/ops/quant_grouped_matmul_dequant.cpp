// aclnnQuantGroupedMatmulDequant, for weights in either format, and aclnnQuantGroupedMatmulDequantWeightNZ, for weights
// in blocks: their checks and their computation are those of aclnnQuantMatmulDequant, with groups.
#include "aclnnop/aclnn_quant_grouped_matmul_dequant.h"
#include "aclnnop/aclnn_quant_grouped_matmul_dequant_weight_nz.h"
#include "ops/quant_matmul_dequant.h"

using namespace anyfuse::acl;

namespace {

constexpr const char *kName = "aclnnQuantGroupedMatmulDequant";
constexpr const char *kNameNz = "aclnnQuantGroupedMatmulDequantWeightNZ";

}  // namespace

aclnnStatus aclnnQuantGroupedMatmulDequantGetWorkspaceSize(
    const aclTensor *x, const aclTensor *weight, const aclTensor *weightScale, const aclTensor *groupList,
    const aclTensor *biasOptional, const aclTensor *xScaleOptional, const aclTensor *xOffsetOptional,
    const aclTensor *smoothScaleOptional, char *xQuantMode, bool transposeWeight, const aclTensor *out,
    uint64_t *workspaceSize, aclOpExecutor **executor) {
  return plan_quant_matmul(kName, MatmulForm::grouped,
                           {x, weight, weightScale, groupList, biasOptional, xScaleOptional, xOffsetOptional,
                            smoothScaleOptional, xQuantMode, transposeWeight, out},
                           workspaceSize, executor);
}

aclnnStatus aclnnQuantGroupedMatmulDequant(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                           aclrtStream stream) {
  return run(kName, workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnQuantGroupedMatmulDequantWeightNZGetWorkspaceSize(
    const aclTensor *x, const aclTensor *weight, const aclTensor *weightScale, const aclTensor *groupList,
    const aclTensor *biasOptional, const aclTensor *xScaleOptional, const aclTensor *xOffsetOptional,
    const aclTensor *smoothScaleOptional, char *xQuantMode, bool transposeWeight, aclTensor *out,
    uint64_t *workspaceSize, aclOpExecutor **executor) {
  return plan_quant_matmul(kNameNz, MatmulForm::grouped_nz,
                           {x, weight, weightScale, groupList, biasOptional, xScaleOptional, xOffsetOptional,
                            smoothScaleOptional, xQuantMode, transposeWeight, out},
                           workspaceSize, executor);
}

aclnnStatus aclnnQuantGroupedMatmulDequantWeightNZ(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                                   aclrtStream stream) {
  return run(kNameNz, workspace, workspaceSize, executor, stream);
}
