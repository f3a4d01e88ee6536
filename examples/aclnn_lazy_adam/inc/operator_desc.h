// The operator's arguments: what they are called, their shapes and types, and the attributes.
#pragma once
#include <acl/acl.h>

#include <string>
#include <vector>

struct TensorSpec {
  std::string file;  // in input/
  std::vector<int64_t> shape;
  aclDataType dtype;

  size_t Bytes() const;
};

struct OperatorDesc {
  int64_t rows = 0, dim = 0, count = 0;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-7;

  // In the order of the call: gradient, indices, inputM, inputV, inputVar, lr.
  std::vector<TensorSpec> inputs;
  // The files in output/ for the inputs that the operator updates, by their position.
  std::vector<std::pair<size_t, std::string>> outputs;
};

OperatorDesc CreateOpDesc(int64_t rows, int64_t dim, int64_t count);
