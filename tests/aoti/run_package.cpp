// Runs a package of AOTInductor that holds anyfuse's operators, in a process without Python.
//
//     run_package <package> <file of x> <file of residual> <rows> <cols> <file for each result>...
//
// The files hold float32. Then it calls an operator with a strided tensor, and prints what that says.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "anyfuse.h"

namespace {

at::Tensor read(const char *path, int64_t rows, int64_t cols) {
  at::Tensor tensor = at::empty({rows, cols});
  std::ifstream(path, std::ios::binary).read(static_cast<char *>(tensor.mutable_data_ptr()), tensor.nbytes());
  return tensor;
}

void write(const char *path, const at::Tensor &tensor) {
  const at::Tensor values = tensor.contiguous();
  std::ofstream(path, std::ios::binary).write(static_cast<const char *>(values.const_data_ptr()), values.nbytes());
}

void call_with(const at::Tensor &x) {
  const auto norm = c10::Dispatcher::singleton().findSchemaOrThrow("anyfuse::add_rms_norm_dynamic_quant", "");
  const c10::IValue none;
  torch::jit::Stack stack = {x, none, at::ones({x.size(1)}), none, none, none, 1e-6, true, false, "int8", "formula"};
  norm.callBoxed(&stack);
}

}  // namespace

int main(int argc, char **argv) {
  if (argc < 7) return 2;
  if (const char *problem = anyfuse_torch_register()) {
    std::cout << problem << "\n";
    return 1;
  }
  const int64_t rows = std::atoll(argv[4]), cols = std::atoll(argv[5]);
  torch::inductor::AOTIModelPackageLoader package(argv[1]);
  const std::vector<at::Tensor> results = package.run({read(argv[2], rows, cols), read(argv[3], rows, cols)});
  for (int i = 6; i < argc; ++i) write(argv[i], results.at(i - 6));
  try {
    call_with(at::ones({rows, cols}).t());
    std::cout << "a strided tensor was taken\n";
    return 1;
  } catch (const c10::Error &error) {
    std::cout << error.what_without_backtrace() << "\n";
  }
  return 0;
}
