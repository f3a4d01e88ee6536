// aclnnAddRmsNormDynamicQuant and its V2, which compute by anyfuse_add_rms_norm_dynamic_quant.
#include "aclnnop/aclnn_add_rms_norm_dynamic_quant.h"
#include "aclnnop/aclnn_add_rms_norm_dynamic_quant_v2.h"
#include "anyfuse.h"
#include "checks.h"

using namespace anyfuse::acl;

namespace {

constexpr const char *kV1 = "aclnnAddRmsNormDynamicQuant";
constexpr const char *kV2 = "aclnnAddRmsNormDynamicQuantV2";
enum Position : size_t { kX1, kX2, kGamma, kSmooth1, kSmooth2, kBeta, kY1, kY2, kX, kScale1, kScale2 };

// Which of the two quantizations are made.
struct Branches {
  bool first, second;
};

// The planner's answer to a dtype that the operator has, and the product has not.
aclnnStatus as_planner(aclnnStatus status) { return status == ACLNN_SUCCESS ? status : kPlanner; }

// ---- what the two entries test themselves, each in its order ----

aclnnStatus check_v1(const Call &call) {
  ANYFUSE_TRY(require_given(call, {kX1, kX2, kGamma, kY1, kY2, kX, kScale1, kScale2}));
  ANYFUSE_TRY(require_product(call));
  std::vector<aclDataType> floats = {ACL_FLOAT16, ACL_BF16};
  if (call.any_product()) floats.push_back(ACL_FLOAT);
  const std::vector<aclDataType> codes = {ACL_INT8, ACL_HIFLOAT8, ACL_FLOAT8_E5M2, ACL_FLOAT8_E4M3FN};
  ANYFUSE_TRY(require_dtypes(call, {{kX1, floats},
                                    {kX2, floats},
                                    {kGamma, floats},
                                    {kSmooth1, floats},
                                    {kSmooth2, floats},
                                    {kX, floats},
                                    {kY1, codes},
                                    {kY2, codes},
                                    {kScale1, {ACL_FLOAT}},
                                    {kScale2, {ACL_FLOAT}}}));
  ANYFUSE_TRY(require_one_dtype(call, {kY1, kY2}));
  ANYFUSE_TRY(require_nd(call));
  ANYFUSE_REQUIRE(call.has(kSmooth1) || !call.has(kSmooth2), kPlanner,
                  "%s: smoothScale2Optional is given and smoothScale1Optional is null", kV1);
  return ACLNN_SUCCESS;
}

aclnnStatus check_mask(const Call &call, const std::vector<uint8_t> &mask) {
  const bool smooth1 = call.has(kSmooth1), smooth2 = call.has(kSmooth2);
  if (mask.empty()) {
    ANYFUSE_REQUIRE(smooth1 || !smooth2, ACLNN_ERR_PARAM_INVALID,
                    "%s: smoothScale2Optional is given and smoothScale1Optional is null, without outputMaskOptional",
                    kV2);
    return ACLNN_SUCCESS;
  }
  ANYFUSE_REQUIRE(mask.size() == 2, ACLNN_ERR_PARAM_INVALID, "%s: outputMaskOptional has %zu entries; accepted: 2", kV2,
                  mask.size());
  ANYFUSE_REQUIRE(mask[0] || !smooth1, ACLNN_ERR_PARAM_INVALID,
                  "%s: smoothScale1Optional is given and outputMaskOptional[0] is false", kV2);
  ANYFUSE_REQUIRE(mask[1] || !smooth2, ACLNN_ERR_PARAM_INVALID,
                  "%s: smoothScale2Optional is given and outputMaskOptional[1] is false", kV2);
  ANYFUSE_REQUIRE(mask[0] || mask[1], ACLNN_ERR_PARAM_INVALID, "%s: outputMaskOptional is false twice", kV2);
  return ACLNN_SUCCESS;
}

aclnnStatus check_v2_given(const Call &call, Branches branches, bool masked) {
  ANYFUSE_TRY(require_given(call, {kX1, kX2, kGamma, kX}));
  if (branches.first) ANYFUSE_TRY(require_given(call, {kY1, kScale1}));
  if (branches.second) ANYFUSE_TRY(require_given(call, {kY2, kScale2}));
  ANYFUSE_TRY(require_product(call));
  ANYFUSE_REQUIRE(!masked || !call.limits().lacks("outputMaskOptional"), ACLNN_ERR_PARAM_INVALID,
                  "%s: outputMaskOptional is given on %s; accepted: null or empty", kV2, call.settings().product);
  return ACLNN_SUCCESS;
}

aclnnStatus check_v2_codes(const Call &call) {
  if (call.has(kY1) && call.has(kY2)) ANYFUSE_TRY(require_one_dtype(call, {kY1, kY2}));
  ANYFUSE_TRY(require_dtypes(call, {{kScale1, {ACL_FLOAT}}, {kScale2, {ACL_FLOAT}}}));
  ANYFUSE_TRY(require_nd(call));
  for (size_t y : {size_t{kY1}, size_t{kY2}}) {
    if (!call.has(y)) continue;
    std::vector<int64_t> shape = call[kX1].shape;
    if (call[y].dtype == ACL_INT32 && !shape.empty()) {
      ANYFUSE_REQUIRE(shape.back() % 8 == 0, ACLNN_ERR_PARAM_INVALID,
                      "%s: the last dimension of x1 is %lld; accepted: a multiple of 8, for INT32 codes", kV2,
                      static_cast<long long>(shape.back()));
      shape.back() /= 8;
    }
    ANYFUSE_TRY(require_shape(call, y, shape, "x1 and the dtype of the codes ask for", ACLNN_ERR_PARAM_INVALID));
  }
  return ACLNN_SUCCESS;
}

// ---- what the planner tests ----

aclnnStatus plan_dtypes(const Call &call, bool v2) {
  const std::vector<aclDataType> floats = {ACL_FLOAT16, ACL_BF16, ACL_FLOAT};
  std::vector<aclDataType> codes = {ACL_INT8, ACL_HIFLOAT8, ACL_FLOAT8_E5M2, ACL_FLOAT8_E4M3FN};
  if (v2) codes.insert(codes.end(), {ACL_INT4, ACL_INT32});
  ANYFUSE_TRY(as_planner(require_dtypes(call, {{kX1, floats},
                                               {kX2, floats},
                                               {kGamma, floats},
                                               {kSmooth1, floats},
                                               {kSmooth2, floats},
                                               {kBeta, floats},
                                               {kX, floats},
                                               {kY1, codes},
                                               {kY2, codes}})));
  ANYFUSE_TRY(require_product_dtypes(call, kPlanner));
  return require_one_dtype(call, {kX1, kX2, kX}, kPlanner);
}

aclnnStatus plan_scale(const Call &call, size_t position) {
  if (!call.has(position)) return ACLNN_SUCCESS;
  std::vector<int64_t> rows(call[kX1].shape.begin(), call[kX1].shape.end() - 1);
  const std::vector<int64_t> flat = {product(rows)};
  std::vector<int64_t> kept = rows;
  kept.push_back(1);
  for (const auto &accepted : {rows, flat, kept})
    if (call[position].shape == accepted) return ACLNN_SUCCESS;
  return require_shape(call, position, rows, "the rows of x1");
}

aclnnStatus plan_y(const Call &call, size_t position) {
  if (!call.has(position) || call[position].shape == call[kX1].shape || call[position].dtype == ACL_INT32)
    return ACLNN_SUCCESS;
  const int64_t cols = call[kX1].shape.back();
  std::vector<int64_t> flat = {product({call[kX1].shape.begin(), call[kX1].shape.end() - 1}), cols};
  if (call[position].shape == flat) return ACLNN_SUCCESS;
  return require_shape(call, position, call[kX1].shape, "x1");
}

aclnnStatus plan(const Call &call, double epsilon, bool v2) {
  ANYFUSE_TRY(plan_dtypes(call, v2));
  ANYFUSE_TRY(require_product_ranks(call));
  ANYFUSE_TRY(require_rank(call, kX1, 1, 25));
  ANYFUSE_TRY(require_same_shape(call, {kX1, kX2, kX}));
  const int64_t cols = call[kX1].shape.back();
  ANYFUSE_TRY(require_shape(call, kGamma, {cols}, "the last dimension of x1"));
  ANYFUSE_TRY(require_same_shape(call, {kGamma, kSmooth1, kSmooth2, kBeta}));
  for (size_t y : {size_t{kY1}, size_t{kY2}}) {
    ANYFUSE_TRY(plan_y(call, y));
    ANYFUSE_REQUIRE(!call.has(y) || call[y].dtype != ACL_INT4 || cols % 2 == 0, kPlanner,
                    "%s: the last dimension of x1 is %lld; accepted: even, for INT4 codes", call.op(),
                    static_cast<long long>(cols));
  }
  ANYFUSE_TRY(plan_scale(call, kScale1));
  ANYFUSE_TRY(plan_scale(call, kScale2));
  ANYFUSE_TRY(require_product_number(call, "epsilon", epsilon));
  ANYFUSE_REQUIRE(in_default_mode([=] { return epsilon >= 0; }), kPlanner, "%s: epsilon is %g; accepted: 0 and above", call.op(), epsilon);
  return ACLNN_SUCCESS;
}

// ---- phase 1 from here on is one for both ----

aclnnStatus finish(Call &call, Branches branches, double epsilon) {
  const Tensor &x1 = call[kX1];
  anyfuse_add_rms_norm_dynamic_quant_params params = {};
  params.size = sizeof params;
  params.cols = x1.shape.back();
  params.rows = product({x1.shape.begin(), x1.shape.end() - 1});
  params.epsilon = epsilon;
  params.x_dtype = x1.dtype;
  params.gamma_dtype = call[kGamma].dtype;
  params.smooth_scale1_dtype = call[kSmooth1].dtype;
  params.smooth_scale2_dtype = call[kSmooth2].dtype;
  params.beta_dtype = call[kBeta].dtype;
  params.y_dtype = call[branches.first ? kY1 : kY2].dtype;
  if (params.y_dtype == ACL_INT32) params.y_dtype = ANYFUSE_INT4;
  params.convention = call.settings().convention;
  params.threads = call.settings().threads;
  const char *op = call.op();
  return call.finish([params, op](const Pointers &at, void *) {
    auto p = params;
    p.x1 = at[kX1];
    p.x2 = at[kX2];
    p.gamma = at[kGamma];
    p.smooth_scale1 = at[kSmooth1];
    p.smooth_scale2 = at[kSmooth2];
    p.beta = at[kBeta];
    p.y1 = at[kY1];
    p.y2 = at[kY2];
    p.x = at[kX];
    p.scale1 = static_cast<float *>(at[kScale1]);
    p.scale2 = static_cast<float *>(at[kScale2]);
    return from_core(anyfuse_add_rms_norm_dynamic_quant(&p), op);
  });
}

void leave_alone(Call &call, Branches branches) {
  if (!branches.first) call.leave_alone(kY1), call.leave_alone(kScale1);
  if (!branches.second) call.leave_alone(kY2), call.leave_alone(kScale2);
}

Call make_call(const char *name, uint64_t *workspaceSize, aclOpExecutor **executor, const aclTensor *x1,
               const aclTensor *x2, const aclTensor *gamma, const aclTensor *smooth1, const aclTensor *smooth2,
               const aclTensor *beta, const aclTensor *y1, const aclTensor *y2, const aclTensor *x,
               const aclTensor *scale1, const aclTensor *scale2) {
  Call call(name, workspaceSize, executor);
  call.input("x1", x1).input("x2", x2).input("gamma", gamma).input("smoothScale1Optional", smooth1);
  call.input("smoothScale2Optional", smooth2).input("betaOptional", beta).output("y1Out", y1).output("y2Out", y2);
  call.output("xOut", x).output("scale1Out", scale1).output("scale2Out", scale2);
  return call;
}

bool has_empty(const Call &call, std::initializer_list<size_t> positions) {
  for (size_t position : positions)
    if (call.has(position) && call[position].numel() == 0) return true;
  return false;
}

// Rows without columns still have scales, all 0: only what has no rows is nothing to do.
bool nothing_to_do(const Call &call) {
  const Tensor &x1 = call[kX1];
  return x1.rank() > 0 && product({x1.shape.begin(), x1.shape.end() - 1}) == 0;
}

}  // namespace

