// Beginning and end, settings, the device and contexts.
#include "runtime.h"

#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "aclnn/aclnn_base.h"
#include "errors.h"

namespace anyfuse::acl {
namespace {

struct State {
  std::mutex mutex;
  bool initialized = false;
  bool finalized = false;
  Settings settings;
  int64_t device_users = 0;  // aclrtSetDevice calls without their reset
  aclrtContext default_context = nullptr;
};

State &state() { return process_wide<State>(); }

thread_local aclrtContext thread_context = nullptr;

int32_t usable_processors() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
  const long count = sysconf(_SC_NPROCESSORS_ONLN);
  return count > 0 ? static_cast<int32_t>(count) : 1;
}

const char *variable(const char *name) {
  const char *value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

aclError read_soc(Settings *out) {
  const char *value = variable("ANYFUSE_SOC");
  if (value == nullptr) return ACL_SUCCESS;
  const char *product = product_of(value);
  if (product == nullptr)
    return fail(ACL_ERROR_INVALID_PARAM, "aclInit: ANYFUSE_SOC is %s; accepted: %s", value, product_names());
  out->product = product;
  return ACL_SUCCESS;
}

aclError read_convention(Settings *out) {
  const char *value = variable("ANYFUSE_CONVENTION");
  if (value == nullptr) return ACL_SUCCESS;
  const bool device = std::strcmp(value, "device") == 0;
  if (!device && std::strcmp(value, "formula") != 0)
    return fail(ACL_ERROR_INVALID_PARAM, "aclInit: ANYFUSE_CONVENTION is %s; accepted: formula, device", value);
  out->convention = out->lazy_adam_convention = device ? ANYFUSE_DEVICE : ANYFUSE_FORMULA;
  return ACL_SUCCESS;
}

aclError read_strict(Settings *out) {
  const char *value = variable("ANYFUSE_ACL_STRICT");
  if (value == nullptr) return ACL_SUCCESS;
  if (std::strcmp(value, "0") != 0 && std::strcmp(value, "1") != 0)
    return fail(ACL_ERROR_INVALID_PARAM, "aclInit: ANYFUSE_ACL_STRICT is %s; accepted: 0, 1", value);
  out->strict = *value == '1';
  return ACL_SUCCESS;
}

aclError read_threads(Settings *out) {
  out->threads = usable_processors();
  const char *value = variable("ANYFUSE_NUM_THREADS");
  if (value == nullptr) return ACL_SUCCESS;
  char *end = nullptr;
  errno = 0;
  const long threads = std::strtol(value, &end, 10);
  if (*end != '\0' || errno != 0 || threads < 1 || threads > 4096)
    return fail(ACL_ERROR_INVALID_PARAM, "aclInit: ANYFUSE_NUM_THREADS is %s; accepted: 1 to 4096", value);
  out->threads = static_cast<int32_t>(threads);
  return ACL_SUCCESS;
}

aclError check_device(const char *function, int32_t device) {
  if (device == 0) return ACL_SUCCESS;
  return fail(ACL_ERROR_RT_INVALID_DEVICEID, "%s: deviceId is %d; accepted: 0, the only device", function, device);
}

// Ends everything that belongs to the device. The caller holds the state's mutex.
void release_device(State &s) {
  release_all_streams();
  table<Context>().take_if([](const Context &) { return true; });
  release_memory(false);
  s.device_users = 0;
  s.default_context = nullptr;
}

}  // namespace

Settings settings() {
  State &s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  return s.settings;
}

aclError require_initialized(const char *function) {
  State &s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  if (s.initialized) return ACL_SUCCESS;
  return fail(ACL_ERROR_UNINITIALIZE, "%s: %s", function,
              s.finalized    ? "called after aclFinalize"
              : forks() == 0 ? "called before aclInit"
                             : "called before aclInit; a child of fork begins anew, with its own aclInit and handles");
}

aclrtContext current_context() { return table<Context>().find(thread_context) == nullptr ? nullptr : thread_context; }

aclError require_context(const char *function) {
  ANYFUSE_TRY(require_initialized(function));
  if (current_context() != nullptr) return ACL_SUCCESS;
  return fail(ACL_ERROR_RT_CONTEXT_NULL,
              "%s: this thread has no context; call aclrtSetDevice or aclrtSetCurrentContext in it first", function);
}

}  // namespace anyfuse::acl

using namespace anyfuse::acl;

