// One thread pool in the process: the libgomp that is already there (torch brings one), found at first use. Linking to
// libgomp would bring a second pool beside torch's, whose threads fight over the same cores.
#include "core/parallel.h"

#include <atomic>

#include "anyfuse.h"
#include "core/fenv.h"

#if defined(ANYFUSE_STD_THREADS)
#include <thread>
#include <vector>
#else
#include <dlfcn.h>
#include <pthread.h>
#if defined(__linux__)
#include <link.h>

#include <cstring>
#endif
#endif

namespace anyfuse {
namespace {

struct Loop {
  ParallelBody body;
  void *context;
  int64_t pieces;
  std::atomic<int64_t> next{0};
  std::atomic<int32_t> workers{0};
};

void work(Loop *loop) {
  const int32_t worker = loop->workers.fetch_add(1, std::memory_order_relaxed);
  for (int64_t i; (i = loop->next.fetch_add(1, std::memory_order_relaxed)) < loop->pieces;)
    loop->body(loop->context, i, worker);
}

// What each thread of a team does. The caller's has the default mode already.
void drain(void *loop) { in_default_mode(work, static_cast<Loop *>(loop)); }

#if defined(ANYFUSE_STD_THREADS)

const char *pool_name() { return "std"; }

void run(Loop &loop, int32_t threads) {
  std::vector<std::thread> team;
  for (int32_t i = 1; i < threads; ++i) team.emplace_back(drain, &loop);
  drain(&loop);
  for (std::thread &thread : team) thread.join();
}

#else

using GompParallel = void (*)(void (*)(void *), void *, unsigned threads, unsigned flags);

std::atomic<bool> in_forked_child{false};

// A child of fork has only the calling thread; libgomp would wait for threads that no longer exist, whoever used them.
__attribute__((constructor)) void watch_forks() {
  pthread_atfork(nullptr, nullptr, [] { in_forked_child.store(true, std::memory_order_relaxed); });
}

#if defined(__linux__)
// torch may have been loaded with local symbols; its libgomp is then in the process, but not in the global scope.
int look_for_gomp(dl_phdr_info *info, size_t, void *found) {
  if (info->dlpi_name == nullptr || std::strstr(info->dlpi_name, "gomp") == nullptr) return 0;
  void *library = dlopen(info->dlpi_name, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return 0;
  void *symbol = dlsym(library, "GOMP_parallel");
  if (symbol == nullptr) return 0;
  *static_cast<void **>(found) = symbol;
  return 1;
}
#endif

GompParallel find_gomp() {
  void *symbol = dlsym(RTLD_DEFAULT, "GOMP_parallel");
#if defined(__linux__)
  if (symbol == nullptr) dl_iterate_phdr(look_for_gomp, &symbol);
  if (symbol == nullptr) {
    if (void *library = dlopen("libgomp.so.1", RTLD_NOW | RTLD_GLOBAL)) symbol = dlsym(library, "GOMP_parallel");
  }
#endif
  return reinterpret_cast<GompParallel>(symbol);
}

// Null where there is none, and in a child of fork. Several threads may look at once: no lock that a fork could leave
// locked is held meanwhile.
GompParallel gomp() {
  static std::atomic<GompParallel> found{nullptr};
  static std::atomic<bool> looked{false};
  if (in_forked_child.load(std::memory_order_relaxed)) return nullptr;
  if (!looked.load(std::memory_order_acquire)) {
    found.store(find_gomp(), std::memory_order_relaxed);
    looked.store(true, std::memory_order_release);
  }
  return found.load(std::memory_order_relaxed);
}

const char *pool_name() { return gomp() != nullptr ? "openmp" : "none"; }

void run(Loop &loop, int32_t threads) {
  const GompParallel parallel = gomp();
  if (parallel == nullptr) return work(&loop);
  parallel(drain, &loop, static_cast<unsigned>(threads), 0);
}

#endif

}  // namespace

void parallel_for(int64_t pieces, int32_t threads, ParallelBody body, void *context) {
  threads = workers_of(pieces, threads);
  Loop loop{body, context, pieces};
  if (threads <= 1) return work(&loop);
  run(loop, threads);
}

}  // namespace anyfuse

extern "C" const char *anyfuse_thread_pool(void) { return anyfuse::pool_name(); }
