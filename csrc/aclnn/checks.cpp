#include "checks.h"

#include <algorithm>
#include <cstring>

#include "aclnn/aclnn_base.h"

namespace anyfuse::acl {
namespace {

bool lies_like_nd(aclFormat format) {
  switch (format) {
    case ACL_FORMAT_ND:
    case ACL_FORMAT_NCHW:
    case ACL_FORMAT_NHWC:
    case ACL_FORMAT_HWCN:
    case ACL_FORMAT_NDHWC:
    case ACL_FORMAT_NCDHW:
    case ACL_FORMAT_NC:
    case ACL_FORMAT_NCL:
      return true;
    default:
      return false;
  }
}

std::string names_of(const std::vector<int64_t> &dtypes) {
  std::string text;
  for (int64_t dtype : dtypes)
    text += (text.empty() ? "" : ", ") + std::string(name_of(static_cast<aclDataType>(dtype)));
  return text;
}

// SIZE_MAX where the call has no tensor of that name.
size_t position_of(const Call &call, const char *name) {
  for (size_t position = 0; position < call.count(); ++position)
    if (std::strcmp(call.argument(position).name, name) == 0) return position;
  return SIZE_MAX;
}

}  // namespace

aclnnStatus require_given(const Call &call, std::initializer_list<size_t> positions) {
  for (size_t position : positions)
    if (call.argument(position).handle == nullptr)
      return fail(ACLNN_ERR_PARAM_NULLPTR, "%s: %s is null", call.op(), call.argument(position).name);
  return ACLNN_SUCCESS;
}

aclnnStatus require_product(const Call &call) {
  if (call.limits().available) return ACLNN_SUCCESS;
  return fail(ACLNN_ERR_PARAM_INVALID, "%s: the product is %s (ANYFUSE_SOC), which does not have this operator",
              call.op(), call.settings().product);
}

aclnnStatus require_product_dtypes(const Call &call, int32_t code) {
  size_t leader = SIZE_MAX;  // of those that must agree
  for (const Rule *rule : call.limits().rules) {
    const size_t position = position_of(call, rule->argument);
    if (position == SIZE_MAX || !call.has(position)) continue;
    const aclDataType got = call[position].dtype;
    if (rule->kind == RuleKind::dtypes && std::count(rule->numbers.begin(), rule->numbers.end(), got) == 0)
      return fail(code, "%s: %s has dtype %s on %s; accepted: %s", call.op(), rule->argument, name_of(got),
                  call.settings().product, names_of({rule->numbers.begin(), rule->numbers.end()}).c_str());
    if (rule->kind != RuleKind::one_dtype) continue;
    if (leader == SIZE_MAX) leader = position;
    if (got != call[leader].dtype)
      return fail(code, "%s: %s has dtype %s on %s; accepted: %s, the dtype of %s", call.op(), rule->argument,
                  name_of(got), call.settings().product, name_of(call[leader].dtype), call.argument(leader).name);
  }
  return ACLNN_SUCCESS;
}

aclnnStatus require_product_ranks(const Call &call) {
  for (const Rule *rule : call.limits().rules) {
    const size_t position = position_of(call, rule->argument);
    if (rule->kind == RuleKind::ranks && position != SIZE_MAX)
      ANYFUSE_TRY(require_rank(call, position, rule->numbers[0], rule->numbers[1]));
  }
  return ACLNN_SUCCESS;
}

aclnnStatus require_product_number(const Call &call, const char *name, double value, int32_t code) {
  const Limits &limits = call.limits();
  if (limits.take(name, value)) return ACLNN_SUCCESS;
  std::string accepted = "a number above 0";
  if (const Rule *factor = limits.find(RuleKind::multiples, name))
    accepted = "a multiple of " + std::to_string(factor->numbers[0]);
  if (const Rule *values = limits.find(RuleKind::values, name)) accepted = text_of(values->numbers);
  return fail(code, "%s: %s is %g on %s; accepted: %s", call.op(), name, value, call.settings().product,
              accepted.c_str());
}

aclnnStatus require_dtypes(const Call &call, std::initializer_list<Dtypes> table) {
  for (const Dtypes &rule : table) {
    if (!call.has(rule.position)) continue;
    const aclDataType got = call[rule.position].dtype;
    if (std::find(rule.accepted.begin(), rule.accepted.end(), got) == rule.accepted.end())
      return fail(ACLNN_ERR_PARAM_INVALID, "%s: %s has dtype %s; accepted: %s", call.op(),
                  call.argument(rule.position).name, name_of(got),
                  names_of({rule.accepted.begin(), rule.accepted.end()}).c_str());
  }
  return ACLNN_SUCCESS;
}

aclnnStatus require_one_dtype(const Call &call, std::initializer_list<size_t> positions, int32_t code) {
  const size_t first = *positions.begin();
  for (size_t position : positions)
    if (call.has(position) && call[position].dtype != call[first].dtype)
      return fail(code, "%s: %s has dtype %s; accepted: %s, the dtype of %s", call.op(), call.argument(position).name,
                  name_of(call[position].dtype), name_of(call[first].dtype), call.argument(first).name);
  return ACLNN_SUCCESS;
}

aclnnStatus require_nd(const Call &call, size_t except) {
  for (size_t position = 0; position < call.count(); ++position)
    if (position != except && call.has(position) && !lies_like_nd(call[position].format))
      return fail(ACLNN_ERR_PARAM_INVALID, "%s: %s has format %d (%s); accepted: ND", call.op(),
                  call.argument(position).name, static_cast<int>(call[position].format),
                  name_of(call[position].format));
  return ACLNN_SUCCESS;
}

aclnnStatus require_same_shape(const Call &call, std::initializer_list<size_t> positions, int32_t code) {
  const size_t first = *positions.begin();
  for (size_t position : positions)
    ANYFUSE_TRY(require_shape(call, position, call[first].shape, call.argument(first).name, code));
  return ACLNN_SUCCESS;
}

aclnnStatus require_shape(const Call &call, size_t position, const std::vector<int64_t> &shape, const char *why,
                          int32_t code) {
  if (!call.has(position) || call[position].shape == shape) return ACLNN_SUCCESS;
  return fail(code, "%s: %s has shape %s; accepted: %s, as %s", call.op(), call.argument(position).name,
              text_of(call[position].shape).c_str(), text_of(shape).c_str(), why);
}

aclnnStatus require_rank(const Call &call, size_t position, int64_t lowest, int64_t highest, int32_t code) {
  if (!call.has(position) || (call[position].rank() >= lowest && call[position].rank() <= highest))
    return ACLNN_SUCCESS;
  return fail(code, "%s: %s has shape %s; accepted: %lld to %lld dimensions", call.op(), call.argument(position).name,
              text_of(call[position].shape).c_str(), static_cast<long long>(lowest), static_cast<long long>(highest));
}

aclnnStatus require_numel(const Call &call, size_t position, int64_t numel, const char *why, int32_t code) {
  if (!call.has(position) || call[position].numel() == numel) return ACLNN_SUCCESS;
  return fail(code, "%s: %s has shape %s; accepted: %lld elements, %s", call.op(), call.argument(position).name,
              text_of(call[position].shape).c_str(), static_cast<long long>(numel), why);
}

aclnnStatus require_contiguous(const Call &call, std::initializer_list<size_t> positions) {
  for (size_t position : positions)
    if (call.has(position) && !call[position].is_blocked() && !call[position].is_contiguous())
      return fail(ACLNN_ERR_PARAM_INVALID, "%s: %s has shape %s and strides %s; accepted: contiguous", call.op(),
                  call.argument(position).name, text_of(call[position].shape).c_str(),
                  text_of(call[position].strides).c_str());
  return ACLNN_SUCCESS;
}

}  // namespace anyfuse::acl
