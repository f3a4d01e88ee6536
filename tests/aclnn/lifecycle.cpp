// Handles and states that are wrong: codes, never crashes.
#include <aclnnop/aclnn_apply_fused_ema_adam.h>
#include <aclnnop/aclnn_lazy_adam.h>

#include <cfenv>
#include <chrono>
#include <thread>

#include "program.h"

namespace {

// A good call of the EMA operator, one element each.
struct Ema {
  Box grad{{2}, ACL_FLOAT, std::vector<float>{1, 1}}, var{{2}, ACL_FLOAT, std::vector<float>{1, 1}}, m{{2}, ACL_FLOAT},
      v{{2}, ACL_FLOAT}, s{{2}, ACL_FLOAT}, step{{1}, ACL_INT64, std::vector<int64_t>{1}};
  uint64_t workspace = 0;
  aclOpExecutor *executor = nullptr;

  int phase1() {
    return aclnnApplyFusedEmaAdamGetWorkspaceSize(grad.tensor, var.tensor, m.tensor, v.tensor, s.tensor, step.tensor,
                                                  .1, .9, .9, .999, 0, 1, true, 0, &workspace, &executor);
  }
  int phase2(aclrtStream stream = nullptr) { return aclnnApplyFusedEmaAdam(nullptr, workspace, executor, stream); }
};

// Pointers that never were handles; none of them may be followed.
template <typename T>
std::vector<T *> garbage() {
  static char local[64];
  return {reinterpret_cast<T *>(8), reinterpret_cast<T *>(local), reinterpret_cast<T *>(~uint64_t{0}),
          reinterpret_cast<T *>(uint64_t{4} << 58), reinterpret_cast<T *>(uint64_t{11} << 58 | 0xFFFFFFF0)};
}

void before_init() {
  int32_t device = 0;
  void *memory = nullptr;
  aclrtStream stream = nullptr;
  CHECK_CODE(ACL_ERROR_UNINITIALIZE, aclrtSetDevice(0));
  CHECK_CODE(ACL_ERROR_UNINITIALIZE, aclrtGetDevice(&device));
  CHECK_CODE(ACL_ERROR_UNINITIALIZE, aclrtMalloc(&memory, 8, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK_CODE(ACL_ERROR_UNINITIALIZE, aclrtCreateStream(&stream));
  CHECK_CODE(ACL_ERROR_UNINITIALIZE, aclrtSynchronizeStream(nullptr));
  CHECK_CODE(ACL_ERROR_UNINITIALIZE, aclFinalize());
  CHECK_CODE(ACLNN_ERR_RUNTIME_ERROR, aclnnInit(nullptr));
  CHECK(memory == nullptr && stream == nullptr);
}

void settings() {
  CHECK_CODE(ACL_ERROR_INVALID_FILE, aclInit("/nowhere/acl.json"));
  setenv("ANYFUSE_SOC", "Ascend1", 1);
  CHECK_CODE(ACL_ERROR_INVALID_PARAM, aclInit(nullptr));
  setenv("ANYFUSE_SOC", "ascend950pr_9599", 1);  // a chip's name, in any case
  setenv("ANYFUSE_CONVENTION", "other", 1);
  CHECK_CODE(ACL_ERROR_INVALID_PARAM, aclInit(nullptr));
  setenv("ANYFUSE_CONVENTION", "device", 1);
  for (const char *threads : {"0", "-1", "two", "1e3", "99999999999999999999"}) {
    setenv("ANYFUSE_NUM_THREADS", threads, 1);
    CHECK_CODE(ACL_ERROR_INVALID_PARAM, aclInit(nullptr));
    CHECK(std::string(aclGetRecentErrMsg()).find(threads) != std::string::npos);
  }
  setenv("ANYFUSE_NUM_THREADS", "2", 1);
  setenv("ANYFUSE_ACL_STRICT", "yes", 1);
  CHECK_CODE(ACL_ERROR_INVALID_PARAM, aclInit(nullptr));
  setenv("ANYFUSE_ACL_STRICT", "0", 1);
  aclrtRunMode mode = ACL_DEVICE;
  CHECK_CODE(ACL_ERROR_UNINITIALIZE, aclrtGetRunMode(&mode));
  CHECK_OK(aclInit(""));
  CHECK(std::string(aclrtGetSocName()) == "Ascend950");
  CHECK_OK(aclrtGetRunMode(&mode));  // before a device is set
  CHECK(mode == ACL_HOST);
  CHECK_CODE(ACL_ERROR_REPEAT_INITIALIZE, aclInit(nullptr));
  CHECK_OK(aclFinalize());
  CHECK_CODE(ACL_ERROR_REPEAT_FINALIZE, aclFinalize());
  for (const char *name : {"ANYFUSE_SOC", "ANYFUSE_CONVENTION", "ANYFUSE_NUM_THREADS", "ANYFUSE_ACL_STRICT"})
    unsetenv(name);
}

void messages() {
  aclGetRecentErrMsg();  // what came before
  CHECK(std::string(aclGetRecentErrMsg()).empty());
  CHECK_CODE(ACL_ERROR_INVALID_PARAM, aclrtMalloc(nullptr, 8, ACL_MEM_MALLOC_HUGE_FIRST));
  const std::string message = aclGetRecentErrMsg();
  CHECK(message.find("aclrtMalloc") != std::string::npos && message.find("null") != std::string::npos);
  CHECK(std::string(aclGetRecentErrMsg()).empty());
}

void no_context() {
  CHECK_OK(aclInit(nullptr));
  void *memory = nullptr;
  CHECK_CODE(ACL_ERROR_RT_CONTEXT_NULL, aclrtMalloc(&memory, 8, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK_CODE(ACL_ERROR_RT_INVALID_DEVICEID, aclrtSetDevice(1));
  CHECK_CODE(ACL_ERROR_RT_INVALID_DEVICEID, aclrtSetDevice(-1));
  CHECK_CODE(ACL_ERROR_RT_INVALID_DEVICEID, aclrtResetDevice(3));
  CHECK_OK(aclFinalize());
}

void contexts() {
  begin();
  aclrtContext standard = nullptr, own = nullptr;
  CHECK_OK(aclrtGetCurrentContext(&standard));
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtDestroyContext(standard));
  CHECK_OK(aclrtCreateContext(&own, 0));
  aclrtStream stream = nullptr;
  CHECK_OK(aclrtCreateStream(&stream));
  CHECK_OK(aclrtDestroyContext(own));
  CHECK_CODE(ACL_ERROR_RT_CONTEXT_NULL, aclrtDestroyContext(own));
  CHECK_CODE(ACL_ERROR_RT_CONTEXT_NULL, aclrtSynchronizeStream(nullptr));
  CHECK_CODE(ACL_ERROR_RT_CONTEXT_NULL, aclrtSetCurrentContext(own));
  CHECK_OK(aclrtSetCurrentContext(standard));
  CHECK_CODE(ACL_ERROR_RT_INVALID_HANDLE, aclrtSynchronizeStream(stream));
  for (void *context : garbage<void>()) CHECK_CODE(ACL_ERROR_RT_CONTEXT_NULL, aclrtSetCurrentContext(context));
  end();
}

void device_is_counted() {
  begin();
  CHECK_OK(aclrtSetDevice(0));
  void *memory = nullptr;
  CHECK_OK(aclrtMalloc(&memory, 8, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK_OK(aclrtResetDevice(0));
  CHECK_OK(aclrtMemset(memory, 8, 0, 8));
  CHECK_OK(aclrtResetDevice(0));
  CHECK_CODE(ACL_ERROR_RT_CONTEXT_NULL, aclrtFree(memory));
  CHECK_OK(aclrtSetDevice(0));
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtFree(memory));
  end();
}

void memory() {
  begin();
  void *device = nullptr, *host = nullptr;
  char local[16] = {};
  CHECK_CODE(ACL_ERROR_INVALID_PARAM, aclrtMalloc(&device, 0, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK_CODE(ACL_ERROR_RT_MEMORY_ALLOCATION, aclrtMalloc(&device, size_t{1} << 62, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK(device == nullptr);
  CHECK_OK(aclrtMalloc(&device, 16, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK_OK(aclrtMallocHost(&host, 16));
  CHECK(reinterpret_cast<uintptr_t>(device) % 64 == 0);
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtFree(host));
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtFreeHost(device));
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtFree(local));
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtFree(static_cast<char *>(device) + 8));
  CHECK_CODE(ACL_ERROR_INVALID_PARAM, aclrtFree(nullptr));
  // sizes
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtMemcpy(device, 8, local, 16, ACL_MEMCPY_HOST_TO_DEVICE));
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtMemcpy(device, 99, local, 17, ACL_MEMCPY_HOST_TO_DEVICE));
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID,
             aclrtMemcpy(static_cast<char *>(device) + 8, 16, local, 9, ACL_MEMCPY_HOST_TO_DEVICE));
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtMemcpy(local, 99, device, 17, ACL_MEMCPY_DEVICE_TO_HOST));
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtMemcpyAsync(host, 99, device, 17, ACL_MEMCPY_DEVICE_TO_HOST, nullptr));
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtMemset(device, 8, 0, 9));
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtMemset(device, 99, 0, 17));
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtMemsetAsync(device, 99, 0, 17, nullptr));
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtMemcpy2d(device, 4, local, 4, 5, 2, ACL_MEMCPY_HOST_TO_DEVICE));
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtMemcpy2d(device, 8, local, 4, 4, 4, ACL_MEMCPY_HOST_TO_DEVICE));
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID,
             aclrtMemcpy2d(device, size_t{1} << 63, local, size_t{1} << 63, 4, 8, ACL_MEMCPY_HOST_TO_DEVICE));
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtMemFlush(device, 17));
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtMemInvalidate(host, 8));
  // directions
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtMemcpy(local, 16, device, 16, ACL_MEMCPY_HOST_TO_DEVICE));
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtMemcpy(device, 16, local, 16, ACL_MEMCPY_DEVICE_TO_DEVICE));
  CHECK_CODE(ACL_ERROR_INVALID_PARAM, aclrtMemcpy(device, 16, local, 16, static_cast<aclrtMemcpyKind>(77)));
  CHECK_CODE(ACL_ERROR_INVALID_PARAM, aclrtMemcpy(nullptr, 16, local, 16, ACL_MEMCPY_DEFAULT));
  CHECK_CODE(ACL_ERROR_INVALID_PARAM, aclrtMemcpy(local, 16, nullptr, 16, ACL_MEMCPY_DEFAULT));
  CHECK_OK(aclrtMemcpy(local, 16, device, 0, ACL_MEMCPY_DEVICE_TO_HOST));
  CHECK_OK(aclrtFree(device));
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtFree(device));
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtMemcpy(device, 16, local, 16, ACL_MEMCPY_HOST_TO_DEVICE));
  CHECK_OK(aclrtFreeHost(host));
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtFreeHost(host));
  end();
}

