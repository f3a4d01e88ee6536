// The official single-operator case of LazyAdam (2 000 000 x 32, 564 096 distinct rows) by its official rule, and the
// operator's time beside the time that its memory traffic alone takes, measured in turns.
#include <aclnn_lazy_adam.h>
#include <anyfuse_internal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include "program.h"

namespace {

constexpr int64_t kRows = 2000000, kDim = 32, kCount = 564096;
constexpr float kRate = 1e-3f, kBeta1 = .9f, kBeta2 = .999f, kEpsilon = 1e-7f;

// Uniform from `lowest` to 1; a generator of one multiplication, for there are 200 million values.
std::vector<float> random_values(int64_t count, uint64_t seed, float lowest) {
  uint64_t state = seed * 0x9E3779B97F4A7C15;
  std::vector<float> values(static_cast<size_t>(count));
  for (float &value : values) {
    state = state * 6364136223846793005 + 1442695040888963407;
    value = lowest + (1 - lowest) * static_cast<float>(state >> 40) * 0x1p-24f;
  }
  return values;
}

struct Case {
  std::vector<int32_t> indices = std::vector<int32_t>(kRows);
  std::vector<float> gradient = random_values(kCount * kDim, 1, -1), m = random_values(kRows * kDim, 2, -1),
                     v = random_values(kRows * kDim, 3, 0), var = random_values(kRows * kDim, 4, -1);
  Case() {
    for (int64_t i = 0; i < kRows; ++i) indices[static_cast<size_t>(i)] = static_cast<int32_t>(i);
    std::shuffle(indices.begin(), indices.end(), std::mt19937(5));
    indices.resize(kCount);
  }
};

// The golden as the official script computes it: fp32, operation by operation.
void step(Case &c) {
  for (size_t i = 0; i < kCount; ++i)
    for (size_t k = 0; k < kDim; ++k) {
      const size_t at = static_cast<size_t>(c.indices[i]) * kDim + k;
      const float g = c.gradient[i * kDim + k];
      c.m[at] = kBeta1 * c.m[at] + (1 - kBeta1) * g;
      c.v[at] = kBeta2 * c.v[at] + (1 - kBeta2) * g * g;
      c.var[at] = c.var[at] - kRate * c.m[at] / (std::sqrt(c.v[at]) + kEpsilon);
    }
}

bool passes(const std::vector<float> &out, const std::vector<float> &golden) {
  const double loss = 1e-6, allowed = static_cast<double>(out.size()) * loss;
  double beyond_absolute = 0, beyond_relative = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(out[i]) - static_cast<double>(golden[i]));
    const double size = std::max(std::fabs(static_cast<double>(out[i])), std::fabs(static_cast<double>(golden[i])));
    beyond_absolute += !(difference <= loss);
    beyond_relative += !(difference / (size + 1e-9) <= loss);
  }
  std::printf("  %.0f of %zu beyond absolutely, %.0f relatively\n", beyond_absolute, out.size(), beyond_relative);
  const bool failed =
      beyond_absolute > 0 && beyond_relative > 0 && beyond_absolute > allowed && beyond_relative > allowed;
  return !failed;
}

template <typename Work>
double milliseconds(Work work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main() {
  begin();
  {
    Case c;
    const Box gradient({kCount, kDim}, ACL_FLOAT, c.gradient), indices({kCount, 1}, ACL_INT32, c.indices);
    const Box m({kRows, kDim}, ACL_FLOAT, c.m), v({kRows, kDim}, ACL_FLOAT, c.v), var({kRows, kDim}, ACL_FLOAT, c.var);
    const Box lr({1}, ACL_FLOAT, std::vector<float>{kRate});
    uint64_t workspace = 1;
    aclOpExecutor *executor = nullptr;
    CHECK_OK(aclnnLazyAdamGetWorkspaceSize(gradient.tensor, indices.tensor, m.tensor, v.tensor, var.tensor, lr.tensor,
                                           .9, .999, 1e-7, &workspace, &executor));
    CHECK(workspace == 0);
    CHECK_OK(aclSetAclOpExecutorRepeatable(executor));
    CHECK_OK(aclnnLazyAdam(nullptr, 0, executor, nullptr));
    CHECK_OK(aclrtSynchronizeStream(nullptr));
    step(c);
    CHECK(passes(m.get<float>(), c.m));
    CHECK(passes(v.get<float>(), c.v));
    CHECK(passes(var.get<float>(), c.var));

    const std::vector<int64_t> rows(c.indices.begin(), c.indices.end());
    const anyfuse_stream_array arrays[] = {{gradient.data, kDim * 4, ANYFUSE_STREAM_READ, 0},
                                           {m.data, kDim * 4, ANYFUSE_STREAM_UPDATE, 1},
                                           {v.data, kDim * 4, ANYFUSE_STREAM_UPDATE, 1},
                                           {var.data, kDim * 4, ANYFUSE_STREAM_UPDATE, 1}};
    anyfuse_stream_params traffic = {};
    traffic.size = sizeof traffic;
    traffic.arrays = arrays;
    traffic.count = 4;
    traffic.units = kCount;
    traffic.tile = 64;
    traffic.index = rows.data();
    const char *threads = std::getenv("ANYFUSE_NUM_THREADS");
    traffic.threads = threads == nullptr ? 2 : std::atoi(threads);
    std::vector<double> operator_times, traffic_times;
    for (int i = 0; i < 7; ++i) {
      operator_times.push_back(milliseconds([&] { CHECK_OK(aclnnLazyAdam(nullptr, 0, executor, nullptr)); }));
      traffic_times.push_back(milliseconds([&] { CHECK(anyfuse_stream(&traffic) == ANYFUSE_OK); }));
    }
    const double bytes = static_cast<double>(kCount) * (kDim * 4 * 7 + 4);
    std::printf("  operator %.1f ms (%.1f GB/s), its memory traffic alone %.1f ms; ratio %.2f\n",
                median(operator_times), bytes / 1e6 / median(operator_times), median(traffic_times),
                median(operator_times) / median(traffic_times));
    CHECK_OK(aclDestroyAclOpExecutor(executor));
  }
  end();
  return finish("official_lazy_adam");
}
