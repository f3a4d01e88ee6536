// What lives once in a process. It is made at first use, and never torn down: calls may come from exit handlers. A
// child of fork makes its own, as a thread of the parent may have held a lock that nobody there would open.
#pragma once
#include <atomic>
#include <cstdint>

namespace anyfuse::acl {

// How many forks lie between this process and the one that loaded the library.
uint64_t forks();

template <typename T>
T &process_wide() {
  struct Instance {
    const uint64_t made_after = forks();
    T object;
  };
  static std::atomic<Instance *> current{nullptr};
  Instance *found = current.load(std::memory_order_acquire);
  while (found == nullptr || found->made_after != forks()) {
    Instance *made = new Instance;
    if (current.compare_exchange_strong(found, made, std::memory_order_acq_rel)) return made->object;
    delete made;
  }
  return found->object;
}

}  // namespace anyfuse::acl
