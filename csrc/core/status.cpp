#include "anyfuse.h"

extern "C" const char *anyfuse_version(void) { return ANYFUSE_VERSION; }

extern "C" const char *anyfuse_status_name(anyfuse_status status) {
  switch (status) {
    case ANYFUSE_OK:
      return "ok";
    case ANYFUSE_INVALID_POINTER:
      return "a required pointer is null";
    case ANYFUSE_INVALID_DTYPE:
      return "a dtype that the operator does not take";
    case ANYFUSE_INVALID_SIZE:
      return "a size that the operator does not take";
    case ANYFUSE_INVALID_VALUE:
      return "an attribute is out of range";
    case ANYFUSE_INVALID_INDEX:
      return "an index lies outside its table";
    case ANYFUSE_NO_TARGET:
      return "the instruction set asked for is unknown, or this CPU lacks it";
    case ANYFUSE_OUT_OF_MEMORY:
      return "out of memory";
    default:
      return "unknown status";
  }
}
