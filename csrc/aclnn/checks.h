// Checks of phase 1, written as tables in the operators' files. Each returns 0 or a code whose message names the
// argument, what it got and what is accepted.
#pragma once
#include <initializer_list>

#include "executor.h"

namespace anyfuse::acl {

struct Dtypes {
  size_t position;
  std::vector<aclDataType> accepted;
};

// 161001 for the first of these that is null.
aclnnStatus require_given(const Call &call, std::initializer_list<size_t> positions);
// Rules of the product in force. 161002 on one without the operator; dtypes of arguments, and those that must agree;
// numbers of dimensions; a size, number or option.
aclnnStatus require_product(const Call &call);
aclnnStatus require_product_dtypes(const Call &call, int32_t code = 161002);
aclnnStatus require_product_ranks(const Call &call);
aclnnStatus require_product_number(const Call &call, const char *name, double value, int32_t code = 561002);
// For arguments that are given: 161002 for a dtype outside its list.
aclnnStatus require_dtypes(const Call &call, std::initializer_list<Dtypes> table);
// 161002 (or another code) unless all that are given have the dtype of the first.
aclnnStatus require_one_dtype(const Call &call, std::initializer_list<size_t> positions, int32_t code = 161002);
// 161002 for a format that does not lie like ND, in any argument but `except`.
aclnnStatus require_nd(const Call &call, size_t except = SIZE_MAX);

// Shapes. For arguments that are given; the code is the planner's, 561002, or the one named.
constexpr int32_t kPlanner = 561002;
aclnnStatus require_same_shape(const Call &call, std::initializer_list<size_t> positions, int32_t code = kPlanner);
aclnnStatus require_shape(const Call &call, size_t position, const std::vector<int64_t> &shape, const char *why,
                          int32_t code = kPlanner);
aclnnStatus require_rank(const Call &call, size_t position, int64_t lowest, int64_t highest, int32_t code = kPlanner);
aclnnStatus require_numel(const Call &call, size_t position, int64_t numel, const char *why, int32_t code = kPlanner);
aclnnStatus require_contiguous(const Call &call, std::initializer_list<size_t> positions);

// An attribute or a rule between arguments that did not hold.
#define ANYFUSE_REQUIRE(condition, code, ...)                         \
  do {                                                                \
    if (!(condition)) return ::anyfuse::acl::fail(code, __VA_ARGS__); \
  } while (false)

}  // namespace anyfuse::acl
