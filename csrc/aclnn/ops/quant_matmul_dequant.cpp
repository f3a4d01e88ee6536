// aclnnQuantMatmulDequant, and what the grouped calls share with it; the computation is that of
// anyfuse_quant_matmul_dequant and anyfuse_quant_grouped_matmul_dequant.
#include "ops/quant_matmul_dequant.h"

#include <cstring>

#include "aclnnop/aclnn_quant_matmul_dequant.h"
#include "anyfuse.h"
#include "checks.h"
#include "nz.h"

using namespace anyfuse::acl;

namespace {

constexpr const char *kName = "aclnnQuantMatmulDequant";
constexpr int64_t kMaxK = 131071;  // beyond, a sum of products may leave int32
enum Position : size_t { kX, kWeight, kWeightScale, kGroupList, kBias, kXScale, kXOffset, kSmooth, kOut };

struct Shape {
  int64_t groups, m, n, k;
};

// A call, whose arguments behind groupList are one place further on where there is one.
struct Matmul {
  Call &call;
  MatmulForm form;
  bool transpose, per_tensor;

  bool grouped() const { return form != MatmulForm::plain; }
  bool any_product() const { return call.any_product(); }
  size_t at(Position position) const { return position < kGroupList || grouped() ? position : position - 1; }
  bool has(Position position) const { return call.has(at(position)); }
  const Tensor &operator[](Position position) const { return call[at(position)]; }
  const char *op() const { return call.op(); }
  int64_t rank(int64_t of_one) const { return of_one + (grouped() ? 1 : 0); }

