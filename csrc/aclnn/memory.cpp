// Memory: what was given is remembered with its size, so that frees and copies can be checked.
#if defined(__linux__)
#include <sys/mman.h>
#endif
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>

#include "errors.h"
#include "runtime.h"

namespace anyfuse::acl {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kPage = 4096, kHugePage = size_t{2} << 20;

struct Allocation {
  size_t size;  // what a program may use of it
  bool device;
};

struct Memory {
  std::mutex mutex;
  std::map<uintptr_t, Allocation> allocations;
};

Memory &memory() { return process_wide<Memory>(); }

size_t page_of(aclrtMemMallocPolicy policy) {
  switch (policy & 0xFF) {
    case ACL_MEM_MALLOC_NORMAL_ONLY:
    case ACL_MEM_MALLOC_NORMAL_ONLY_P2P:
      return kPage;
    default:
      return kHugePage;
  }
}

// What a request gets: rounded up to 32 bytes, 32 more, and whole pages, as on the device, where programs come to read
// and write past what they asked for. Pages that nobody touches cost nothing. A size that is beyond any memory stays.
size_t capacity_of(size_t size, size_t page) {
  if (size > SIZE_MAX - 2 * kHugePage) return size;
  const size_t least = (size + 31) / 32 * 32 + 32;
  return (least + page - 1) / page * page;
}

aclError allocate(const char *function, void **out, size_t requested, bool device, size_t page) {
  if (out == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "%s: the pointer to fill is null", function);
  ANYFUSE_TRY(require_context(function));
  if (requested == 0) return fail(ACL_ERROR_INVALID_PARAM, "%s: size is 0; accepted: at least 1", function);
  const size_t size = settings().strict || !device ? requested : capacity_of(requested, page);
  const bool huge = requested >= 2 * kHugePage;  // scattered rows of a large table miss the TLB less on huge pages
  void *address = nullptr;
  if (posix_memalign(&address, huge ? kHugePage : kAlignment, size) != 0)
    return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "%s: no memory for %zu bytes", function, requested);
#if defined(__linux__)
  if (huge) madvise(address, size, MADV_HUGEPAGE);
#endif
  Memory &m = memory();
  const std::lock_guard<std::mutex> lock(m.mutex);
  m.allocations[reinterpret_cast<uintptr_t>(address)] = {size, device};
  *out = address;
  return ACL_SUCCESS;
}

aclError release(const char *function, void *address, bool device) {
  if (address == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "%s: the address is null", function);
  ANYFUSE_TRY(require_context(function));
  {
    Memory &m = memory();
    const std::lock_guard<std::mutex> lock(m.mutex);
    const auto found = m.allocations.find(reinterpret_cast<uintptr_t>(address));
    if (found == m.allocations.end() || found->second.device != device)
      return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: %p is not memory that %s gave, or has been freed", function, address,
                  device ? "aclrtMalloc" : "aclrtMallocHost");
    m.allocations.erase(found);
  }
  std::free(address);
  return ACL_SUCCESS;
}

// One side of a copy or fill of `bytes`: what `kind` says of it, and that it stays inside its allocation.
enum class Side { host, device, either };

aclError check_side(const char *function, const char *name, const void *address, size_t bytes, Side side) {
  if (address == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "%s: %s is null", function, name);
  const Extent extent = extent_of(address);
  if (side == Side::device && !extent.device)
    return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: %s is not device memory, as kind says", function, name);
  if (side == Side::host && extent.device)
    return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: %s is device memory, and kind says host", function, name);
  if (extent.known && bytes > extent.left)
    return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: %zu bytes at %s; its allocation has %zu left", function, bytes, name,
                extent.left);
  return ACL_SUCCESS;
}

struct Sides {
  Side dst, src;
};

