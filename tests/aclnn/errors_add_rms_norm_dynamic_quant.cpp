#include <aclnnop/aclnn_add_rms_norm_dynamic_quant.h>
#include <aclnnop/aclnn_add_rms_norm_dynamic_quant_v2.h>

#include "errors.h"

namespace {

struct Norm {
  Arg x1{{2, 3, 16}, ACL_FLOAT16}, x2{{2, 3, 16}, ACL_FLOAT16}, gamma{{16}, ACL_FLOAT16}, smooth1{{16}, ACL_FLOAT16},
      smooth2{{16}, ACL_FLOAT16}, beta{{16}, ACL_FLOAT16}, y1{{2, 3, 16}, ACL_INT8}, y2{{2, 3, 16}, ACL_INT8},
      x{{2, 3, 16}, ACL_FLOAT16}, scale1{{2, 3}}, scale2{{2, 3}};
  double epsilon = 1e-6;
  std::vector<int> mask = {};  // empty: null
  bool v2 = true;
  Norm() { smooth1.null = smooth2.null = beta.null = true; }

  void v1() { v2 = false; }
  void smooth() { smooth1.null = smooth2.null = false; }
  void both() { mask = {1, 1}; }
  void inputs(aclDataType dtype) {
    x1.dtype = x2.dtype = gamma.dtype = smooth1.dtype = smooth2.dtype = beta.dtype = x.dtype = dtype;
  }
  void codes(aclDataType dtype) { y1.dtype = y2.dtype = dtype; }
  void shapes(const Dims &shape) {
    x1.shape = x2.shape = x.shape = y1.shape = y2.shape = shape;
    gamma.shape = smooth1.shape = smooth2.shape = beta.shape = {shape.back()};
    scale1.shape = scale2.shape = Dims(shape.begin(), shape.end() - 1);
  }
  void words() {
    codes(ACL_INT32);
    y1.shape = y2.shape = {2, 3, 2};
  }