void streams_and_events() {
  begin();
  aclrtStream stream = nullptr;
  aclrtEvent event = nullptr, late = nullptr;
  CHECK_OK(aclrtCreateStream(&stream));
  CHECK_OK(aclrtCreateEvent(&event));
  CHECK_OK(aclrtCreateEvent(&late));
  float milliseconds = 0;
  CHECK_CODE(ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, aclrtEventElapsedTime(&milliseconds, event, late));
  CHECK_CODE(ACL_ERROR_RT_EVENT_SYNC_TIMEOUT, aclrtSynchronizeEventWithTimeout(event, 10));
  CHECK_OK(aclrtRecordEvent(event, stream));
  CHECK_OK(aclrtRecordEvent(late, stream));
  CHECK_CODE(ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL, aclrtEventElapsedTime(&milliseconds, late, event));
  CHECK_CODE(ACL_ERROR_RT_INVALID_HANDLE, aclrtDestroyStream(event));
  CHECK_CODE(ACL_ERROR_RT_INVALID_HANDLE, aclrtRecordEvent(stream, stream));
  CHECK_OK(aclrtDestroyEvent(event));
  CHECK_CODE(ACL_ERROR_RT_INVALID_HANDLE, aclrtDestroyEvent(event));
  CHECK_CODE(ACL_ERROR_RT_INVALID_HANDLE, aclrtSynchronizeEvent(event));
  CHECK_OK(aclrtDestroyStream(stream));
  CHECK_CODE(ACL_ERROR_RT_INVALID_HANDLE, aclrtDestroyStream(stream));
  CHECK_CODE(ACL_ERROR_RT_INVALID_HANDLE, aclrtSynchronizeStream(stream));
  for (void *wrong : garbage<void>()) {
    CHECK_CODE(ACL_ERROR_RT_INVALID_HANDLE, aclrtSynchronizeStream(wrong));
    CHECK_CODE(ACL_ERROR_RT_INVALID_HANDLE, aclrtDestroyStream(wrong));
    CHECK_CODE(ACL_ERROR_RT_INVALID_HANDLE, aclrtDestroyEvent(wrong));
  }
  CHECK_CODE(ACL_ERROR_RT_INVALID_HANDLE, aclrtDestroyStream(nullptr));
  CHECK_OK(aclrtDestroyEvent(late));
  end();
}

