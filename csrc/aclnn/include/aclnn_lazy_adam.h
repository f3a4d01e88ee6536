/* Where the generator of custom operators puts this header. */
#ifndef ANYFUSE_ACLNN_LAZY_ADAM_H
#define ANYFUSE_ACLNN_LAZY_ADAM_H

#include "aclnnop/aclnn_lazy_adam.h"

#endif
