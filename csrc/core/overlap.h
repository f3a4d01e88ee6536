// Whether sums of multiples meet a window, which is what sharing memory comes down to: the addresses of a strided
// tensor are a base and a multiple of each stride. Entry pass only.
#pragma once
#include <cstdint>

namespace anyfuse {

// Numbers x * step with x in [0, most].
struct Multiples {
  int64_t step, most;
};

// All sums of one number of each of some sets of multiples.
class Sums {
 public:
  enum Answer { kNo, kYes, kUndecided };

  // Adds a set. A step of 0 or a `most` of 0 adds nothing; a negative step counts downwards.
  void add(int64_t step, int64_t most);
  // Adds a number to each sum.
  void shift(int64_t by) { add_to(&base_, by); }
  // Whether a sum lies in [low, high]. Exact, but where more than two sets are left after what can be put together is,
  // and these are so entangled that the limit of work is reached (10,000 steps, a millisecond or two).
  Answer meet(int64_t low, int64_t high) const;

 private:
  static constexpr int kMost = 128;  // two tensors of 64 dimensions
  void add_to(int64_t *number, int64_t by) { beyond_ |= __builtin_add_overflow(*number, by, number); }

  Multiples sets_[kMost];
  int count_ = 0;
  int64_t base_ = 0, reach_ = 0;
  bool beyond_ = false;  // numbers that no memory has
};

}  // namespace anyfuse
