// The floating-point mode that every number of the core is computed in: nothing flushed to zero, round to nearest, no
// traps. A caller's thread may be in another one, and a thread of the pool keeps the one of the thread that made it.
#pragma once
#include <cstdint>
#if !defined(__x86_64__) && !defined(__aarch64__)
#include <cfenv>
#endif

namespace anyfuse {

// Sets that mode for its lifetime and restores what was there, which costs a few nanoseconds where nothing is to do.
class DefaultFloats {
 public:
#if defined(__x86_64__)
  DefaultFloats() {
    asm volatile("stmxcsr %0" : "=m"(saved_));
    if ((saved_ & kMode) != kDefault) asm volatile("ldmxcsr %0" : : "m"(kDefault));
  }
  ~DefaultFloats() {
    if ((saved_ & kMode) != kDefault) asm volatile("ldmxcsr %0" : : "m"(saved_));
  }

 private:
  static constexpr uint32_t kMode = 0xffc0, kDefault = 0x1f80;  // all but the flags of what has happened
  uint32_t saved_;
#elif defined(__aarch64__)
  DefaultFloats() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    if (saved_ != 0) asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
  }
  ~DefaultFloats() {
    if (saved_ != 0) asm volatile("msr fpcr, %0" : : "r"(saved_));
  }

 private:
  uint64_t saved_;
#else
  DefaultFloats() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloats() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif
  DefaultFloats(const DefaultFloats &) = delete;
  DefaultFloats &operator=(const DefaultFloats &) = delete;
};

// function(argument) in that mode. No compiler knows that arithmetic depends on the mode; this one cannot see which
// function it calls either, so that nothing of it is computed before or after.
template <typename Result, typename Argument>
Result in_default_mode(Result (*function)(Argument), Argument argument) {
  const DefaultFloats mode;
  asm volatile("" : "+r"(function) : : "memory");
  return function(argument);
}

}  // namespace anyfuse
