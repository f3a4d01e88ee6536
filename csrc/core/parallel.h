// The one way to run work on several threads. The caller splits by shape alone; which thread takes which piece is free,
// because no result may depend on it.
#pragma once
#include <cstdint>

namespace anyfuse {

using ParallelBody = void (*)(void *context, int64_t piece);

// Calls body(context, i) once for every i in [0, pieces), on at most `threads` threads, and returns when all are done.
void parallel_for(int64_t pieces, int32_t threads, ParallelBody body, void *context);

template <typename F>
void parallel_for(int64_t pieces, int32_t threads, F &&f) {
  parallel_for(pieces, threads, [](void *context, int64_t piece) { (*static_cast<F *>(context))(piece); }, &f);
}

// How many of `threads` have at least `least` units of the work each; one does all of what is less than that of two.
inline int32_t threads_for(double work, double least, int32_t threads) {
  const double share = work / least;
  return share < static_cast<double>(threads) ? static_cast<int32_t>(share < 1.0 ? 1.0 : share) : threads;
}

}  // namespace anyfuse