aclError sides_of(const char *function, aclrtMemcpyKind kind, Sides *sides) {
  switch (kind) {
    case ACL_MEMCPY_HOST_TO_HOST:
      *sides = {Side::host, Side::host};
      return ACL_SUCCESS;
    case ACL_MEMCPY_HOST_TO_DEVICE:
      *sides = {Side::device, Side::host};
      return ACL_SUCCESS;
    case ACL_MEMCPY_DEVICE_TO_HOST:
      *sides = {Side::host, Side::device};
      return ACL_SUCCESS;
    case ACL_MEMCPY_DEVICE_TO_DEVICE:
      *sides = {Side::device, Side::device};
      return ACL_SUCCESS;
    case ACL_MEMCPY_DEFAULT:
      *sides = {Side::either, Side::either};
      return ACL_SUCCESS;
  }
  return fail(ACL_ERROR_INVALID_PARAM, "%s: kind is %d; accepted: 0 to 4", function, static_cast<int>(kind));
}

struct Rectangle {
  void *dst;
  size_t dpitch;
  const void *src;
  size_t spitch, width, height;
};

aclError check_copy(const char *function, const Rectangle &r, aclrtMemcpyKind kind) {
  Sides sides = {};
  ANYFUSE_TRY(sides_of(function, kind, &sides));
  if (r.width > r.dpitch || r.width > r.spitch)
    return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: width is %zu; accepted: at most dpitch %zu and spitch %zu", function,
                r.width, r.dpitch, r.spitch);
  size_t bytes[2] = {0, 0};
  for (int i = 0; i < 2 && r.height > 0; ++i)
    if (__builtin_mul_overflow(r.height - 1, i == 0 ? r.dpitch : r.spitch, &bytes[i]) ||
        __builtin_add_overflow(bytes[i], r.width, &bytes[i]))
      return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: height %zu times the pitch is beyond any memory", function,
                  r.height);
  ANYFUSE_TRY(check_side(function, "dst", r.dst, bytes[0], sides.dst));
  return check_side(function, "src", r.src, bytes[1], sides.src);
}

int32_t copy(const Rectangle &r) {
  for (size_t row = 0; row < r.height; ++row)
    std::memmove(static_cast<char *>(r.dst) + row * r.dpitch, static_cast<const char *>(r.src) + row * r.spitch,
                 r.width);
  return ACL_SUCCESS;
}

// A copy of one piece as a rectangle of one row.
aclError check_line(const char *function, void *dst, size_t limit, const void *src, size_t count, aclrtMemcpyKind kind,
                    Rectangle *out) {
  if (count > limit)
    return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: count is %zu; accepted: at most destMax %zu", function, count, limit);
  *out = {dst, count, src, count, count, 1};
  return check_copy(function, *out, kind);
}

aclError check_fill(const char *function, void *address, size_t limit, size_t count) {
  if (count > limit)
    return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: count is %zu; accepted: at most maxCount %zu", function, count, limit);
  return check_side(function, "devPtr", address, count, Side::either);
}

}  // namespace

Extent extent_of(const void *address) {
  Memory &m = memory();
  const std::lock_guard<std::mutex> lock(m.mutex);
  const uintptr_t at = reinterpret_cast<uintptr_t>(address);
  auto next = m.allocations.upper_bound(at);
  if (next == m.allocations.begin()) return {};
  const auto &[begin, allocation] = *--next;
  if (at - begin >= allocation.size) return {};
  return {true, allocation.device, allocation.size - (at - begin)};
}

void release_memory(bool host_too) {
  Memory &m = memory();
  const std::lock_guard<std::mutex> lock(m.mutex);
  for (auto entry = m.allocations.begin(); entry != m.allocations.end();) {
    if (!host_too && !entry->second.device) {
      ++entry;
      continue;
    }
    std::free(reinterpret_cast<void *>(entry->first));
    entry = m.allocations.erase(entry);
  }
}

}  // namespace anyfuse::acl

using namespace anyfuse::acl;

extern "C" {

aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy) {
  return allocate("aclrtMalloc", devPtr, size, true, page_of(policy));
}

