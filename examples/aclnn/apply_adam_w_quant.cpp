// One step of AdamW whose moments are stored in 8 bits: a code for each element and one scale for each block of 256.
#include <aclnnop/aclnn_apply_adam_w_quant.h>

#include "common.h"

int main() {
  Session session;
  const size_t count = 300;  // the second block is partial
  std::vector<float> gradient(count), map_m(256), map_v(256);
  for (size_t i = 0; i < count; ++i) gradient[i] = i < 256 ? .1f : -.3f;
  for (size_t i = 0; i < 256; ++i) {
    map_m[i] = static_cast<float>(static_cast<double>(i) / 127.5 - 1);
    map_v[i] = static_cast<float>(static_cast<double>(i) / 255);
  }
  const Tensor<float> grad({300}, ACL_FLOAT, gradient), var({300}, ACL_FLOAT, std::vector<float>(count, 1));
  const Tensor<uint8_t> m({300}, ACL_UINT8, std::vector<uint8_t>(count, 127)),
      v({300}, ACL_UINT8, std::vector<uint8_t>(count, 0));
  const Tensor<float> qmap_m({256}, ACL_FLOAT, map_m), qmap_v({256}, ACL_FLOAT, map_v);
  const Tensor<float> absmax_m({2}, ACL_FLOAT, {0, 0}), absmax_v({2}, ACL_FLOAT, {0, 0});
  const Tensor<int64_t> step({1}, ACL_INT64, {1});
  uint64_t size = 0;
  aclOpExecutor *executor = nullptr;
  const double lr = .01, beta1 = .9, beta2 = .999, weight_decay = 0, eps = 1e-8, gnorm_scale = 1;
  check(aclnnApplyAdamWQuantGetWorkspaceSize(var, grad, m, v, qmap_m, qmap_v, absmax_m, absmax_v, step, lr, beta1,
                                             beta2, weight_decay, eps, gnorm_scale, nullptr, 256, &size, &executor),
        "aclnnApplyAdamWQuantGetWorkspaceSize");
  run(aclnnApplyAdamWQuant, size, executor, session.stream);

  Report report;
  report.value("absmax_m[0]", absmax_m.values()[0], .01, 1e-7);
  report.value("absmax_m[1]", absmax_m.values()[1], .03, 1e-7);
  report.value("absmax_v[1]", absmax_v.values()[1], .09 * .001, 1e-8);
  report.value("m[0]", m.values()[0], 255, 0);
  report.value("m[299]", m.values()[299], 0, 0);
  report.value("v[0]", v.values()[0], 255, 0);
  // A device counts the first step as 0, so its update is 0.75 of this one; both are well within this.
  report.value("var[0]", var.values()[0], .99, 4e-3);
  return report.finish();
}