  // Dimensions, behind the number of groups where there are groups.
  std::vector<int64_t> each(const Shape &shape, std::vector<int64_t> dims) const {
    if (grouped()) dims.insert(dims.begin(), shape.groups);
    return dims;
  }
};

bool is_blocked(const Matmul &c) {
  const Tensor &weight = c[kWeight];
  const bool by_storage = weight.rank() == c.rank(2) && static_cast<int64_t>(weight.storage.size()) == c.rank(4);
  return weight.is_blocked() && (weight.rank() == c.rank(4) || by_storage);
}

const std::vector<int64_t> &blocks_of(const Matmul &c) {
  return c[kWeight].rank() == c.rank(4) ? c[kWeight].shape : c[kWeight].storage;
}

// A row of dtypes that the operator has: an INT64 weight scale goes with a FLOAT16 x scale, a FLOAT one with FLOAT.
aclnnStatus check_dtypes(const Matmul &c) {
  const std::vector<aclDataType> floats = {ACL_FLOAT16, ACL_BF16, ACL_FLOAT};
  ANYFUSE_TRY(require_dtypes(
      c.call,
      {{kX, floats}, {kWeight, {ACL_INT8}}, {kWeightScale, {ACL_FLOAT, ACL_INT64}}, {c.at(kBias), {ACL_INT32}}}));
  ANYFUSE_TRY(require_dtypes(c.call, {{c.at(kSmooth), floats}, {c.at(kOut), floats}}));
  if (c.grouped()) ANYFUSE_TRY(require_dtypes(c.call, {{kGroupList, {ACL_INT64}}}));
  ANYFUSE_TRY(require_product_dtypes(c.call));
  const bool packed = c[kWeightScale].dtype == ACL_INT64;
  return require_dtypes(c.call, {{c.at(kXScale), {packed ? ACL_FLOAT16 : ACL_FLOAT}}});
}

// What the entry tests itself, in its order.
aclnnStatus check_entry(const Matmul &c, const char *mode) {
  ANYFUSE_REQUIRE(c.call.limits().take("transposeWeight", c.transpose), ACLNN_ERR_PARAM_INVALID,
                  "%s: transposeWeight is false; accepted: true", c.op());
  ANYFUSE_TRY(require_given(c.call, {kX, kWeight, kWeightScale}));
  if (c.grouped()) ANYFUSE_TRY(require_given(c.call, {kGroupList}));
  ANYFUSE_TRY(require_given(c.call, {c.at(kOut)}));
  ANYFUSE_REQUIRE(!c.has(kBias) || !c.call.limits().lacks("biasOptional"), ACLNN_ERR_PARAM_NULLPTR,
                  "%s: biasOptional is given; accepted: null", c.op());
  ANYFUSE_REQUIRE(!c.has(kXOffset), ACLNN_ERR_PARAM_NULLPTR, "%s: xOffsetOptional is given; accepted: null", c.op());
  ANYFUSE_REQUIRE(mode != nullptr, ACLNN_ERR_PARAM_NULLPTR, "%s: xQuantMode is null", c.op());
  if (!c.any_product()) ANYFUSE_TRY(require_one_dtype(c.call, {kX, c.at(kOut)}));
  ANYFUSE_TRY(require_product(c.call));
  ANYFUSE_TRY(check_dtypes(c));
  ANYFUSE_REQUIRE(std::strcmp(mode, "pertoken") == 0 || std::strcmp(mode, "pertensor") == 0, ACLNN_ERR_PARAM_INVALID,
                  "%s: xQuantMode is %.32s; accepted: pertoken, pertensor", c.op(), mode);
  return ACLNN_SUCCESS;
}

aclnnStatus require_sizes(const Matmul &c, int64_t n, int64_t k, int32_t code) {
  ANYFUSE_TRY(require_product_number(c.call, "n", static_cast<double>(n), code));
  return require_product_number(c.call, "k", static_cast<double>(k), code);
}

// What it tests of tensors that are not empty.
aclnnStatus check_weight(const Matmul &c) {
  ANYFUSE_TRY(require_contiguous(c.call, {kWeight, c.at(kOut)}));
  if (c.form == MatmulForm::grouped_nz) c.call.read_as_blocks(kWeight, c.rank(4));
  const Tensor &weight = c[kWeight];
  const bool nd = weight.format == ACL_FORMAT_ND || (c.grouped() && weight.format == ACL_FORMAT_NCL);
  const bool plain = nd && weight.rank() == c.rank(2);
  if (plain) {
    const int64_t first = weight.shape.end()[-2], second = weight.shape.end()[-1];
    ANYFUSE_TRY(require_sizes(c, c.transpose ? first : second, c.transpose ? second : first, ACLNN_ERR_PARAM_INVALID));
  }
  ANYFUSE_REQUIRE(plain || is_blocked(c), ACLNN_ERR_PARAM_INVALID,
                  "%s: weight has shape %s and format %d (%s); accepted: %lld dimensions in ND, %lld in FRACTAL_NZ",
                  c.op(), text_of(weight.shape).c_str(), static_cast<int>(weight.format), name_of(weight.format),
                  static_cast<long long>(c.rank(2)), static_cast<long long>(c.rank(4)));
  ANYFUSE_TRY(require_nd(c.call, kWeight));
  ANYFUSE_REQUIRE(c[kWeightScale].dtype != ACL_INT64 || c.has(kXScale), ACLNN_ERR_PARAM_INVALID,
                  "%s: weightScale is INT64 and xScaleOptional is null; accepted: a FLOAT16 xScaleOptional", c.op());
  return ACLNN_SUCCESS;
}

aclnnStatus plan_weight(const Matmul &c, const Shape &shape) {
  const std::vector<int64_t> one =
      c.transpose ? std::vector<int64_t>{shape.n, shape.k} : std::vector<int64_t>{shape.k, shape.n};
  const std::vector<int64_t> nd = c.each(shape, one);
  if (!is_blocked(c)) return require_shape(c.call, kWeight, nd, "x and weightScale ask for");
  const std::vector<int64_t> expected = nz_shape(nd, ACL_INT8);
  ANYFUSE_REQUIRE(blocks_of(c) == expected, kPlanner,
                  "%s: weight has blocks %s; accepted: %s, as x and weightScale ask for", c.op(),
                  text_of(blocks_of(c)).c_str(), text_of(expected).c_str());
  return c[kWeight].rank() == c.rank(2) ? require_shape(c.call, kWeight, nd, "x and weightScale ask for")
                                        : ACLNN_SUCCESS;
}

aclnnStatus plan_x_scale(const Matmul &c, int64_t m) {
  if (!c.has(kXScale)) {
    ANYFUSE_REQUIRE(!c.per_tensor, kPlanner, "%s: xScaleOptional is null; accepted: a tensor, for pertensor", c.op());
    return ACLNN_SUCCESS;
  }
  const size_t position = c.at(kXScale);
  if (c.per_tensor) {
    ANYFUSE_TRY(require_rank(c.call, position, 0, 1));
    return require_numel(c.call, position, 1, "one scale, for pertensor");
  }
  ANYFUSE_REQUIRE(c[kXScale].dtype != ACL_FLOAT16, kPlanner,
                  "%s: xScaleOptional is FLOAT16 and xQuantMode pertoken; accepted: pertensor", c.op());
  if (c[kXScale].shape == std::vector<int64_t>{m, 1}) return ACLNN_SUCCESS;
  return require_shape(c.call, position, {m}, "the rows of x, for pertoken");
}

// Factors of each group's own.
bool has_own_smooth(const Matmul &c) { return c.grouped() && c[kSmooth].rank() == 2; }

aclnnStatus plan(const Matmul &c, const Shape &shape) {
  ANYFUSE_TRY(require_sizes(c, shape.n, shape.k, kPlanner));
  ANYFUSE_REQUIRE(shape.k <= kMaxK, kPlanner, "%s: k is %lld; accepted: at most %lld", c.op(),
                  static_cast<long long>(shape.k), static_cast<long long>(kMaxK));
  ANYFUSE_TRY(plan_weight(c, shape));
  ANYFUSE_TRY(require_product_ranks(c.call));
  if (c.grouped()) ANYFUSE_TRY(require_shape(c.call, kGroupList, {shape.groups}, "weightScale has groups"));
  ANYFUSE_TRY(plan_x_scale(c, shape.m));
  const std::vector<int64_t> factors = {shape.k};
  ANYFUSE_TRY(
      require_shape(c.call, c.at(kSmooth), has_own_smooth(c) ? c.each(shape, factors) : factors, "the columns of x"));
  ANYFUSE_TRY(require_shape(c.call, c.at(kBias), c.each(shape, {shape.n}), "weightScale"));
  return require_shape(c.call, c.at(kOut), {shape.m, shape.n}, "x and weightScale ask for");
}

int32_t layout_of(const Matmul &c) {
  if (is_blocked(c)) return c.transpose ? ANYFUSE_WEIGHT_NZ_NK : ANYFUSE_WEIGHT_NZ_KN;
  return c.transpose ? ANYFUSE_WEIGHT_NK : ANYFUSE_WEIGHT_KN;
}

bool has_nothing(const Matmul &c) {
  const bool no_groups = c.grouped() && c[kGroupList].numel() == 0;
  return c[kX].numel() == 0 || c[kWeight].numel() == 0 || c[kWeightScale].numel() == 0 || no_groups;
}

anyfuse_quant_matmul_dequant_params params_of(const Matmul &c, const Shape &shape) {
  anyfuse_quant_matmul_dequant_params params = {};
  params.size = sizeof params;
  params.m = shape.m;
  params.n = shape.n;
  params.k = shape.k;
  params.x_dtype = c[kX].dtype;
  params.weight_scale_dtype = c[kWeightScale].dtype;
  params.x_scale_dtype = c[kXScale].dtype;
  params.smooth_scale_dtype = c[kSmooth].dtype;
  params.out_dtype = c[kOut].dtype;
  params.weight_layout = layout_of(c);
  params.quant_mode = c.per_tensor ? ANYFUSE_PER_TENSOR : ANYFUSE_PER_TOKEN;
  params.convention = c.call.settings().convention;
  params.threads = c.call.settings().threads;
  return params;
}

// The refusal of the first end of a group that the core does not take.
aclnnStatus refuse_groups(const char *op, const anyfuse_quant_grouped_matmul_dequant_params &all) {
  long long before = 0;
  for (int64_t i = 0; i < all.groups; ++i) {
    int64_t end;
    std::memcpy(&end, all.group_list + i, sizeof end);
    ANYFUSE_REQUIRE(
        end >= before && end <= all.matmul->m, ACLNN_ERR_PARAM_INVALID,
        "%s: groupList[%lld] is %lld; accepted: %lld, where the group before it ends, to %lld, the rows of x", op,
        static_cast<long long>(i), static_cast<long long>(end), before, static_cast<long long>(all.matmul->m));
    before = end;
  }
  return from_core(ANYFUSE_INVALID_VALUE, op);
}

aclnnStatus finish(const Matmul &c, const Shape &shape) {
  const size_t bias = c.at(kBias), x_scale = c.at(kXScale), smooth = c.at(kSmooth), out = c.at(kOut);
  const bool grouped = c.grouped(), own_smooth = has_own_smooth(c);
  const int64_t groups = shape.groups;
  const char *op = c.op();
  return c.call.finish([=, params = params_of(c, shape)](const Pointers &at, void *) {
    auto p = params;
    p.x = at[kX];
    p.weight = at[kWeight];
    p.weight_scale = at[kWeightScale];
    p.bias = static_cast<const int32_t *>(at[bias]);
    p.x_scale = at[x_scale];
    p.smooth_scale = at[smooth];
    p.out = at[out];
    if (!grouped) return from_core(anyfuse_quant_matmul_dequant(&p), op);
    anyfuse_quant_grouped_matmul_dequant_params all = {};
    all.size = sizeof all;
    all.matmul = &p;
    all.groups = groups;
    all.group_list = static_cast<const int64_t *>(at[kGroupList]);
    all.own_smooth_scale = own_smooth;
    const anyfuse_status status = anyfuse_quant_grouped_matmul_dequant(&all);
    return status == ANYFUSE_INVALID_VALUE ? refuse_groups(op, all) : from_core(status, op);
  });
}

}  // namespace

