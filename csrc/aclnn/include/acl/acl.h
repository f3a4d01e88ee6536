/* The acl runtime: everything that a single-operator program includes.
 *
 * From the environment, read at aclInit:
 *   ANYFUSE_SOC          what product refuses: Ascend910B, Ascend910_93, Ascend950, Ascend310P, KirinX90, Kirin9030,
 *                        any (default); in any case, and with a chip's ending, such as ascend910b3
 *   ANYFUSE_CONVENTION   formula or device: which of the two orders of operations the operators follow. Without it
 *                        aclnnLazyAdam computes by device, as its document's own test does, and the others by formula
 *   ANYFUSE_NUM_THREADS  threads of one operator; by default as many as the process may use processors
 *   ANYFUSE_ACL_STRICT   1: device memory ends where the request ended; by default it is rounded up to whole pages */
#ifndef ANYFUSE_ACL_ACL_H
#define ANYFUSE_ACL_ACL_H

#include "acl/acl_op.h"
#include "acl/acl_rt.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ACL_MAJOR_VERSION 1
#define ACL_MINOR_VERSION 8
#define ACL_PATCH_VERSION 0

/* `configPath` may be null or empty; a file is only tested for being readable. */
ACL_FUNC_VISIBILITY aclError aclInit(const char *configPath);
/* Releases devices, contexts, streams, events and memory. Tensors and executors stay until they are destroyed. */
ACL_FUNC_VISIBILITY aclError aclFinalize(void);
ACL_FUNC_VISIBILITY aclError aclrtGetVersion(int32_t *majorVersion, int32_t *minorVersion, int32_t *patchVersion);
/* The last failure of this thread in words, and forgets it; "" when there was none. Valid until the thread's next call.
 */
ACL_FUNC_VISIBILITY const char *aclGetRecentErrMsg(void);

#ifdef __cplusplus
}
#endif
#endif
