#include "process.h"

#include <pthread.h>

namespace anyfuse::acl {
namespace {

std::atomic<uint64_t> count{0};

__attribute__((constructor)) void watch_forks() {
  pthread_atfork(nullptr, nullptr, [] { count.fetch_add(1, std::memory_order_relaxed); });
}

}  // namespace

uint64_t forks() { return count.load(std::memory_order_relaxed); }

}  // namespace anyfuse::acl
