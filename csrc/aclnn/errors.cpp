#include "errors.h"

#include <cstdarg>
#include <cstdio>
#include <string>

namespace anyfuse::acl {
namespace {

thread_local std::string pending;  // the last failure, not yet asked for
thread_local std::string given;    // what aclGetRecentErrMsg has handed out

}  // namespace

int32_t fail(int32_t code, const char *format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  pending = std::to_string(code) + ": " + text;
  return code;
}

aclnnStatus from_core(anyfuse_status status, const char *what) {
  aclnnStatus code = ACLNN_ERR_INNER;
  switch (status) {
    case ANYFUSE_OK:
      return ACLNN_SUCCESS;
    case ANYFUSE_INVALID_POINTER:
      code = ACLNN_ERR_INNER_NULLPTR;
      break;
    case ANYFUSE_INVALID_DTYPE:
    case ANYFUSE_INVALID_VALUE:
    case ANYFUSE_INVALID_INDEX:
      code = ACLNN_ERR_PARAM_INVALID;
      break;
    case ANYFUSE_INVALID_SIZE:
      code = ACLNN_ERR_INNER_TILING_ERROR;
      break;
    case ANYFUSE_NO_TARGET:
      code = ACLNN_ERR_INNER_FIND_KERNEL_ERROR;
      break;
    case ANYFUSE_OUT_OF_MEMORY:
      code = ACLNN_ERR_RUNTIME_ERROR;
      break;
  }
  return fail(code, "%s: %s", what, anyfuse_status_name(status));
}

}  // namespace anyfuse::acl

extern "C" const char *aclGetRecentErrMsg(void) {
  using namespace anyfuse::acl;
  given.swap(pending);
  pending.clear();
  return given.c_str();
}
