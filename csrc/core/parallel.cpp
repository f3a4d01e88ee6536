// One thread pool in the process: the libgomp that is already there (torch brings one), found at first use. Linking to
// libgomp would bring a second pool beside torch's, whose threads fight over the same cores.
#include "core/parallel.h"

#include <atomic>

#include "anyfuse.h"

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
};

void drain(void *argument) {
  Loop &loop = *static_cast<Loop *>(argument);
  for (int64_t i; (i = loop.next.fetch_add(1, std::memory_order_relaxed)) < loop.pieces;) loop.body(loop.context, i);
}

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
  // A child of fork has only the calling thread; libgomp would wait for threads that no longer exist.
  pthread_atfork(nullptr, nullptr, [] { in_forked_child.store(true, std::memory_order_relaxed); });
  return reinterpret_cast<GompParallel>(symbol);
}

GompParallel gomp() {
  static const GompParallel function = find_gomp();
  return function;
}

const char *pool_name() { return gomp() != nullptr && !in_forked_child ? "openmp" : "none"; }

void run(Loop &loop, int32_t threads) {
  GompParallel parallel = gomp();
  if (parallel == nullptr || in_forked_child.load(std::memory_order_relaxed)) return drain(&loop);
  parallel(drain, &loop, static_cast<unsigned>(threads), 0);
}

#endif

}  // namespace

void parallel_for(int64_t pieces, int32_t threads, ParallelBody body, void *context) {
  if (threads > pieces) threads = static_cast<int32_t>(pieces);
  Loop loop{body, context, pieces};
  if (threads <= 1) return drain(&loop);
  run(loop, threads);
}

}  // namespace anyfuse

extern "C" const char *anyfuse_thread_pool(void) { return anyfuse::pool_name(); }
