#include <aclnnop/aclnn_apply_fused_ema_adam.h>

#include "errors.h"

namespace {

struct Ema {
  Arg grad{{4, 6}}, var{{4, 6}}, m{{4, 6}}, v{{4, 6}}, s{{4, 6}}, step{{1}, ACL_INT64};
  int64_t mode = 1;

  void all(aclDataType dtype) { grad.dtype = var.dtype = m.dtype = v.dtype = s.dtype = dtype; }
  void all(const Dims &shape) { grad.shape = var.shape = m.shape = v.shape = s.shape = shape; }

  int phase1() {
    const Made g(grad), a(var), b(m), c(v), d(s), t(step);
    uint64_t workspace = 12345;
    aclOpExecutor *executor = nullptr;
    const int code = aclnnApplyFusedEmaAdamGetWorkspaceSize(g, a, b, c, d, t, 1e-3, .999, .9, .999, 1e-8, mode, true,
                                                            .01, &workspace, &executor);
    return settle(code, workspace, executor, aclnnApplyFusedEmaAdam);
  }
};

constexpr unsigned kHave = kA2 | kA3 | k950, kHere = kHave | kAny, kLack = k310P | kX90 | k9030;

const Row<Ema> kRows[] = {
    {kHere, "a good call", [](Ema &) {}, 0, ""},
    {kLack, "a product without the operator", [](Ema &) {}, 161002, "ANYFUSE_SOC"},
    {kEvery, "grad null", [](Ema &c) { c.grad.null = true; }, 161001, "grad"},
    {kEvery, "varRef null", [](Ema &c) { c.var.null = true; }, 161001, "varRef"},
    {kEvery, "mRef null", [](Ema &c) { c.m.null = true; }, 161001, "mRef"},
    {kEvery, "vRef null", [](Ema &c) { c.v.null = true; }, 161001, "vRef"},
    {kEvery, "sRef null", [](Ema &c) { c.s.null = true; }, 161001, "sRef"},
    {kEvery, "step null", [](Ema &c) { c.step.null = true; }, 161001, "step"},
    {kHere, "fp16", [](Ema &c) { c.all(ACL_FLOAT16); }, 0, ""},
    {kHere, "bf16", [](Ema &c) { c.all(ACL_BF16); }, 0, ""},
    {kHere, "double", [](Ema &c) { c.all(ACL_DOUBLE); }, 161002, "grad"},
    {kHere, "int32 s", [](Ema &c) { c.s.dtype = ACL_INT32; }, 161002, "sRef"},
    {kHere, "int32 step", [](Ema &c) { c.step.dtype = ACL_INT32; }, 161002, "step"},
    {kHave, "mixed dtypes", [](Ema &c) { c.var.dtype = ACL_BF16; }, 161002, "varRef"},
    {kAny, "mixed dtypes", [](Ema &c) { c.var.dtype = ACL_BF16; }, 0, ""},
    {kHere, "format NZ", [](Ema &c) { c.m.format = ACL_FORMAT_FRACTAL_NZ; }, 161002, "mRef"},
    {kHere, "format NC1HWC0", [](Ema &c) { c.grad.format = ACL_FORMAT_NC1HWC0; }, 161002, "grad"},
    {kHere, "format NCHW lies like ND", [](Ema &c) { c.grad.format = ACL_FORMAT_NCHW; }, 0, ""},
    {kHere, "mode 2", [](Ema &c) { c.mode = 2; }, 161002, "mode"},
    {kHere, "mode -1", [](Ema &c) { c.mode = -1; }, 161002, "mode"},
    {kHere, "mode 0", [](Ema &c) { c.mode = 0; }, 0, ""},
    {kHere, "shapes differ", [](Ema &c) { c.v.shape = {6, 4}; }, 561002, "vRef"},
    {kHere, "ranks differ", [](Ema &c) { c.s.shape = {24}; }, 561002, "sRef"},
    {kHere, "step of four, of which the first counts", [](Ema &c) { c.step.shape = {2, 2}; }, 0, ""},
    {kHere, "step of no dimension", [](Ema &c) { c.step.shape = {}; }, 0, ""},
    {kHere, "step of no element", [](Ema &c) { c.step.shape = {0}; }, 561002, "step"},
    {kHave, "rank 9", [](Ema &c) { c.all({1, 1, 1, 1, 1, 1, 1, 1, 2}); }, 561002, "varRef"},
    {kAny, "rank 9", [](Ema &c) { c.all({1, 1, 1, 1, 1, 1, 1, 1, 2}); }, 0, ""},
    {kHere, "empty", [](Ema &c) { c.all({3, 0}); }, 0, ""},
    {kHere, "null before dtype", [](Ema &c) { c.all(ACL_DOUBLE), c.step.null = true; }, 161001, "step"},
    {kHere, "dtype before shape", [](Ema &c) { c.all(ACL_DOUBLE), c.s.shape = {1}; }, 161002, "grad"},
    {kHere, "mode before shape", [](Ema &c) { c.mode = 3, c.s.shape = {1}; }, 161002, "mode"},
};

}  // namespace

int main() {
  run_table(kRows);
  return finish("errors_apply_fused_ema_adam");
}