// Work behind a wait runs when the event is recorded, not before.
void work_waits_for_an_event() {
  begin();
  {
    aclrtStream first = nullptr, second = nullptr;
    aclrtEvent event = nullptr;
    CHECK_OK(aclrtCreateStream(&first));
    CHECK_OK(aclrtCreateStream(&second));
    CHECK_OK(aclrtCreateEvent(&event));
    Ema ema;
    CHECK_OK(aclrtStreamWaitEvent(second, event));
    CHECK_OK(ema.phase1());
    CHECK_OK(ema.phase2(second));
    CHECK(ema.var.get<float>()[0] == 1);
    aclrtStreamStatus status = ACL_STREAM_STATUS_RESERVED;
    CHECK_OK(aclrtStreamQuery(second, &status));
    CHECK(status == ACL_STREAM_STATUS_NOT_READY);
    CHECK_CODE(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, aclrtSynchronizeStreamWithTimeout(second, 10));
    const std::vector<float> gradient = {-1, -1};
    CHECK_OK(aclrtMemcpyAsync(ema.grad.data, 8, gradient.data(), 8, ACL_MEMCPY_HOST_TO_DEVICE, first));
    CHECK_OK(aclrtRecordEvent(event, first));
    CHECK_OK(aclrtSynchronizeStream(second));
    CHECK(ema.var.get<float>()[0] > 1);  // with the gradient that the first stream brought
    // a failure after its call had returned is told by synchronize
    CHECK_OK(aclrtResetEvent(event, first));
    CHECK_OK(aclrtStreamWaitEvent(second, event));
    const Box g({1, 8}, ACL_FLOAT), i({1}, ACL_INT32, std::vector<int32_t>{9}), m({3, 8}, ACL_FLOAT),
        v({3, 8}, ACL_FLOAT), var({3, 8}, ACL_FLOAT), lr({1}, ACL_FLOAT);
    uint64_t workspace = 0;
    aclOpExecutor *executor = nullptr;
    CHECK_OK(aclnnLazyAdamGetWorkspaceSize(g.tensor, i.tensor, m.tensor, v.tensor, var.tensor, lr.tensor, .9, .999,
                                           1e-8, &workspace, &executor));
    CHECK_OK(aclnnLazyAdam(nullptr, 0, executor, second));
    CHECK_OK(aclrtRecordEvent(event, first));
    CHECK_CODE(ACLNN_ERR_PARAM_INVALID, aclrtSynchronizeStream(second));
    CHECK_OK(aclrtSynchronizeStream(second));
    // the end of a stream waits for what it has to do
    CHECK_OK(aclrtResetEvent(event, first));
    CHECK_OK(aclrtStreamWaitEvent(second, event));
    const float before = ema.var.get<float>()[0];
    CHECK_OK(ema.phase1());
    CHECK_OK(ema.phase2(second));
    aclrtContext context = nullptr;
    CHECK_OK(aclrtGetCurrentContext(&context));
    std::thread recorder([&] {
      CHECK_OK(aclrtSetCurrentContext(context));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      CHECK_OK(aclrtRecordEvent(event, first));
    });
    CHECK_OK(aclrtDestroyStream(second));
    CHECK(ema.var.get<float>()[0] != before);
    recorder.join();
    // a stream that waits for ever can be destroyed by force
    CHECK_OK(aclrtCreateStream(&second));
    CHECK_OK(aclrtResetEvent(event, first));
    CHECK_OK(aclrtStreamWaitEvent(second, event));
    CHECK_OK(ema.phase1());
    CHECK_OK(ema.phase2(second));
    CHECK_OK(aclrtDestroyStreamForce(second));
    CHECK_OK(aclrtRecordEvent(event, first));
    CHECK_OK(aclrtDestroyEvent(event));
    CHECK_OK(aclrtDestroyStream(first));
  }
  end();
}

