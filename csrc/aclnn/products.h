// What each product takes of each function. The rows are written by the build from src/anyfuse/_products.py, which
// Python reads too.
#pragma once
#include <cstdint>
#include <vector>

namespace anyfuse::acl {

constexpr const char *kAnyProduct = "any";

// The product that a name means: any case, and a chip's own ending (Ascend910B3). Null for another name.
const char *product_of(const char *text);
// The names of all products, for a message.
const char *product_names();

enum class RuleKind { dtypes, one_dtype, ranks, multiples, values, positive, absent };

struct Rule {
  const char *function, *product;
  RuleKind kind;
  const char *argument;
  std::vector<int64_t> numbers;
};

// A function's limits on one product; none under "any". A function tests its own arguments before it asks whether the
// product has it (`available`): there it goes by the rules of the first product that has it.
struct Limits {
  bool available = true;
  std::vector<const Rule *> rules;

  const Rule *find(RuleKind kind, const char *argument) const;
  bool lacks(const char *argument) const { return find(RuleKind::absent, argument) != nullptr; }
  // Whether the rules of a size, number or option take a value.
  bool take(const char *argument, double value) const;
};

Limits limits_of(const char *function, const char *product);

}  // namespace anyfuse::acl
