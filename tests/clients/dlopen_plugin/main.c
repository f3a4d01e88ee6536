/* Finds the calls by name in the libraries that frameworks open: the custom package's first, then the built-in one. */
#include <dlfcn.h>
#include <stdio.h>

#include "aclnn/aclnn_base.h"

typedef aclnnStatus (*Phase2)(void *, uint64_t, aclOpExecutor *, aclrtStream);

static void *find(const char *name) {
  const char *libraries[] = {"libcust_opapi.so", "libopapi.so"};
  for (int i = 0; i < 2; ++i) {
    void *library = dlopen(libraries[i], RTLD_LAZY);
    void *function = library == NULL ? NULL : dlsym(library, name);
    if (function != NULL) return function;
  }
  return NULL;
}

int main(void) {
  const char *names[] = {"aclnnAddRmsNormDynamicQuantV2", "aclnnLazyAdam", "aclnnQuantMatmulDequant", "aclnnNone"};
  for (int i = 0; i < 4; ++i) printf("%s: %d\n", names[i], find(names[i]) != NULL);
  Phase2 phase2 = (Phase2)find("aclnnLazyAdam");
  if (aclInit(NULL) != 0 || aclrtSetDevice(0) != 0) return 1;
  printf("null executor: %d\n", phase2(NULL, 0, NULL, NULL));
  return aclFinalize();
}
