/* From ND to FRACTAL_NZ weights. */
#ifndef ANYFUSE_ACLNNOP_ACLNN_TRANS_MATMUL_WEIGHT_H
#define ANYFUSE_ACLNNOP_ACLNN_TRANS_MATMUL_WEIGHT_H

#include "aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The elements (not bytes) that a matrix of this shape takes in FRACTAL_NZ: rows in blocks of 16, columns in blocks of
 * 32 bytes. Without a type: FLOAT16. */
ACL_FUNC_VISIBILITY aclnnStatus aclnnCalculateMatmulWeightSize(const aclIntArray *tensorShape,
                                                               uint64_t *weightTensorSize);
ACL_FUNC_VISIBILITY aclnnStatus aclnnCalculateMatmulWeightSizeV2(const aclIntArray *tensorShape, aclDataType dataType,
                                                                 uint64_t *weightTensorSize);

/* Lays a contiguous ND matrix (FLOAT16, BF16, INT8) out as FRACTAL_NZ, in place; its memory must hold the size computed
 * above. The tensor keeps its shape and is known as FRACTAL_NZ afterwards. */
ACL_FUNC_VISIBILITY aclnnStatus aclnnTransMatmulWeightGetWorkspaceSize(aclTensor *mmWeightRef, uint64_t *workspaceSize,
                                                                       aclOpExecutor **executor);
ACL_FUNC_VISIBILITY aclnnStatus aclnnTransMatmulWeight(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                                       aclrtStream stream);

#ifdef __cplusplus
}
#endif
#endif
