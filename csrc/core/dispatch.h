// How one source file becomes a kernel per target and one entry point.
//
// A file in csrc/ops/ is compiled once per target with ANYFUSE_TARGET set (the kernel pass), and once without it (the
// entry pass). In the kernel pass it defines one function, ANYFUSE_KERNEL(op, Args); everything else there is internal,
// so that no function built for a wide target can be picked by the linker for the others. In the entry pass
// ANYFUSE_DISPATCH(op, Args) gives `op_kernel()`: the pointer for the target in use, or null when there is none.
#pragma once
#include <cstdint>

#include "core/target.h"

#define ANYFUSE_CONCAT_(a, b, c) a##b##_##c
#define ANYFUSE_CONCAT(a, b, c) ANYFUSE_CONCAT_(a, b, c)
#define ANYFUSE_KERNEL_SYMBOL(op, target) ANYFUSE_CONCAT(anyfuse_kernel_, op, target)

// The work [begin, end) of one call; what is counted (elements, rows, chunks) is the operator's own choice.
#define ANYFUSE_KERNEL(op, Args)                                                                   \
  extern "C" __attribute__((visibility("hidden"))) void ANYFUSE_KERNEL_SYMBOL(op, ANYFUSE_TARGET)( \
      const anyfuse::Args &args, int64_t begin, int64_t end)

#define ANYFUSE_DECLARE_KERNEL(target, op, Args) \
  void ANYFUSE_KERNEL_SYMBOL(op, target)(const anyfuse::Args &, int64_t, int64_t);
#define ANYFUSE_NAME_KERNEL(target, op) ANYFUSE_KERNEL_SYMBOL(op, target),

#define ANYFUSE_DISPATCH(op, Args)                                                                  \
  extern "C" {                                                                                      \
  ANYFUSE_FOR_EACH_TARGET(ANYFUSE_DECLARE_KERNEL, op, Args)                                         \
  }                                                                                                 \
  static auto op##_kernel_of(int32_t target) -> void (*)(const anyfuse::Args &, int64_t, int64_t) { \
    using Kernel = void (*)(const anyfuse::Args &, int64_t, int64_t);                               \
    static constexpr Kernel table[] = {ANYFUSE_FOR_EACH_TARGET(ANYFUSE_NAME_KERNEL, op)};           \
    return target < 0 ? nullptr : table[target];                                                    \
  }                                                                                                 \
  [[maybe_unused]] static auto op##_kernel() { return op##_kernel_of(anyfuse::current_target()); }
