// Views of memory: copying them to and from contiguous memory, and finding out whether two of them meet.
#pragma once
#include "tensor.h"

namespace anyfuse::acl {

// Bytes of a view's elements when they lie one behind the other.
int64_t packed_bytes(const Tensor &tensor);

void gather(const Tensor &from, void *packed);
void scatter(const void *packed, const Tensor &to);

// ANYFUSE_OVERLAP when two tensors have an element's memory in common, or two indices of one lead to one element;
// ANYFUSE_APART, or ANYFUSE_UNDECIDED at the limit of work.
int32_t overlap(const Tensor &a, const Tensor &b);
int32_t overlap_itself(const Tensor &tensor);
// True when the first byte of one lies before the end of the other, both ways.
bool ranges_meet(const Tensor &a, const Tensor &b);

}  // namespace anyfuse::acl
