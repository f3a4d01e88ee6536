/* As aclnnAddRmsNormDynamicQuant, with a bias after the norm, a choice of the outputs, and int4. */
#ifndef ANYFUSE_ACLNNOP_ACLNN_ADD_RMS_NORM_DYNAMIC_QUANT_V2_H
#define ANYFUSE_ACLNNOP_ACLNN_ADD_RMS_NORM_DYNAMIC_QUANT_V2_H

#include "aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* betaOptional is like gamma; outputMaskOptional has two entries, or is null; y may also be INT4, or INT32 words of
 * eight. Ascend950 has neither a mask nor INT4. An output that is not asked for is a tensor of shape [1] that stays as
 * it is. */
ACL_FUNC_VISIBILITY aclnnStatus aclnnAddRmsNormDynamicQuantV2GetWorkspaceSize(
    const aclTensor *x1, const aclTensor *x2, const aclTensor *gamma, const aclTensor *smoothScale1Optional,
    const aclTensor *smoothScale2Optional, const aclTensor *betaOptional, double epsilon,
    const aclBoolArray *outputMaskOptional, aclTensor *y1Out, aclTensor *y2Out, aclTensor *xOut, aclTensor *scale1Out,
    aclTensor *scale2Out, uint64_t *workspaceSize, aclOpExecutor **executor);
ACL_FUNC_VISIBILITY aclnnStatus aclnnAddRmsNormDynamicQuantV2(void *workspace, uint64_t workspaceSize,
                                                              aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif
#endif
