#include "core/codebook.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <mutex>
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace anyfuse {
namespace {

constexpr int32_t kLast = 255;

// The definition of a code, one value at a time; the tables are made from it.
int32_t code_of(const Codebook &map, float n) {
  const float *q = map.value;
  int32_t lower = 0, upper = kLast;
  for (int i = 0; i < 8; ++i) {
    const int32_t pivot = (lower + upper) >> 1;
    (n > q[pivot] ? lower : upper) = pivot;
  }
  int32_t code = std::fabs(n - q[lower]) <= std::fabs(n - q[upper]) ? lower : upper;
  if (!map.keep_sign) return code;
  if (n > 0 && q[code] < 0 && code < kLast) ++code;
  if (n < 0 && q[code] > 0 && code > 0) --code;
  return code;
}

// What the table gives before the sign is looked at: it never falls as the bits grow, on either side of 0.
uint32_t folded_code(const Codebook &map, uint32_t bits) {
  float n;
  std::memcpy(&n, &bits, sizeof n);
  const int32_t code = code_of(map, n);
  return static_cast<uint32_t>(bits >> 31 ? kLast - code : code);
}

bool finite_and_ascending(const float *q) {
  for (int i = 0; i <= kLast; ++i)
    if (!std::isfinite(q[i]) || (i > 0 && q[i] < q[i - 1])) return false;
  return true;
}

// Beyond the last entry the rounded distances to the last two may be equal and unequal by turns, and the code no longer
// rises with n. Entries farther apart than the distances' spacing exclude it.
bool monotonic(const float *q) {
  return q[kLast] >= 1.0f || (q[kLast - 1] >= -1.0f && q[kLast] - q[kLast - 1] > 0x1p-20f);
}

bool fill_bucket(Codebook *map, uint32_t bucket) {
  const uint32_t start = bucket << 16;
  const uint32_t first = folded_code(*map, start), last = folded_code(*map, start | 0xffffu);
  if (last > first + 1) return false;
  uint32_t low = 0, high = 0x10000;  // the boundary: the first offset with the higher code, or 2^16
  while (last > first && high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (folded_code(*map, start | middle) > first ? high : low) = middle;
  }
  map->edge[bucket] = (first << 16) + 0x10000u - high - start;
  return true;
}

bool fill_side(Codebook *map, uint32_t begin) {
  const uint32_t one = begin + 0x3f80;  // the bucket of 1, of which only its first value is in range
  for (uint32_t bucket = begin; bucket < one; ++bucket)
    if (!fill_bucket(map, bucket)) return false;
  map->edge[one] = (folded_code(*map, one << 16) << 16) - (one << 16);
  return true;
}

void build(Codebook *map, const float *values, bool keep_sign) {
  std::memcpy(map->value, values, sizeof map->value);
  map->keep_sign = keep_sign;
  map->zero_begin = 0;
  while (map->zero_begin <= kLast && values[map->zero_begin] < 0) ++map->zero_begin;
  map->zero_end = map->zero_begin;
  while (map->zero_end <= kLast && values[map->zero_end] == 0) ++map->zero_end;
  if (map->zero_end > kLast) map->zero_begin = map->zero_end;
  map->by_table = monotonic(values) && fill_side(map, 0) && fill_side(map, 0x8000);
}

// ---- the cache ----

struct Slot {
  Codebook *codebook;
  int64_t users, last_use;
};

constexpr int kSlots = 8;
Slot slots[kSlots];
int64_t clock_now = 0;
std::mutex mutex;

#if defined(__unix__) || defined(__APPLE__)
// A child of fork finds the cache whole and unlocked; the calls that used it went on in the parent alone.
__attribute__((constructor)) void watch_forks() {
  const auto released = [] {
    for (Slot &slot : slots) slot.users = 0;
    mutex.unlock();
  };
  pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, released);
}
#endif

bool holds(const Slot &slot, const float *values, bool keep_sign) {
  return slot.codebook != nullptr && slot.codebook->keep_sign == keep_sign &&
         std::memcmp(slot.codebook->value, values, sizeof slot.codebook->value) == 0;
}

// The slot of these values, or the one to put them into (the unused one that has waited longest), or null.
Slot *find(const float *values, bool keep_sign) {
  Slot *oldest = nullptr;
  for (Slot &slot : slots) {
    if (holds(slot, values, keep_sign)) return &slot;
    if (slot.users == 0 && (oldest == nullptr || slot.last_use < oldest->last_use)) oldest = &slot;
  }
  return oldest;
}

}  // namespace

CodebookLease::CodebookLease(const float *map, bool keep_sign) {
  float values[kLast + 1];
  std::memcpy(values, map, sizeof values);  // a caller's map may lie at any address
  const std::lock_guard<std::mutex> lock(mutex);
  Slot *slot = find(values, keep_sign);
  if (slot == nullptr || !holds(*slot, values, keep_sign)) {
    if (!finite_and_ascending(values)) {
      status_ = ANYFUSE_INVALID_VALUE;
      return;
    }
    // With every slot in use, the codebook is this call's own.
    codebook_ = slot != nullptr && slot->codebook != nullptr ? slot->codebook
                                                             : static_cast<Codebook *>(std::malloc(sizeof(Codebook)));
    if (codebook_ == nullptr) {
      status_ = ANYFUSE_OUT_OF_MEMORY;
      return;
    }
    build(codebook_, values, keep_sign);
    if (slot != nullptr) slot->codebook = codebook_;
  }
  if (slot == nullptr) return;
  codebook_ = slot->codebook;
  ++slot->users;
  slot->last_use = ++clock_now;
}

CodebookLease::~CodebookLease() {
  if (codebook_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex);
  for (Slot &slot : slots)
    if (slot.codebook == codebook_) {
      --slot.users;
      return;
    }
  std::free(codebook_);
}

}  // namespace anyfuse
