#include <aclnnop/aclnn_quant_grouped_matmul_dequant.h>
#include <aclnnop/aclnn_quant_grouped_matmul_dequant_weight_nz.h>

#include "matmul_arguments.h"

namespace {

// Two groups; the ends are in memory of the program's own, as phase 2 looks at them.
struct Grouped : MatmulArguments {
  Arg groups{{2}, ACL_INT64};
  bool nz_entry = false;
  std::vector<int64_t> ends = {1, 3};
  Grouped() {
    weight.shape = {2, 32, 64};
    scale.shape = bias.shape = {2, 32};
  }

  void by_nz_entry(const Dims &shape, aclFormat format = ACL_FORMAT_ND) {
    nz_entry = true;
    blocked(shape, format);
  }

  int phase1() {
    const Made a(x), w(weight), s(scale), g(groups), b(bias), t(x_scale), o(offset), r(smooth), y(out);
    if (!groups.null && groups.dtype == ACL_INT64 && groups.shape == Dims{2}) g->put(ends);
    uint64_t workspace = 12345;
    aclOpExecutor *executor = nullptr;
    char *const name = const_cast<char *>(mode);
    const int code = nz_entry ? aclnnQuantGroupedMatmulDequantWeightNZGetWorkspaceSize(
                                    a, w, s, g, b, t, o, r, name, transpose, y, &workspace, &executor)
                              : aclnnQuantGroupedMatmulDequantGetWorkspaceSize(a, w, s, g, b, t, o, r, name, transpose,
                                                                               y, &workspace, &executor);
    return settle(code, workspace, executor,
                  nz_entry ? aclnnQuantGroupedMatmulDequantWeightNZ : aclnnQuantGroupedMatmulDequant);
  }
};

constexpr unsigned kHere = k310P | kAny, kLack = kA2 | kA3 | k950 | kX90 | k9030, kProducts = kEvery & ~kAny;

const Row<Grouped> kRows[] = {
    {kHere, "dynamic", [](Grouped &) {}, 0, ""},
    {kHere, "dynamic, smooth", [](Grouped &c) { c.smooth.null = false; }, 0, ""},
    {kHere, "static per token", [](Grouped &c) { c.static_scale({4}); }, 0, ""},
    {kHere, "static per tensor", [](Grouped &c) { c.per_tensor(); }, 0, ""},
    {kHere, "INT64 weight scale", [](Grouped &c) { c.packed(); }, 0, ""},
    {kHere, "weight in NCL", [](Grouped &c) { c.weight.format = ACL_FORMAT_NCL; }, 0, ""},
    {kHere, "FRACTAL_NZ", [](Grouped &c) { c.blocked({2, 2, 2, 16, 32}); }, 0, ""},
    {kHere, "the NZ entry, named ND", [](Grouped &c) { c.by_nz_entry({2, 2, 2, 16, 32}); }, 0, ""},
    {kHere, "the NZ entry, named FRACTAL_NZ",
     [](Grouped &c) { c.by_nz_entry({2, 2, 2, 16, 32}, ACL_FORMAT_FRACTAL_NZ); }, 0, ""},
    {kHere, "an empty group, all rows", [](Grouped &c) { c.ends = {4, 4}; }, 0, ""},
    {kHere, "no rows of a group", [](Grouped &c) { c.ends = {0, 0}; }, 0, ""},
    // in the order of the entry
    {kProducts, "1: transposeWeight false, before nulls", [](Grouped &c) { c.transpose = false, c.x.null = true; },
     161002, "transposeWeight"},
    {kAny, "1: transposeWeight false", [](Grouped &c) { c.transpose = false, c.weight.shape = {2, 64, 32}; }, 0, ""},
    {kAny, "1: false, FRACTAL_NZ", [](Grouped &c) { c.transpose = false, c.blocked({2, 1, 4, 16, 32}); }, 0, ""},
    {kEvery, "2: x null", [](Grouped &c) { c.x.null = true; }, 161001, "x is null"},
    {kEvery, "2: weight null", [](Grouped &c) { c.weight.null = true; }, 161001, "weight"},
    {kEvery, "2: weightScale null", [](Grouped &c) { c.scale.null = true; }, 161001, "weightScale"},
    {kEvery, "2: groupList null", [](Grouped &c) { c.groups.null = true; }, 161001, "groupList"},
    {kEvery, "2: out null", [](Grouped &c) { c.out.null = true; }, 161001, "out"},
    {kProducts, "3: bias given", [](Grouped &c) { c.bias.null = false; }, 161001, "biasOptional"},
    {kAny, "3: bias given", [](Grouped &c) { c.bias.null = false; }, 0, ""},
    {kEvery, "3: x offset given", [](Grouped &c) { c.offset.null = false; }, 161001, "xOffsetOptional"},
    {kEvery, "xQuantMode null", [](Grouped &c) { c.mode = nullptr; }, 161001, "xQuantMode"},
    {kProducts, "4: out of another dtype", [](Grouped &c) { c.out.dtype = ACL_FLOAT; }, 161002, "out"},
    {kLack, "5: another product", [](Grouped &) {}, 161002, "ANYFUSE_SOC"},
    {k310P, "6: bf16 x", [](Grouped &c) { c.x.dtype = c.out.dtype = ACL_BF16; }, 161002, "x has"},
    {kAny, "6: bf16 x", [](Grouped &c) { c.x.dtype = c.out.dtype = ACL_BF16; }, 0, ""},
    {kHere, "6: uint8 weight", [](Grouped &c) { c.weight.dtype = ACL_UINT8; }, 161002, "weight"},
    {kHere, "6: fp16 weight scale", [](Grouped &c) { c.scale.dtype = ACL_FLOAT16; }, 161002, "weightScale"},
    {kHere, "6: int32 groupList", [](Grouped &c) { c.groups.dtype = ACL_INT32; }, 161002, "groupList"},
    {kHere, "6: FLOAT x scale, INT64 weight scale", [](Grouped &c) { c.packed(), c.x_scale.dtype = ACL_FLOAT; }, 161002,
     "xScaleOptional"},
    {k310P, "6: FLOAT smooth", [](Grouped &c) { c.smooth.null = false, c.smooth.dtype = ACL_FLOAT; }, 161002, "smooth"},
    {kHere, "xQuantMode unknown", [](Grouped &c) { c.mode = "perchannel"; }, 161002, "perchannel"},
    {k310P, "7: x empty", [](Grouped &c) { c.x.shape = {0, 256}; }, 0, ""},
    {k310P, "7: groupList empty", [](Grouped &c) { c.groups.shape = {0}; }, 0, ""},
    {kAny, "7: no groups",
     [](Grouped &c) { c.groups.shape = {0}, c.weight.shape = {0, 32, 64}, c.scale.shape = {0, 32}; }, 0, ""},
    {kAny, "7: no columns", [](Grouped &c) { c.x.shape = {4, 0}, c.weight.shape = {2, 32, 0}; }, 0, ""},
    {kHere, "8: weight strided", [](Grouped &c) { c.weight.strides = {4096, 128, 2}; }, 161002, "weight"},
    {kHere, "8: the NZ entry, weight strided",
     [](Grouped &c) { c.by_nz_entry({2, 2, 2, 16, 32}), c.weight.strides = {4096, 2048, 1024, 64, 2}; }, 161002,
     "weight"},
    {kHere, "8: out strided", [](Grouped &c) { c.out.strides = {64, 1}; }, 161002, "out"},
    {kHere, "8: x strided is taken", [](Grouped &c) { c.x.strides = {100, 1}; }, 0, ""},
    {k310P, "9: n 24", [](Grouped &c) { c.weight.shape = {2, 24, 64}, c.scale.shape = {2, 24}, c.out.shape = {4, 24}; },
     161002, "16"},
    {kAny, "9: n 24", [](Grouped &c) { c.weight.shape = {2, 24, 64}, c.scale.shape = {2, 24}, c.out.shape = {4, 24}; },
     0, ""},
    {kHere, "9: k 48", [](Grouped &c) { c.weight.shape = {2, 32, 48}, c.x.shape = {4, 48}; }, 0, ""},
    {kHere, "10: weight of rank 2", [](Grouped &c) { c.weight.shape = {32, 64}; }, 161002, "weight"},
    {kHere, "10: rank 5 in ND", [](Grouped &c) { c.weight.shape = {2, 2, 2, 16, 32}; }, 161002, "weight"},
    {kHere, "10: rank 4 in FRACTAL_NZ", [](Grouped &c) { c.blocked({2, 2, 16, 32}); }, 161002, "weight"},
    {kHere, "10: the NZ entry, rank 3", [](Grouped &c) { c.by_nz_entry({2, 32, 64}); }, 161002, "weight"},
    {kHere, "INT64 weight scale without x scale", [](Grouped &c) { c.packed(), c.x_scale.null = true; }, 161002,
     "xScaleOptional"},
    // the planner
    {kHere, "x of rank 3", [](Grouped &c) { c.x.shape = {1, 4, 64}; }, 561002, "x has"},
    {kHere, "k of x and weight differ", [](Grouped &c) { c.x.shape = {4, 48}; }, 561002, "weight"},
    {kHere, "NZ, k1 wrong", [](Grouped &c) { c.blocked({2, 3, 2, 16, 32}); }, 561002, "weight"},
    {kHere, "NZ, one group more", [](Grouped &c) { c.blocked({3, 2, 2, 16, 32}); }, 561002, "weight"},
    {kHere, "the NZ entry, n1 wrong", [](Grouped &c) { c.by_nz_entry({2, 2, 3, 16, 32}); }, 561002, "weight"},
    {kHere, "weightScale of rank 1", [](Grouped &c) { c.scale.shape = {32}; }, 561002, "weightScale"},
    {kHere, "weightScale of another group", [](Grouped &c) { c.scale.shape = {3, 32}; }, 561002, "weight"},
    {kHere, "groupList of another length", [](Grouped &c) { c.groups.shape = {3}; }, 561002, "groupList"},
    {kHere, "groupList of rank 2", [](Grouped &c) { c.groups.shape = {2, 1}; }, 561002, "groupList"},
    {kHere, "pertensor without x scale", [](Grouped &c) { c.mode = "pertensor"; }, 561002, "xScaleOptional"},
    {kHere, "pertoken, x scale of another length", [](Grouped &c) { c.static_scale({3}); }, 561002, "xScaleOptional"},
    {kHere, "FLOAT16 x scale pertoken", [](Grouped &c) { c.packed(), c.mode = "pertoken", c.x_scale.shape = {4}; },
     561002, "xScaleOptional"},
    {kHere, "smooth of another length", [](Grouped &c) { c.smooth.null = false, c.smooth.shape = {32}; }, 561002,
     "smooth"},
    {k310P, "smooth of each group", [](Grouped &c) { c.smooth.null = false, c.smooth.shape = {2, 64}; }, 561002,
     "smooth"},
    {kAny, "smooth of each group", [](Grouped &c) { c.smooth.null = false, c.smooth.shape = {2, 64}; }, 0, ""},
    {kAny, "bias of one group", [](Grouped &c) { c.bias.null = false, c.bias.shape = {32}; }, 561002, "biasOptional"},
    {kHere, "out of another shape", [](Grouped &c) { c.out.shape = {32, 4}; }, 561002, "out"},
    // what phase 2 finds in groupList
    {kHere, "ends that descend", [](Grouped &c) { c.ends = {3, 1}; }, 161002, "groupList[1] is 1; accepted: 3"},
    {kHere, "an end beyond x", [](Grouped &c) { c.ends = {1, 5}; }, 161002,
     "groupList[1] is 5; accepted: 1, where the group before it ends, to 4"},
    {kHere, "an end below 0", [](Grouped &c) { c.ends = {-1, 3}; }, 161002, "groupList[0] is -1; accepted: 0"},
};

}  // namespace

int main() {
  run_table(kRows);
  return finish("errors_quant_grouped_matmul_dequant");
}
