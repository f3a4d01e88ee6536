// Streams and events.
#include <algorithm>
#include <chrono>

#include "errors.h"
#include "runtime.h"

namespace anyfuse::acl {
namespace {

using Clock = std::chrono::steady_clock;

struct Event {
  static constexpr uint64_t kKind = kEvent;
  aclrtContext context = nullptr;
  std::mutex mutex;
  std::condition_variable changed;
  bool recorded = false;
  Clock::time_point time;
  std::vector<std::shared_ptr<Stream>> waiting;
};

// Milliseconds to wait; negative: without end.
template <typename Predicate>
bool wait(std::condition_variable &condition, std::unique_lock<std::mutex> &lock, int32_t timeout, Predicate done) {
  if (timeout >= 0) return condition.wait_for(lock, std::chrono::milliseconds(timeout), done);
  condition.wait(lock, done);
  return true;
}

aclError synchronize(const char *function, const std::shared_ptr<Stream> &stream, int32_t timeout) {
  std::unique_lock<std::mutex> lock(stream->mutex);
  if (!wait(stream->idle, lock, timeout,
            [&] { return stream->dropped || (stream->tasks.empty() && !stream->running); }))
    return fail(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "%s: the stream still has work after %d ms", function, timeout);
  const int32_t error = std::exchange(stream->error, ACL_SUCCESS);
  return error == ACL_SUCCESS ? error
                              : fail(error, "%s: work of this stream failed after its call had returned", function);
}

void record(const std::shared_ptr<Event> &event) {
  std::vector<std::shared_ptr<Stream>> waiting;
  {
    const std::lock_guard<std::mutex> lock(event->mutex);
    event->recorded = true;
    event->time = Clock::now();
    waiting.swap(event->waiting);
  }
  event->changed.notify_all();
  for (const auto &stream : waiting) drain(stream);
}

aclError find_event(const char *function, aclrtEvent handle, std::shared_ptr<Event> *event) {
  ANYFUSE_TRY(require_context(function));
  *event = table<Event>().find(handle);
  return *event != nullptr ? ACL_SUCCESS
                           : fail(ACL_ERROR_RT_INVALID_HANDLE, "%s: event is not a living event", function);
}

aclError create_stream(const char *function, aclrtStream *stream) {
  if (stream == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "%s: stream is null", function);
  ANYFUSE_TRY(require_context(function));
  auto created = std::make_shared<Stream>();
  created->context = current_context();
  *stream = table<Stream>().add(std::move(created));
  return ACL_SUCCESS;
}

aclError create_event(const char *function, aclrtEvent *event) {
  if (event == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "%s: event is null", function);
  ANYFUSE_TRY(require_context(function));
  auto created = std::make_shared<Event>();
  created->context = current_context();
  *event = table<Event>().add(std::move(created));
  return ACL_SUCCESS;
}

// `wait`: what the stream still has to do is done before it ends, and not dropped.
aclError destroy_stream(const char *function, aclrtStream handle, bool wait) {
  ANYFUSE_TRY(require_context(function));
  const std::shared_ptr<Stream> stream = table<Stream>().take(handle);
  if (stream == nullptr) return fail(ACL_ERROR_RT_INVALID_HANDLE, "%s: stream is not a living stream", function);
  const aclError error = wait ? synchronize(function, stream, -1) : ACL_SUCCESS;
  drop_tasks(stream);
  return error;
}

aclError synchronize_device(const char *function, int32_t timeout) {
  ANYFUSE_TRY(require_context(function));
  for (const auto &stream : table<Stream>().all()) ANYFUSE_TRY(synchronize(function, stream, timeout));
  return ACL_SUCCESS;
}

struct DefaultStreams {
  std::mutex mutex;
  std::vector<std::weak_ptr<Stream>> known;
};

// The default stream of a context is made when it is first used; it is found by its context.
std::shared_ptr<Stream> default_stream() {
  auto &[mutex, known] = process_wide<DefaultStreams>();
  const std::lock_guard<std::mutex> lock(mutex);
  const aclrtContext context = current_context();
  std::vector<std::weak_ptr<Stream>> living;
  std::shared_ptr<Stream> found;
  for (const auto &entry : known) {
    const std::shared_ptr<Stream> stream = entry.lock();
    if (stream == nullptr || stream->dropped) continue;
    living.push_back(entry);
    if (stream->context == context) found = stream;
  }
  if (found == nullptr) {
    found = std::make_shared<Stream>();
    found->context = context;
    table<Stream>().add(found);
    living.push_back(found);
  }
  known.swap(living);
  return found;
}

}  // namespace

aclError find_stream(const char *function, aclrtStream handle, std::shared_ptr<Stream> *stream) {
  ANYFUSE_TRY(require_context(function));
  *stream = handle == nullptr ? default_stream() : table<Stream>().find(handle);
  return *stream != nullptr ? ACL_SUCCESS
                            : fail(ACL_ERROR_RT_INVALID_HANDLE, "%s: stream is not a living stream", function);
}

void drain(const std::shared_ptr<Stream> &stream) {
  std::unique_lock<std::mutex> lock(stream->mutex);
  stream->retry = true;
  if (stream->running) return;  // whoever runs it will look again
  stream->running = true;
  while (!stream->tasks.empty()) {
    const Stream::Task task = stream->tasks.front();
    stream->retry = false;
    lock.unlock();
    const bool done = task();
    lock.lock();
    if (done && !stream->tasks.empty()) stream->tasks.pop_front();
    if (!done && !stream->retry) break;
  }
  stream->running = false;
  lock.unlock();
  stream->idle.notify_all();
}

void submit_task(const std::shared_ptr<Stream> &stream, Stream::Task task) {
  {
    const std::lock_guard<std::mutex> lock(stream->mutex);
    stream->tasks.push_back(std::move(task));
  }
  drain(stream);
}

int32_t submit(const std::shared_ptr<Stream> &stream, std::function<int32_t()> work) {
  struct Result {
    bool returned = false;  // the call that gave the work
    bool ran = false;
    int32_t code = ACL_SUCCESS;
  };
  const auto result = std::make_shared<Result>();
  const std::weak_ptr<Stream> weak = stream;
  submit_task(stream, [result, work = std::move(work), weak] {
    const int32_t code = work();
    const std::shared_ptr<Stream> owner = weak.lock();
    if (owner == nullptr) return true;
    const std::lock_guard<std::mutex> lock(owner->mutex);
    result->ran = true;
    result->code = code;
    if (result->returned && code != ACL_SUCCESS) owner->error = code;
    return true;
  });
  const std::lock_guard<std::mutex> lock(stream->mutex);
  result->returned = true;
  return result->ran ? result->code : ACL_SUCCESS;
}

void drop_tasks(const std::shared_ptr<Stream> &stream) {
  std::unique_lock<std::mutex> lock(stream->mutex);
  while (stream->tasks.size() > 1) stream->tasks.pop_back();
  if (!stream->running) stream->tasks.clear();
  stream->dropped = true;
  stream->idle.wait(lock, [&] { return !stream->running; });
  stream->tasks.clear();
  lock.unlock();
  stream->idle.notify_all();
}

void release_streams(aclrtContext context) {
  for (const auto &stream : table<Stream>().take_if([&](const Stream &s) { return s.context == context; }))
    drop_tasks(stream);
  table<Event>().take_if([&](const Event &e) { return e.context == context; });
}

void release_all_streams() {
  for (const auto &stream : table<Stream>().take_if([](const Stream &) { return true; })) drop_tasks(stream);
  table<Event>().take_if([](const Event &) { return true; });
}

}  // namespace anyfuse::acl

