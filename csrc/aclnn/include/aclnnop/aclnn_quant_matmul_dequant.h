/* Quantizes the rows of x to int8, multiplies exactly with int8 weights, and scales back. */
#ifndef ANYFUSE_ACLNNOP_ACLNN_QUANT_MATMUL_DEQUANT_H
#define ANYFUSE_ACLNNOP_ACLNN_QUANT_MATMUL_DEQUANT_H

#include "aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x FLOAT16 (m, k); weight INT8, ND (n, k) or FRACTAL_NZ (k1, n1, 16, 32); weightScale FLOAT or INT64 (n);
 * xScaleOptional FLOAT (m) or (1), FLOAT16 (1) beside an INT64 weightScale, null for dynamic; smoothScaleOptional
 * FLOAT16 (k); out FLOAT16 (m, n); xQuantMode "pertoken" or "pertensor". biasOptional and xOffsetOptional must be null
 * (in the profile any, biasOptional may be INT32 (n)). */
ACL_FUNC_VISIBILITY aclnnStatus aclnnQuantMatmulDequantGetWorkspaceSize(
    const aclTensor *x, const aclTensor *weight, const aclTensor *weightScale, const aclTensor *biasOptional,
    const aclTensor *xScaleOptional, const aclTensor *xOffsetOptional, const aclTensor *smoothScaleOptional,
    char *xQuantMode, bool transposeWeight, const aclTensor *out, uint64_t *workspaceSize, aclOpExecutor **executor);
ACL_FUNC_VISIBILITY aclnnStatus aclnnQuantMatmulDequant(void *workspace, uint64_t workspaceSize,
                                                        aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif
#endif
