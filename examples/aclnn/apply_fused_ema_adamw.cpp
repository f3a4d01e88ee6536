// One step of AdamW that also moves the exponential average of the weights.
#include <aclnnop/aclnn_apply_fused_ema_adam.h>

#include "common.h"

int main() {
  Session session;
  const Tensor<float> grad({2}, ACL_FLOAT, {.5f, -1}), var({2}, ACL_FLOAT, {1, 2}), m({2}, ACL_FLOAT, {0, 0}),
      v({2}, ACL_FLOAT, {0, 0}), s({2}, ACL_FLOAT, {1, 2});
  const Tensor<int64_t> step({1}, ACL_INT64, {1});
  uint64_t size = 0;
  aclOpExecutor *executor = nullptr;
  const double lr = .1, decay = .9, beta1 = .9, beta2 = .999, eps = 1e-8, weight_decay = .01;
  check(aclnnApplyFusedEmaAdamGetWorkspaceSize(grad, var, m, v, s, step, lr, decay, beta1, beta2, eps, 1, true,
                                               weight_decay, &size, &executor),
        "aclnnApplyFusedEmaAdamGetWorkspaceSize");
  run(aclnnApplyFusedEmaAdam, size, executor, session.stream);

  // At the first step the update is the sign of the gradient, plus the decay: 1 - .1(1 + .01), 2 - .1(-1 + .02).
  Report report;
  report.value("var[0]", var.values()[0], .899, 1e-5);
  report.value("var[1]", var.values()[1], 2.098, 1e-5);
  report.value("m[0]", m.values()[0], .05, 1e-7);
  report.value("v[1]", v.values()[1], .001, 1e-7);
  report.value("average[0]", s.values()[0], .9 * 1 + .1 * .899, 1e-5);
  return report.finish();
}
