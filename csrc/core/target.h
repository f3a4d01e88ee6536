// Which instruction set runs. One list of targets for the architecture being built; ANYFUSE_TARGET overrides the
// choice.
#pragma once
#include <cstdint>

// X(name): every target compiled in, worst first. The entry pass builds its tables from this list.
#if defined(__x86_64__)
#define ANYFUSE_FOR_EACH_TARGET(X) X(base) X(avx2) X(avx512)
#elif defined(__aarch64__)
#define ANYFUSE_FOR_EACH_TARGET(X) X(base) X(neon) X(neon_dot)
#else
#define ANYFUSE_FOR_EACH_TARGET(X) X(base)
#endif

namespace anyfuse {

#define ANYFUSE_ENUM_TARGET(name) name,
enum class Target : int32_t { ANYFUSE_FOR_EACH_TARGET(ANYFUSE_ENUM_TARGET) count };
#undef ANYFUSE_ENUM_TARGET

constexpr int32_t kTargetCount = static_cast<int32_t>(Target::count);

// Index of the target in use; -1 when the one asked for cannot run here.
int32_t current_target();

}  // namespace anyfuse
