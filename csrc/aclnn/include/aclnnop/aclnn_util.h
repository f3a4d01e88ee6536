/* What headers of aclnn functions mark them with. */
#ifndef ANYFUSE_ACLNNOP_ACLNN_UTIL_H
#define ANYFUSE_ACLNNOP_ACLNN_UTIL_H

#define ACLNN_API __attribute__((visibility("default")))

#endif
