#include "views.h"

#include <cstring>

#include "anyfuse_internal.h"

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

// A tensor as the core's arithmetic takes it; one in blocks fills its storage.
struct View {
  explicit View(const Tensor &t)
      : elements(product(t.storage)),
        view{t.data,
             t.offset,
             t.is_blocked() ? &elements : t.shape.data(),
             t.is_blocked() ? &one : t.strides.data(),
             t.is_blocked() ? 1 : static_cast<int32_t>(t.rank()),
             static_cast<int32_t>(bits_of(t.dtype))} {}
  View(const View &) = delete;
  View &operator=(const View &) = delete;

  const int64_t elements, one = 1;
  const anyfuse_view view;
};

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

int32_t overlap(const Tensor &a, const Tensor &b) {
  if (a.data == nullptr || b.data == nullptr) return ANYFUSE_APART;
  const View of_a(a), of_b(b);
  return anyfuse_overlap(&of_a.view, &of_b.view);
}

int32_t overlap_itself(const Tensor &tensor) {
  const View of(tensor);
  return anyfuse_overlap_itself(&of.view);
}

}  // namespace anyfuse::acl
