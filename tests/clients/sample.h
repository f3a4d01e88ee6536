// What the samples begin with: status checks as macros, and tensors made from vectors.
#pragma once
#include <cstdio>
#include <vector>

#include "acl/acl.h"

#define CHECK_RET(cond, return_expr) \
  do {                               \
    if (!(cond)) {                   \
      return_expr;                   \
    }                                \
  } while (0)

#define LOG_PRINT(message, ...)     \
  do {                              \
    printf(message, ##__VA_ARGS__); \
  } while (0)

#define CHECK_OK(call)                                                                                     \
  do {                                                                                                     \
    auto ret = (call);                                                                                     \
    CHECK_RET(ret == ACL_SUCCESS,                                                                          \
              LOG_PRINT("%s failed. ERROR: %d\n%s\n", #call, static_cast<int>(ret), aclGetRecentErrMsg()); \
              return 1);                                                                                   \
  } while (0)

inline int64_t GetShapeSize(const std::vector<int64_t> &shape) {
  int64_t size = 1;
  for (auto dim : shape) size *= dim;
  return size;
}

inline int Init(int32_t deviceId, aclrtStream *stream) {
  CHECK_OK(aclInit(nullptr));
  CHECK_OK(aclrtSetDevice(deviceId));
  CHECK_OK(aclrtCreateStream(stream));
  return 0;
}

// `hostData` gives the number of bytes, whatever the shape says.
template <typename T>
int CreateAclTensor(const std::vector<T> &hostData, const std::vector<int64_t> &shape, void **deviceAddr,
                    aclDataType dataType, aclTensor **tensor) {
  auto size = hostData.size() * sizeof(T);
  CHECK_OK(aclrtMalloc(deviceAddr, size, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK_OK(aclrtMemcpy(*deviceAddr, size, hostData.data(), size, ACL_MEMCPY_HOST_TO_DEVICE));
  std::vector<int64_t> strides(shape.size(), 1);
  for (int64_t i = static_cast<int64_t>(shape.size()) - 2; i >= 0; i--) strides[i] = shape[i + 1] * strides[i + 1];
  *tensor = aclCreateTensor(shape.data(), shape.size(), dataType, strides.data(), 0, aclFormat::ACL_FORMAT_ND,
                            shape.data(), shape.size(), *deviceAddr);
  return *tensor == nullptr ? 1 : 0;
}
