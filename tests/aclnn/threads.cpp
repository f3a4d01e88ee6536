// Ten threads, each with a stream of its own: right results, and one executor raced for by all.
#include <aclnnop/aclnn_apply_fused_ema_adam.h>

#include <atomic>
#include <thread>

#include "program.h"

namespace {

constexpr int kThreads = 10, kSteps = 20;
constexpr int64_t kElements = 40000;

// Some steps on a parameter that depends on `seed`; returns the parameter.
std::vector<float> train(int seed) {
  std::vector<float> result;
  CHECK_OK(aclrtSetDevice(0));
  aclrtStream stream = nullptr;
  CHECK_OK(aclrtCreateStream(&stream));
  {
    std::vector<float> gradient;
    for (int64_t i = 0; i < kElements; ++i) gradient.push_back(static_cast<float>((i * 7 + seed * 13) % 101) / 50 - 1);
    const Box grad({kElements}, ACL_FLOAT, gradient), var({kElements}, ACL_FLOAT, gradient), m({kElements}, ACL_FLOAT),
        v({kElements}, ACL_FLOAT), s({kElements}, ACL_FLOAT);
    Box step({1}, ACL_INT64);
    for (int64_t t = 1; t <= kSteps; ++t) {
      CHECK_OK(aclrtMemcpyAsync(step.data, 8, &t, 8, ACL_MEMCPY_HOST_TO_DEVICE, stream));
      uint64_t workspace = 0;
      aclOpExecutor *executor = nullptr;
      CHECK_OK(aclnnApplyFusedEmaAdamGetWorkspaceSize(grad.tensor, var.tensor, m.tensor, v.tensor, s.tensor,
                                                      step.tensor, 1e-2, .9, .9, .999, 1e-8, 1, true, .1, &workspace,
                                                      &executor));
      CHECK_OK(aclnnApplyFusedEmaAdam(nullptr, 0, executor, stream));
      // the message belongs to this thread
      CHECK_CODE(ACL_ERROR_INVALID_PARAM, aclrtFree(nullptr));
      CHECK(std::string(aclGetRecentErrMsg()).find("aclrtFree") != std::string::npos);
      CHECK(std::string(aclGetRecentErrMsg()).empty());
    }
    CHECK_OK(aclrtSynchronizeStream(stream));
    result = var.get<float>();
  }
  CHECK_OK(aclrtDestroyStream(stream));
  CHECK_OK(aclrtResetDevice(0));
  return result;
}

void own_streams() {
  begin();
  std::vector<std::vector<float>> alone, together(kThreads);
  for (int i = 0; i < kThreads; ++i) alone.push_back(train(i));
  std::vector<std::thread> team;
  for (int i = 0; i < kThreads; ++i) team.emplace_back([&, i] { together[static_cast<size_t>(i)] = train(i); });
  for (std::thread &thread : team) thread.join();
  CHECK(alone == together);
  CHECK(alone[0] != alone[1]);
  end();
}

// Handles are destroyed, and an executor is run, by exactly one of all who try.
void races() {
  begin();
  {
    const Box grad({8}, ACL_FLOAT), var({8}, ACL_FLOAT), m({8}, ACL_FLOAT), v({8}, ACL_FLOAT), s({8}, ACL_FLOAT),
        step({1}, ACL_INT64, std::vector<int64_t>{1});
    for (int round = 0; round < 50; ++round) {
      uint64_t workspace = 0;
      aclOpExecutor *executor = nullptr;
      CHECK_OK(aclnnApplyFusedEmaAdamGetWorkspaceSize(grad.tensor, var.tensor, m.tensor, v.tensor, s.tensor,
                                                      step.tensor, 1e-2, .9, .9, .999, 1e-8, 1, true, .1, &workspace,
                                                      &executor));
      void *memory = nullptr;
      CHECK_OK(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST));
      std::atomic<int> ran{0}, freed{0};
      std::vector<std::thread> team;
      for (int i = 0; i < kThreads; ++i)
        team.emplace_back([&] {
          CHECK_OK(aclrtSetDevice(0));
          ran += aclnnApplyFusedEmaAdam(nullptr, 0, executor, nullptr) == 0;
          freed += aclrtFree(memory) == 0;
          CHECK_OK(aclrtResetDevice(0));
        });
      for (std::thread &thread : team) thread.join();
      CHECK(ran == 1 && freed == 1);
    }
    CHECK_OK(aclrtSynchronizeDevice());
  }
  end();
}

// One stream fed by all: work stays whole, and a synchronize sees all of it.
void one_stream() {
  begin();
  {
    aclrtStream stream = nullptr;
    CHECK_OK(aclrtCreateStream(&stream));
    const Box target({kThreads * 64}, ACL_UINT8);
    std::vector<std::thread> team;
    for (int i = 0; i < kThreads; ++i)
      team.emplace_back([&, i] {
        CHECK_OK(aclrtSetDevice(0));
        for (int round = 0; round < 100; ++round)
          CHECK_OK(aclrtMemsetAsync(static_cast<char *>(target.data) + i * 64, 64, i + 1, 64, stream));
        CHECK_OK(aclrtSynchronizeStream(stream));
        CHECK_OK(aclrtResetDevice(0));
      });
    for (std::thread &thread : team) thread.join();
    CHECK_OK(aclrtSynchronizeStream(stream));
    const std::vector<uint8_t> seen = target.get<uint8_t>();
    for (int i = 0; i < kThreads * 64; ++i) CHECK(seen[static_cast<size_t>(i)] == i / 64 + 1);
    CHECK_OK(aclrtDestroyStream(stream));
  }
  end();
}

// Contexts with default streams of their own come and go in every thread.
void own_contexts() {
  begin();
  CHECK_OK(aclrtSetDevice(0));
  {
    const Box target({kThreads * 64}, ACL_UINT8);
    std::vector<std::thread> team;
    for (int i = 0; i < kThreads; ++i)
      team.emplace_back([&, i] {
        for (int round = 0; round < 300; ++round) {
          aclrtContext context = nullptr;
          CHECK_OK(aclrtCreateContext(&context, 0));
          CHECK_OK(aclrtMemsetAsync(static_cast<char *>(target.data) + i * 64, 64, i + 1, 64, nullptr));
          CHECK_OK(aclrtSynchronizeStream(nullptr));
          CHECK_OK(aclrtDestroyContext(context));
        }
      });
    for (std::thread &thread : team) thread.join();
    const std::vector<uint8_t> seen = target.get<uint8_t>();
    for (int i = 0; i < kThreads * 64; ++i) CHECK(seen[static_cast<size_t>(i)] == i / 64 + 1);
  }
  CHECK_OK(aclrtResetDevice(0));
  end();
}

}  // namespace

int main() {
  own_streams();
  races();
  one_stream();
  own_contexts();
  return finish("threads");
}
