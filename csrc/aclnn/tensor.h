// Tensors as the two-phase calls see them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "aclnn/acl_meta.h"
#include "handles.h"

namespace anyfuse::acl {

struct Tensor {
  static constexpr uint64_t kKind = kTensor;
  aclDataType dtype = ACL_DT_UNDEFINED;
  aclFormat format = ACL_FORMAT_ND;
  std::vector<int64_t> shape, strides, storage;
  int64_t offset = 0;
  void *data = nullptr;

  int64_t rank() const { return static_cast<int64_t>(shape.size()); }
  int64_t numel() const;
  bool is_contiguous() const;
  // In a block format: `storage` says how the elements lie, and the strides say nothing.
  bool is_blocked() const { return format == ACL_FORMAT_FRACTAL_NZ; }
  // Bits from `data` to the view's first element and past its last one.
  int64_t first_bit() const;
  int64_t end_bit() const;
};

struct BoolArray {
  static constexpr uint64_t kKind = kBoolArray;
  std::vector<uint8_t> values;
};

struct IntArray {
  static constexpr uint64_t kKind = kIntArray;
  std::vector<int64_t> values;
};

int64_t bits_of(aclDataType dtype);  // 0 for a type without a fixed size
const char *name_of(aclDataType dtype);
const char *name_of(aclFormat format);
std::string text_of(const std::vector<int64_t> &dims);
int64_t product(const std::vector<int64_t> &dims);
// Whether the product of the dims above 1, in bits of the widest type, is a number of this machine.
bool fit_memory(const int64_t *dims, uint64_t count);

}  // namespace anyfuse::acl
