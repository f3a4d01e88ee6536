#include "products.h"

#include <regex.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "acl/acl_base.h"

namespace anyfuse::acl {
namespace {

#define OPERATOR(function, product)
#define RULE(function, product, kind, argument, ...)
#define PRODUCT(name, names) {name, names},
struct Product {
  const char *name, *names;  // and a pattern of what it and its chips are called
};

constexpr Product kProducts[] = {
#include "products.inc"
};
#undef PRODUCT
#define PRODUCT(name, names)

struct Available {
  const char *function, *product;
};

#undef OPERATOR
#define OPERATOR(function, product) {function, product},
constexpr Available kAvailable[] = {
#include "products.inc"
};
#undef OPERATOR
#define OPERATOR(function, product)

const std::vector<Rule> &rules() {
#undef RULE
#define RULE(function, product, kind, argument, ...) {function, product, RuleKind::kind, argument, __VA_ARGS__},
  static const std::vector<Rule> &all = *new std::vector<Rule>{
#include "products.inc"
  };
  return all;
}

bool same(const char *a, const char *b) { return std::strcmp(a, b) == 0; }

}  // namespace

const char *product_of(const char *text) {
  for (const Product &product : kProducts) {
    regex_t pattern;
    const std::string whole = "^(" + std::string(product.names) + ")$";
    if (regcomp(&pattern, whole.c_str(), REG_EXTENDED | REG_ICASE | REG_NOSUB) != 0) continue;
    const bool named = regexec(&pattern, text, 0, nullptr, 0) == 0;
    regfree(&pattern);
    if (named) return product.name;
  }
  return nullptr;
}

const char *product_names() {
  static const std::string &names = *[] {
    auto *text = new std::string;
    for (const Product &product : kProducts) *text += (text->empty() ? "" : ", ") + std::string(product.name);
    return text;
  }();
  return names.c_str();
}

const Rule *Limits::find(RuleKind kind, const char *argument) const {
  for (const Rule *rule : rules)
    if (rule->kind == kind && same(rule->argument, argument)) return rule;
  return nullptr;
}

bool Limits::take(const char *argument, double value) const {
  const Rule *factor = find(RuleKind::multiples, argument), *values = find(RuleKind::values, argument);
  if (factor != nullptr && std::fmod(value, static_cast<double>(factor->numbers[0])) != 0) return false;
  if (find(RuleKind::positive, argument) != nullptr && !(value > 0)) return false;
  return values == nullptr || std::count(values->numbers.begin(), values->numbers.end(), value) > 0;
}

Limits limits_of(const char *function, const char *product) {
  Limits limits;
  if (same(product, kAnyProduct)) return limits;
  const char *having = nullptr;
  for (const Available &entry : kAvailable)
    if (same(entry.function, function) && (having == nullptr || same(entry.product, product))) having = entry.product;
  if (having == nullptr) return limits;  // no operator: no product limits it
  limits.available = same(having, product);
  for (const Rule &rule : rules())
    if (same(rule.function, function) && same(rule.product, having)) limits.rules.push_back(&rule);
  return limits;
}

}  // namespace anyfuse::acl
