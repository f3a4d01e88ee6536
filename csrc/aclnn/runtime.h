// The state of the runtime: settings, device, contexts, streams, memory.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

#include "acl/acl.h"
#include "anyfuse.h"
#include "handles.h"
#include "products.h"

namespace anyfuse::acl {

// What aclInit has read from the environment.
struct Settings {
  const char *product = kAnyProduct;
  int32_t convention = ANYFUSE_FORMULA;
  // LazyAdam's document defines its numbers by a test, which computes as the device does: its default is that.
  int32_t lazy_adam_convention = ANYFUSE_DEVICE;
  int32_t threads = 1;
  bool strict = false;  // device memory ends where the request ended
};

Settings settings();

struct Context {
  static constexpr uint64_t kKind = kContext;
  bool is_default = false;
};

// A queue in order. A task runs at once when nothing stands before it; what stands behind a wait for an event that has
// not been recorded runs when the event is.
struct Stream {
  static constexpr uint64_t kKind = kStream;
  // False: the task has to wait and is to be tried again.
  using Task = std::function<bool()>;

  aclrtContext context = nullptr;
  std::mutex mutex;
  std::condition_variable idle;
  std::deque<Task> tasks;
  bool running = false;
  bool retry = false;                // what the first task waits for may have come while it was being tried
  std::atomic<bool> dropped{false};  // also read without the lock, by who looks for a stream of another context
  int32_t error = ACL_SUCCESS;       // of a task that ran after its call had returned
};

// ACL_ERROR_UNINITIALIZE before aclInit and after aclFinalize.
aclError require_initialized(const char *function);
// Also ACL_ERROR_RT_CONTEXT_NULL in a thread that has neither set a device nor a context.
aclError require_context(const char *function);
aclrtContext current_context();

// The stream of a handle, or of the current context for a null one. Checks the context too.
aclError find_stream(const char *function, aclrtStream handle, std::shared_ptr<Stream> *stream);

// Gives a stream work. When it ran at once its code is returned, otherwise 0, and a later failure is told by
// synchronize.
int32_t submit(const std::shared_ptr<Stream> &stream, std::function<int32_t()> work);
void submit_task(const std::shared_ptr<Stream> &stream, Stream::Task task);
// Runs what can be run now.
void drain(const std::shared_ptr<Stream> &stream);
void drop_tasks(const std::shared_ptr<Stream> &stream);

// Ends the streams and events of a context, or of all contexts.
void release_streams(aclrtContext context);
void release_all_streams();

// Frees what aclrtMalloc gave and, when asked, what aclrtMallocHost gave.
void release_memory(bool host_too);

// How many bytes stand at an address that the runtime gave: `known` is false for other memory.
struct Extent {
  bool known = false;
  bool device = false;
  size_t left = 0;
};
Extent extent_of(const void *address);

}  // namespace anyfuse::acl
