// Views of memory: copying them to and from contiguous memory, and finding out whether two of them meet.
#pragma once
#include "tensor.h"

namespace anyfuse::acl {

// Bytes of a view's elements when they lie one behind the other.
int64_t packed_bytes(const Tensor &tensor);

void gather(const Tensor &from, void *packed);
void scatter(const void *packed, const Tensor &to);

// True when two indices of a tensor lead to one element.
bool repeats_itself(const Tensor &tensor);
// True when the two have an element's memory in common; strides are looked at where ranges meet.
bool share_an_element(const Tensor &a, const Tensor &b);
// True when the first byte of one lies before the end of the other, both ways.
bool ranges_meet(const Tensor &a, const Tensor &b);

}  // namespace anyfuse::acl
