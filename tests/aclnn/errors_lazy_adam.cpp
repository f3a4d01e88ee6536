#include <aclnn_lazy_adam.h>

#include "errors.h"

namespace {

struct Lazy {
  Arg gradient{{3, 8}}, indices{{3}, ACL_INT32}, m{{5, 8}}, v{{5, 8}}, var{{5, 8}}, lr{{1}};
  double epsilon = 1e-7;
  std::vector<int32_t> ids = {4, 0, -1};

  void tables(const Dims &shape) { m.shape = v.shape = var.shape = shape; }

  int phase1() {
    const Made g(gradient), i(indices), a(m), b(v), c(var), l(lr);
    if (i != nullptr && indices.dtype == ACL_INT32 && count_of(indices.shape) == 3) i->put(ids);
    if (i != nullptr && indices.dtype == ACL_INT64 && count_of(indices.shape) == 3)
      i->put(std::vector<int64_t>(ids.begin(), ids.end()));
    uint64_t workspace = 12345;
    aclOpExecutor *executor = nullptr;
    const int code = aclnnLazyAdamGetWorkspaceSize(g, i, a, b, c, l, .9, .999, epsilon, &workspace, &executor);
    return settle(code, workspace, executor, aclnnLazyAdam);
  }
};

constexpr unsigned kHave = kA2, kHere = kHave | kAny, kLack = kEvery & ~kHere;

const Row<Lazy> kRows[] = {
    {kHere, "a good call", [](Lazy &) {}, 0, ""},
    {kLack, "a product without the operator", [](Lazy &) {}, 161002, "ANYFUSE_SOC"},
    {kEvery, "gradient null", [](Lazy &c) { c.gradient.null = true; }, 161001, "gradient"},
    {kEvery, "indices null", [](Lazy &c) { c.indices.null = true; }, 161001, "indices"},
    {kEvery, "inputMRef null", [](Lazy &c) { c.m.null = true; }, 161001, "inputMRef"},
    {kEvery, "inputVRef null", [](Lazy &c) { c.v.null = true; }, 161001, "inputVRef"},
    {kEvery, "inputVarRef null", [](Lazy &c) { c.var.null = true; }, 161001, "inputVarRef"},
    {kEvery, "lr null", [](Lazy &c) { c.lr.null = true; }, 161001, "lr"},
    {kHave, "fp16 gradient", [](Lazy &c) { c.gradient.dtype = ACL_FLOAT16; }, 161002, "gradient"},
    {kAny, "fp16 gradient", [](Lazy &c) { c.gradient.dtype = ACL_FLOAT16; }, 0, ""},
    {kHave, "int64 indices", [](Lazy &c) { c.indices.dtype = ACL_INT64; }, 161002, "indices"},
    {kAny, "int64 indices", [](Lazy &c) { c.indices.dtype = ACL_INT64; }, 0, ""},
    {kHere, "uint8 indices", [](Lazy &c) { c.indices.dtype = ACL_UINT8; }, 161002, "indices"},
    {kHere, "fp16 m", [](Lazy &c) { c.m.dtype = ACL_FLOAT16; }, 161002, "inputMRef"},
    {kHere, "double lr", [](Lazy &c) { c.lr.dtype = ACL_DOUBLE; }, 161002, "lr"},
    {kHere, "format NZ", [](Lazy &c) { c.var.format = ACL_FORMAT_FRACTAL_NZ; }, 161002, "inputVarRef"},
    {kHave, "dim 12", [](Lazy &c) { c.tables({5, 12}), c.gradient.shape = {3, 12}; }, 161002, "dim is 12"},
    {kAny, "dim 12", [](Lazy &c) { c.tables({5, 12}), c.gradient.shape = {3, 12}; }, 0, ""},
    {kHere, "table shapes differ", [](Lazy &c) { c.v.shape = {6, 8}; }, 561002, "inputVRef"},
    {kHere, "tables of rank 3", [](Lazy &c) { c.tables({5, 1, 8}); }, 561002, "inputMRef"},
    {kHere, "gradient of other rows", [](Lazy &c) { c.gradient.shape = {4, 8}; }, 561002, "gradient"},
    {kHere, "gradient of other columns", [](Lazy &c) { c.gradient.shape = {3, 16}; }, 561002, "gradient"},
    {kHere, "indices (n, 1)", [](Lazy &c) { c.indices.shape = {3, 1}; }, 0, ""},
    {kHere, "indices (n, 2)", [](Lazy &c) { c.indices.shape = {3, 2}; }, 561002, "indices"},
    {kHere, "lr of two", [](Lazy &c) { c.lr.shape = {2}; }, 561002, "lr"},
    {kHere, "epsilon 9e-9", [](Lazy &c) { c.epsilon = 9e-9; }, 561002, "epsilon"},
    {kHere, "epsilon 0", [](Lazy &c) { c.epsilon = 0; }, 561002, "epsilon"},
    {kHere, "epsilon 1e-8", [](Lazy &c) { c.epsilon = 1e-8; }, 0, ""},
    {kHere, "epsilon -1e-7", [](Lazy &c) { c.epsilon = -1e-7; }, 0, ""},
    {kHere, "no rows", [](Lazy &c) { c.indices.shape = {0}, c.gradient.shape = {0, 8}; }, 0, ""},
    {kHere, "an index beyond the table", [](Lazy &c) { c.ids = {4, 5, 0}; }, 161002,
     "indices[1] is 5; accepted: below 5"},
    {kAny, "an index of 64 bits beyond the table", [](Lazy &c) { c.indices.dtype = ACL_INT64, c.ids = {4, 0, 7}; },
     161002, "indices[2] is 7"},
};

// Phase 2 finds the index; by then nothing has been written.
void index_beyond_the_table_writes_nothing() {
  begin();
  {
    const Box gradient({2, 8}, ACL_FLOAT, std::vector<float>(16, 1.0f)),
        indices({2}, ACL_INT32, std::vector<int32_t>{0, 3});
    const Box m({3, 8}, ACL_FLOAT, std::vector<float>(24, 1.0f)), v({3, 8}, ACL_FLOAT, std::vector<float>(24, 2.0f));
    const Box var({3, 8}, ACL_FLOAT, std::vector<float>(24, 3.0f)), lr({1}, ACL_FLOAT, std::vector<float>{.1f});
    uint64_t workspace = 0;
    aclOpExecutor *executor = nullptr;
    CHECK_OK(aclnnLazyAdamGetWorkspaceSize(gradient.tensor, indices.tensor, m.tensor, v.tensor, var.tensor, lr.tensor,
                                           .9, .999, 1e-8, &workspace, &executor));
    CHECK_CODE(161002, run_phase2(aclnnLazyAdam, workspace, executor));
    CHECK(m.get<float>() == std::vector<float>(24, 1.0f));
    CHECK(v.get<float>() == std::vector<float>(24, 2.0f));
    CHECK(var.get<float>() == std::vector<float>(24, 3.0f));
  }
  end();
}

}  // namespace

int main() {
  run_table(kRows);
  index_beyond_the_table_writes_nothing();
  return finish("errors_lazy_adam");
}
