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

/* From here to anyfuse_torch_together_end, in this thread, plain calls of operators over lists are checked and wait,
 * and what is not plain fails without going to Python. Their `step` is the one before: each call takes the next. The
 * end runs them in order when `run` is not 0, and then advances their step tensors by 1; otherwise nothing happens. */
ANYFUSE_API void anyfuse_torch_together(void);
ANYFUSE_API anyfuse_status anyfuse_torch_together_end(int32_t run);

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

/* function(argument) in the default floating-point mode, as every operator runs in: for numbers that are computed
 * before a call. */
ANYFUSE_API int32_t anyfuse_in_default_mode(int32_t (*function)(void *), void *argument);

/* ---- overlap: whether tensors share memory, decided by arithmetic on sizes and strides with a fixed limit of work
 * ---- */

typedef struct anyfuse_view {
  const void *data;
  int64_t offset;         /* of the first element, in elements from data */
  const int64_t *sizes;   /* rank of them, 0 or more */
  const int64_t *strides; /* as many, in elements */
  int32_t rank;
  int32_t bits; /* of an element: 4 or a multiple of 8 */
} anyfuse_view;

enum { ANYFUSE_APART = 0, ANYFUSE_OVERLAP = 1, ANYFUSE_UNDECIDED = 2 };

/* Whether an element of one has bits in common with an element of the other, whatever the sizes of their elements. */
ANYFUSE_API int32_t anyfuse_overlap(const anyfuse_view *a, const anyfuse_view *b);
/* Whether two indices of a view lead to one element. */
ANYFUSE_API int32_t anyfuse_overlap_itself(const anyfuse_view *view);

#ifdef __cplusplus
}
#endif
#endif