// Sizes that no memory has, sizes that are not known, and types that are none.
void descriptions() {
  const int64_t huge[3] = {INT64_MAX, INT64_MAX, 3}, open[2] = {-1, 3}, shape[2] = {5, 3};
  const aclDataType none = static_cast<aclDataType>(99);
  CHECK(aclCreateTensorDesc(ACL_FLOAT, 3, huge, ACL_FORMAT_ND) == nullptr);
  CHECK(std::string(aclGetRecentErrMsg()).find("more elements than memory can hold") != std::string::npos);
  aclTensorDesc *unknown = aclCreateTensorDesc(ACL_FLOAT, 2, open, ACL_FORMAT_ND);
  aclTensorDesc *known = aclCreateTensorDesc(ACL_FLOAT, 2, shape, ACL_FORMAT_ND);
  aclTensorDesc *odd = aclCreateTensorDesc(none, 2, shape, ACL_FORMAT_ND);
  CHECK(aclGetTensorDescElementCount(unknown) == 0 && aclGetTensorDescSize(unknown) == 0);
  CHECK(aclGetTensorDescElementCount(known) == 15 && aclGetTensorDescSize(known) == 60);
  CHECK(aclGetTensorDescType(odd) == none && aclGetTensorDescSize(odd) == 0 && aclDataTypeSize(none) == 0);
  for (aclTensorDesc *desc : {unknown, known, odd}) aclDestroyTensorDesc(desc);
}

