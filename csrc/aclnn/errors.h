// One wording of failures: a code for the program, a message for the person.
#pragma once
#include <cstdint>

#include "aclnn/aclnn_base.h"
#include "anyfuse_internal.h"

namespace anyfuse::acl {

// Keeps the message for this thread's aclGetRecentErrMsg and returns the code.
__attribute__((format(printf, 2, 3))) int32_t fail(int32_t code, const char *format, ...);

// The code of the two-phase calls for a status of the library below; `what` begins the message.
aclnnStatus from_core(anyfuse_status status, const char *what);

// A check or a computation with floating-point numbers, in the mode that the operators compute in.
template <typename Function>
int32_t in_default_mode(Function function) {
  return anyfuse_in_default_mode([](void *f) -> int32_t { return (*static_cast<Function *>(f))(); }, &function);
}

}  // namespace anyfuse::acl

// Returns from the calling function when a check has failed.
#define ANYFUSE_TRY(expression)                           \
  do {                                                    \
    const int32_t anyfuse_code = (expression);            \
    if (anyfuse_code != ACL_SUCCESS) return anyfuse_code; \
  } while (false)