aclError aclrtMallocAlign32(void **devPtr, size_t size, aclrtMemMallocPolicy policy) {
  return allocate("aclrtMallocAlign32", devPtr, size, true, page_of(policy));
}

aclError aclrtMallocCached(void **devPtr, size_t size, aclrtMemMallocPolicy policy) {
  return allocate("aclrtMallocCached", devPtr, size, true, page_of(policy));
}

// The host and the device see one memory: there is nothing to flush.
aclError aclrtMemFlush(void *devPtr, size_t size) {
  ANYFUSE_TRY(require_context("aclrtMemFlush"));
  return check_side("aclrtMemFlush", "devPtr", devPtr, size, Side::device);
}

aclError aclrtMemInvalidate(void *devPtr, size_t size) {
  ANYFUSE_TRY(require_context("aclrtMemInvalidate"));
  return check_side("aclrtMemInvalidate", "devPtr", devPtr, size, Side::device);
}

aclError aclrtFree(void *devPtr) { return release("aclrtFree", devPtr, true); }

aclError aclrtMallocHost(void **hostPtr, size_t size) { return allocate("aclrtMallocHost", hostPtr, size, false, 0); }

aclError aclrtFreeHost(void *hostPtr) { return release("aclrtFreeHost", hostPtr, false); }

aclError aclrtMemset(void *devPtr, size_t maxCount, int32_t value, size_t count) {
  ANYFUSE_TRY(require_context("aclrtMemset"));
  ANYFUSE_TRY(check_fill("aclrtMemset", devPtr, maxCount, count));
  std::memset(devPtr, value, count);
  return ACL_SUCCESS;
}

aclError aclrtMemsetAsync(void *devPtr, size_t maxCount, int32_t value, size_t count, aclrtStream stream) {
  std::shared_ptr<Stream> found;
  ANYFUSE_TRY(find_stream("aclrtMemsetAsync", stream, &found));
  ANYFUSE_TRY(check_fill("aclrtMemsetAsync", devPtr, maxCount, count));
  return submit(found, [=] {
    std::memset(devPtr, value, count);
    return ACL_SUCCESS;
  });
}

aclError aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind) {
  ANYFUSE_TRY(require_context("aclrtMemcpy"));
  Rectangle line = {};
  ANYFUSE_TRY(check_line("aclrtMemcpy", dst, destMax, src, count, kind, &line));
  return copy(line);
}

aclError aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind,
                          aclrtStream stream) {
  std::shared_ptr<Stream> found;
  ANYFUSE_TRY(find_stream("aclrtMemcpyAsync", stream, &found));
  Rectangle line = {};
  ANYFUSE_TRY(check_line("aclrtMemcpyAsync", dst, destMax, src, count, kind, &line));
  return submit(found, [line] { return copy(line); });
}

aclError aclrtMemcpy2d(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                       aclrtMemcpyKind kind) {
  ANYFUSE_TRY(require_context("aclrtMemcpy2d"));
  const Rectangle rectangle = {dst, dpitch, src, spitch, width, height};
  ANYFUSE_TRY(check_copy("aclrtMemcpy2d", rectangle, kind));
  return copy(rectangle);
}

aclError aclrtMemcpy2dAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                            aclrtMemcpyKind kind, aclrtStream stream) {
  std::shared_ptr<Stream> found;
  ANYFUSE_TRY(find_stream("aclrtMemcpy2dAsync", stream, &found));
  const Rectangle rectangle = {dst, dpitch, src, spitch, width, height};
  ANYFUSE_TRY(check_copy("aclrtMemcpy2dAsync", rectangle, kind));
  return submit(found, [rectangle] { return copy(rectangle); });
}

aclError aclrtGetMemInfo(aclrtMemAttr, size_t *free, size_t *total) {
  if (free == nullptr || total == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "aclrtGetMemInfo: an argument is null");
  ANYFUSE_TRY(require_context("aclrtGetMemInfo"));
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  *total = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page;
  *free = static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * page;
  return ACL_SUCCESS;
}

}  // extern "C"