aclnnStatus anyfuse::acl::plan_quant_matmul(const char *op, MatmulForm form, const MatmulArguments &given,
                                            uint64_t *workspace_size, aclOpExecutor **executor) {
  Call call(op, workspace_size, executor);
  call.input("x", given.x).input("weight", given.weight).input("weightScale", given.weight_scale);
  if (form != MatmulForm::plain) call.input("groupList", given.group_list);
  call.input("biasOptional", given.bias).input("xScaleOptional", given.x_scale);
  call.input("xOffsetOptional", given.x_offset).input("smoothScaleOptional", given.smooth_scale);
  call.output("out", given.out);
  ANYFUSE_TRY(call.begin());
  const bool per_tensor = given.mode != nullptr && std::strcmp(given.mode, "pertensor") == 0;
  const Matmul c = {call, form, given.transpose, per_tensor};
  ANYFUSE_TRY(check_entry(c, given.mode));
  // Without columns or groups the products are 0 and out is not: only the products' own way leaves it as it is.
  if (has_nothing(c) && (!c.any_product() || c[kOut].numel() == 0)) return call.finish_empty();
  ANYFUSE_TRY(check_weight(c));
  ANYFUSE_TRY(require_rank(call, kX, 2, 2));
  ANYFUSE_TRY(require_rank(call, kWeightScale, c.rank(1), c.rank(1)));
  const Shape shape = {c[kWeightScale].shape[0], c[kX].shape[0], c[kWeightScale].shape.back(), c[kX].shape[1]};
  ANYFUSE_TRY(plan(c, shape));
  return finish(c, shape);
}

aclnnStatus aclnnQuantMatmulDequantGetWorkspaceSize(const aclTensor *x, const aclTensor *weight,
                                                    const aclTensor *weightScale, const aclTensor *biasOptional,
                                                    const aclTensor *xScaleOptional, const aclTensor *xOffsetOptional,
                                                    const aclTensor *smoothScaleOptional, char *xQuantMode,
                                                    bool transposeWeight, const aclTensor *out, uint64_t *workspaceSize,
                                                    aclOpExecutor **executor) {
  return plan_quant_matmul(kName, MatmulForm::plain,
                           {x, weight, weightScale, nullptr, biasOptional, xScaleOptional, xOffsetOptional,
                            smoothScaleOptional, xQuantMode, transposeWeight, out},
                           workspaceSize, executor);
}

aclnnStatus aclnnQuantMatmulDequant(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                    aclrtStream stream) {
  return run(kName, workspace, workspaceSize, executor, stream);
}
