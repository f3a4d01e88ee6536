// What every example needs: a session with one stream, tensors that bring their device memory, and the two phases.
#pragma once
#include <acl/acl.h>
#include <aclnn/acl_meta.h>
#include <aclnn/aclnn_base.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

inline void check(int code, const char *what) {
  if (code == 0) return;
  const char *message = aclGetRecentErrMsg();
  std::fprintf(stderr, "%s: code %d %s\n", what, code, message == nullptr ? "" : message);
  std::exit(1);
}

// The runtime, device 0 and a stream, from here to the end of the scope.
struct Session {
  Session() {
    check(aclInit(nullptr), "aclInit");
    check(aclrtSetDevice(0), "aclrtSetDevice");
    check(aclrtCreateStream(&stream), "aclrtCreateStream");
  }
  ~Session() {
    aclrtDestroyStream(stream);
    aclrtResetDevice(0);
    aclFinalize();
  }
  aclrtStream stream = nullptr;
};

// A contiguous tensor on the device with the given values.
template <typename T>
class Tensor {
 public:
  Tensor(const std::vector<int64_t> &shape, aclDataType dtype, const std::vector<T> &values) : count_(values.size()) {
    check(aclrtMalloc(&data_, bytes(), ACL_MEM_MALLOC_HUGE_FIRST), "aclrtMalloc");
    check(aclrtMemcpy(data_, bytes(), values.data(), bytes(), ACL_MEMCPY_HOST_TO_DEVICE), "aclrtMemcpy");
    tensor_ = aclCreateTensor(shape.data(), shape.size(), dtype, nullptr, 0, ACL_FORMAT_ND, shape.data(), shape.size(),
                              data_);
    if (tensor_ == nullptr) check(-1, "aclCreateTensor");
  }
  Tensor(const Tensor &) = delete;
  Tensor &operator=(const Tensor &) = delete;
  ~Tensor() {
    aclDestroyTensor(tensor_);
    aclrtFree(data_);
  }
  operator aclTensor *() const { return tensor_; }

  std::vector<T> values() const {
    std::vector<T> host(count_);
    check(aclrtMemcpy(host.data(), bytes(), data_, bytes(), ACL_MEMCPY_DEVICE_TO_HOST), "aclrtMemcpy");
    return host;
  }

 private:
  size_t bytes() const { return count_ * sizeof(T); }
  size_t count_;
  void *data_ = nullptr;
  aclTensor *tensor_ = nullptr;
};

// Phase 2: memory for the workspace where one is asked for, the call, and waiting for its end.
template <typename Phase2>
void run(Phase2 phase2, uint64_t workspace_size, aclOpExecutor *executor, aclrtStream stream) {
  void *workspace = nullptr;
  if (workspace_size > 0) check(aclrtMalloc(&workspace, workspace_size, ACL_MEM_MALLOC_HUGE_FIRST), "aclrtMalloc");
  check(phase2(workspace, workspace_size, executor, stream), "phase 2");
  check(aclrtSynchronizeStream(stream), "aclrtSynchronizeStream");
  if (workspace != nullptr) aclrtFree(workspace);
}

// Prints a value beside the expected one and remembers whether all were within the tolerance.
class Report {
 public:
  void value(const char *name, double got, double expected, double tolerance) {
    std::printf("%-12s %.9g (expected %.9g)\n", name, got, expected);
    if (!(std::fabs(got - expected) <= tolerance)) good_ = false;
  }
  int finish() const {
    std::puts(good_ ? "as expected" : "NOT as expected");
    return good_ ? 0 : 1;
  }

 private:
  bool good_ = true;
};
