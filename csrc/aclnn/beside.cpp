// What operator programs include and call beside the operators: dumps and profiling, which do nothing; data sets, which
// are lists; models, channels and collective communication, which are refused in words.
#include <vector>

#include "acl/acl_mdl.h"
#include "acl/acl_prof.h"
#include "acl/acl_tdt.h"
#include "errors.h"
#include "handles.h"
#include "hccl/hccl.h"

namespace anyfuse::acl {
namespace {

struct Dataset {
  static constexpr uint64_t kKind = kDataset;
  std::vector<aclDataBuffer *> buffers;
};

struct ProfilingConfig {
  static constexpr uint64_t kKind = kProfilingConfig;
};

aclError nothing_happens(const char *function) {
  aclAppLog(ACL_WARNING, function, __FILE__, __LINE__, "succeeds and does nothing in this library");
  return ACL_SUCCESS;
}

aclError refuse(const char *function, const char *what) {
  return fail(ACL_ERROR_API_NOT_SUPPORT, "%s: %s not part of this library, which runs operators by their aclnn calls",
              function, what);
}

aclError refuse_models(const char *function) { return refuse(function, "models are"); }

aclError refuse_channels(const char *function) { return refuse(function, "channels are"); }

HcclResult refuse_communication(const char *function) {
  refuse(function, "collective communication is");
  return HCCL_E_NOT_SUPPORT;
}

}  // namespace
}  // namespace anyfuse::acl

using namespace anyfuse::acl;