// Every half and what lies around it, whatever the caller's mode rounds.
void halves() {
  for (int mode : {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD}) {
    std::fesetround(mode);
    for (uint32_t bits = 0; bits < 0x7C00; ++bits) {
      const aclFloat16 half = static_cast<aclFloat16>(bits);
      const float value = aclFloat16ToFloat(half);
      uint32_t word;
      std::memcpy(&word, &value, 4);
      const auto of = [](uint32_t around) {
        float number;
        std::memcpy(&number, &around, 4);
        return aclFloatToFloat16(number);
      };
      CHECK(of(word) == half && of(word + 1) == half && (bits == 0 || of(word - 1) == half));
      const float next = aclFloat16ToFloat(static_cast<aclFloat16>(bits + 1));
      uint32_t end;
      std::memcpy(&end, &next, 4);
      if (bits >= 0x400 && bits < 0x7BFF) CHECK(of(word + (end - word) / 2) == (half + (bits & 1)));  // a tie: to even
    }
    const float ties[] = {0x1p-25f, 0x1.8p-24f, 0x1.4p-23f};  // half, 1.5 and 2.5 of the smallest half
    CHECK(aclFloatToFloat16(ties[0]) == 0 && aclFloatToFloat16(ties[1]) == 2 && aclFloatToFloat16(ties[2]) == 2);
  }
  std::fesetround(FE_TONEAREST);
}

