#include <aclnnop/aclnn_quant_matmul_dequant.h>

#include "matmul_arguments.h"

namespace {

struct Matmul : MatmulArguments {
  int phase1() {
    const Made a(x), w(weight), s(scale), b(bias), t(x_scale), o(offset), r(smooth), y(out);
    uint64_t workspace = 12345;
    aclOpExecutor *executor = nullptr;
    const int code = aclnnQuantMatmulDequantGetWorkspaceSize(a, w, s, b, t, o, r, const_cast<char *>(mode), transpose,
                                                             y, &workspace, &executor);
    return settle(code, workspace, executor, aclnnQuantMatmulDequant);
  }
};

constexpr unsigned kHere = k310P | kAny, kLack = kA2 | kA3 | k950 | kX90 | k9030, kProducts = kEvery & ~kAny;

const Row<Matmul> kRows[] = {
    {kHere, "dynamic", [](Matmul &) {}, 0, ""},
    {kHere, "dynamic, smooth", [](Matmul &c) { c.smooth.null = false; }, 0, ""},
    {kHere, "static per token", [](Matmul &c) { c.static_scale({4}); }, 0, ""},
    {kHere, "static per tensor", [](Matmul &c) { c.per_tensor(); }, 0, ""},
    {kHere, "static per tensor, no dimension", [](Matmul &c) { c.per_tensor(), c.x_scale.shape = {}; }, 0, ""},
    {kHere, "INT64 weight scale", [](Matmul &c) { c.packed(); }, 0, ""},
    {kHere, "FRACTAL_NZ", [](Matmul &c) { c.blocked({2, 2, 16, 32}); }, 0, ""},
    // in the order of the entry
    {kProducts, "1: transposeWeight false, before nulls", [](Matmul &c) { c.transpose = false, c.x.null = true; },
     161002, "transposeWeight"},
    {kAny, "1: transposeWeight false", [](Matmul &c) { c.transpose = false, c.weight.shape = {64, 32}; }, 0, ""},
    {kAny, "1: false, FRACTAL_NZ", [](Matmul &c) { c.transpose = false, c.blocked({1, 4, 16, 32}); }, 0, ""},
    {kEvery, "2: x null", [](Matmul &c) { c.x.null = true; }, 161001, "x is null"},
    {kEvery, "2: weight null", [](Matmul &c) { c.weight.null = true; }, 161001, "weight"},
    {kEvery, "2: weightScale null", [](Matmul &c) { c.scale.null = true; }, 161001, "weightScale"},
    {kEvery, "2: out null", [](Matmul &c) { c.out.null = true; }, 161001, "out"},
    {kProducts, "3: bias given", [](Matmul &c) { c.bias.null = false; }, 161001, "biasOptional"},
    {kAny, "3: bias given", [](Matmul &c) { c.bias.null = false; }, 0, ""},
    {kEvery, "3: x offset given", [](Matmul &c) { c.offset.null = false; }, 161001, "xOffsetOptional"},
    {kEvery, "xQuantMode null", [](Matmul &c) { c.mode = nullptr; }, 161001, "xQuantMode"},
    {kProducts, "4: out of another dtype", [](Matmul &c) { c.out.dtype = ACL_FLOAT; }, 161002, "out"},
    {kAny, "4: out of another dtype", [](Matmul &c) { c.out.dtype = ACL_FLOAT; }, 0, ""},
    {kLack, "5: another product", [](Matmul &) {}, 161002, "ANYFUSE_SOC"},
    {k310P, "6: bf16 x", [](Matmul &c) { c.x.dtype = c.out.dtype = ACL_BF16; }, 161002, "x has"},
    {kAny, "6: bf16 x", [](Matmul &c) { c.x.dtype = c.out.dtype = ACL_BF16; }, 0, ""},
    {kAny, "6: fp32 x", [](Matmul &c) { c.x.dtype = c.out.dtype = ACL_FLOAT; }, 0, ""},
    {kHere, "6: uint8 weight", [](Matmul &c) { c.weight.dtype = ACL_UINT8; }, 161002, "weight"},
    {kHere, "6: fp16 weight scale", [](Matmul &c) { c.scale.dtype = ACL_FLOAT16; }, 161002, "weightScale"},
    {kHere, "6: FLOAT16 x scale, FLOAT weight scale", [](Matmul &c) { c.static_scale({1}, ACL_FLOAT16); }, 161002,
     "xScaleOptional"},
    {kHere, "6: FLOAT x scale, INT64 weight scale", [](Matmul &c) { c.packed(), c.x_scale.dtype = ACL_FLOAT; }, 161002,
     "xScaleOptional"},
    {k310P, "6: FLOAT smooth", [](Matmul &c) { c.smooth.null = false, c.smooth.dtype = ACL_FLOAT; }, 161002, "smooth"},
    {k310P, "6: FLOAT smooth, INT64 weight scale",
     [](Matmul &c) { c.packed(), c.smooth.null = false, c.smooth.dtype = ACL_FLOAT; }, 161002, "smooth"},
    {kHere, "xQuantMode unknown", [](Matmul &c) { c.mode = "perchannel"; }, 161002, "perchannel"},
    {k310P, "7: x empty", [](Matmul &c) { c.x.shape = {0, 256}; }, 0, ""},
    {k310P, "7: weight empty", [](Matmul &c) { c.weight.shape = {0, 64}; }, 0, ""},
    {k310P, "7: weightScale empty", [](Matmul &c) { c.scale.shape = {0}; }, 0, ""},
    {kAny, "7: no rows", [](Matmul &c) { c.x.shape = {0, 64}, c.out.shape = {0, 32}; }, 0, ""},
    {kAny, "7: no columns", [](Matmul &c) { c.x.shape = {4, 0}, c.weight.shape = {32, 0}; }, 0, ""},
    {kHere, "7: empty before contiguous",
     [](Matmul &c) { c.x.shape = {0, 64}, c.out.shape = {0, 32}, c.weight.strides = {128, 2}; }, 0, ""},
    {kHere, "8: weight strided", [](Matmul &c) { c.weight.strides = {128, 2}; }, 161002, "weight"},
    {kHere, "8: out strided", [](Matmul &c) { c.out.strides = {64, 1}; }, 161002, "out"},
    {kHere, "8: x strided is taken", [](Matmul &c) { c.x.strides = {100, 1}; }, 0, ""},
    {k310P, "9: n 24", [](Matmul &c) { c.weight.shape = {24, 64}, c.scale.shape = {24}, c.out.shape = {4, 24}; },
     161002, "16"},
    {k310P, "9: k 40", [](Matmul &c) { c.weight.shape = {32, 40}, c.x.shape = {4, 40}; }, 161002, "16"},
    {kAny, "9: n 24", [](Matmul &c) { c.weight.shape = {24, 64}, c.scale.shape = {24}, c.out.shape = {4, 24}; }, 0, ""},
    {kAny, "9: k 40", [](Matmul &c) { c.weight.shape = {32, 40}, c.x.shape = {4, 40}; }, 0, ""},
    {kHere, "9: k 48", [](Matmul &c) { c.weight.shape = {32, 48}, c.x.shape = {4, 48}; }, 0, ""},
    {kHere, "10: weight of rank 3", [](Matmul &c) { c.weight.shape = {1, 32, 64}; }, 161002, "weight"},
    {kHere, "10: rank 4 in ND", [](Matmul &c) { c.weight.shape = {2, 2, 16, 32}; }, 161002, "weight"},
    {kHere, "10: rank 2 in FRACTAL_NZ", [](Matmul &c) { c.blocked({32, 64}); }, 161002, "weight"},
    {kHere, "INT64 weight scale without x scale", [](Matmul &c) { c.packed(), c.x_scale.null = true; }, 161002,
     "xScaleOptional"},
    // the planner
    {kHere, "x of rank 3", [](Matmul &c) { c.x.shape = {1, 4, 64}; }, 561002, "x has"},
    {kHere, "k of x and weight differ", [](Matmul &c) { c.x.shape = {4, 48}; }, 561002, "weight"},
    {kHere, "NZ, k1 wrong", [](Matmul &c) { c.blocked({3, 2, 16, 32}); }, 561002, "weight"},
    {kHere, "NZ, n1 wrong", [](Matmul &c) { c.blocked({2, 3, 16, 32}); }, 561002, "weight"},
    {kHere, "NZ, blocks turned", [](Matmul &c) { c.blocked({2, 2, 32, 16}); }, 561002, "weight"},
    {k310P, "NZ, k 40", [](Matmul &c) { c.blocked({2, 2, 16, 32}), c.x.shape = {4, 40}; }, 561002, "16"},
    {kHere, "weightScale of rank 2", [](Matmul &c) { c.scale.shape = {32, 1}; }, 561002, "weightScale"},
    {kHere, "pertensor without x scale", [](Matmul &c) { c.mode = "pertensor"; }, 561002, "xScaleOptional"},
    {kHere, "pertoken, x scale of another length", [](Matmul &c) { c.static_scale({3}); }, 561002, "xScaleOptional"},
    {k310P, "pertoken, x scale of rank 2", [](Matmul &c) { c.static_scale({4, 1}); }, 561002, "xScaleOptional"},
    {kAny, "pertoken, x scale of rank 2", [](Matmul &c) { c.static_scale({4, 1}); }, 0, ""},
    {kHere, "pertoken, x scale (1, m)", [](Matmul &c) { c.static_scale({1, 4}); }, 561002, "xScaleOptional"},
    {kHere, "pertensor, x scale of two", [](Matmul &c) { c.per_tensor(), c.x_scale.shape = {2}; }, 561002,
     "xScaleOptional"},
    {kHere, "pertensor, x scale (1, 1)", [](Matmul &c) { c.per_tensor(), c.x_scale.shape = {1, 1}; }, 561002,
     "xScaleOptional"},
    {kHere, "FLOAT16 x scale pertoken", [](Matmul &c) { c.packed(), c.mode = "pertoken", c.x_scale.shape = {4}; },
     561002, "xScaleOptional"},
    {kHere, "smooth of another length", [](Matmul &c) { c.smooth.null = false, c.smooth.shape = {32}; }, 561002,
     "smooth"},
    {kHere, "smooth of rank 2", [](Matmul &c) { c.smooth.null = false, c.smooth.shape = {1, 64}; }, 561002, "smooth"},
    {kHere, "out of another shape", [](Matmul &c) { c.out.shape = {32, 4}; }, 561002, "out"},
    {kHere, "out of rank 3", [](Matmul &c) { c.out.shape = {1, 4, 32}; }, 561002, "out"},
    {kAny, "k 131072", [](Matmul &c) { c.x.shape = {1, 131072}, c.weight.shape = {32, 131072}, c.out.shape = {1, 32}; },
     561002, "131071"},
};

}  // namespace

int main() {
  run_table(kRows);
  return finish("errors_quant_matmul_dequant");
}
