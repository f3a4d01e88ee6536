/* x1 + x2, its RMS norm, and one or two quantizations of the norm with a scale for each row. */
#ifndef ANYFUSE_ACLNNOP_ACLNN_ADD_RMS_NORM_DYNAMIC_QUANT_H
#define ANYFUSE_ACLNNOP_ACLNN_ADD_RMS_NORM_DYNAMIC_QUANT_H

#include "aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x1, x2, gamma, smooth scales: FLOAT16 or BF16; y INT8, HIFLOAT8, FLOAT8_E5M2 or FLOAT8_E4M3FN; scales FLOAT. The
 * second output is made when both smooth scales are given. */
ACL_FUNC_VISIBILITY aclnnStatus aclnnAddRmsNormDynamicQuantGetWorkspaceSize(
    const aclTensor *x1, const aclTensor *x2, const aclTensor *gamma, const aclTensor *smoothScale1Optional,
    const aclTensor *smoothScale2Optional, double epsilon, aclTensor *y1Out, aclTensor *y2Out, aclTensor *xOut,
    aclTensor *scale1Out, aclTensor *scale2Out, uint64_t *workspaceSize, aclOpExecutor **executor);
ACL_FUNC_VISIBILITY aclnnStatus aclnnAddRmsNormDynamicQuant(void *workspace, uint64_t workspaceSize,
                                                            aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif
#endif
