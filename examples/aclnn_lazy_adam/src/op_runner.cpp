#include "op_runner.h"

#include <aclnn_lazy_adam.h>

#include "common.h"

OpRunner::~OpRunner() {
  for (const Buffer &buffer : buffers_) {
    if (buffer.tensor != nullptr) aclDestroyTensor(buffer.tensor);
    if (buffer.device != nullptr) aclrtFree(buffer.device);
    if (buffer.host != nullptr) aclrtFreeHost(buffer.host);
  }
}

bool OpRunner::Init() {
  for (const TensorSpec &input : desc_.inputs) {
    buffers_.emplace_back();
    Buffer &buffer = buffers_.back();
    if (!Succeeded(aclrtMallocHost(&buffer.host, input.Bytes()), "aclrtMallocHost")) return false;
    if (!Succeeded(aclrtMalloc(&buffer.device, input.Bytes(), ACL_MEM_MALLOC_HUGE_FIRST), "aclrtMalloc")) return false;
    buffer.tensor = aclCreateTensor(input.shape.data(), input.shape.size(), input.dtype, nullptr, 0, ACL_FORMAT_ND,
                                    input.shape.data(), input.shape.size(), buffer.device);
    if (buffer.tensor == nullptr) return Succeeded(-1, "aclCreateTensor");
  }
  return true;
}

bool OpRunner::SetInputData(const std::string &folder) {
  for (size_t i = 0; i < buffers_.size(); ++i)
    if (!ReadFile(folder + "/" + desc_.inputs[i].file, buffers_[i].host, desc_.inputs[i].Bytes())) return false;
  return true;
}

bool OpRunner::CopyInputs(aclrtStream stream) {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const size_t bytes = desc_.inputs[i].Bytes();
    if (!Succeeded(
            aclrtMemcpyAsync(buffers_[i].device, bytes, buffers_[i].host, bytes, ACL_MEMCPY_HOST_TO_DEVICE, stream),
            "aclrtMemcpyAsync"))
      return false;
  }
  return true;
}

bool OpRunner::CopyOutputs(aclrtStream stream) {
  for (const auto &output : desc_.outputs) {
    const size_t bytes = desc_.inputs[output.first].Bytes();
    const Buffer &buffer = buffers_[output.first];
    if (!Succeeded(aclrtMemcpyAsync(buffer.host, bytes, buffer.device, bytes, ACL_MEMCPY_DEVICE_TO_HOST, stream),
                   "aclrtMemcpyAsync"))
      return false;
  }
  return Succeeded(aclrtSynchronizeStream(stream), "aclrtSynchronizeStream");
}

bool OpRunner::Launch(aclrtStream stream) {
  uint64_t size = 0;
  aclOpExecutor *executor = nullptr;
  const auto phase1 = aclnnLazyAdamGetWorkspaceSize(buffers_[0].tensor, buffers_[1].tensor, buffers_[2].tensor,
                                                    buffers_[3].tensor, buffers_[4].tensor, buffers_[5].tensor,
                                                    desc_.beta1, desc_.beta2, desc_.epsilon, &size, &executor);
  if (!Succeeded(phase1, "aclnnLazyAdamGetWorkspaceSize")) return false;
  void *workspace = nullptr;
  if (size > 0 && !Succeeded(aclrtMalloc(&workspace, size, ACL_MEM_MALLOC_HUGE_FIRST), "aclrtMalloc")) return false;
  aclrtEvent start = nullptr, stop = nullptr;
  bool good = Succeeded(aclrtCreateEvent(&start), "aclrtCreateEvent") &&
              Succeeded(aclrtCreateEvent(&stop), "aclrtCreateEvent") &&
              Succeeded(aclrtRecordEvent(start, stream), "aclrtRecordEvent") &&
              Succeeded(aclnnLazyAdam(workspace, size, executor, stream), "aclnnLazyAdam") &&
              Succeeded(aclrtRecordEvent(stop, stream), "aclrtRecordEvent") &&
              Succeeded(aclrtSynchronizeStream(stream), "aclrtSynchronizeStream") &&
              Succeeded(aclrtEventElapsedTime(&milliseconds_, start, stop), "aclrtEventElapsedTime");
  if (start != nullptr) aclrtDestroyEvent(start);
  if (stop != nullptr) aclrtDestroyEvent(stop);
  if (workspace != nullptr) aclrtFree(workspace);
  return good;
}

bool OpRunner::RunOp() {
  aclrtStream stream = nullptr;
  if (!Succeeded(aclrtCreateStream(&stream), "aclrtCreateStream")) return false;
  const bool good = CopyInputs(stream) && Launch(stream) && CopyOutputs(stream);
  return Succeeded(aclrtDestroyStream(stream), "aclrtDestroyStream") && good;
}

bool OpRunner::ProcessOutputData(const std::string &folder) const {
  for (const auto &output : desc_.outputs)
    if (!WriteFile(folder + "/" + output.second, buffers_[output.first].host, desc_.inputs[output.first].Bytes()))
      return false;
  return true;
}
