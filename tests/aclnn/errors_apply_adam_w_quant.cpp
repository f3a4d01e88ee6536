#include <aclnnop/aclnn_apply_adam_w_quant.h>

#include <cmath>

#include "errors.h"

namespace {

struct Quant {
  Arg var{{257}}, grad{{257}}, m{{257}, ACL_UINT8}, v{{257}, ACL_UINT8}, qmap_m{{256}}, qmap_v{{256}}, absmax_m{{2}},
      absmax_v{{2}}, step{{1}, ACL_INT64};
  int64_t block = 256;
  float fourth = 3.0f / 255;  // of the map for m

  void all(const Dims &shape) { var.shape = grad.shape = m.shape = v.shape = shape; }
  void absmax(const Dims &shape) { absmax_m.shape = absmax_v.shape = shape; }

  int phase1() {
    const Made a(var), g(grad), b(m), c(v), p(qmap_m), q(qmap_v), x(absmax_m), y(absmax_v), t(step);
    std::vector<float> map(256);
    for (int i = 0; i < 256; ++i) map[static_cast<size_t>(i)] = static_cast<float>(i) / 255;
    std::vector<float> map_m = map;
    map_m[3] = fourth;
    if (p != nullptr && count_of(qmap_m.shape) == 256) p->put(map_m);
    if (q != nullptr && count_of(qmap_v.shape) == 256 && qmap_v.dtype == ACL_FLOAT) q->put(map);
    uint64_t workspace = 12345;
    aclOpExecutor *executor = nullptr;
    const int code = aclnnApplyAdamWQuantGetWorkspaceSize(a, g, b, c, p, q, x, y, t, 1e-3, .9, .999, .01, 1e-8, 1.0,
                                                          nullptr, block, &workspace, &executor);
    return settle(code, workspace, executor, aclnnApplyAdamWQuant);
  }
};

constexpr unsigned kHave = kA2 | kA3, kHere = kHave | kAny, kLack = k950 | k310P | kX90 | k9030;

const Row<Quant> kRows[] = {
    {kHere, "a good call, last block partial", [](Quant &) {}, 0, ""},
    {kLack, "a product without the operator", [](Quant &) {}, 161002, "ANYFUSE_SOC"},
    {kEvery, "varRef null", [](Quant &c) { c.var.null = true; }, 161001, "varRef"},
    {kEvery, "grad null", [](Quant &c) { c.grad.null = true; }, 161001, "grad"},
    {kEvery, "mRef null", [](Quant &c) { c.m.null = true; }, 161001, "mRef"},
    {kEvery, "vRef null", [](Quant &c) { c.v.null = true; }, 161001, "vRef"},
    {kEvery, "qmapM null", [](Quant &c) { c.qmap_m.null = true; }, 161001, "qmapM"},
    {kEvery, "qmapV null", [](Quant &c) { c.qmap_v.null = true; }, 161001, "qmapV"},
    {kEvery, "absmaxMRef null", [](Quant &c) { c.absmax_m.null = true; }, 161001, "absmaxMRef"},
    {kEvery, "absmaxVRef null", [](Quant &c) { c.absmax_v.null = true; }, 161001, "absmaxVRef"},
    {kEvery, "step null", [](Quant &c) { c.step.null = true; }, 161001, "step"},
    {kHere, "fp16", [](Quant &c) { c.var.dtype = c.grad.dtype = ACL_FLOAT16; }, 0, ""},
    {kHere, "bf16", [](Quant &c) { c.var.dtype = c.grad.dtype = ACL_BF16; }, 0, ""},
    {kHere, "int8 var", [](Quant &c) { c.var.dtype = c.grad.dtype = ACL_INT8; }, 161002, "varRef"},
    {kHave, "grad of another dtype", [](Quant &c) { c.var.dtype = ACL_BF16; }, 161002, "grad"},
    {kAny, "grad of another dtype", [](Quant &c) { c.var.dtype = ACL_BF16; }, 0, ""},
    {kHere, "int8 codes", [](Quant &c) { c.m.dtype = ACL_INT8; }, 161002, "mRef"},
    {kHere, "fp16 map", [](Quant &c) { c.qmap_v.dtype = ACL_FLOAT16; }, 161002, "qmapV"},
    {kHere, "fp16 absmax", [](Quant &c) { c.absmax_v.dtype = ACL_FLOAT16; }, 161002, "absmaxVRef"},
    {kHere, "float step", [](Quant &c) { c.step.dtype = ACL_FLOAT; }, 161002, "step"},
    {kHere, "format NZ", [](Quant &c) { c.v.format = ACL_FORMAT_FRACTAL_NZ; }, 161002, "vRef"},
    {kHere, "blockSize 100", [](Quant &c) { c.block = 100; }, 561002, "blockSize"},
    {kHere, "blockSize 0", [](Quant &c) { c.block = 0; }, 561002, "blockSize"},
    {kHave, "blockSize 128", [](Quant &c) { c.block = 128, c.absmax({3}); }, 561002, "blockSize"},
    {kAny, "blockSize 128", [](Quant &c) { c.block = 128, c.absmax({3}); }, 0, ""},
    {kHere, "shapes differ", [](Quant &c) { c.grad.shape = {256}; }, 561002, "grad"},
    {kHere, "ranks differ", [](Quant &c) { c.v.shape = {257, 1}; }, 561002, "vRef"},
    {kHere, "255 map entries", [](Quant &c) { c.qmap_m.shape = c.qmap_v.shape = {255}; }, 561002, "qmapM"},
    {kHere, "map shapes differ", [](Quant &c) { c.qmap_v.shape = {16, 16}; }, 561002, "qmapV"},
    {kHere, "maps of another shape", [](Quant &c) { c.qmap_m.shape = c.qmap_v.shape = {16, 16}; }, 0, ""},
    {kHere, "step of two", [](Quant &c) { c.step.shape = {2}; }, 561002, "step"},
    {kHere, "step of no dimension", [](Quant &c) { c.step.shape = {}; }, 561002, "step"},
    {kHere, "absmax rounded down", [](Quant &c) { c.absmax_m.shape = {1}; }, 561002, "absmaxMRef"},
    {kHere, "absmax of another shape", [](Quant &c) { c.absmax({2, 1}); }, 0, ""},
    {kHave, "rank 9", [](Quant &c) { c.all({1, 1, 1, 1, 1, 1, 1, 1, 257}); }, 561002, "varRef"},
    {kHere, "empty", [](Quant &c) { c.all({0}), c.absmax({0}); }, 0, ""},
    // what phase 2 finds in a map
    {kHere, "a map that falls", [](Quant &c) { c.fourth = 0; }, 161002, "qmapM[3] is 0, after 0.00784"},
    {kHere, "a map with an infinity", [](Quant &c) { c.fourth = INFINITY; }, 161002, "qmapM[3] is inf"},
    {kHere, "dtype before block", [](Quant &c) { c.m.dtype = ACL_INT8, c.block = 1; }, 161002, "mRef"},
};

}  // namespace

int main() {
  run_table(kRows);
  return finish("errors_apply_adam_w_quant");
}
