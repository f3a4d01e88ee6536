// aclnnQuantMatmulDequant, which computes by anyfuse_quant_matmul_dequant.
#include <cstring>

#include "aclnnop/aclnn_quant_matmul_dequant.h"
#include "anyfuse.h"
#include "checks.h"
#include "nz.h"

using namespace anyfuse::acl;

namespace {

constexpr const char *kName = "aclnnQuantMatmulDequant";
constexpr int64_t kMaxK = 131071;  // beyond, a sum of products may leave int32
enum Position : size_t { kX, kWeight, kWeightScale, kBias, kXScale, kXOffset, kSmooth, kOut };

struct Shape {
  int64_t m, n, k;
};

bool is_any(const Call &call) { return call.settings().soc == kAny; }

bool is_blocked(const Tensor &weight) {
  return weight.is_blocked() && (weight.rank() == 4 || (weight.rank() == 2 && weight.storage.size() == 4));
}

const std::vector<int64_t> &blocks_of(const Tensor &weight) {
  return weight.rank() == 4 ? weight.shape : weight.storage;
}

// A row of dtypes that the operator has: an INT64 weight scale goes with a FLOAT16 x scale, a FLOAT one with FLOAT.
aclnnStatus check_dtypes(const Call &call) {
  const std::vector<aclDataType> floats =
      is_any(call) ? std::vector<aclDataType>{ACL_FLOAT16, ACL_BF16, ACL_FLOAT} : std::vector<aclDataType>{ACL_FLOAT16};
  ANYFUSE_TRY(require_dtypes(call, {{kX, floats},
                                    {kWeight, {ACL_INT8}},
                                    {kWeightScale, {ACL_FLOAT, ACL_INT64}},
                                    {kBias, {ACL_INT32}},
                                    {kSmooth, floats},
                                    {kOut, floats}}));
  const bool packed = call[kWeightScale].dtype == ACL_INT64;
  return require_dtypes(call, {{kXScale, {packed ? ACL_FLOAT16 : ACL_FLOAT}}});
}

// What the entry tests itself, in its order.
aclnnStatus check_entry(const Call &call, const char *mode, bool transpose) {
  ANYFUSE_REQUIRE(transpose || is_any(call), ACLNN_ERR_PARAM_INVALID, "%s: transposeWeight is false; accepted: true",
                  kName);
  ANYFUSE_TRY(require_given(call, {kX, kWeight, kWeightScale, kOut}));
  ANYFUSE_REQUIRE(!call.has(kBias) || is_any(call), ACLNN_ERR_PARAM_NULLPTR,
                  "%s: biasOptional is given; accepted: null", kName);
  ANYFUSE_REQUIRE(!call.has(kXOffset), ACLNN_ERR_PARAM_NULLPTR, "%s: xOffsetOptional is given; accepted: null", kName);
  ANYFUSE_REQUIRE(mode != nullptr, ACLNN_ERR_PARAM_NULLPTR, "%s: xQuantMode is null", kName);
  if (!is_any(call)) ANYFUSE_TRY(require_one_dtype(call, {kX, kOut}));
  ANYFUSE_TRY(require_product(call, kAscend310P));
  ANYFUSE_TRY(check_dtypes(call));
  ANYFUSE_REQUIRE(std::strcmp(mode, "pertoken") == 0 || std::strcmp(mode, "pertensor") == 0, ACLNN_ERR_PARAM_INVALID,
                  "%s: xQuantMode is %.32s; accepted: pertoken, pertensor", kName, mode);
  return ACLNN_SUCCESS;
}

// What it tests of tensors that are not empty.
aclnnStatus check_weight(const Call &call) {
  const Tensor &weight = call[kWeight];
  ANYFUSE_TRY(require_contiguous(call, {kWeight, kOut}));
  const bool plain = weight.rank() == 2 && weight.format == ACL_FORMAT_ND;
  if (plain && !is_any(call))
    ANYFUSE_REQUIRE(weight.shape[0] % 16 == 0 && weight.shape[1] % 16 == 0, ACLNN_ERR_PARAM_INVALID,
                    "%s: weight has shape %s; accepted: multiples of 16", kName, text_of(weight.shape).c_str());
  ANYFUSE_REQUIRE(plain || is_blocked(weight), ACLNN_ERR_PARAM_INVALID,
                  "%s: weight has shape %s and format %d (%s); accepted: 2 dimensions in ND, 4 in FRACTAL_NZ", kName,
                  text_of(weight.shape).c_str(), static_cast<int>(weight.format), name_of(weight.format));
  ANYFUSE_TRY(require_nd(call, kWeight));
  ANYFUSE_REQUIRE(call[kWeightScale].dtype != ACL_INT64 || call.has(kXScale), ACLNN_ERR_PARAM_INVALID,
                  "%s: weightScale is INT64 and xScaleOptional is null; accepted: a FLOAT16 xScaleOptional", kName);
  return ACLNN_SUCCESS;
}

aclnnStatus plan_weight(const Call &call, const Shape &shape, bool transpose) {
  const std::vector<int64_t> nd =
      transpose ? std::vector<int64_t>{shape.n, shape.k} : std::vector<int64_t>{shape.k, shape.n};
  const Tensor &weight = call[kWeight];
  if (!is_blocked(weight)) return require_shape(call, kWeight, nd, "x and weightScale ask for");
  const std::vector<int64_t> expected = nz_shape(nd, ACL_INT8);
  ANYFUSE_REQUIRE(blocks_of(weight) == expected, kPlanner,
                  "%s: weight has blocks %s; accepted: %s, as x and weightScale ask for", kName,
                  text_of(blocks_of(weight)).c_str(), text_of(expected).c_str());
  return weight.rank() == 2 ? require_shape(call, kWeight, nd, "x and weightScale ask for") : ACLNN_SUCCESS;
}

aclnnStatus plan_x_scale(const Call &call, int64_t m, bool per_tensor) {
  if (!call.has(kXScale)) {
    ANYFUSE_REQUIRE(!per_tensor, kPlanner, "%s: xScaleOptional is null; accepted: a tensor, for pertensor", kName);
    return ACLNN_SUCCESS;
  }
  if (per_tensor) {
    ANYFUSE_TRY(require_rank(call, kXScale, 0, 1));
    return require_numel(call, kXScale, 1, "one scale, for pertensor");
  }
  ANYFUSE_REQUIRE(call[kXScale].dtype != ACL_FLOAT16, kPlanner,
                  "%s: xScaleOptional is FLOAT16 and xQuantMode pertoken; accepted: pertensor", kName);
  if (is_any(call) && call[kXScale].shape == std::vector<int64_t>{m, 1}) return ACLNN_SUCCESS;
  return require_shape(call, kXScale, {m}, "the rows of x, for pertoken");
}

aclnnStatus plan(const Call &call, const Shape &shape, bool per_tensor, bool transpose) {
  ANYFUSE_REQUIRE(is_any(call) || (shape.n % 16 == 0 && shape.k % 16 == 0), kPlanner,
                  "%s: n is %lld and k is %lld; accepted: multiples of 16", kName, static_cast<long long>(shape.n),
                  static_cast<long long>(shape.k));
  ANYFUSE_REQUIRE(shape.k <= kMaxK, kPlanner, "%s: k is %lld; accepted: at most %lld", kName,
                  static_cast<long long>(shape.k), static_cast<long long>(kMaxK));
  ANYFUSE_TRY(plan_weight(call, shape, transpose));
  ANYFUSE_TRY(plan_x_scale(call, shape.m, per_tensor));
  ANYFUSE_TRY(require_shape(call, kSmooth, {shape.k}, "the columns of x"));
  ANYFUSE_TRY(require_shape(call, kBias, {shape.n}, "weightScale"));
  return require_shape(call, kOut, {shape.m, shape.n}, "x and weightScale ask for");
}

int32_t layout_of(const Tensor &weight, bool transpose) {
  if (is_blocked(weight)) return transpose ? ANYFUSE_WEIGHT_NZ_NK : ANYFUSE_WEIGHT_NZ_KN;
  return transpose ? ANYFUSE_WEIGHT_NK : ANYFUSE_WEIGHT_KN;
}

}  // namespace

