// The one way to run work on several threads. The caller splits by shape alone; which thread takes which piece is free,
// because no result may depend on it.
#pragma once
#include <cstdint>
#include <type_traits>

namespace anyfuse {

using ParallelBody = void (*)(void *context, int64_t piece, int32_t worker);

// On how many threads such a loop runs at most: its workers, which are numbered from 0 on.
inline int32_t workers_of(int64_t pieces, int32_t threads) {
  return pieces <= 1 || threads <= 1 ? 1 : pieces < threads ? static_cast<int32_t>(pieces) : threads;
}

// Calls body(context, i, worker) once for every i in [0, pieces), on at most `threads` threads, and returns when all
// are done. The caller is in the default floating-point mode; the others are put into it.
void parallel_for(int64_t pieces, int32_t threads, ParallelBody body, void *context);

// The same for f(i), or for f(i, worker).
template <typename F>
void parallel_for(int64_t pieces, int32_t threads, F &&f) {
  using Function = std::remove_reference_t<F>;
  const ParallelBody body = [](void *context, int64_t piece, [[maybe_unused]] int32_t worker) {
    if constexpr (std::is_invocable_v<Function &, int64_t, int32_t>)
      (*static_cast<Function *>(context))(piece, worker);
    else
      (*static_cast<Function *>(context))(piece);
  };
  parallel_for(pieces, threads, body, &f);
}

// How many of `threads` have at least `least` units of the work each; one does all of what is less than that of two.
inline int32_t threads_for(double work, double least, int32_t threads) {
  const double share = work / least;
  return share < static_cast<double>(threads) ? static_cast<int32_t>(share < 1.0 ? 1.0 : share) : threads;
}

}  // namespace anyfuse
