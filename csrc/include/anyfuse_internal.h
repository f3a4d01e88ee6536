/* Functions of the library for the Python package and its benchmarks alone: they may change with every release. */
#ifndef ANYFUSE_INTERNAL_H
#define ANYFUSE_INTERNAL_H

#include "anyfuse.h"

#ifdef __cplusplus
extern "C" {
#endif

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
