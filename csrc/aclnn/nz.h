// The block format of matrices: blocks of 16 rows and 32 bytes of columns, padded with zeros.
#pragma once
#include "tensor.h"

namespace anyfuse::acl {

constexpr int64_t kNzRows = 16, kNzRowBytes = 32;

inline int64_t ceil_div(int64_t value, int64_t divisor) { return value / divisor + (value % divisor != 0); }

// (..., rows, columns) as (..., column blocks, row blocks, 16, columns in a block).
inline std::vector<int64_t> nz_shape(const std::vector<int64_t> &shape, aclDataType dtype) {
  const int64_t columns_in_block = kNzRowBytes * 8 / bits_of(dtype);
  std::vector<int64_t> blocked(shape.begin(), shape.end() - 2);
  const int64_t rows = shape[shape.size() - 2], columns = shape.back();
  blocked.insert(blocked.end(),
                 {ceil_div(columns, columns_in_block), ceil_div(rows, kNzRows), kNzRows, columns_in_block});
  return blocked;
}

}  // namespace anyfuse::acl
