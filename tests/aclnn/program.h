// What the test programs of the C face share: counted checks, and tensors with device memory of their own.
#pragma once
#include <acl/acl.h>
#include <aclnn/acl_meta.h>
#include <aclnn/aclnn_base.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

inline std::atomic<int> &failures() {
  static std::atomic<int> count{0};
  return count;
}

inline void report(bool good, const char *file, int line, const std::string &what) {
  if (good) return;
  ++failures();
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}

#define CHECK(condition) report((condition), __FILE__, __LINE__, #condition)
#define CHECK_CODE(expected, expression)                                                                            \
  do {                                                                                                              \
    const int code = (expression);                                                                                  \
    if (code != (expected))                                                                                         \
      report(false, __FILE__, __LINE__, #expression " gave " + std::to_string(code) + ", " + aclGetRecentErrMsg()); \
  } while (false)
#define CHECK_OK(expression) CHECK_CODE(0, expression)

inline int finish(const char *name) {
  std::printf("%s: %d failed\n", name, failures().load());
  return failures() == 0 ? 0 : 1;
}

using Dims = std::vector<int64_t>;

inline int64_t count_of(const Dims &dims) {
  int64_t count = 1;
  for (int64_t size : dims) count *= size;
  return count;
}

inline int64_t bytes_of(aclDataType dtype, int64_t count) {
  return dtype == ACL_INT4 ? (count + 1) / 2 : count * static_cast<int64_t>(aclDataTypeSize(dtype));
}

// Device memory of its own and a tensor over it. `bytes` may be more than the shape needs.
class Box {
 public:
  Box(Dims shape, aclDataType dtype, aclFormat format = ACL_FORMAT_ND, Dims strides = {}, int64_t offset = 0,
      int64_t bytes = 0)
      : bytes_(bytes > 0 ? bytes : bytes_of(dtype, count_of(shape))) {
    if (bytes_ > 0) CHECK_OK(aclrtMalloc(&data, static_cast<size_t>(bytes_), ACL_MEM_MALLOC_HUGE_FIRST));
    if (bytes_ > 0) CHECK_OK(aclrtMemset(data, static_cast<size_t>(bytes_), 0, static_cast<size_t>(bytes_)));
    tensor = aclCreateTensor(shape.data(), shape.size(), dtype, strides.empty() ? nullptr : strides.data(), offset,
                             format, shape.data(), shape.size(), data);
    CHECK(tensor != nullptr);
  }
  template <typename T>
  Box(Dims shape, aclDataType dtype, const std::vector<T> &values) : Box(std::move(shape), dtype) {
    put(values);
  }
  Box(const Box &) = delete;
  Box &operator=(const Box &) = delete;
  ~Box() {
    CHECK_OK(aclDestroyTensor(tensor));
    if (data != nullptr) CHECK_OK(aclrtFree(data));
  }

  template <typename T>
  void put(const std::vector<T> &values) {
    if (values.empty()) return;
    CHECK_OK(aclrtMemcpy(data, static_cast<size_t>(bytes_), values.data(), values.size() * sizeof(T),
                         ACL_MEMCPY_HOST_TO_DEVICE));
  }
  template <typename T>
  std::vector<T> get() const {
    std::vector<T> values(static_cast<size_t>(bytes_) / sizeof(T));
    if (!values.empty())
      CHECK_OK(aclrtMemcpy(values.data(), values.size() * sizeof(T), data, values.size() * sizeof(T),
                           ACL_MEMCPY_DEVICE_TO_HOST));
    return values;
  }

  void *data = nullptr;
  aclTensor *tensor = nullptr;

 private:
  int64_t bytes_;
};

// Phase 2 with a workspace of the size that phase 1 asked for.
template <typename Phase2>
int run_phase2(Phase2 phase2, uint64_t workspace_size, aclOpExecutor *executor, aclrtStream stream = nullptr) {
  void *workspace = nullptr;
  if (workspace_size > 0) CHECK_OK(aclrtMalloc(&workspace, workspace_size, ACL_MEM_MALLOC_HUGE_FIRST));
  const int code = phase2(workspace, workspace_size, executor, stream);
  CHECK_OK(aclrtSynchronizeStream(stream));
  if (workspace != nullptr) CHECK_OK(aclrtFree(workspace));
  return code;
}

inline void begin(const char *soc = "any") {
  setenv("ANYFUSE_SOC", soc, 1);
  setenv("ANYFUSE_ACL_STRICT", "1", 1);  // these programs hold themselves to what they asked for
  CHECK_OK(aclInit(nullptr));
  CHECK_OK(aclrtSetDevice(0));
}

inline void end() {
  CHECK_OK(aclrtResetDevice(0));
  CHECK_OK(aclFinalize());
}
