// Adam on the two rows of an embedding table that a batch has touched.
#include <aclnn_lazy_adam.h>

#include "common.h"

int main() {
  Session session;
  const int64_t rows = 3, dim = 8;
  const std::vector<float> zeros(static_cast<size_t>(rows * dim), 0), ones(static_cast<size_t>(rows * dim), 1);
  const Tensor<float> gradient({2, dim}, ACL_FLOAT, std::vector<float>(static_cast<size_t>(2 * dim), .5f));
  const Tensor<int32_t> indices({2, 1}, ACL_INT32, {-1, 2});  // a negative one is skipped
  const Tensor<float> m({rows, dim}, ACL_FLOAT, zeros), v({rows, dim}, ACL_FLOAT, zeros),
      var({rows, dim}, ACL_FLOAT, ones);
  const Tensor<float> lr({1}, ACL_FLOAT, {1e-3f});
  uint64_t size = 0;
  aclOpExecutor *executor = nullptr;
  check(aclnnLazyAdamGetWorkspaceSize(gradient, indices, m, v, var, lr, .9, .999, 1e-8, &size, &executor),
        "aclnnLazyAdamGetWorkspaceSize");
  run(aclnnLazyAdam, size, executor, session.stream);

  Report report;
  report.value("var[1]", var.values()[static_cast<size_t>(dim)], 1, 0);
  report.value("m[2]", m.values()[static_cast<size_t>(2 * dim)], .05, 1e-7);
  report.value("v[2]", v.values()[static_cast<size_t>(2 * dim)], .00025, 1e-8);
  report.value("var[2]", var.values()[static_cast<size_t>(2 * dim)], .996837676, 1e-6);
  return report.finish();
}