using namespace anyfuse::acl;

extern "C" {

aclError aclrtSynchronizeDevice(void) { return synchronize_device("aclrtSynchronizeDevice", -1); }

aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout) {
  return synchronize_device("aclrtSynchronizeDeviceWithTimeout", timeout);
}

// ---- streams ----

aclError aclrtCreateStream(aclrtStream *stream) { return create_stream("aclrtCreateStream", stream); }

aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t, uint32_t) {
  return create_stream("aclrtCreateStreamWithConfig", stream);
}

aclError aclrtDestroyStream(aclrtStream stream) { return destroy_stream("aclrtDestroyStream", stream, true); }

aclError aclrtDestroyStreamForce(aclrtStream stream) {
  return destroy_stream("aclrtDestroyStreamForce", stream, false);
}

aclError aclrtSynchronizeStream(aclrtStream stream) {
  std::shared_ptr<Stream> found;
  ANYFUSE_TRY(find_stream("aclrtSynchronizeStream", stream, &found));
  return synchronize("aclrtSynchronizeStream", found, -1);
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout) {
  std::shared_ptr<Stream> found;
  ANYFUSE_TRY(find_stream("aclrtSynchronizeStreamWithTimeout", stream, &found));
  return synchronize("aclrtSynchronizeStreamWithTimeout", found, timeout);
}

aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus *status) {
  if (status == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "aclrtStreamQuery: status is null");
  std::shared_ptr<Stream> found;
  ANYFUSE_TRY(find_stream("aclrtStreamQuery", stream, &found));
  const std::lock_guard<std::mutex> lock(found->mutex);
  *status = found->tasks.empty() && !found->running ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
  return ACL_SUCCESS;
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  std::shared_ptr<Event> waited_for;
  ANYFUSE_TRY(find_event("aclrtStreamWaitEvent", event, &waited_for));
  std::shared_ptr<Stream> found;
  ANYFUSE_TRY(find_stream("aclrtStreamWaitEvent", stream, &found));
  const std::weak_ptr<Stream> weak = found;
  submit_task(found, [waited_for, weak] {
    const std::lock_guard<std::mutex> lock(waited_for->mutex);
    if (waited_for->recorded) return true;
    const std::shared_ptr<Stream> owner = weak.lock();
    auto &waiting = waited_for->waiting;
    if (std::find(waiting.begin(), waiting.end(), owner) == waiting.end()) waiting.push_back(owner);
    return false;
  });
  return ACL_SUCCESS;
}