aclnnStatus aclnnQuantMatmulDequantGetWorkspaceSize(const aclTensor *x, const aclTensor *weight,
                                                    const aclTensor *weightScale, const aclTensor *biasOptional,
                                                    const aclTensor *xScaleOptional, const aclTensor *xOffsetOptional,
                                                    const aclTensor *smoothScaleOptional, char *xQuantMode,
                                                    bool transposeWeight, const aclTensor *out, uint64_t *workspaceSize,
                                                    aclOpExecutor **executor) {
  Call call(kName, workspaceSize, executor);
  call.input("x", x).input("weight", weight).input("weightScale", weightScale).input("biasOptional", biasOptional);
  call.input("xScaleOptional", xScaleOptional).input("xOffsetOptional", xOffsetOptional);
  call.input("smoothScaleOptional", smoothScaleOptional).output("out", out);
  ANYFUSE_TRY(call.begin());
  ANYFUSE_TRY(check_entry(call, xQuantMode, transposeWeight));
  const bool empty = call[kX].numel() == 0 || call[kWeight].numel() == 0 || call[kWeightScale].numel() == 0;
  // Without columns the products are 0 and out is not: only the products' own way leaves it as it is.
  if (empty && (!is_any(call) || call[kOut].numel() == 0)) return call.finish_empty();
  ANYFUSE_TRY(check_weight(call));
  ANYFUSE_TRY(require_rank(call, kX, 2, 2));
  ANYFUSE_TRY(require_rank(call, kWeightScale, 1, 1));
  const Shape shape = {call[kX].shape[0], call[kWeightScale].shape[0], call[kX].shape[1]};
  const bool per_tensor = std::strcmp(xQuantMode, "pertensor") == 0;
  ANYFUSE_TRY(plan(call, shape, per_tensor, transposeWeight));

  anyfuse_quant_matmul_dequant_params params = {};
  params.size = sizeof params;
  params.m = shape.m;
  params.n = shape.n;
  params.k = shape.k;
  params.x_dtype = call[kX].dtype;
  params.weight_scale_dtype = call[kWeightScale].dtype;
  params.x_scale_dtype = call[kXScale].dtype;
  params.smooth_scale_dtype = call[kSmooth].dtype;
  params.out_dtype = call[kOut].dtype;
  params.weight_layout = layout_of(call[kWeight], transposeWeight);
  params.quant_mode = per_tensor ? ANYFUSE_PER_TENSOR : ANYFUSE_PER_TOKEN;
  params.convention = call.settings().convention;
  params.threads = call.settings().threads;
  return call.finish([params](const Pointers &at, void *) {
    auto p = params;
    p.x = at[kX];
    p.weight = at[kWeight];
    p.weight_scale = at[kWeightScale];
    p.bias = static_cast<const int32_t *>(at[kBias]);
    p.x_scale = at[kXScale];
    p.smooth_scale = at[kSmooth];
    p.out = at[kOut];
    return from_core(anyfuse_quant_matmul_dequant(&p), kName);
  });
}

aclnnStatus aclnnQuantMatmulDequant(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                    aclrtStream stream) {
  return run(kName, workspace, workspaceSize, executor, stream);
}
