/* aclnnQuantGroupedMatmulDequant with weights that are in blocks. */
#ifndef ANYFUSE_ACLNNOP_ACLNN_QUANT_GROUPED_MATMUL_DEQUANT_WEIGHT_NZ_H
#define ANYFUSE_ACLNNOP_ACLNN_QUANT_GROUPED_MATMUL_DEQUANT_WEIGHT_NZ_H

#include "aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As aclnnQuantGroupedMatmulDequant, weight excepted: its format is taken for FRACTAL_NZ whatever it says, so that its
 * shape, or that of its storage, is (g, k1, n1, 16, 32). */
ACL_FUNC_VISIBILITY aclnnStatus aclnnQuantGroupedMatmulDequantWeightNZGetWorkspaceSize(
    const aclTensor *x, const aclTensor *weight, const aclTensor *weightScale, const aclTensor *groupList,
    const aclTensor *biasOptional, const aclTensor *xScaleOptional, const aclTensor *xOffsetOptional,
    const aclTensor *smoothScaleOptional, char *xQuantMode, bool transposeWeight, aclTensor *out,
    uint64_t *workspaceSize, aclOpExecutor **executor);
ACL_FUNC_VISIBILITY aclnnStatus aclnnQuantGroupedMatmulDequantWeightNZ(void *workspace, uint64_t workspaceSize,
                                                                       aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif
#endif
