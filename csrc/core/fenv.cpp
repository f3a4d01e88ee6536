#include "core/fenv.h"

#include "anyfuse_internal.h"

extern "C" int32_t anyfuse_in_default_mode(int32_t (*function)(void *), void *argument) {
  return anyfuse::in_default_mode(function, argument);
}
