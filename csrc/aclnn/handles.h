// Handles that can be checked. A handle is not an address: it names a slot, the kind of thing in it, and how often the
// slot has been used, so that a stale, foreign or invented handle is told from a living one without touching memory.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "process.h"

namespace anyfuse::acl {

static_assert(sizeof(void *) == 8, "handles need 64-bit pointers");

// Bits of a handle: kind 6, generation 26, slot 28, 4 zero. A kind above 0 makes it an address no program can own.
struct HandleBits {
  static constexpr int kSlotShift = 4, kGenerationShift = 32, kKindShift = 58;
  static constexpr uint64_t kSlotMask = (1u << 28) - 1, kGenerationMask = (1u << 26) - 1;

  static void *make(uint64_t kind, uint64_t generation, uint64_t slot) {
    return reinterpret_cast<void *>(kind << kKindShift | (generation & kGenerationMask) << kGenerationShift |
                                    slot << kSlotShift);
  }
};

// Things that a program gets handles of; each type names itself by `kKind`.
enum Kind : uint64_t {
  kContext = 1,
  kStream,
  kEvent,
  kTensor,
  kScalar,
  kIntArray,
  kFloatArray,
  kBoolArray,
  kTensorList,
  kScalarList,
  kExecutor,
  kDataBuffer,
  kTensorDesc,
  kDataset,
  kProfilingConfig
};

// All living things of one type. A found thing stays usable while the finder holds it, even if its handle is destroyed.
template <typename T>
class Table {
 public:
  // Null when there are too many.
  void *add(std::shared_ptr<T> object) {
    const std::lock_guard<std::mutex> lock(mutex_);
    uint64_t index;
    if (!free_.empty()) {
      index = free_.back();
      free_.pop_back();
    } else {
      index = slots_.size();
      if (index > HandleBits::kSlotMask) return nullptr;
      slots_.emplace_back();
    }
    slots_[index].object = std::move(object);
    return HandleBits::make(T::kKind, slots_[index].generation, index);
  }

  // Null when the handle is not alive.
  std::shared_ptr<T> find(const void *handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Slot *slot = look_up(handle);
    return slot == nullptr ? nullptr : slot->object;
  }

  // Ends a handle and returns what it named; null when it was not alive.
  std::shared_ptr<T> take(const void *handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Slot *slot = look_up(handle);
    return slot == nullptr ? nullptr : release(*slot);
  }

  // Ends every handle whose thing the predicate picks, and returns the things.
  template <typename Predicate>
  std::vector<std::shared_ptr<T>> take_if(Predicate picks) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::shared_ptr<T>> taken;
    for (Slot &slot : slots_)
      if (slot.object != nullptr && picks(*slot.object)) taken.push_back(release(slot));
    return taken;
  }

  std::vector<std::shared_ptr<T>> all() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::shared_ptr<T>> living;
    for (const Slot &slot : slots_)
      if (slot.object != nullptr) living.push_back(slot.object);
    return living;
  }

  size_t size() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return slots_.size() - free_.size();
  }

 private:
  struct Slot {
    std::shared_ptr<T> object;
    uint64_t generation = forks() << 20;  // so that no handle of a parent is alive in a child of fork
  };

  Slot *look_up(const void *handle) {
    const uint64_t bits = reinterpret_cast<uint64_t>(handle);
    const uint64_t index = bits >> HandleBits::kSlotShift & HandleBits::kSlotMask;
    if (index >= slots_.size()) return nullptr;
    Slot &slot = slots_[index];
    return slot.object != nullptr && HandleBits::make(T::kKind, slot.generation, index) == handle ? &slot : nullptr;
  }

  std::shared_ptr<T> release(Slot &slot) {
    ++slot.generation;
    free_.push_back(static_cast<uint64_t>(&slot - slots_.data()));
    return std::move(slot.object);
  }

  std::mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<uint64_t> free_;
};

// The table of a type.
template <typename T>
Table<T> &table() {
  return process_wide<Table<T>>();
}

}  // namespace anyfuse::acl