extern "C" {

aclError aclInit(const char *configPath) {
  if (configPath != nullptr && *configPath != '\0' && access(configPath, R_OK) != 0)
    return fail(ACL_ERROR_INVALID_FILE, "aclInit: configPath %s cannot be read", configPath);
  State &s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  if (s.initialized) return fail(ACL_ERROR_REPEAT_INITIALIZE, "aclInit: called a second time without aclFinalize");
  Settings settings;
  ANYFUSE_TRY(read_soc(&settings));
  ANYFUSE_TRY(read_convention(&settings));
  ANYFUSE_TRY(read_threads(&settings));
  ANYFUSE_TRY(read_strict(&settings));
  s.settings = settings;
  s.initialized = true;
  return ACL_SUCCESS;
}

aclError aclFinalize(void) {
  State &s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  if (!s.initialized)
    return s.finalized ? fail(ACL_ERROR_REPEAT_FINALIZE, "aclFinalize: called a second time")
                       : fail(ACL_ERROR_UNINITIALIZE, "aclFinalize: called before aclInit");
  release_device(s);
  release_memory(true);
  s.initialized = false;
  s.finalized = true;
  return ACL_SUCCESS;
}

aclnnStatus aclnnInit(const char *) { return require_initialized("aclnnInit") ? ACLNN_ERR_RUNTIME_ERROR : OK; }

aclnnStatus aclnnFinalize(void) { return OK; }

aclError aclrtGetVersion(int32_t *majorVersion, int32_t *minorVersion, int32_t *patchVersion) {
  if (majorVersion == nullptr || minorVersion == nullptr || patchVersion == nullptr)
    return fail(ACL_ERROR_INVALID_PARAM, "aclrtGetVersion: an argument is null");
  *majorVersion = ACL_MAJOR_VERSION;
  *minorVersion = ACL_MINOR_VERSION;
  *patchVersion = ACL_PATCH_VERSION;
  return ACL_SUCCESS;
}

const char *aclrtGetSocName(void) { return settings().product; }

aclError aclrtGetRunMode(aclrtRunMode *runMode) {
  if (runMode == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "aclrtGetRunMode: runMode is null");
  ANYFUSE_TRY(require_initialized("aclrtGetRunMode"));
  *runMode = ACL_HOST;
  return ACL_SUCCESS;
}

// ---- the device ----

aclError aclrtSetDevice(int32_t deviceId) {
  ANYFUSE_TRY(require_initialized("aclrtSetDevice"));
  ANYFUSE_TRY(check_device("aclrtSetDevice", deviceId));
  State &s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  if (s.default_context == nullptr) {
    auto context = std::make_shared<Context>();
    context->is_default = true;
    s.default_context = table<Context>().add(context);
  }
  ++s.device_users;
  thread_context = s.default_context;
  return ACL_SUCCESS;
}

aclError aclrtResetDevice(int32_t deviceId) {
  ANYFUSE_TRY(require_initialized("aclrtResetDevice"));
  ANYFUSE_TRY(check_device("aclrtResetDevice", deviceId));
  State &s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  if (s.device_users == 0 || --s.device_users == 0) release_device(s);
  return ACL_SUCCESS;
}

aclError aclrtResetDeviceForce(int32_t deviceId) {
  ANYFUSE_TRY(require_initialized("aclrtResetDeviceForce"));
  ANYFUSE_TRY(check_device("aclrtResetDeviceForce", deviceId));
  State &s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  release_device(s);
  return ACL_SUCCESS;
}

aclError aclrtGetDevice(int32_t *deviceId) {
  if (deviceId == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "aclrtGetDevice: deviceId is null");
  ANYFUSE_TRY(require_context("aclrtGetDevice"));
  *deviceId = 0;
  return ACL_SUCCESS;
}

aclError aclrtGetDeviceCount(uint32_t *count) {
  if (count == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "aclrtGetDeviceCount: count is null");
  *count = 1;
  return ACL_SUCCESS;
}

// ---- contexts ----

aclError aclrtCreateContext(aclrtContext *context, int32_t deviceId) {
  if (context == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "aclrtCreateContext: context is null");
  ANYFUSE_TRY(require_initialized("aclrtCreateContext"));
  ANYFUSE_TRY(check_device("aclrtCreateContext", deviceId));
  *context = table<Context>().add(std::make_shared<Context>());
  thread_context = *context;
  return ACL_SUCCESS;
}

aclError aclrtDestroyContext(aclrtContext context) {
  ANYFUSE_TRY(require_initialized("aclrtDestroyContext"));
  const std::shared_ptr<Context> found = table<Context>().find(context);
  if (found == nullptr) return fail(ACL_ERROR_RT_CONTEXT_NULL, "aclrtDestroyContext: context is not a living context");
  if (found->is_default)
    return fail(ACL_ERROR_RT_PARAM_INVALID,
                "aclrtDestroyContext: context is the default one, which aclrtResetDevice ends");
  table<Context>().take(context);
  release_streams(context);
  return ACL_SUCCESS;
}

aclError aclrtSetCurrentContext(aclrtContext context) {
  ANYFUSE_TRY(require_initialized("aclrtSetCurrentContext"));
  if (table<Context>().find(context) == nullptr)
    return fail(ACL_ERROR_RT_CONTEXT_NULL, "aclrtSetCurrentContext: context is not a living context");
  thread_context = context;
  return ACL_SUCCESS;
}

aclError aclrtGetCurrentContext(aclrtContext *context) {
  if (context == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "aclrtGetCurrentContext: context is null");
  ANYFUSE_TRY(require_context("aclrtGetCurrentContext"));
  *context = current_context();
  return ACL_SUCCESS;
}

}  // extern "C"
