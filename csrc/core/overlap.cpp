#include "core/overlap.h"

#include <algorithm>
#include <numeric>

#include "anyfuse_internal.h"

namespace anyfuse {
namespace {

using Wide = unsigned __int128;

constexpr int64_t kBeyond = int64_t{1} << 61;  // above any address in units of 4 bits
constexpr int kMostSteps = 10000;

// The sum of floor((a * i + b) / m) over i in [0, n), modulo 2^128; a * n + b is below 2^63. As Euclid's algorithm
// does, it takes as many steps as the numbers have digits.
Wide floor_sum(uint64_t n, uint64_t m, uint64_t a, uint64_t b) {
  Wide sum = 0;
  for (;;) {
    sum += Wide{n} * (n - 1) / 2 * (a / m) + Wide{n} * (b / m);
    a %= m;
    b %= m;
    const uint64_t last = a * n + b;
    if (last < m) return sum;
    n = last / m;
    b = last % m;
    std::swap(a, m);
  }
}

// How many pairs of multiples, one of each set, have a sum of at most `limit`.
Wide count_up_to(const Multiples &p, const Multiples &q, int64_t limit) {
  if (limit < 0) return 0;
  const int64_t last = std::min(p.most, limit / p.step);
  const int64_t rest = limit - q.most * q.step;  // up to here every multiple of q counts
  const int64_t whole = rest < 0 ? 0 : std::min(rest / p.step, last) + 1;
  const Wide partial = static_cast<Wide>(last + 1 - whole);
  Wide count = static_cast<Wide>(whole) * static_cast<Wide>(q.most + 1) + partial;
  if (partial > 0)
    count += floor_sum(static_cast<uint64_t>(partial), q.step, p.step, static_cast<uint64_t>(limit - last * p.step));
  return count;
}

// Sets sorted by step, the largest first, with what is known of all from one on.
struct Search {
  const Multiples *sets;
  const int64_t *reach, *divisor;  // largest sum and greatest common divisor
  int count;
  int steps_left;

  Sums::Answer meet(int first, int64_t low, int64_t high) {
    if (steps_left-- == 0) return Sums::kUndecided;
    low = std::max<int64_t>(low, 0);
    if (low > high || low > reach[first]) return Sums::kNo;
    if (low == 0 || high >= reach[first]) return Sums::kYes;  // the smallest sum, or the largest
    if (high / divisor[first] * divisor[first] < low) return Sums::kNo;
    if (count - first == 1) return Sums::kYes;
    const Multiples &set = sets[first];
    if (count - first == 2) {
      const Multiples &other = sets[first + 1];
      return count_up_to(set, other, high) != count_up_to(set, other, low - 1) ? Sums::kYes : Sums::kNo;
    }
    const int64_t rest = low - reach[first + 1];
    for (int64_t i = rest > 0 ? (rest + set.step - 1) / set.step : 0; i <= std::min(set.most, high / set.step); ++i) {
      const Sums::Answer answer = meet(first + 1, low - i * set.step, high - i * set.step);
      if (answer != Sums::kNo) return answer;
    }
    return Sums::kNo;
  }
};

}  // namespace

void Sums::add(int64_t step, int64_t most) {
  if (step == 0 || most == 0) return;
  int64_t reach;
  if (count_ == kMost || __builtin_mul_overflow(step, most, &reach) || reach == INT64_MIN) beyond_ = true;
  if (beyond_) return;
  add_to(&reach_, std::abs(reach));
  if (step < 0) shift(reach);  // counted from the other end
  sets_[count_++] = {std::abs(step), most};
}

Sums::Answer Sums::meet(int64_t low, int64_t high) const {
  if (beyond_ || base_ > kBeyond || base_ < -kBeyond || reach_ > kBeyond) return kUndecided;
  low -= base_;
  high -= base_;
  Multiples sets[kMost];
  std::copy(sets_, sets_ + count_, sets);
  std::sort(sets, sets + count_, [](const Multiples &a, const Multiples &b) { return a.step < b.step; });
  // A set whose steps are within the window leaves no gaps: it makes the window longer. One whose step is a multiple of
  // the one before, within its reach or next after it, continues that one.
  int count = 0;
  for (int i = 0; i < count_; ++i) {
    const Multiples &set = sets[i];
    Multiples *before = count > 0 ? &sets[count - 1] : nullptr;
    if (count == 0 && set.step <= high - low + 1)
      low -= set.step * set.most;
    else if (before != nullptr && set.step % before->step == 0 && set.step / before->step <= before->most + 1)
      before->most += set.step / before->step * set.most;
    else
      sets[count++] = set;
  }
  std::reverse(sets, sets + count);
  int64_t reach[kMost + 1], divisor[kMost + 1];
  reach[count] = divisor[count] = 0;
  for (int i = count; i-- > 0;) {
    reach[i] = reach[i + 1] + sets[i].step * sets[i].most;
    divisor[i] = std::gcd(divisor[i + 1], sets[i].step);
  }
  return Search{sets, reach, divisor, count, kMostSteps}.meet(0, low, high);
}

namespace {

bool is_empty(const anyfuse_view &view) {
  return std::find(view.sizes, view.sizes + view.rank, 0) != view.sizes + view.rank;
}

// Adds the addresses of a view's elements in units of 4 bits, or, with a sign of -1, subtracts them.
bool add_addresses(const anyfuse_view &view, int64_t sign, Sums *sums) {
  const int64_t unit = sign * (view.bits / 4);
  int64_t first, step;
  if (__builtin_mul_overflow(view.offset, unit, &first)) return false;
  sums->shift(first);
  for (int32_t i = 0; i < view.rank; ++i) {
    if (__builtin_mul_overflow(view.strides[i], unit, &step)) return false;
    sums->add(step, view.sizes[i] - 1);
  }
  return true;
}

}  // namespace
}  // namespace anyfuse

using anyfuse::Sums;

extern "C" int32_t anyfuse_overlap(const anyfuse_view *a, const anyfuse_view *b) {
  if (anyfuse::is_empty(*a) || anyfuse::is_empty(*b)) return ANYFUSE_APART;
  // Elements [x, x + n) and [y, y + m) meet where -n < x - y < m.
  Sums difference;
  const int64_t apart =
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(a->data) - reinterpret_cast<uintptr_t>(b->data));
  int64_t shift;
  if (__builtin_mul_overflow(apart, 2, &shift)) return ANYFUSE_UNDECIDED;
  difference.shift(shift);
  if (!anyfuse::add_addresses(*a, 1, &difference) || !anyfuse::add_addresses(*b, -1, &difference))
    return ANYFUSE_UNDECIDED;
  return difference.meet(1 - a->bits / 4, b->bits / 4 - 1);
}

extern "C" int32_t anyfuse_overlap_itself(const anyfuse_view *view) {
  if (anyfuse::is_empty(*view)) return ANYFUSE_APART;
  // Two indices lead to one element when a combination of strides, each up to size - 1 times forwards or backwards, is
  // 0 without being empty. Its last dimension counts at least once, forwards.
  for (int32_t last = 0; last < view->rank; ++last) {
    if (view->sizes[last] == 1) continue;
    Sums difference;
    difference.shift(view->strides[last]);
    difference.add(view->strides[last], view->sizes[last] - 2);
    for (int32_t i = 0; i < last; ++i) {
      difference.add(view->strides[i], view->sizes[i] - 1);
      difference.add(-view->strides[i], view->sizes[i] - 1);
    }
    const Sums::Answer answer = difference.meet(0, 0);
    if (answer != Sums::kNo) return answer;
  }
  return ANYFUSE_APART;
}
