// Device memory is larger than the request, as on the device: programs come to read and write past what they asked for.
// ANYFUSE_ACL_STRICT=1 ends it where the request ended.
#include <aclnnop/aclnn_add_rms_norm_dynamic_quant.h>

#include "program.h"

namespace {

void begin_with(const char *strict) {
  setenv("ANYFUSE_SOC", "any", 1);
  setenv("ANYFUSE_ACL_STRICT", strict, 1);
  CHECK_OK(aclInit(nullptr));
  CHECK_OK(aclrtSetDevice(0));
}

struct Request {
  size_t size, taken;  // and what may be used of it
  aclrtMemMallocPolicy policy;
};

constexpr size_t kHuge = size_t{2} << 20;

const Request kRequests[] = {{4, 4096, ACL_MEM_MALLOC_NORMAL_ONLY},
                             {4065, 8192, ACL_MEM_MALLOC_NORMAL_ONLY},
                             {4096, 8192, ACL_MEM_MALLOC_NORMAL_ONLY_P2P},
                             {4, kHuge, ACL_MEM_MALLOC_HUGE_FIRST},
                             {kHuge - 32, kHuge, ACL_MEM_MALLOC_HUGE_ONLY},
                             {kHuge - 31, 2 * kHuge, ACL_MEM_MALLOC_HUGE_FIRST_P2P},
                             {5 * kHuge, 6 * kHuge, ACL_MEM_MALLOC_HUGE_FIRST}};

void a_request_may_be_passed_up_to_whole_pages() {
  begin_with("0");
  for (const Request &request : kRequests) {
    void *memory = nullptr;
    CHECK_OK(aclrtMalloc(&memory, request.size, request.policy));
    CHECK_OK(aclrtMemset(memory, request.taken, 1, request.taken));
    CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtMemset(memory, request.taken + 1, 1, request.taken + 1));
    CHECK_OK(aclrtFree(memory));
  }
  void *memory = nullptr;
  CHECK_CODE(ACL_ERROR_RT_MEMORY_ALLOCATION, aclrtMalloc(&memory, SIZE_MAX, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK_CODE(ACL_ERROR_RT_MEMORY_ALLOCATION, aclrtMalloc(&memory, SIZE_MAX / 2, ACL_MEM_MALLOC_NORMAL_ONLY));
  end();
}

void a_request_ends_where_it_ends() {
  begin_with("1");
  for (const Request &request : kRequests) {
    void *memory = nullptr;
    CHECK_OK(aclrtMalloc(&memory, request.size, request.policy));
    CHECK_OK(aclrtMemset(memory, request.size, 1, request.size));
    CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtMemset(memory, request.size + 1, 1, request.size + 1));
    CHECK_OK(aclrtFree(memory));
  }
  end();
}

void host_memory_is_exact() {
  begin_with("0");
  void *memory = nullptr;
  CHECK_OK(aclrtMallocHost(&memory, 4));
  CHECK_CODE(ACL_ERROR_RT_PARAM_INVALID, aclrtMemset(memory, 5, 1, 5));
  CHECK_OK(aclrtFreeHost(memory));
  end();
}

// The norm of two rows with 4 bytes for its two scales.
int norm_with_short_scales() {
  const Box x1({2, 8}, ACL_FLOAT16), x2({2, 8}, ACL_FLOAT16), gamma({8}, ACL_FLOAT16);
  const Box y1({2, 8}, ACL_INT8), y2({1}, ACL_INT8), x({2, 8}, ACL_FLOAT16), scale2({1}, ACL_FLOAT);
  const Box scale1({2}, ACL_FLOAT, ACL_FORMAT_ND, {}, 0, 4);
  uint64_t workspace = 0;
  aclOpExecutor *executor = nullptr;
  CHECK_OK(aclnnAddRmsNormDynamicQuantGetWorkspaceSize(x1.tensor, x2.tensor, gamma.tensor, nullptr, nullptr, 1e-6,
                                                       y1.tensor, y2.tensor, x.tensor, scale1.tensor, scale2.tensor,
                                                       &workspace, &executor));
  return run_phase2(aclnnAddRmsNormDynamicQuant, workspace, executor);
}

void short_memory_runs_unless_strict() {
  begin_with("0");
  CHECK_OK(norm_with_short_scales());
  end();
  begin_with("1");
  CHECK_CODE(161002, norm_with_short_scales());
  CHECK(std::string(aclGetRecentErrMsg()).find("scale1Out reaches 8 bytes") != std::string::npos);
  end();
}

}  // namespace

int main() {
  a_request_may_be_passed_up_to_whole_pages();
  a_request_ends_where_it_ends();
  host_memory_is_exact();
  short_memory_runs_unless_strict();
  return finish("capacity");
}