  int phase1() {
    const Made a(x1), b(x2), g(gamma), s(smooth1), t(smooth2), h(beta), p(y1), q(y2), o(x), c(scale1), d(scale2);
    bool values[3] = {false, false, false};
    for (size_t i = 0; i < mask.size(); ++i) values[i] = mask[i] != 0;
    aclBoolArray *array = mask.empty() ? nullptr : aclCreateBoolArray(values, mask.size());
    uint64_t workspace = 12345;
    aclOpExecutor *executor = nullptr;
    const int code =
        v2 ? aclnnAddRmsNormDynamicQuantV2GetWorkspaceSize(a, b, g, s, t, h, epsilon, array, p, q, o, c, d, &workspace,
                                                           &executor)
           : aclnnAddRmsNormDynamicQuantGetWorkspaceSize(a, b, g, s, t, epsilon, p, q, o, c, d, &workspace, &executor);
    CHECK_OK(aclDestroyBoolArray(array));
    return settle(code, workspace, executor, v2 ? aclnnAddRmsNormDynamicQuantV2 : aclnnAddRmsNormDynamicQuant);
  }
};

constexpr unsigned kKirin = kX90 | k9030, kHave = kA2 | kA3 | k950 | kKirin, kHere = kHave | kAny;
constexpr unsigned kMasked = kHere & ~k950, kInt4 = kAny | kA2 | kA3;  // have output masks, have int4

const Row<Norm> kV1[] = {
    {kHere, "V1: a good call", [](Norm &c) { c.v1(); }, 0, ""},
    {kHere, "V1: both outputs", [](Norm &c) { c.v1(), c.smooth(); }, 0, ""},
    {kHere, "V1: first smooth alone", [](Norm &c) { c.v1(), c.smooth1.null = false; }, 0, ""},
    {kHere, "V1: unused outputs of shape [1]", [](Norm &c) { c.v1(), c.y2.shape = c.scale2.shape = {1}; }, 0, ""},
    {k310P, "V1: a product without the operator", [](Norm &c) { c.v1(); }, 161002, "ANYFUSE_SOC"},
    {kEvery, "V1: x1 null", [](Norm &c) { c.v1(), c.x1.null = true; }, 161001, "x1"},
    {kEvery, "V1: x2 null", [](Norm &c) { c.v1(), c.x2.null = true; }, 161001, "x2"},
    {kEvery, "V1: gamma null", [](Norm &c) { c.v1(), c.gamma.null = true; }, 161001, "gamma"},
    {kEvery, "V1: y1Out null", [](Norm &c) { c.v1(), c.y1.null = true; }, 161001, "y1Out"},
    {kEvery, "V1: y2Out null", [](Norm &c) { c.v1(), c.y2.null = true; }, 161001, "y2Out"},
    {kEvery, "V1: xOut null", [](Norm &c) { c.v1(), c.x.null = true; }, 161001, "xOut"},
    {kEvery, "V1: scale1Out null", [](Norm &c) { c.v1(), c.scale1.null = true; }, 161001, "scale1Out"},
    {kEvery, "V1: scale2Out null", [](Norm &c) { c.v1(), c.scale2.null = true; }, 161001, "scale2Out"},
    {kHave, "V1: fp32 x", [](Norm &c) { c.v1(), c.inputs(ACL_FLOAT); }, 161002, "x1"},
    {kAny, "V1: fp32 x", [](Norm &c) { c.v1(), c.inputs(ACL_FLOAT); }, 0, ""},
    {kHere & ~kKirin, "V1: bf16", [](Norm &c) { c.v1(), c.inputs(ACL_BF16); }, 0, ""},
    {kKirin, "V1: bf16", [](Norm &c) { c.v1(), c.inputs(ACL_BF16); }, 561002, "x1"},
    {kHere, "V1: int8 smooth", [](Norm &c) { c.v1(), c.smooth(), c.smooth2.dtype = ACL_INT8; }, 161002, "smoothScale2"},
    {kHere, "V1: int4", [](Norm &c) { c.v1(), c.codes(ACL_INT4); }, 161002, "y1Out"},
    {kHere, "V1: y dtypes differ", [](Norm &c) { c.v1(), c.y2.dtype = ACL_HIFLOAT8; }, 161002, "y2Out"},
    {kHere, "V1: fp16 scale", [](Norm &c) { c.v1(), c.scale2.dtype = ACL_FLOAT16; }, 161002, "scale2Out"},
    {kAny | k950, "V1: fp8", [](Norm &c) { c.v1(), c.codes(ACL_FLOAT8_E4M3FN); }, 0, ""},
    {kHave & ~k950, "V1: fp8", [](Norm &c) { c.v1(), c.codes(ACL_FLOAT8_E4M3FN); }, 561002, "y1Out"},
    {kHere, "V1: format NZ", [](Norm &c) { c.v1(), c.x.format = ACL_FORMAT_FRACTAL_NZ; }, 161002, "xOut"},
    {kHere, "V1: x shapes differ", [](Norm &c) { c.v1(), c.x2.shape = {6, 16}; }, 561002, "x2"},
    {kHere, "V1: gamma of rank 2", [](Norm &c) { c.v1(), c.gamma.shape = {1, 16}; }, 561002, "gamma"},
    {kHere, "V1: gamma of another length", [](Norm &c) { c.v1(), c.gamma.shape = {8}; }, 561002, "gamma"},
    {kHere, "V1: smooth of another length", [](Norm &c) { c.v1(), c.smooth(), c.smooth1.shape = {8}; }, 561002,
     "smoothScale1"},
    {kHave, "V1: gamma of another dtype", [](Norm &c) { c.v1(), c.x1.dtype = c.x2.dtype = c.x.dtype = ACL_BF16; },
     561002, ""},
    {kAny, "V1: gamma of another dtype", [](Norm &c) { c.v1(), c.gamma.dtype = ACL_FLOAT; }, 0, ""},
    {kHere, "V1: second smooth alone", [](Norm &c) { c.v1(), c.smooth2.null = false; }, 561002, "smoothScale2"},
    {kHere, "V1: y flattened", [](Norm &c) { c.v1(), c.y1.shape = {6, 16}; }, 0, ""},
    {kHere, "V1: y of another shape", [](Norm &c) { c.v1(), c.y1.shape = {3, 2, 16}; }, 561002, "y1Out"},
    {kHere, "V1: scale flattened", [](Norm &c) { c.v1(), c.scale1.shape = {6}; }, 0, ""},
    {kHere, "V1: scale of another shape", [](Norm &c) { c.v1(), c.scale1.shape = {3, 2}; }, 561002, "scale1Out"},
    {kHere, "V1: scale with the norm axis", [](Norm &c) { c.v1(), c.scale1.shape = {2, 3, 1}; }, 0, ""},
    {kHere, "V1: empty", [](Norm &c) { c.v1(), c.shapes({0, 16}); }, 0, ""},
    {kHere, "V1: empty norm axis", [](Norm &c) { c.v1(), c.shapes({3, 0}); }, 0, ""},
};

const Row<Norm> kV2[] = {
    {kHere, "a good call", [](Norm &) {}, 0, ""},
    {kHere, "both outputs and beta", [](Norm &c) { c.smooth(), c.beta.null = false; }, 0, ""},
    {kMasked, "mask, no smooth", [](Norm &c) { c.both(); }, 0, ""},
    {k950, "mask", [](Norm &c) { c.both(); }, 161002, "outputMaskOptional is given on Ascend950"},
    {k950, "mask of what is made anyway", [](Norm &c) { c.mask = {1, 0}; }, 161002, "outputMaskOptional"},
    {kHere, "scales with the norm axis", [](Norm &c) { c.smooth(), c.scale1.shape = c.scale2.shape = {2, 3, 1}; }, 0,
     ""},
    {kMasked, "second output alone, first null", [](Norm &c) { c.mask = {0, 1}, c.y1.null = c.scale1.null = true; }, 0,
     ""},
    // in the order of the entry
    {kEvery, "mask of one", [](Norm &c) { c.mask = {1}; }, 161002, "outputMaskOptional"},
    {kEvery, "mask of three, before nulls", [](Norm &c) { c.mask = {1, 1, 1}, c.x1.null = true; }, 161002,
     "outputMaskOptional"},
    {kEvery, "first smooth, mask false", [](Norm &c) { c.mask = {0, 1}, c.smooth1.null = false; }, 161002,
     "smoothScale1Optional"},
    {kEvery, "second smooth, mask false", [](Norm &c) { c.mask = {1, 0}, c.smooth2.null = false; }, 161002,
     "smoothScale2Optional"},
    {kEvery, "mask false twice", [](Norm &c) { c.mask = {0, 0}; }, 161002, "outputMaskOptional"},
    {kEvery, "no mask, second smooth alone", [](Norm &c) { c.smooth2.null = false; }, 161002, "smoothScale2Optional"},
    {kMasked, "mask, second smooth alone", [](Norm &c) { c.both(), c.smooth2.null = false; }, 0, ""},
    {kEvery, "x1 null", [](Norm &c) { c.x1.null = true; }, 161001, "x1"},
    {kEvery, "x2 null", [](Norm &c) { c.x2.null = true; }, 161001, "x2"},
    {kEvery, "gamma null", [](Norm &c) { c.gamma.null = true; }, 161001, "gamma"},
    {kEvery, "xOut null", [](Norm &c) { c.x.null = true; }, 161001, "xOut"},
    {kEvery, "y1Out null", [](Norm &c) { c.y1.null = true; }, 161001, "y1Out"},
    {kEvery, "scale1Out null", [](Norm &c) { c.scale1.null = true; }, 161001, "scale1Out"},
    {kEvery, "y2Out null where it is made", [](Norm &c) { c.both(), c.y2.null = true; }, 161001, "y2Out"},
    {kEvery, "scale2Out null where it is made", [](Norm &c) { c.both(), c.scale2.null = true; }, 161001, "scale2Out"},
    {kHere, "y2Out null where it is not made", [](Norm &c) { c.y2.null = c.scale2.null = true; }, 0, ""},
    {k310P, "a product without the operator", [](Norm &) {}, 161002, "ANYFUSE_SOC"},
    {kHere, "empty", [](Norm &c) { c.shapes({0, 16}); }, 0, ""},
    {kHave & ~k950, "empty before dtypes", [](Norm &c) { c.shapes({0, 16}), c.both(), c.y2.dtype = ACL_INT4; }, 0, ""},
    {kHere, "empty norm axis", [](Norm &c) { c.shapes({3, 0}); }, 0, ""},
    {kMasked, "y dtypes differ", [](Norm &c) { c.both(), c.y2.dtype = ACL_HIFLOAT8; }, 161002, "y2Out"},
    {kInt4, "int32 words", [](Norm &c) { c.words(); }, 0, ""},
    {kHere & ~kInt4, "int32 words", [](Norm &c) { c.words(); }, 561002, "y1Out"},
    {kHere, "int32 words, last dimension kept", [](Norm &c) { c.codes(ACL_INT32); }, 161002, "y1Out"},
    {kHere, "int32 words, 12 columns", [](Norm &c) { c.shapes({2, 12}), c.words(), c.y1.shape = c.y2.shape = {2, 1}; },
     161002, "8"},
    {kHere, "y of another shape", [](Norm &c) { c.y1.shape = {6, 16}; }, 161002, "y1Out"},
    {kHere, "fp16 scale", [](Norm &c) { c.scale1.dtype = ACL_FLOAT16; }, 161002, "scale1Out"},
    // the planner
    {kHave, "fp32", [](Norm &c) { c.inputs(ACL_FLOAT); }, 561002, "x1"},
    {kAny, "fp32", [](Norm &c) { c.inputs(ACL_FLOAT); }, 0, ""},
    {kKirin, "bf16", [](Norm &c) { c.inputs(ACL_BF16); }, 561002, "x1"},
    {kHere & ~kKirin, "bf16", [](Norm &c) { c.inputs(ACL_BF16); }, 0, ""},
    {kHere, "double gamma", [](Norm &c) { c.gamma.dtype = ACL_DOUBLE; }, 561002, "gamma"},
    {kHere & ~kKirin, "xOut of another dtype", [](Norm &c) { c.x.dtype = ACL_BF16; }, 561002, "xOut"},
    {kHave & ~kKirin, "bf16 beta", [](Norm &c) { c.beta.null = false, c.beta.dtype = ACL_BF16; }, 561002,
     "betaOptional"},
    {kAny, "bf16 beta", [](Norm &c) { c.beta.null = false, c.beta.dtype = ACL_BF16; }, 0, ""},
    {kInt4, "int4", [](Norm &c) { c.codes(ACL_INT4); }, 0, ""},
    {kHere & ~kInt4, "int4", [](Norm &c) { c.codes(ACL_INT4); }, 561002, "y1Out"},
    {kInt4, "int4, 7 columns", [](Norm &c) { c.shapes({2, 7}), c.codes(ACL_INT4); }, 561002, "even"},
    {kAny | k950, "hifloat8", [](Norm &c) { c.codes(ACL_HIFLOAT8); }, 0, ""},
    {kAny | k950, "e5m2", [](Norm &c) { c.codes(ACL_FLOAT8_E5M2); }, 0, ""},
    {kHave & ~k950, "hifloat8", [](Norm &c) { c.codes(ACL_HIFLOAT8); }, 561002, "y1Out"},
    {kHere, "fp32 codes", [](Norm &c) { c.codes(ACL_FLOAT); }, 561002, "y1Out"},
    {kHave, "rank 1", [](Norm &c) { c.shapes({16}); }, 561002, "x1"},
    {kAny, "rank 1", [](Norm &c) { c.shapes({16}); }, 0, ""},
    {kHave, "rank 9", [](Norm &c) { c.shapes({1, 1, 1, 1, 1, 1, 1, 1, 16}); }, 561002, "x1"},
    {kHere, "x shapes differ", [](Norm &c) { c.x2.shape = {6, 16}; }, 561002, "x2"},
    {kHere, "xOut of another shape", [](Norm &c) { c.x.shape = {6, 16}; }, 561002, "xOut"},
    {kHere, "gamma of rank 2", [](Norm &c) { c.gamma.shape = {1, 16}; }, 561002, "gamma"},
    {kHere, "beta of another length", [](Norm &c) { c.beta.null = false, c.beta.shape = {8}; }, 561002, "betaOptional"},
    {kHere, "smooth of another length", [](Norm &c) { c.smooth(), c.smooth2.shape = {8}; }, 561002, "smoothScale2"},
    {kHere, "scale of another shape", [](Norm &c) { c.scale1.shape = {5}; }, 561002, "scale1Out"},
    {kHave, "epsilon 0", [](Norm &c) { c.epsilon = 0; }, 561002, "epsilon"},
    {kAny, "epsilon 0", [](Norm &c) { c.epsilon = 0; }, 0, ""},
    {kHere, "epsilon below 0", [](Norm &c) { c.epsilon = -1e-6; }, 561002, "epsilon"},
};

}  // namespace

int main() {
  run_table(kV1);
  run_table(kV2);
  return finish("errors_add_rms_norm_dynamic_quant");
}
