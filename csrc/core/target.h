// Which instruction set runs; ANYFUSE_TARGET overrides the choice.
#pragma once
#include <cstdint>

// ANYFUSE_FOR_EACH_TARGET(X, ...): X(name, ...) for every target compiled in, worst first. Written by CMakeLists.txt,
// where the targets are listed.
#include "targets.def"

namespace anyfuse {

#define ANYFUSE_ENUM_TARGET(name, ...) name,
enum class Target : int32_t { ANYFUSE_FOR_EACH_TARGET(ANYFUSE_ENUM_TARGET) count };
#undef ANYFUSE_ENUM_TARGET

constexpr int32_t kTargetCount = static_cast<int32_t>(Target::count);

// Index of the target in use; -1 when the one asked for cannot run here.
int32_t current_target();

}  // namespace anyfuse