void tensors() {
  char bytes[64];
  const int64_t shape[2] = {2, 3}, negative[2] = {2, -1}, back[2] = {3, -1}, huge[2] = {INT64_MAX / 2, 4};
  const auto create = [&](const int64_t *dims, uint64_t rank, aclDataType dtype, const int64_t *strides,
                          int64_t offset) {
    return aclCreateTensor(dims, rank, dtype, strides, offset, ACL_FORMAT_ND, dims, rank, bytes);
  };
  CHECK(create(nullptr, 2, ACL_FLOAT, nullptr, 0) == nullptr);
  CHECK(create(negative, 2, ACL_FLOAT, nullptr, 0) == nullptr);
  CHECK(create(shape, 2, ACL_FLOAT, back, 0) == nullptr);
  CHECK(create(shape, 2, ACL_FLOAT, nullptr, -1) == nullptr);
  CHECK(create(shape, 2, ACL_FLOAT, huge, 0) == nullptr);
  CHECK(create(huge, 2, ACL_FLOAT, nullptr, 0) == nullptr);
  CHECK(create(shape, 26, ACL_FLOAT, nullptr, 0) == nullptr);
  CHECK(create(shape, 2, ACL_DT_UNDEFINED, nullptr, 0) == nullptr);
  CHECK(create(shape, 2, ACL_STRING, nullptr, 0) == nullptr);
  CHECK(create(shape, 2, static_cast<aclDataType>(1234), nullptr, 0) == nullptr);
  aclTensor *tensor = create(shape, 2, ACL_FLOAT, nullptr, 0);
  int64_t *dims = nullptr;
  uint64_t count = 0;
  CHECK_OK(aclGetViewShape(tensor, &dims, &count));
  delete[] dims;
  CHECK_CODE(ACLNN_ERR_PARAM_NULLPTR, aclGetViewShape(tensor, nullptr, &count));
  CHECK_CODE(ACLNN_ERR_PARAM_NULLPTR, aclGetViewShape(nullptr, &dims, &count));
  CHECK_CODE(ACLNN_ERR_PARAM_INVALID, aclDestroyIntArray(reinterpret_cast<aclIntArray *>(tensor)));
  CHECK_CODE(ACLNN_ERR_PARAM_INVALID, aclDestroyScalar(reinterpret_cast<aclScalar *>(tensor)));
  CHECK_OK(aclDestroyTensor(tensor));
  CHECK_CODE(ACLNN_ERR_PARAM_INVALID, aclDestroyTensor(tensor));
  CHECK_CODE(ACLNN_ERR_PARAM_INVALID, aclGetViewShape(tensor, &dims, &count));
  CHECK_CODE(ACLNN_ERR_PARAM_INVALID, aclSetRawTensorAddr(tensor, bytes));
  CHECK_OK(aclDestroyTensor(nullptr));
  aclTensor *next = create(shape, 2, ACL_FLOAT, nullptr, 0);  // in the slot of the old one, which stays dead
  CHECK(next != tensor);
  CHECK_CODE(ACLNN_ERR_PARAM_INVALID, aclDestroyTensor(tensor));
  const aclTensor *members[2] = {next, tensor};
  CHECK(aclCreateTensorList(members, 2) == nullptr);
  aclTensorList *list = aclCreateTensorList(members, 1);
  CHECK_OK(aclDestroyTensorList(list));
  CHECK_CODE(ACLNN_ERR_PARAM_INVALID, aclDestroyTensorList(list));
  CHECK_CODE(ACLNN_ERR_PARAM_INVALID, aclDestroyTensor(next));
  for (aclTensor *wrong : garbage<aclTensor>()) CHECK_CODE(ACLNN_ERR_PARAM_INVALID, aclDestroyTensor(wrong));
  CHECK(aclCreateScalar(nullptr, ACL_FLOAT) == nullptr && aclCreateIntArray(nullptr, 3) == nullptr);
  CHECK_CODE(ACL_ERROR_INVALID_PARAM, aclDestroyDataBuffer(reinterpret_cast<aclDataBuffer *>(bytes)));
  CHECK(aclGetDataBufferAddr(nullptr) == nullptr && aclGetTensorDescNumDims(nullptr) == 0);
}

