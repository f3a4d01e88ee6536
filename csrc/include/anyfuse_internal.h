/* Functions of the library for the Python package and its benchmarks alone: they may change with every release. */
#ifndef ANYFUSE_INTERNAL_H
#define ANYFUSE_INTERNAL_H

#include "anyfuse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the native door: the operators, registered with the torch that is in the process ---- */

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

/* ---- describe: what many tensors of Python are and where they lie ---- */

typedef struct anyfuse_description {
  const void *object; /* the Python object, which tells one tensor from another */
  void *data;
  int64_t numel;
  int64_t extent;      /* bytes from the first element to the end of the last */
  uint64_t layout;     /* of shape and strides: equal ones have equal numbers, others have others but for one in 2^64 */
  anyfuse_dtype dtype; /* -1: none of the types above */
  int32_t device;      /* kind of device as DLPack numbers it: 1 is the memory of the CPU */
  int32_t contiguous;
  int32_t dimensions;
} anyfuse_description;

/* Describes the `count` items of a Python list. The caller holds Python's lock, and gives what it has found in the
 * process, as this library is built without Python: PyList_GetItem, and the function of DLPack's exchange API that
 * fills a DLTensor from an object of the tensors' class without a copy. ANYFUSE_INVALID_POINTER with a Python exception
 * set for an object that is no tensor, or has no memory of its own. */
ANYFUSE_API anyfuse_status anyfuse_describe(void *tensors, int64_t count, const void *item, const void *look,
                                            anyfuse_description *out);

/* ---- stream: the memory traffic of a kernel without its arithmetic, the roofline of `anyfuse bench` ---- */

enum { ANYFUSE_STREAM_READ = 0, ANYFUSE_STREAM_UPDATE = 1, ANYFUSE_STREAM_WRITE = 2 };

typedef struct anyfuse_stream_array {
  void *data;       /* aligned to 64 bytes; its contents are changed unless it is only read */
  int64_t width;    /* bytes a unit */
  int32_t access;   /* ANYFUSE_STREAM_... */
  int32_t by_index; /* 1: unit i lies in row index[i] */
} anyfuse_stream_array;

/* Without an index, `tile` units of one array are touched before the next array's turn: a power of two up to 16384 that
 * divides `units`, with tile * width a multiple of 64. With an index every width is a multiple of 64. */
typedef struct anyfuse_stream_params {
  size_t size;
  const anyfuse_stream_array *arrays;
  int64_t count;
  int64_t units;
  int64_t tile;
  const int64_t *index; /* NULL, or `units` rows */
  int32_t nontemporal;  /* 1: written arrays go past the caches where the CPU can do that */
  int32_t threads;
} anyfuse_stream_params;

ANYFUSE_API anyfuse_status anyfuse_stream(const anyfuse_stream_params *params);

#ifdef __cplusplus
}
#endif
#endif
