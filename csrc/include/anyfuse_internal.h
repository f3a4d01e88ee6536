/* Calls of the library that are the package's own: not part of the C API, and changed without notice. */
#ifndef ANYFUSE_INTERNAL_H
#define ANYFUSE_INTERNAL_H

#include "anyfuse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the native door: the operators, registered with the torch that is in the process ---- */

/* Registers every operator, once. NULL, or a sentence that says what is missing (torch, or a function of it). */
ANYFUSE_API const char *anyfuse_torch_register(void);

/* 1: from now on every call goes to the general implementations, as a setting is in use that only Python can see (the
 * reference, float64, a product). Settings are each context's own, so that only a test knows when the way back, 0, is
 * safe. */
ANYFUSE_API void anyfuse_torch_generally(int32_t on);

enum { ANYFUSE_RUNTIME_ERROR = 1, ANYFUSE_VALUE_ERROR = 2, ANYFUSE_INDEX_ERROR = 3 };

/* What a general implementation refuses, on this thread: the door raises it once the implementation has returned. */
ANYFUSE_API void anyfuse_torch_refuse(int32_t kind, const char *message);

/* From here to anyfuse_torch_together_end, in this thread, plain calls of operators over lists are checked and wait, and
 * what is not plain fails without going to Python. Their `step` is the one before: each call takes the next. The end
 * runs them in order when `run` is not 0, and then advances their step tensors by 1; otherwise nothing happens. */
ANYFUSE_API void anyfuse_torch_together(void);
ANYFUSE_API anyfuse_status anyfuse_torch_together_end(int32_t run);

#ifdef __cplusplus
}
#endif
#endif
