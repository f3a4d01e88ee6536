/* Where headers beside those of aclnnop look for it. */
#ifndef ANYFUSE_ACLNN_UTIL_H
#define ANYFUSE_ACLNN_UTIL_H

#include "aclnnop/aclnn_util.h"

#endif
