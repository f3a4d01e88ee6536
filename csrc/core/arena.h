// Scratch memory for the workers of a parallel loop. It comes from the heap, as a thread's stack may be as small as
// 64 KiB, and before anything is written, so that a call without memory changes nothing. Entry pass only.
#pragma once
#include <cstdint>
#include <cstdlib>

namespace anyfuse {

class Arena {
 public:
  // `bytes` for each worker, aligned to a cache line.
  Arena(int32_t workers, int64_t bytes) : bytes_((bytes + kLine - 1) / kLine * kLine) {
    memory_ = static_cast<char *>(std::aligned_alloc(kLine, static_cast<size_t>(workers * bytes_)));
  }
  ~Arena() { std::free(memory_); }
  Arena(const Arena &) = delete;
  Arena &operator=(const Arena &) = delete;

  bool allocated() const { return memory_ != nullptr; }
  void *of(int32_t worker) const { return memory_ + worker * bytes_; }

 private:
  static constexpr int64_t kLine = 64;
  int64_t bytes_;
  char *memory_;
};

}  // namespace anyfuse
