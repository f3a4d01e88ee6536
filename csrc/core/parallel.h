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

}  // namespace anyfuse
