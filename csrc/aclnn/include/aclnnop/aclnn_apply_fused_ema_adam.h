/* AdamW (mode 1) or Adam with L2 (mode 0), and an exponential moving average of the weights, in one pass. */
#ifndef ANYFUSE_ACLNNOP_ACLNN_APPLY_FUSED_EMA_ADAM_H
#define ANYFUSE_ACLNNOP_ACLNN_APPLY_FUSED_EMA_ADAM_H

#include "aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* grad, varRef, mRef, vRef, sRef: FLOAT, FLOAT16 or BF16 of one shape; step INT64 [1], the first step is 1 (of
 * a step of another shape the first element is read, as the official planner takes it). */
ACL_FUNC_VISIBILITY aclnnStatus aclnnApplyFusedEmaAdamGetWorkspaceSize(
    const aclTensor *grad, aclTensor *varRef, aclTensor *mRef, aclTensor *vRef, aclTensor *sRef, const aclTensor *step,
    double lr, double emaDecay, double beta1, double beta2, double eps, int64_t mode, bool biasCorrection,
    double weightDecay, uint64_t *workspaceSize, aclOpExecutor **executor);
ACL_FUNC_VISIBILITY aclnnStatus aclnnApplyFusedEmaAdam(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                                       aclrtStream stream);

#ifdef __cplusplus
}
#endif
#endif
