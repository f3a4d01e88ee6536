// Forks of a program whose other threads are inside calls. A child begins anew: nothing there waits for a lock that a
// thread of the parent held, and handles of the parent are not alive in it.
#include <aclnnop/aclnn_apply_fused_ema_adam.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "program.h"

namespace {

constexpr int kForks = 60;

int step(const Box &grad, const Box &state, const Box &number) {
  const Box var({8}, ACL_FLOAT), m({8}, ACL_FLOAT), v({8}, ACL_FLOAT);
  uint64_t workspace = 0;
  aclOpExecutor *executor = nullptr;
  const int code =
      aclnnApplyFusedEmaAdamGetWorkspaceSize(grad.tensor, var.tensor, m.tensor, v.tensor, state.tensor, number.tensor,
                                             .1, .9, .9, .999, 0, 1, true, 0, &workspace, &executor);
  return code != 0 ? code : aclnnApplyFusedEmaAdam(nullptr, 0, executor, nullptr);
}

void work() {
  CHECK_OK(aclrtSetDevice(0));
  const Box grad({8}, ACL_FLOAT), state({8}, ACL_FLOAT), number({1}, ACL_INT64, std::vector<int64_t>{1});
  CHECK_OK(step(grad, state, number));
}

void children_begin_anew() {
  begin();
  {
    const Box mine({8}, ACL_FLOAT);
    std::atomic<bool> stop{false};
    std::thread other([&] {
      while (!stop) work();
    });
    for (int i = 0; i < kForks; ++i) {
      usleep(300);
      const pid_t child = fork();
      if (child == 0) {
        alarm(60);  // a child that hangs is ended
        CHECK_CODE(ACL_ERROR_UNINITIALIZE, aclrtSetDevice(0));
        CHECK(std::string(aclGetRecentErrMsg()).find("child of fork") != std::string::npos);
        begin();
        work();
        {
          const Box own({8}, ACL_FLOAT);  // in the slot that `mine` has in the parent
          void *address = nullptr;
          CHECK_CODE(ACLNN_ERR_PARAM_INVALID, aclGetRawTensorAddr(mine.tensor, &address));
        }
        end();
        _exit(failures() == 0 ? 0 : 1);
      }
      int status = 1;
      waitpid(child, &status, 0);
      CHECK(status == 0);
    }
    stop = true;
    other.join();
    work();
  }
  end();
}

}  // namespace

int main() {
  children_begin_anew();
  return finish("forks");
}
