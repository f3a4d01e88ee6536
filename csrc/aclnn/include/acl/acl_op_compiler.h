/* Included by programs beside acl_base.h. Operators are called by their aclnn functions; running one by its type name
 * (aclopExecute) or compiling one is not part of this library. */
#ifndef ANYFUSE_ACL_ACL_OP_COMPILER_H
#define ANYFUSE_ACL_ACL_OP_COMPILER_H

#include "acl/acl_op.h"

#endif