void dead_tensors_in_a_call() {
  begin();
  {
    Ema ema;
    aclTensor *dead = nullptr;
    {
      const Box box({2}, ACL_FLOAT);
      dead = box.tensor;
    }
    std::vector<aclTensor *> wrong = garbage<aclTensor>();
    wrong.push_back(dead);
    for (aclTensor *tensor : wrong) {
      CHECK_CODE(ACLNN_ERR_PARAM_INVALID,
                 aclnnApplyFusedEmaAdamGetWorkspaceSize(ema.grad.tensor, tensor, ema.m.tensor, ema.v.tensor,
                                                        ema.s.tensor, ema.step.tensor, .1, .9, .9, .999, 0, 1, true, 0,
                                                        &ema.workspace, &ema.executor));
      CHECK(std::string(aclGetRecentErrMsg()).find("varRef") != std::string::npos);
    }
    CHECK_CODE(ACLNN_ERR_PARAM_NULLPTR, aclnnApplyFusedEmaAdamGetWorkspaceSize(
                                            ema.grad.tensor, ema.var.tensor, ema.m.tensor, ema.v.tensor, ema.s.tensor,
                                            ema.step.tensor, .1, .9, .9, .999, 0, 1, true, 0, nullptr, &ema.executor));
    CHECK_CODE(ACLNN_ERR_PARAM_NULLPTR, aclnnApplyFusedEmaAdamGetWorkspaceSize(
                                            ema.grad.tensor, ema.var.tensor, ema.m.tensor, ema.v.tensor, ema.s.tensor,
                                            ema.step.tensor, .1, .9, .9, .999, 0, 1, true, 0, &ema.workspace, nullptr));
  }
  end();
}

void executors() {
  begin();
  {
    Ema ema;
    CHECK_CODE(ACLNN_ERR_INNER_NULLPTR, ema.phase2());
    CHECK_OK(ema.phase1());
    CHECK_CODE(ACLNN_ERR_INNER, aclnnLazyAdam(nullptr, 0, ema.executor, nullptr));
    CHECK_CODE(ACLNN_ERR_RUNTIME_ERROR, ema.phase2(reinterpret_cast<aclrtStream>(8)));
    CHECK_OK(ema.phase2());
    CHECK_CODE(ACLNN_ERR_INNER, ema.phase2());
    CHECK_CODE(ACLNN_ERR_INNER, aclSetAclOpExecutorRepeatable(ema.executor));
    CHECK_CODE(ACLNN_ERR_INNER, aclDestroyAclOpExecutor(ema.executor));
    for (aclOpExecutor *wrong : garbage<aclOpExecutor>()) {
      CHECK_CODE(ACLNN_ERR_INNER, aclDestroyAclOpExecutor(wrong));
      CHECK_CODE(ACLNN_ERR_INNER, aclnnApplyFusedEmaAdam(nullptr, 0, wrong, nullptr));
    }
    CHECK_CODE(ACLNN_ERR_INNER_NULLPTR, aclSetAclOpExecutorRepeatable(nullptr));
    CHECK_CODE(ACLNN_ERR_INNER_NULLPTR, aclDestroyAclOpExecutor(nullptr));
    CHECK_OK(ema.phase1());
    CHECK_OK(aclDestroyAclOpExecutor(ema.executor));
    CHECK_CODE(ACLNN_ERR_INNER, ema.phase2());
    // repeatable: two runs are two steps of the same numbers as two one-shot executors
    Ema twin;
    ema.var.put(std::vector<float>{1, 1});
    for (Box *box : {&ema.m, &ema.v, &ema.s}) box->put(std::vector<float>{0, 0});
    CHECK_OK(ema.phase1());
    CHECK_OK(aclSetAclOpExecutorRepeatable(ema.executor));
    for (int i = 0; i < 2; ++i) {
      CHECK_OK(ema.phase2());
      CHECK_OK(twin.phase1());
      CHECK_OK(twin.phase2());
    }
    CHECK(ema.var.get<float>() == twin.var.get<float>() && ema.v.get<float>() == twin.v.get<float>());
    CHECK_OK(aclDestroyAclOpExecutor(ema.executor));
  }
  end();
}