extern "C" {

// ---- data sets ----

aclmdlDataset *aclmdlCreateDataset(void) {
  return static_cast<aclmdlDataset *>(table<Dataset>().add(std::make_shared<Dataset>()));
}

aclError aclmdlDestroyDataset(const aclmdlDataset *dataset) {
  if (table<Dataset>().take(dataset) != nullptr) return ACL_SUCCESS;
  return fail(ACL_ERROR_INVALID_PARAM, "aclmdlDestroyDataset: dataset is not a living data set");
}

aclError aclmdlAddDatasetBuffer(aclmdlDataset *dataset, aclDataBuffer *dataBuffer) {
  const auto found = table<Dataset>().find(dataset);
  if (found == nullptr || dataBuffer == nullptr)
    return fail(ACL_ERROR_INVALID_PARAM, "aclmdlAddDatasetBuffer: %s",
                found == nullptr ? "dataset is not a living data set" : "dataBuffer is null");
  found->buffers.push_back(dataBuffer);
  return ACL_SUCCESS;
}

size_t aclmdlGetDatasetNumBuffers(const aclmdlDataset *dataset) {
  const auto found = table<Dataset>().find(dataset);
  return found == nullptr ? 0 : found->buffers.size();
}

aclDataBuffer *aclmdlGetDatasetBuffer(const aclmdlDataset *dataset, size_t index) {
  const auto found = table<Dataset>().find(dataset);
  return found == nullptr || index >= found->buffers.size() ? nullptr : found->buffers[index];
}

// ---- models ----

aclError aclmdlLoadFromFile(const char *, uint32_t *) { return refuse_models("aclmdlLoadFromFile"); }
aclError aclmdlLoadFromMem(const void *, size_t, uint32_t *) { return refuse_models("aclmdlLoadFromMem"); }
aclError aclmdlUnload(uint32_t) { return refuse_models("aclmdlUnload"); }
aclError aclmdlExecute(uint32_t, const aclmdlDataset *, aclmdlDataset *) { return refuse_models("aclmdlExecute"); }
aclError aclmdlExecuteAsync(uint32_t, const aclmdlDataset *, aclmdlDataset *, aclrtStream) {
  return refuse_models("aclmdlExecuteAsync");
}
aclmdlDesc *aclmdlCreateDesc(void) {
  refuse_models("aclmdlCreateDesc");
  return nullptr;
}
aclError aclmdlDestroyDesc(aclmdlDesc *) { return refuse_models("aclmdlDestroyDesc"); }
aclError aclmdlGetDesc(aclmdlDesc *, uint32_t) { return refuse_models("aclmdlGetDesc"); }

// ---- dumps ----

aclError aclmdlInitDump(void) { return nothing_happens("aclmdlInitDump"); }
aclError aclmdlSetDump(const char *) { return nothing_happens("aclmdlSetDump"); }
aclError aclmdlFinalizeDump(void) { return nothing_happens("aclmdlFinalizeDump"); }
aclError aclopStartDumpArgs(uint32_t, const char *) { return nothing_happens("aclopStartDumpArgs"); }
aclError aclopStopDumpArgs(uint32_t) { return nothing_happens("aclopStopDumpArgs"); }

// ---- profiling ----

aclError aclprofInit(const char *, size_t) { return nothing_happens("aclprofInit"); }
aclError aclprofFinalize(void) { return nothing_happens("aclprofFinalize"); }
aclError aclprofStart(const aclprofConfig *) { return nothing_happens("aclprofStart"); }
aclError aclprofStop(const aclprofConfig *) { return nothing_happens("aclprofStop"); }

aclprofConfig *aclprofCreateConfig(uint32_t *, uint32_t, aclprofAicoreMetrics, const aclprofAicoreEvents *, uint64_t) {
  return static_cast<aclprofConfig *>(table<ProfilingConfig>().add(std::make_shared<ProfilingConfig>()));
}

aclError aclprofDestroyConfig(const aclprofConfig *profilerConfig) {
  if (table<ProfilingConfig>().take(profilerConfig) != nullptr) return ACL_SUCCESS;
  return fail(ACL_ERROR_INVALID_PARAM, "aclprofDestroyConfig: profilerConfig is not a living one");
}

// ---- channels ----

acltdtChannelHandle *acltdtCreateChannel(uint32_t, const char *) {
  refuse_channels("acltdtCreateChannel");
  return nullptr;
}
acltdtChannelHandle *acltdtCreateChannelWithCapacity(uint32_t, const char *, size_t) {
  refuse_channels("acltdtCreateChannelWithCapacity");
  return nullptr;
}
aclError acltdtStopChannel(acltdtChannelHandle *) { return refuse_channels("acltdtStopChannel"); }
aclError acltdtDestroyChannel(acltdtChannelHandle *) { return refuse_channels("acltdtDestroyChannel"); }
aclError acltdtSendTensor(const acltdtChannelHandle *, const acltdtDataset *, int32_t) {
  return refuse_channels("acltdtSendTensor");
}
aclError acltdtReceiveTensor(const acltdtChannelHandle *, acltdtDataset *, int32_t) {
  return refuse_channels("acltdtReceiveTensor");
}

// ---- collective communication ----

HcclResult HcclGetRootInfo(HcclRootInfo *) { return refuse_communication("HcclGetRootInfo"); }
HcclResult HcclCommInitAll(uint32_t, int32_t *, HcclComm *) { return refuse_communication("HcclCommInitAll"); }
HcclResult HcclCommInitRootInfo(uint32_t, const HcclRootInfo *, uint32_t, HcclComm *) {
  return refuse_communication("HcclCommInitRootInfo");
}
HcclResult HcclCommInitClusterInfo(const char *, uint32_t, HcclComm *) {
  return refuse_communication("HcclCommInitClusterInfo");
}
HcclResult HcclCommDestroy(HcclComm) { return refuse_communication("HcclCommDestroy"); }
HcclResult HcclGetCommName(HcclComm, char *) { return refuse_communication("HcclGetCommName"); }
HcclResult HcclGetRankSize(HcclComm, uint32_t *) { return refuse_communication("HcclGetRankSize"); }
HcclResult HcclGetRankId(HcclComm, uint32_t *) { return refuse_communication("HcclGetRankId"); }
HcclResult HcclAllReduce(void *, void *, uint64_t, HcclDataType, HcclReduceOp, HcclComm, aclrtStream) {
  return refuse_communication("HcclAllReduce");
}
HcclResult HcclBroadcast(void *, uint64_t, HcclDataType, uint32_t, HcclComm, aclrtStream) {
  return refuse_communication("HcclBroadcast");
}
HcclResult HcclAllGather(void *, void *, uint64_t, HcclDataType, HcclComm, aclrtStream) {
  return refuse_communication("HcclAllGather");
}
HcclResult HcclReduceScatter(void *, void *, uint64_t, HcclDataType, HcclReduceOp, HcclComm, aclrtStream) {
  return refuse_communication("HcclReduceScatter");
}
HcclResult HcclSend(void *, uint64_t, HcclDataType, uint32_t, HcclComm, aclrtStream) {
  return refuse_communication("HcclSend");
}
HcclResult HcclRecv(void *, uint64_t, HcclDataType, uint32_t, HcclComm, aclrtStream) {
  return refuse_communication("HcclRecv");
}
HcclResult HcclBarrier(HcclComm, aclrtStream) { return refuse_communication("HcclBarrier"); }

}  // extern "C"
