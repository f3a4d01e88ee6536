/* Adam on the rows of a table that a batch has touched. */
#ifndef ANYFUSE_ACLNNOP_ACLNN_LAZY_ADAM_H
#define ANYFUSE_ACLNNOP_ACLNN_LAZY_ADAM_H

#include "aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* gradient FLOAT (n, dim); indices INT32 (n) or (n, 1), negative ones are skipped; inputMRef, inputVRef, inputVarRef
 * FLOAT (rows, dim); lr FLOAT, one element, the bias corrections already in it. An index beyond the table makes the
 * second phase answer 161002, with nothing written. The default convention is device (1 - beta in float32), as in the
 * operator's own test. */
ACL_FUNC_VISIBILITY aclnnStatus aclnnLazyAdamGetWorkspaceSize(const aclTensor *gradient, const aclTensor *indices,
                                                              aclTensor *inputMRef, aclTensor *inputVRef,
                                                              aclTensor *inputVarRef, const aclTensor *lr, double beta1,
                                                              double beta2, double epsilon, uint64_t *workspaceSize,
                                                              aclOpExecutor **executor);
ACL_FUNC_VISIBILITY aclnnStatus aclnnLazyAdam(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                              aclrtStream stream);

#ifdef __cplusplus
}
#endif
#endif
