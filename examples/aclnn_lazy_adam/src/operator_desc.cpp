#include "operator_desc.h"

size_t TensorSpec::Bytes() const {
  size_t bytes = aclDataTypeSize(dtype);
  for (int64_t size : shape) bytes *= static_cast<size_t>(size);
  return bytes;
}

OperatorDesc CreateOpDesc(int64_t rows, int64_t dim, int64_t count) {
  OperatorDesc desc;
  desc.rows = rows;
  desc.dim = dim;
  desc.count = count;
  desc.inputs = {{"gradient.bin", {count, dim}, ACL_FLOAT}, {"indices.bin", {count, 1}, ACL_INT32},
                 {"inputM.bin", {rows, dim}, ACL_FLOAT},    {"inputV.bin", {rows, dim}, ACL_FLOAT},
                 {"inputVar.bin", {rows, dim}, ACL_FLOAT},  {"learningRate.bin", {1}, ACL_FLOAT}};
  desc.outputs = {{2, "outputM.bin"}, {3, "outputV.bin"}, {4, "outputVar.bin"}};
  return desc;
}
