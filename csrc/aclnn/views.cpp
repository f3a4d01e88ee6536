#include "views.h"

#include <algorithm>
#include <cstring>

namespace anyfuse::acl {
namespace {

// Calls row(element) for the first element of every innermost row of a view, in order; elements count from `data`.
template <typename Row>
void for_each_row(const Tensor &tensor, Row row) {
  const size_t outer = tensor.shape.empty() ? 0 : tensor.shape.size() - 1;
  std::vector<int64_t> index(outer, 0);
  int64_t element = tensor.offset;
  for (;;) {
    row(element);
    size_t d = outer;
    while (d > 0) {
      --d;
      element += tensor.strides[d];
      if (++index[d] < tensor.shape[d]) break;
      element -= tensor.strides[d] * tensor.shape[d];
      index[d] = 0;
      if (d == 0) return;
    }
    if (outer == 0) return;
  }
}

struct Inner {
  int64_t count, stride;
};

Inner inner_of(const Tensor &tensor) {
  return tensor.shape.empty() ? Inner{1, 1} : Inner{tensor.shape.back(), tensor.strides.back()};
}

// One row between strided and packed memory, elements of a fixed size.
template <size_t size>
void move_row(char *strided, char *packed, Inner inner, bool to_packed) {
  for (int64_t i = 0; i < inner.count; ++i) {
    char *element = strided + i * inner.stride * static_cast<int64_t>(size);
    if (to_packed)
      std::memcpy(packed + i * size, element, size);
    else
      std::memcpy(element, packed + i * size, size);
  }
}

void move_row_of(int64_t size, char *strided, char *packed, Inner inner, bool to_packed) {
  if (inner.stride == 1) {
    const size_t bytes = static_cast<size_t>(inner.count * size);
    to_packed ? std::memcpy(packed, strided, bytes) : std::memcpy(strided, packed, bytes);
    return;
  }
  switch (size) {
    case 1:
      return move_row<1>(strided, packed, inner, to_packed);
    case 2:
      return move_row<2>(strided, packed, inner, to_packed);
    case 4:
      return move_row<4>(strided, packed, inner, to_packed);
    case 8:
      return move_row<8>(strided, packed, inner, to_packed);
    default:
      return move_row<16>(strided, packed, inner, to_packed);
  }
}

unsigned nibble(const char *base, int64_t index) {
  return static_cast<unsigned char>(base[index / 2]) >> (index % 2 * 4) & 15u;
}

void set_nibble(char *base, int64_t index, unsigned value) {
  const int shift = static_cast<int>(index % 2 * 4);
  const unsigned others = static_cast<unsigned char>(base[index / 2]) & ~(15u << shift);
  base[index / 2] = static_cast<char>(others | value << shift);
}

void move_view(const Tensor &tensor, char *packed, bool to_packed) {
  char *base = static_cast<char *>(tensor.data);
  const Inner inner = inner_of(tensor);
  const int64_t bits = bits_of(tensor.dtype);
  int64_t done = 0;
  for_each_row(tensor, [&](int64_t element) {
    if (bits >= 8) {
      move_row_of(bits / 8, base + element * (bits / 8), packed + done * (bits / 8), inner, to_packed);
    } else {
      for (int64_t i = 0; i < inner.count; ++i) {
        const int64_t at = element + i * inner.stride;
        if (to_packed)
          set_nibble(packed, done + i, nibble(base, at));
        else
          set_nibble(base, at, nibble(packed, done + i));
      }
    }
    done += inner.count;
  });
}

// The address of every element in units of four bits, sorted.
std::vector<uint64_t> cells(const Tensor &tensor) {
  std::vector<uint64_t> all;
  all.reserve(static_cast<size_t>(tensor.numel()));
  const uint64_t base = reinterpret_cast<uint64_t>(tensor.data) * 2;
  const uint64_t size = static_cast<uint64_t>(bits_of(tensor.dtype)) / 4;
  const Inner inner = inner_of(tensor);
  for_each_row(tensor, [&](int64_t element) {
    for (int64_t i = 0; i < inner.count; ++i)
      all.push_back(base + static_cast<uint64_t>(element + i * inner.stride) * size);
  });
  std::sort(all.begin(), all.end());
  return all;
}

uintptr_t begin_of(const Tensor &t) {
  return reinterpret_cast<uintptr_t>(t.data) + static_cast<uintptr_t>(t.first_bit() / 8);
}

uintptr_t end_of(const Tensor &t) {
  return reinterpret_cast<uintptr_t>(t.data) + static_cast<uintptr_t>((t.end_bit() + 7) / 8);
}

}  // namespace

int64_t packed_bytes(const Tensor &tensor) {
  const int64_t elements = tensor.is_blocked() ? product(tensor.storage) : tensor.numel();
  return (elements * bits_of(tensor.dtype) + 7) / 8;
}

void gather(const Tensor &from, void *packed) { move_view(from, static_cast<char *>(packed), true); }

void scatter(const void *packed, const Tensor &to) {
  move_view(to, static_cast<char *>(const_cast<void *>(packed)), false);
}

bool ranges_meet(const Tensor &a, const Tensor &b) {
  if (a.data == nullptr || b.data == nullptr || a.numel() == 0 || b.numel() == 0) return false;
  return begin_of(a) < end_of(b) && begin_of(b) < end_of(a);
}

bool repeats_itself(const Tensor &tensor) {
  if (tensor.is_blocked() || tensor.is_contiguous() || tensor.numel() == 0) return false;
  std::vector<std::pair<int64_t, int64_t>> dims;
  for (size_t i = 0; i < tensor.shape.size(); ++i)
    if (tensor.shape[i] > 1) dims.push_back({tensor.strides[i], tensor.shape[i]});
  std::sort(dims.begin(), dims.end());
  int64_t span = 0;
  for (const auto &[stride, size] : dims) {
    if (stride == 0) return true;
    if (stride <= span) {  // may repeat; strides that only interleave are told by counting
      const std::vector<uint64_t> all = cells(tensor);
      return std::adjacent_find(all.begin(), all.end()) != all.end();
    }
    span += (size - 1) * stride;
  }
  return false;
}

bool share_an_element(const Tensor &a, const Tensor &b) {
  if (!ranges_meet(a, b)) return false;
  if (a.is_blocked() || b.is_blocked() || (a.is_contiguous() && b.is_contiguous())) return true;
  const int64_t bytes = bits_of(a.dtype) / 8;
  if (bits_of(a.dtype) != bits_of(b.dtype)) return true;  // different grids over the same bytes
  if (bytes > 1 && (begin_of(a) - begin_of(b)) % static_cast<uintptr_t>(bytes) != 0) return true;
  const std::vector<uint64_t> of_a = cells(a), of_b = cells(b);
  for (size_t i = 0, j = 0; i < of_a.size() && j < of_b.size();) {
    if (of_a[i] == of_b[j]) return true;
    of_a[i] < of_b[j] ? ++i : ++j;
  }
  return false;
}

}  // namespace anyfuse::acl