// ---- events ----

aclError aclrtCreateEvent(aclrtEvent *event) { return create_event("aclrtCreateEvent", event); }

aclError aclrtCreateEventWithFlag(aclrtEvent *event, uint32_t) {
  return create_event("aclrtCreateEventWithFlag", event);
}

aclError aclrtCreateEventExWithFlag(aclrtEvent *event, uint32_t) {
  return create_event("aclrtCreateEventExWithFlag", event);
}

aclError aclrtDestroyEvent(aclrtEvent event) {
  ANYFUSE_TRY(require_context("aclrtDestroyEvent"));
  return table<Event>().take(event) != nullptr
             ? ACL_SUCCESS
             : fail(ACL_ERROR_RT_INVALID_HANDLE, "aclrtDestroyEvent: event is not a living event");
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
  std::shared_ptr<Event> found;
  ANYFUSE_TRY(find_event("aclrtRecordEvent", event, &found));
  std::shared_ptr<Stream> where;
  ANYFUSE_TRY(find_stream("aclrtRecordEvent", stream, &where));
  submit_task(where, [found] {
    record(found);
    return true;
  });
  return ACL_SUCCESS;
}

aclError aclrtResetEvent(aclrtEvent event, aclrtStream stream) {
  std::shared_ptr<Event> found;
  ANYFUSE_TRY(find_event("aclrtResetEvent", event, &found));
  std::shared_ptr<Stream> where;
  ANYFUSE_TRY(find_stream("aclrtResetEvent", stream, &where));
  submit_task(where, [found] {
    const std::lock_guard<std::mutex> lock(found->mutex);
    found->recorded = false;
    return true;
  });
  return ACL_SUCCESS;
}

aclError aclrtQueryEvent(aclrtEvent event, aclrtEventStatus *status) {
  if (status == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "aclrtQueryEvent: status is null");
  std::shared_ptr<Event> found;
  ANYFUSE_TRY(find_event("aclrtQueryEvent", event, &found));
  const std::lock_guard<std::mutex> lock(found->mutex);
  *status = found->recorded ? ACL_EVENT_STATUS_COMPLETE : ACL_EVENT_STATUS_NOT_READY;
  return ACL_SUCCESS;
}

aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus *status) {
  if (status == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "aclrtQueryEventStatus: status is null");
  std::shared_ptr<Event> found;
  ANYFUSE_TRY(find_event("aclrtQueryEventStatus", event, &found));
  const std::lock_guard<std::mutex> lock(found->mutex);
  *status = found->recorded ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  return ACL_SUCCESS;
}

aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus *status) {
  if (status == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "aclrtQueryEventWaitStatus: status is null");
  std::shared_ptr<Event> found;
  ANYFUSE_TRY(find_event("aclrtQueryEventWaitStatus", event, &found));
  const std::lock_guard<std::mutex> lock(found->mutex);
  *status = found->waiting.empty() ? ACL_EVENT_WAIT_STATUS_COMPLETE : ACL_EVENT_WAIT_STATUS_NOT_READY;
  return ACL_SUCCESS;
}

aclError aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t timeout) {
  std::shared_ptr<Event> found;
  ANYFUSE_TRY(find_event("aclrtSynchronizeEvent", event, &found));
  std::unique_lock<std::mutex> lock(found->mutex);
  if (!wait(found->changed, lock, timeout, [&] { return found->recorded; }))
    return fail(ACL_ERROR_RT_EVENT_SYNC_TIMEOUT, "aclrtSynchronizeEvent: not recorded after %d ms", timeout);
  return ACL_SUCCESS;
}

aclError aclrtSynchronizeEvent(aclrtEvent event) { return aclrtSynchronizeEventWithTimeout(event, -1); }

aclError aclrtEventElapsedTime(float *ms, aclrtEvent startEvent, aclrtEvent endEvent) {
  if (ms == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "aclrtEventElapsedTime: ms is null");
  Clock::time_point times[2];
  for (int i = 0; i < 2; ++i) {
    std::shared_ptr<Event> found;
    ANYFUSE_TRY(find_event("aclrtEventElapsedTime", i == 0 ? startEvent : endEvent, &found));
    const std::lock_guard<std::mutex> lock(found->mutex);
    if (!found->recorded)
      return fail(ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, "aclrtEventElapsedTime: %s has not been recorded",
                  i == 0 ? "startEvent" : "endEvent");
    times[i] = found->time;
  }
  if (times[1] < times[0])
    return fail(ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL,
                "aclrtEventElapsedTime: endEvent was recorded before startEvent");
  *ms = std::chrono::duration<float, std::milli>(times[1] - times[0]).count();
  return ACL_SUCCESS;
}

}  // extern "C"