aclnnStatus aclnnAddRmsNormDynamicQuantGetWorkspaceSize(const aclTensor *x1, const aclTensor *x2,
                                                        const aclTensor *gamma, const aclTensor *smoothScale1Optional,
                                                        const aclTensor *smoothScale2Optional, double epsilon,
                                                        aclTensor *y1Out, aclTensor *y2Out, aclTensor *xOut,
                                                        aclTensor *scale1Out, aclTensor *scale2Out,
                                                        uint64_t *workspaceSize, aclOpExecutor **executor) {
  Call call = make_call(kV1, workspaceSize, executor, x1, x2, gamma, smoothScale1Optional, smoothScale2Optional,
                        nullptr, y1Out, y2Out, xOut, scale1Out, scale2Out);
  ANYFUSE_TRY(call.begin());
  ANYFUSE_TRY(check_v1(call));
  const Branches branches = {true, call.has(kSmooth1) && call.has(kSmooth2)};
  if (has_empty(call, {kX1, kGamma, kY2}) && !call.any_product()) return call.finish_empty();
  leave_alone(call, branches);
  ANYFUSE_TRY(plan(call, epsilon, false));
  return nothing_to_do(call) ? call.finish_empty() : finish(call, branches, epsilon);
}

aclnnStatus aclnnAddRmsNormDynamicQuant(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                        aclrtStream stream) {
  return run(kV1, workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnAddRmsNormDynamicQuantV2GetWorkspaceSize(
    const aclTensor *x1, const aclTensor *x2, const aclTensor *gamma, const aclTensor *smoothScale1Optional,
    const aclTensor *smoothScale2Optional, const aclTensor *betaOptional, double epsilon,
    const aclBoolArray *outputMaskOptional, aclTensor *y1Out, aclTensor *y2Out, aclTensor *xOut, aclTensor *scale1Out,
    aclTensor *scale2Out, uint64_t *workspaceSize, aclOpExecutor **executor) {
  Call call = make_call(kV2, workspaceSize, executor, x1, x2, gamma, smoothScale1Optional, smoothScale2Optional,
                        betaOptional, y1Out, y2Out, xOut, scale1Out, scale2Out);
  ANYFUSE_TRY(call.begin());
  const auto array = table<BoolArray>().find(outputMaskOptional);
  ANYFUSE_REQUIRE(outputMaskOptional == nullptr || array != nullptr, ACLNN_ERR_PARAM_INVALID,
                  "%s: outputMaskOptional is not a living array", kV2);
  const std::vector<uint8_t> mask = array == nullptr ? std::vector<uint8_t>{} : array->values;
  ANYFUSE_TRY(check_mask(call, mask));
  const Branches branches =
      mask.empty() ? Branches{true, call.has(kSmooth1) && call.has(kSmooth2)} : Branches{mask[0] != 0, mask[1] != 0};
  ANYFUSE_TRY(check_v2_given(call, branches, !mask.empty()));
  if (has_empty(call, {kX1, kX2, kGamma, kY2}) && !call.any_product()) return call.finish_empty();
  leave_alone(call, branches);
  ANYFUSE_TRY(check_v2_codes(call));
  ANYFUSE_TRY(plan(call, epsilon, true));
  return nothing_to_do(call) ? call.finish_empty() : finish(call, branches, epsilon);
}

aclnnStatus aclnnAddRmsNormDynamicQuantV2(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                          aclrtStream stream) {
  return run(kV2, workspace, workspaceSize, executor, stream);
}
