/* AdamW with 8-bit block-wise state. One code for each element of varRef, one absmax for each block of 256. */
#ifndef ANYFUSE_ACLNNOP_ACLNN_APPLY_ADAM_W_QUANT_H
#define ANYFUSE_ACLNNOP_ACLNN_APPLY_ADAM_W_QUANT_H

#include "aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* varRef FLOAT, FLOAT16 or BF16, grad like it; mRef, vRef UINT8 codes; qmapM, qmapV FLOAT [256] ascending
 * (another shape of 256 elements is taken, as the official planner takes it); absmaxMRef,
 * absmaxVRef FLOAT with ceil(size / 256) elements; step INT64 [1]. quantModeOptional is not looked at and may be null.
 */
ACL_FUNC_VISIBILITY aclnnStatus aclnnApplyAdamWQuantGetWorkspaceSize(
    aclTensor *varRef, const aclTensor *grad, aclTensor *mRef, aclTensor *vRef, const aclTensor *qmapM,
    const aclTensor *qmapV, aclTensor *absmaxMRef, aclTensor *absmaxVRef, const aclTensor *step, double lr,
    double beta1, double beta2, double weightDecay, double eps, double gnormScale, char *quantModeOptional,
    int64_t blockSize, uint64_t *workspaceSize, aclOpExecutor **executor);
ACL_FUNC_VISIBILITY aclnnStatus aclnnApplyAdamWQuant(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                                     aclrtStream stream);

#ifdef __cplusplus
}
#endif
#endif