void addresses() {
  begin();
  {
    Ema ema;
    const Box other({2}, ACL_FLOAT, std::vector<float>{1, 1}), small({1}, ACL_FLOAT);
    CHECK_OK(ema.phase1());
    CHECK_OK(aclSetAclOpExecutorRepeatable(ema.executor));
    CHECK_OK(aclSetTensorAddr(ema.executor, 1, ema.var.tensor, other.data));
    CHECK_OK(ema.phase2());
    CHECK(ema.var.get<float>()[0] == 1 && other.get<float>()[0] < 1);
    CHECK_OK(aclSetRawTensorAddr(ema.var.tensor, ema.var.data));
    CHECK_OK(ema.phase2());
    CHECK(ema.var.get<float>()[0] < 1);
    CHECK_CODE(ACLNN_ERR_PARAM_INVALID, aclSetTensorAddr(ema.executor, 6, ema.var.tensor, other.data));
    CHECK_CODE(ACLNN_ERR_PARAM_INVALID, aclSetOutputTensorAddr(ema.executor, 4, ema.var.tensor, other.data));
    CHECK_CODE(ACLNN_ERR_INNER_NULLPTR, aclSetInputTensorAddr(ema.executor, 0, nullptr, other.data));
    CHECK_CODE(ACLNN_ERR_INNER_NULLPTR, aclSetInputTensorAddr(nullptr, 0, ema.var.tensor, other.data));
    CHECK_OK(aclSetTensorAddr(ema.executor, 1, ema.var.tensor, nullptr));
    CHECK_CODE(ACLNN_ERR_INNER_NULLPTR, ema.phase2());
    CHECK_OK(aclSetTensorAddr(ema.executor, 1, ema.var.tensor, small.data));
    CHECK_CODE(ACLNN_ERR_PARAM_INVALID, ema.phase2());  // the view is longer than that memory
    CHECK_OK(aclSetTensorAddr(ema.executor, 1, ema.var.tensor, ema.m.data));
    CHECK_CODE(ACLNN_ERR_PARAM_INVALID, ema.phase2());  // two written tensors over one memory
    CHECK_OK(aclDestroyAclOpExecutor(ema.executor));
  }
  end();
}

void after_finalize() {
  begin();
  auto *ema = new Ema;
  CHECK_OK(ema->phase1());
  aclrtStream stream = nullptr;
  CHECK_OK(aclrtCreateStream(&stream));
  void *host = nullptr;
  CHECK_OK(aclrtMallocHost(&host, 8));
  CHECK_OK(aclFinalize());
  CHECK_CODE(ACLNN_ERR_RUNTIME_ERROR, ema->phase2(stream));
  CHECK_CODE(ACLNN_ERR_RUNTIME_ERROR, ema->phase1());
  CHECK_CODE(ACL_ERROR_UNINITIALIZE, aclrtSynchronizeStream(stream));
  CHECK_CODE(ACL_ERROR_UNINITIALIZE, aclrtDestroyStream(stream));
  CHECK_CODE(ACL_ERROR_UNINITIALIZE, aclrtFree(ema->var.data));
  CHECK_CODE(ACL_ERROR_UNINITIALIZE, aclrtFreeHost(host));
  CHECK_CODE(ACL_ERROR_UNINITIALIZE, aclrtResetDevice(0));
  CHECK_OK(aclDestroyAclOpExecutor(ema->executor));
  for (Box *box : {&ema->grad, &ema->var, &ema->m, &ema->v, &ema->s, &ema->step}) {
    CHECK_OK(aclDestroyTensor(box->tensor));
    box->tensor = nullptr;
    box->data = nullptr;  // finalize has released it
  }
  delete ema;
  // a new life; what the old one gave stays dead
  begin();
  CHECK_CODE(ACL_ERROR_RT_INVALID_HANDLE, aclrtSynchronizeStream(stream));
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtFreeHost(host));
  end();
}

}  // namespace

int main() {
  before_init();
  settings();
  messages();
  no_context();
  contexts();
  device_is_counted();
  memory();
  streams_and_events();
  work_waits_for_an_event();
  descriptions();
  halves();
  tensors();
  dead_tensors_in_a_call();
  executors();
  addresses();
  after_finalize();
  return finish("lifecycle");
}
