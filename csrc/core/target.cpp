#include "core/target.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "anyfuse.h"
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#ifndef HWCAP_ASIMDDP
#define HWCAP_ASIMDDP (1 << 20)
#endif
#endif

namespace anyfuse {
namespace {

#define ANYFUSE_TARGET_NAME(name, ...) #name,
const char *const kNames[] = {ANYFUSE_FOR_EACH_TARGET(ANYFUSE_TARGET_NAME)};
#undef ANYFUSE_TARGET_NAME

// Whether this CPU can run a target: one function for each.

bool runs_base() { return true; }

#if defined(__x86_64__)

// Two features that Clang's __builtin_cpu_supports knows by no name before version 15.
bool has_f16c_and_lzcnt() {
  unsigned a, b, c, d;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & (1u << 29)) != 0;
  const bool lzcnt = __get_cpuid(0x80000001u, &a, &b, &c, &d) != 0 && (c & (1u << 5)) != 0;
  return f16c && lzcnt;
}

bool runs_avx2() {
  __builtin_cpu_init();  // the library may be used by another library's constructor, before ours ran
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("popcnt") && has_f16c_and_lzcnt();
}

bool runs_avx512() {
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

#elif defined(__aarch64__)

bool runs_neon() { return true; }

bool runs_neon_dot() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return true;  // every 64-bit Apple processor has the dot product
#endif
}

#endif

#define ANYFUSE_RUNS_TARGET(name, ...) runs_##name,
bool (*const kRuns[])() = {ANYFUSE_FOR_EACH_TARGET(ANYFUSE_RUNS_TARGET)};
#undef ANYFUSE_RUNS_TARGET

// -1 stands for a name that is unknown or cannot run here.
int32_t find(const char *name) {
  if (name == nullptr || *name == '\0') {
    for (int32_t i = kTargetCount - 1; i > 0; --i)
      if (kRuns[i]()) return i;
    return 0;
  }
  for (int32_t i = 0; i < kTargetCount; ++i)
    if (std::strcmp(name, kNames[i]) == 0 && kRuns[i]()) return i;
  return -1;
}

constexpr int32_t kNotChosen = -2;
std::atomic<int32_t> chosen{kNotChosen};

}  // namespace

// Two threads that ask first find the same, unless another one chooses meanwhile: its choice then stays. (A static
// local would hold a lock, which a fork could leave locked.)
int32_t current_target() {
  int32_t index = chosen.load(std::memory_order_relaxed);
  if (index != kNotChosen) return index;
  const int32_t first = find(std::getenv("ANYFUSE_TARGET"));
  return chosen.compare_exchange_strong(index, first, std::memory_order_relaxed) ? first : index;
}

}  // namespace anyfuse

using anyfuse::kTargetCount;

extern "C" {

const char *anyfuse_target_name(int32_t index) {
  return index >= 0 && index < kTargetCount ? anyfuse::kNames[index] : nullptr;
}

int32_t anyfuse_target_available(int32_t index) {
  return index >= 0 && index < kTargetCount && anyfuse::kRuns[index]();
}

int32_t anyfuse_target_current(void) { return anyfuse::current_target(); }

anyfuse_status anyfuse_target_set(const char *name) {
  const int32_t index = anyfuse::find(name);
  if (index < 0) return ANYFUSE_NO_TARGET;
  anyfuse::chosen.store(index, std::memory_order_relaxed);
  return ANYFUSE_OK;
}

}  // extern "C"
