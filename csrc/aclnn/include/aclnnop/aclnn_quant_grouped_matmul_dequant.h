/* aclnnQuantMatmulDequant of groups of rows, each with int8 weights of its own (a mixture of experts). */
#ifndef ANYFUSE_ACLNNOP_ACLNN_QUANT_GROUPED_MATMUL_DEQUANT_H
#define ANYFUSE_ACLNNOP_ACLNN_QUANT_GROUPED_MATMUL_DEQUANT_H

#include "aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x FLOAT16 (m, k), its rows sorted by group; weight INT8, ND (g, n, k) or FRACTAL_NZ (g, k1, n1, 16, 32); weightScale
 * FLOAT or INT64 (g, n); groupList INT64 (g), the end of each group's rows: ascending, at most m (looked at in phase
 * 2); xScaleOptional FLOAT (m) or (1), FLOAT16 (1) beside an INT64 weightScale, null for dynamic; smoothScaleOptional
 * FLOAT16 (k); out FLOAT16 (m, n), 0 in rows from the last end on; xQuantMode "pertoken" or "pertensor". biasOptional
 * and xOffsetOptional must be null (in the profile any, biasOptional may be INT32 (g, n), smoothScaleOptional (g, k)).
 */
ACL_FUNC_VISIBILITY aclnnStatus aclnnQuantGroupedMatmulDequantGetWorkspaceSize(
    const aclTensor *x, const aclTensor *weight, const aclTensor *weightScale, const aclTensor *groupList,
    const aclTensor *biasOptional, const aclTensor *xScaleOptional, const aclTensor *xOffsetOptional,
    const aclTensor *smoothScaleOptional, char *xQuantMode, bool transposeWeight, const aclTensor *out,
    uint64_t *workspaceSize, aclOpExecutor **executor);
ACL_FUNC_VISIBILITY aclnnStatus aclnnQuantGroupedMatmulDequant(void *workspace, uint64_t workspaceSize,
                                                               aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif
#endif
