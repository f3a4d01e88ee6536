// Tables of bad calls: what to change in a good call, on which products, and the code that phase 1 must give.
#pragma once
#include "program.h"

enum Products : unsigned { kAny = 1, kA2 = 2, kA3 = 4, k950 = 8, k310P = 16, kX90 = 32, k9030 = 64, kEvery = 127 };

constexpr const char *kProductNames[] = {"any",        "Ascend910B", "Ascend910_93", "Ascend950",
                                         "Ascend310P", "KirinX90",   "Kirin9030"};

// A tensor argument to be made; a null one stays null.
struct Arg {
  Dims shape;
  aclDataType dtype = ACL_FLOAT;
  aclFormat format = ACL_FORMAT_ND;
  Dims strides = {};
  bool null = false;
};

class Made {
 public:
  explicit Made(const Arg &arg) {
    if (arg.null) return;
    int64_t elements = 1;
    for (size_t i = 0; i < arg.shape.size(); ++i)
      elements += arg.strides.empty() ? 0 : (arg.shape[i] - 1) * arg.strides[i];
    box_ = new Box(arg.shape, arg.dtype, arg.format, arg.strides, 0, arg.strides.empty() ? 0 : elements * 8);
  }
  Made(const Made &) = delete;
  Made &operator=(const Made &) = delete;
  ~Made() { delete box_; }
  operator aclTensor *() const { return box_ == nullptr ? nullptr : box_->tensor; }
  Box *operator->() const { return box_; }

 private:
  Box *box_ = nullptr;
};

template <typename Arguments>
struct Row {
  unsigned products;
  const char *label;
  void (*change)(Arguments &);
  int code;
  const char *named;  // a word of the message
};

// `Arguments::phase1(workspace, executor)` makes the tensors, calls and, where that succeeds, runs phase 2.
template <typename Arguments, size_t n>
void run_table(const Row<Arguments> (&rows)[n]) {
  for (int product = 0; product < 7; ++product) {
    begin(kProductNames[product]);
    for (const Row<Arguments> &row : rows) {
      if ((row.products & 1u << product) == 0) continue;
      Arguments arguments;
      row.change(arguments);
      aclGetRecentErrMsg();
      const int code = arguments.phase1();
      const std::string message = aclGetRecentErrMsg(), where = std::string(kProductNames[product]) + ", " + row.label;
      report(code == row.code, __FILE__, __LINE__,
             where + ": " + std::to_string(code) + ", expected " + std::to_string(row.code) + " (" + message + ")");
      report(code == 0 ? message.empty() : message.find(row.named) != std::string::npos, __FILE__, __LINE__,
             where + ": the message is \"" + message + "\"");
    }
    end();
  }
}

// The end of every `phase1`: a refused call leaves its results alone, an accepted one runs.
template <typename Phase2>
int settle(int code, uint64_t workspace, aclOpExecutor *executor, Phase2 phase2) {
  if (code != 0) {
    CHECK(workspace == 12345 && executor == nullptr);
    return code;
  }
  CHECK(executor != nullptr);
  return run_phase2(phase2, workspace, executor);
}
