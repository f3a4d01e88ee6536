/* Every function of the C face once, from plain C, in the way of a real program. */
#include <acl/acl.h>
#include <acl/acl_mdl.h>
#include <acl/acl_op_compiler.h>
#include <acl/acl_prof.h>
#include <acl/acl_tdt.h>
#include <aclnn/acl_meta.h>
#include <aclnn/aclnn_base.h>
#include <aclnn_lazy_adam.h>
#include <aclnnop/aclnn_add_rms_norm_dynamic_quant.h>
#include <aclnnop/aclnn_add_rms_norm_dynamic_quant_v2.h>
#include <aclnnop/aclnn_apply_adam_w_quant.h>
#include <aclnnop/aclnn_apply_fused_ema_adam.h>
#include <aclnnop/aclnn_quant_grouped_matmul_dequant.h>
#include <aclnnop/aclnn_quant_grouped_matmul_dequant_weight_nz.h>
#include <aclnnop/aclnn_quant_matmul_dequant.h>
#include <aclnnop/aclnn_trans_matmul_weight.h>
#include <hccl/hccl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed = 0;

#define CHECK(condition)                                                                         \
  do {                                                                                           \
    if (!(condition)) {                                                                          \
      ++failed;                                                                                  \
      fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, aclGetRecentErrMsg()); \
    }                                                                                            \
  } while (0)
#define OK_(expression) CHECK((expression) == 0)

typedef aclnnStatus (*Phase2)(void *, uint64_t, aclOpExecutor *, aclrtStream);

static aclrtStream stream;

static void run(Phase2 phase2, uint64_t size, aclOpExecutor *executor) {
  void *workspace = NULL;
  if (size > 0) OK_(aclrtMalloc(&workspace, size, ACL_MEM_MALLOC_HUGE_FIRST));
  OK_(phase2(workspace, size, executor, stream));
  OK_(aclrtSynchronizeStream(stream));
  if (workspace != NULL) OK_(aclrtFree(workspace));
}

/* A tensor and its device memory, filled with `bytes` from `values` (or zeros). */
typedef struct {
  aclTensor *tensor;
  void *data;
  size_t bytes;
} Box;

static Box make(aclDataType dtype, int64_t rows, int64_t columns, const void *values) {
  const int64_t shape[2] = {rows, columns}, strides[2] = {columns, 1};
  const int first = rows == 0; /* one dimension */
  Box box;
  box.bytes = (size_t)((first ? 1 : rows) * columns) * aclDataTypeSize(dtype);
  OK_(aclrtMalloc(&box.data, box.bytes, ACL_MEM_MALLOC_NORMAL_ONLY));
  OK_(aclrtMemset(box.data, box.bytes, 0, box.bytes));
  if (values != NULL) OK_(aclrtMemcpy(box.data, box.bytes, values, box.bytes, ACL_MEMCPY_HOST_TO_DEVICE));
  box.tensor = aclCreateTensor(shape + first, 2 - (uint64_t)first, dtype, strides + first, 0, ACL_FORMAT_ND,
                               shape + first, 2 - (uint64_t)first, box.data);
  CHECK(box.tensor != NULL);
  return box;
}

static void drop(Box box) {
  OK_(aclDestroyTensor(box.tensor));
  OK_(aclrtFree(box.data));
}

static float first_float(Box box) {
  float value = NAN;
  OK_(aclrtMemcpy(&value, sizeof value, box.data, sizeof value, ACL_MEMCPY_DEVICE_TO_HOST));
  return value;
}

static void device_and_context(void) {
  int32_t major = 0, minor = 0, patch = 0, device = -1;
  uint32_t count = 0;
  aclrtRunMode mode = ACL_DEVICE;
  aclrtContext before = NULL, context = NULL;
  size_t available = 0, total = 0;
  OK_(aclrtGetVersion(&major, &minor, &patch));
  CHECK(major == 1);
  OK_(aclrtGetDeviceCount(&count));
  CHECK(count == 1);
  OK_(aclrtGetDevice(&device));
  CHECK(device == 0);
  OK_(aclrtGetRunMode(&mode));
  CHECK(mode == ACL_HOST);
  CHECK(strcmp(aclrtGetSocName(), "any") == 0);
  OK_(aclrtGetMemInfo(ACL_HBM_MEM, &available, &total));
  CHECK(available > 0 && total >= available);
  OK_(aclrtGetCurrentContext(&before));
  OK_(aclrtCreateContext(&context, 0));
  OK_(aclrtSetCurrentContext(before));
  OK_(aclrtDestroyContext(context));
  OK_(aclnnInit(NULL));
  OK_(aclnnFinalize());
  OK_(aclrtSynchronizeDevice());
  OK_(aclrtSynchronizeDeviceWithTimeout(1000));
}

static void memory(void) {
  void *a = NULL, *b = NULL, *c = NULL, *host = NULL;
  char text[32] = "twenty-four characters..";
  OK_(aclrtMallocAlign32(&a, 32, ACL_MEM_MALLOC_HUGE_FIRST));
  OK_(aclrtMallocCached(&b, 32, ACL_MEM_MALLOC_HUGE_FIRST));
  OK_(aclrtMalloc(&c, 8u << 20, ACL_MEM_MALLOC_HUGE_ONLY));
  OK_(aclrtMallocHost(&host, 32));
  OK_(aclrtMemcpyAsync(a, 32, text, 24, ACL_MEMCPY_HOST_TO_DEVICE, stream));
  OK_(aclrtMemFlush(b, 32));
  OK_(aclrtMemInvalidate(b, 32));
  OK_(aclrtMemsetAsync(b, 32, '-', 32, stream));
  OK_(aclrtMemcpy2d(b, 8, a, 6, 4, 4, ACL_MEMCPY_DEVICE_TO_DEVICE));
  OK_(aclrtMemcpy2dAsync(host, 8, b, 8, 8, 4, ACL_MEMCPY_DEVICE_TO_HOST, stream));
  OK_(aclrtSynchronizeStreamWithTimeout(stream, 1000));
  CHECK(memcmp(host, "twen-----fou----char----ters----", 32) == 0);
  OK_(aclrtMemset(c, 8u << 20, 7, 8u << 20));
  OK_(aclrtMemcpy(host, 32, (char *)c + (8u << 20) - 32, 32, ACL_MEMCPY_DEFAULT));
  CHECK(((char *)host)[31] == 7);
  OK_(aclrtFree(a));
  OK_(aclrtFree(b));
  OK_(aclrtFree(c));
  OK_(aclrtFreeHost(host));
}

static void streams_and_events(void) {
  aclrtStream other = NULL, third = NULL;
  aclrtEvent start = NULL, stop = NULL, flagged = NULL;
  aclrtStreamStatus stream_status = ACL_STREAM_STATUS_RESERVED;
  aclrtEventStatus status = ACL_EVENT_STATUS_RESERVED;
  aclrtEventRecordedStatus recorded = ACL_EVENT_RECORDED_STATUS_NOT_READY;
  aclrtEventWaitStatus waited = ACL_EVENT_WAIT_STATUS_RESERVED;
  float milliseconds = -1;
  OK_(aclrtCreateStreamWithConfig(&other, 0, ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC));
  OK_(aclrtCreateStream(&third));
  OK_(aclrtCreateEvent(&start));
  OK_(aclrtCreateEventWithFlag(&stop, ACL_EVENT_TIME_LINE));
  OK_(aclrtCreateEventExWithFlag(&flagged, ACL_EVENT_SYNC));
  OK_(aclrtRecordEvent(start, other));
  OK_(aclrtStreamWaitEvent(stream, start));
  OK_(aclrtRecordEvent(stop, stream));
  OK_(aclrtSynchronizeEvent(stop));
  OK_(aclrtSynchronizeEventWithTimeout(stop, 1000));
  OK_(aclrtEventElapsedTime(&milliseconds, start, stop));
  CHECK(milliseconds >= 0);
  OK_(aclrtQueryEvent(stop, &status));
  CHECK(status == ACL_EVENT_STATUS_COMPLETE);
  OK_(aclrtQueryEventStatus(stop, &recorded));
  CHECK(recorded == ACL_EVENT_RECORDED_STATUS_COMPLETE);
  OK_(aclrtQueryEventWaitStatus(start, &waited));
  CHECK(waited == ACL_EVENT_WAIT_STATUS_COMPLETE);
  OK_(aclrtResetEvent(stop, stream));
  OK_(aclrtQueryEventStatus(stop, &recorded));
  CHECK(recorded == ACL_EVENT_RECORDED_STATUS_NOT_READY);
  OK_(aclrtStreamQuery(other, &stream_status));
  CHECK(stream_status == ACL_STREAM_STATUS_COMPLETE);
  OK_(aclrtDestroyEvent(start));
  OK_(aclrtDestroyEvent(stop));
  OK_(aclrtDestroyEvent(flagged));
  OK_(aclrtDestroyStream(other));
  OK_(aclrtDestroyStreamForce(third));
}

static void descriptions(void) {
  const int64_t dims[2] = {3, 5};
  int64_t size = 0;
  char bytes[8];
  aclTensorDesc *desc = aclCreateTensorDesc(ACL_FLOAT16, 2, dims, ACL_FORMAT_ND);
  aclDataBuffer *buffer = aclCreateDataBuffer(bytes, 4);
  CHECK(desc != NULL && aclGetTensorDescType(desc) == ACL_FLOAT16 && aclGetTensorDescFormat(desc) == ACL_FORMAT_ND);
  CHECK(aclGetTensorDescSize(desc) == 30 && aclGetTensorDescElementCount(desc) == 15);
  CHECK(aclGetTensorDescNumDims(desc) == 2 && aclGetTensorDescDim(desc, 1) == 5);
  OK_(aclGetTensorDescDimV2(desc, 0, &size));
  CHECK(size == 3);
  aclSetTensorDescName(desc, "weights");
  CHECK(strcmp(aclGetTensorDescName(desc), "weights") == 0);
  aclDestroyTensorDesc(desc);
  OK_(aclUpdateDataBuffer(buffer, bytes, 8));
  CHECK(aclGetDataBufferAddr(buffer) == bytes && aclGetDataBufferSize(buffer) == 8 &&
        aclGetDataBufferSizeV2(buffer) == 8);
  OK_(aclDestroyDataBuffer(buffer));
  CHECK(aclDataTypeSize(ACL_INT64) == 8 && aclDataTypeSize(ACL_BF16) == 2);
  CHECK(aclFloat16ToFloat(aclFloatToFloat16(0.333251953125f)) == 0.333251953125f);
  ACL_APP_LOG(ACL_INFO, "%s: %d checks failed so far", "all_entries", failed);
}

static void tensors(void) {
  const int64_t shape[2] = {2, 3}, strides[2] = {10, 2}, storage[1] = {40}, ints[3] = {1, 2, 3};
  const float floats[2] = {.5f, 1.5f};
  const bool flags[1] = {true};
  float number = 2.5f;
  char bytes[160];
  int64_t *dims = NULL, offset = 0;
  uint64_t count = 0;
  aclFormat format = ACL_FORMAT_UNDEFINED;
  aclDataType dtype = ACL_DT_UNDEFINED;
  void *address = NULL;
  aclTensor *tensor = aclCreateTensor(shape, 2, ACL_FLOAT, strides, 7, ACL_FORMAT_ND, storage, 1, bytes), *pair[2];
  aclScalar *scalar = aclCreateScalar(&number, ACL_FLOAT), *single[1];
  aclIntArray *int_array = aclCreateIntArray(ints, 3);
  aclFloatArray *float_array = aclCreateFloatArray(floats, 2);
  aclBoolArray *bool_array = aclCreateBoolArray(flags, 1);
  aclTensorList *tensor_list;
  aclScalarList *scalar_list;
  OK_(aclGetViewShape(tensor, &dims, &count));
  CHECK(count == 2 && dims[0] == 2 && dims[1] == 3);
  free(dims);
  OK_(aclGetViewStrides(tensor, &dims, &count));
  CHECK(count == 2 && dims[0] == 10 && dims[1] == 2);
  free(dims);
  OK_(aclGetStorageShape(tensor, &dims, &count));
  CHECK(count == 1 && dims[0] == 40);
  free(dims);
  OK_(aclGetViewOffset(tensor, &offset));
  OK_(aclGetFormat(tensor, &format));
  OK_(aclGetDataType(tensor, &dtype));
  CHECK(offset == 7 && format == ACL_FORMAT_ND && dtype == ACL_FLOAT);
  OK_(aclSetRawTensorAddr(tensor, bytes + 4));
  OK_(aclGetRawTensorAddr(tensor, &address));
  CHECK(address == bytes + 4);
  OK_(aclInitTensor(tensor, ints, 1, ACL_INT8, NULL, 0, ACL_FORMAT_NCHW, NULL, 0, bytes));
  OK_(aclGetDataType(tensor, &dtype));
  CHECK(dtype == ACL_INT8);
  OK_(aclGetIntArraySize(int_array, &count));
  CHECK(count == 3);
  OK_(aclGetFloatArraySize(float_array, &count));
  CHECK(count == 2);
  OK_(aclGetBoolArraySize(bool_array, &count));
  CHECK(count == 1);
  pair[0] = tensor;
  pair[1] = aclCreateTensor(NULL, 0, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, NULL, 0, bytes);
  tensor_list = aclCreateTensorList((const aclTensor *const *)pair, 2);
  single[0] = scalar;
  scalar_list = aclCreateScalarList((const aclScalar *const *)single, 1);
  OK_(aclGetTensorListSize(tensor_list, &count));
  CHECK(count == 2);
  OK_(aclGetScalarListSize(scalar_list, &count));
  CHECK(count == 1);
  OK_(aclDestroyTensorList(tensor_list)); /* with its members */
  OK_(aclDestroyScalarList(scalar_list));
  scalar = aclCreateScalar(&number, ACL_FLOAT);
  OK_(aclDestroyScalar(scalar));
  OK_(aclDestroyIntArray(int_array));
  OK_(aclDestroyFloatArray(float_array));
  OK_(aclDestroyBoolArray(bool_array));
}

static void ema(void) {
  const float ones[4] = {1, 1, 1, 1};
  const int64_t one = 1;
  Box grad = make(ACL_FLOAT, 0, 4, ones), var = make(ACL_FLOAT, 0, 4, ones), m = make(ACL_FLOAT, 0, 4, NULL);
  Box v = make(ACL_FLOAT, 0, 4, NULL), s = make(ACL_FLOAT, 0, 4, ones), step = make(ACL_INT64, 0, 1, &one);
  Box other = make(ACL_FLOAT, 0, 4, ones);
  uint64_t size = 1;
  aclOpExecutor *executor = NULL;
  OK_(aclnnApplyFusedEmaAdamGetWorkspaceSize(grad.tensor, var.tensor, m.tensor, v.tensor, s.tensor, step.tensor, .1, .9,
                                             .9, .999, 0, 1, true, 0, &size, &executor));
  CHECK(size == 0);
  OK_(aclSetAclOpExecutorRepeatable(executor));
  run(aclnnApplyFusedEmaAdam, size, executor);
  CHECK(fabsf(first_float(var) - .9f) < 1e-5f);
  /* again, over other memory for var and, under each of the setters' names, the old one for the rest */
  OK_(aclSetInputTensorAddr(executor, 0, grad.tensor, grad.data));
  OK_(AclSetInputTensorAddr(executor, 5, step.tensor, step.data));
  OK_(aclSetOutputTensorAddr(executor, 0, var.tensor, other.data));
  OK_(AclSetOutputTensorAddr(executor, 1, m.tensor, m.data));
  OK_(aclSetTensorAddr(executor, 3, v.tensor, v.data));
  OK_(AclSetTensorAddr(executor, 4, s.tensor, s.data));
  run(aclnnApplyFusedEmaAdam, size, executor);
  CHECK(first_float(other) < .95f);
  OK_(aclDestroyAclOpExecutor(executor));
  drop(grad), drop(var), drop(m), drop(v), drop(s), drop(step), drop(other);
}

static void adam_w_quant(void) {
  float map[256];
  const float gradient[4] = {.1f, -.2f, .3f, 0};
  const int64_t one = 1;
  uint64_t size = 1;
  aclOpExecutor *executor = NULL;
  Box grad, var, m, v, map_m, map_v, absmax_m, absmax_v, step;
  int i;
  for (i = 0; i < 256; ++i) map[i] = (float)(i / 255.0);
  map_v = make(ACL_FLOAT, 0, 256, map);
  for (i = 0; i < 256; ++i) map[i] = (float)(i / 127.5 - 1);
  map_m = make(ACL_FLOAT, 0, 256, map);
  grad = make(ACL_FLOAT, 0, 4, gradient);
  var = make(ACL_FLOAT, 0, 4, gradient);
  m = make(ACL_UINT8, 0, 4, NULL);
  v = make(ACL_UINT8, 0, 4, NULL);
  absmax_m = make(ACL_FLOAT, 0, 1, NULL);
  absmax_v = make(ACL_FLOAT, 0, 1, NULL);
  step = make(ACL_INT64, 0, 1, &one);
  OK_(aclnnApplyAdamWQuantGetWorkspaceSize(var.tensor, grad.tensor, m.tensor, v.tensor, map_m.tensor, map_v.tensor,
                                           absmax_m.tensor, absmax_v.tensor, step.tensor, .01, .9, .999, .1, 1e-8, 1,
                                           NULL, 256, &size, &executor));
  run(aclnnApplyAdamWQuant, size, executor);
  CHECK(fabsf(first_float(absmax_m) - .03f) < 1e-6f);
  drop(grad), drop(var), drop(m), drop(v), drop(map_m), drop(map_v), drop(absmax_m), drop(absmax_v), drop(step);
}

static void lazy_adam(void) {
  float halves[8], ones[24];
  const int32_t row = 1;
  const float rate = 1e-3f;
  uint64_t size = 1;
  aclOpExecutor *executor = NULL;
  Box gradient, indices, m, v, var, lr;
  float result[24];
  int i;
  for (i = 0; i < 8; ++i) halves[i] = .5f;
  for (i = 0; i < 24; ++i) ones[i] = 1;
  gradient = make(ACL_FLOAT, 1, 8, halves);
  indices = make(ACL_INT32, 1, 1, &row);
  m = make(ACL_FLOAT, 3, 8, NULL);
  v = make(ACL_FLOAT, 3, 8, NULL);
  var = make(ACL_FLOAT, 3, 8, ones);
  lr = make(ACL_FLOAT, 0, 1, &rate);
  OK_(aclnnLazyAdamGetWorkspaceSize(gradient.tensor, indices.tensor, m.tensor, v.tensor, var.tensor, lr.tensor, .9,
                                    .999, 1e-8, &size, &executor));
  run(aclnnLazyAdam, size, executor);
  OK_(aclrtMemcpy(result, sizeof result, var.data, var.bytes, ACL_MEMCPY_DEVICE_TO_HOST));
  CHECK(result[7] == 1 && fabsf(result[8] - .996837676f) < 1e-6f && result[16] == 1);
  drop(gradient), drop(indices), drop(m), drop(v), drop(var), drop(lr);
}

static void norm(int version) {
  aclFloat16 numbers[16], one[8];
  int8_t codes[16];
  const bool both[2] = {true, true};
  uint64_t size = 1;
  aclOpExecutor *executor = NULL;
  Box x1, x2, gamma, y1, y2, x, scale1, scale2;
  int i;
  for (i = 0; i < 16; ++i) numbers[i] = aclFloatToFloat16((float)(i % 8));
  for (i = 0; i < 8; ++i) one[i] = aclFloatToFloat16(1);
  x1 = make(ACL_FLOAT16, 2, 8, numbers);
  x2 = make(ACL_FLOAT16, 2, 8, NULL);
  gamma = make(ACL_FLOAT16, 0, 8, one);
  y1 = make(ACL_INT8, 2, 8, NULL);
  y2 = make(ACL_INT8, 2, 8, NULL);
  x = make(ACL_FLOAT16, 2, 8, NULL);
  scale1 = make(ACL_FLOAT, 0, 2, NULL);
  scale2 = make(ACL_FLOAT, 0, 2, NULL);
  if (version == 1) {
    OK_(aclnnAddRmsNormDynamicQuantGetWorkspaceSize(x1.tensor, x2.tensor, gamma.tensor, gamma.tensor, gamma.tensor,
                                                    1e-6, y1.tensor, y2.tensor, x.tensor, scale1.tensor, scale2.tensor,
                                                    &size, &executor));
    run(aclnnAddRmsNormDynamicQuant, size, executor);
  } else {
    aclBoolArray *mask = aclCreateBoolArray(both, 2);
    OK_(aclnnAddRmsNormDynamicQuantV2GetWorkspaceSize(x1.tensor, x2.tensor, gamma.tensor, NULL, NULL, NULL, 1e-6, mask,
                                                      y1.tensor, y2.tensor, x.tensor, scale1.tensor, scale2.tensor,
                                                      &size, &executor));
    run(aclnnAddRmsNormDynamicQuantV2, size, executor);
    OK_(aclDestroyBoolArray(mask));
  }
  OK_(aclrtMemcpy(codes, sizeof codes, y2.data, y2.bytes, ACL_MEMCPY_DEVICE_TO_HOST));
  CHECK(codes[0] == 0 && codes[7] == 127 && codes[15] == 127 && codes[1] == 18);
  drop(x1), drop(x2), drop(gamma), drop(y1), drop(y2), drop(x), drop(scale1), drop(scale2);
}

static void matmul(void) {
  const int64_t shape[2] = {16, 32};
  aclFloat16 x_values[2 * 32], results[2 * 16];
  int8_t weights[16 * 32];
  float scales[16];
  char mode[] = "pertoken";
  uint64_t elements = 0, size = 1;
  aclOpExecutor *executor = NULL;
  aclIntArray *dims = aclCreateIntArray(shape, 2);
  Box x, weight, scale, out;
  int i;
  for (i = 0; i < 64; ++i) x_values[i] = aclFloatToFloat16(1);
  for (i = 0; i < 512; ++i) weights[i] = (int8_t)(i / 32);
  for (i = 0; i < 16; ++i) scales[i] = 1;
  OK_(aclnnCalculateMatmulWeightSize(dims, &elements));
  CHECK(elements == 512);
  OK_(aclnnCalculateMatmulWeightSizeV2(dims, ACL_INT8, &elements));
  CHECK(elements == 512);
  OK_(aclDestroyIntArray(dims));
  x = make(ACL_FLOAT16, 2, 32, x_values);
  weight = make(ACL_INT8, 16, 32, weights);
  scale = make(ACL_FLOAT, 0, 16, scales);
  out = make(ACL_FLOAT16, 2, 16, NULL);
  OK_(aclnnTransMatmulWeightGetWorkspaceSize(weight.tensor, &size, &executor));
  CHECK(size > 0);
  run(aclnnTransMatmulWeight, size, executor);
  OK_(aclnnQuantMatmulDequantGetWorkspaceSize(x.tensor, weight.tensor, scale.tensor, NULL, NULL, NULL, NULL, mode, true,
                                              out.tensor, &size, &executor));
  run(aclnnQuantMatmulDequant, size, executor);
  OK_(aclrtMemcpy(results, sizeof results, out.data, out.bytes, ACL_MEMCPY_DEVICE_TO_HOST));
  for (i = 0; i < 32; ++i) CHECK(aclFloat16ToFloat(results[i]) == (float)(32 * (i % 16)));
  drop(x), drop(weight), drop(scale), drop(out);
}

/* Two groups of one row, and a row of padding; weights in ND, then the same in blocks. */
static void grouped_matmul(int blocks) {
  enum { GROUPS = 2, M = 3, N = 16, K = 32 };
  const int64_t nd[3] = {GROUPS, N, K}, nz[5] = {GROUPS, 1, 1, N, K}, ends[GROUPS] = {1, 2};
  aclFloat16 x_values[M * K], results[M * N];
  int8_t weights[GROUPS * N * K];
  float scales[GROUPS * N];
  char mode[] = "pertoken";
  uint64_t size = 1;
  aclOpExecutor *executor = NULL;
  aclTensor *weight;
  Box x, memory, scale, list, out;
  int i;
  for (i = 0; i < M * K; ++i) x_values[i] = aclFloatToFloat16(1);
  for (i = 0; i < GROUPS * N * K; ++i) weights[i] = (int8_t)(i / K); /* one block holds rows as they lie */
  for (i = 0; i < GROUPS * N; ++i) scales[i] = 1;
  x = make(ACL_FLOAT16, M, K, x_values);
  memory = make(ACL_INT8, GROUPS * N, K, weights);
  scale = make(ACL_FLOAT, GROUPS, N, scales);
  list = make(ACL_INT64, 0, GROUPS, ends);
  out = make(ACL_FLOAT16, M, N, NULL);
  weight = blocks ? aclCreateTensor(nz, 5, ACL_INT8, NULL, 0, ACL_FORMAT_ND, nz, 5, memory.data)
                  : aclCreateTensor(nd, 3, ACL_INT8, NULL, 0, ACL_FORMAT_ND, nd, 3, memory.data);
  if (blocks)
    OK_(aclnnQuantGroupedMatmulDequantWeightNZGetWorkspaceSize(x.tensor, weight, scale.tensor, list.tensor, NULL, NULL,
                                                               NULL, NULL, mode, true, out.tensor, &size, &executor));
  else
    OK_(aclnnQuantGroupedMatmulDequantGetWorkspaceSize(x.tensor, weight, scale.tensor, list.tensor, NULL, NULL, NULL,
                                                       NULL, mode, true, out.tensor, &size, &executor));
  run(blocks ? aclnnQuantGroupedMatmulDequantWeightNZ : aclnnQuantGroupedMatmulDequant, size, executor);
  OK_(aclrtMemcpy(results, sizeof results, out.data, out.bytes, ACL_MEMCPY_DEVICE_TO_HOST));
  for (i = 0; i < GROUPS * N; ++i) CHECK(aclFloat16ToFloat(results[i]) == (float)(K * i));
  for (; i < M * N; ++i) CHECK(results[i] == 0);
  OK_(aclDestroyTensor(weight));
  drop(x), drop(memory), drop(scale), drop(list), drop(out);
}

/* Refused by name: the message begins with the function's. */
#define REFUSED(code, function, ...)                             \
  do {                                                           \
    CHECK(function(__VA_ARGS__) == (code));                      \
    CHECK(strstr(aclGetRecentErrMsg(), #function ": ") != NULL); \
  } while (0)

static void beside(void) {
  float number = 0;
  uint32_t id = 0, rank = 0;
  int32_t device = 0;
  char name[128];
  HcclRootInfo root;
  HcclComm comm = NULL;
  aclDataBuffer *buffer = aclCreateDataBuffer(&number, sizeof number);
  aclmdlDataset *dataset = aclmdlCreateDataset();
  aclprofConfig *config =
      aclprofCreateConfig(&id, 1, ACL_AICORE_PIPE_UTILIZATION, NULL, ACL_PROF_ACL_API | ACL_PROF_TASK_TIME);

  CHECK(aclmdlGetDatasetNumBuffers(dataset) == 0);
  OK_(aclmdlAddDatasetBuffer(dataset, buffer));
  CHECK(aclmdlGetDatasetNumBuffers(dataset) == 1 && aclmdlGetDatasetBuffer(dataset, 0) == buffer);
  CHECK(aclmdlGetDatasetBuffer(dataset, 1) == NULL);
  CHECK(aclmdlAddDatasetBuffer(dataset, NULL) == ACL_ERROR_INVALID_PARAM);
  OK_(aclmdlDestroyDataset(dataset));
  CHECK(aclmdlDestroyDataset(dataset) == ACL_ERROR_INVALID_PARAM);
  OK_(aclDestroyDataBuffer(buffer));

  OK_(aclprofInit("", 0));
  OK_(aclprofStart(config));
  OK_(aclprofStop(config));
  OK_(aclprofDestroyConfig(config));
  CHECK(aclprofDestroyConfig(config) == ACL_ERROR_INVALID_PARAM);
  OK_(aclprofFinalize());
  OK_(aclmdlInitDump());
  OK_(aclmdlSetDump("acl.json"));
  OK_(aclmdlFinalizeDump());
  OK_(aclopStartDumpArgs(1, "."));
  OK_(aclopStopDumpArgs(1));

  REFUSED(ACL_ERROR_API_NOT_SUPPORT, aclmdlLoadFromFile, "model.om", &id);
  REFUSED(ACL_ERROR_API_NOT_SUPPORT, aclmdlLoadFromMem, &number, sizeof number, &id);
  REFUSED(ACL_ERROR_API_NOT_SUPPORT, aclmdlUnload, 0);
  REFUSED(ACL_ERROR_API_NOT_SUPPORT, aclmdlExecute, 0, NULL, NULL);
  REFUSED(ACL_ERROR_API_NOT_SUPPORT, aclmdlExecuteAsync, 0, NULL, NULL, stream);
  REFUSED(NULL, aclmdlCreateDesc, );
  REFUSED(ACL_ERROR_API_NOT_SUPPORT, aclmdlDestroyDesc, NULL);
  REFUSED(ACL_ERROR_API_NOT_SUPPORT, aclmdlGetDesc, NULL, 0);
  REFUSED(NULL, acltdtCreateChannel, 0, "channel");
  REFUSED(NULL, acltdtCreateChannelWithCapacity, 0, "channel", 1);
  REFUSED(ACL_ERROR_API_NOT_SUPPORT, acltdtStopChannel, NULL);
  REFUSED(ACL_ERROR_API_NOT_SUPPORT, acltdtDestroyChannel, NULL);
  REFUSED(ACL_ERROR_API_NOT_SUPPORT, acltdtSendTensor, NULL, NULL, 0);
  REFUSED(ACL_ERROR_API_NOT_SUPPORT, acltdtReceiveTensor, NULL, NULL, 0);
  REFUSED(HCCL_E_NOT_SUPPORT, HcclGetRootInfo, &root);
  REFUSED(HCCL_E_NOT_SUPPORT, HcclCommInitAll, 1, &device, &comm);
  REFUSED(HCCL_E_NOT_SUPPORT, HcclCommInitRootInfo, 1, &root, 0, &comm);
  REFUSED(HCCL_E_NOT_SUPPORT, HcclCommInitClusterInfo, "ranks.json", 0, &comm);
  REFUSED(HCCL_E_NOT_SUPPORT, HcclCommDestroy, comm);
  REFUSED(HCCL_E_NOT_SUPPORT, HcclGetCommName, comm, name);
  REFUSED(HCCL_E_NOT_SUPPORT, HcclGetRankSize, comm, &rank);
  REFUSED(HCCL_E_NOT_SUPPORT, HcclGetRankId, comm, &rank);
  REFUSED(HCCL_E_NOT_SUPPORT, HcclAllReduce, &number, &number, 1, HCCL_DATA_TYPE_FP32, HCCL_REDUCE_SUM, comm, stream);
  REFUSED(HCCL_E_NOT_SUPPORT, HcclBroadcast, &number, 1, HCCL_DATA_TYPE_FP32, 0, comm, stream);
  REFUSED(HCCL_E_NOT_SUPPORT, HcclAllGather, &number, &number, 1, HCCL_DATA_TYPE_FP32, comm, stream);
  REFUSED(HCCL_E_NOT_SUPPORT, HcclReduceScatter, &number, &number, 1, HCCL_DATA_TYPE_FP32, HCCL_REDUCE_SUM, comm,
          stream);
  REFUSED(HCCL_E_NOT_SUPPORT, HcclSend, &number, 1, HCCL_DATA_TYPE_FP32, 0, comm, stream);
  REFUSED(HCCL_E_NOT_SUPPORT, HcclRecv, &number, 1, HCCL_DATA_TYPE_FP32, 0, comm, stream);
  REFUSED(HCCL_E_NOT_SUPPORT, HcclBarrier, comm, stream);
}

/* Arguments that are lists, which no operator here has. */
static void addresses_of_lists(void) {
  const Box x = make(ACL_FLOAT, 0, 4, NULL), step = make(ACL_INT64, 0, 1, NULL);
  const aclTensor *members[1] = {x.tensor};
  aclTensorList *list = aclCreateTensorList(members, 1);
  uint64_t size = 0;
  aclOpExecutor *executor = NULL;
  const Box v[4] = {make(ACL_FLOAT, 0, 4, NULL), make(ACL_FLOAT, 0, 4, NULL), make(ACL_FLOAT, 0, 4, NULL),
                    make(ACL_FLOAT, 0, 4, NULL)};
  OK_(aclnnApplyFusedEmaAdamGetWorkspaceSize(x.tensor, v[0].tensor, v[1].tensor, v[2].tensor, v[3].tensor, step.tensor,
                                             1e-3, .9, .9, .999, 1e-8, 1, true, 0, &size, &executor));
  OK_(aclSetAclOpExecutorRepeatable(executor));
  REFUSED(ACLNN_ERR_PARAM_INVALID, aclSetDynamicInputTensorAddr, executor, 0, 0, list, x.data);
  REFUSED(ACLNN_ERR_PARAM_INVALID, aclSetDynamicOutputTensorAddr, executor, 0, 0, list, x.data);
  REFUSED(ACLNN_ERR_PARAM_INVALID, aclSetDynamicTensorAddr, executor, 0, 0, list, x.data);
  REFUSED(ACLNN_ERR_PARAM_INVALID, AclSetDynamicInputTensorAddr, executor, 0, 0, list, x.data);
  REFUSED(ACLNN_ERR_PARAM_INVALID, AclSetDynamicOutputTensorAddr, executor, 0, 0, list, x.data);
  REFUSED(ACLNN_ERR_PARAM_INVALID, AclSetDynamicTensorAddr, executor, 0, 0, list, x.data);
  REFUSED(ACLNN_ERR_INNER_NULLPTR, aclSetDynamicInputTensorAddr, executor, 0, 0, NULL, x.data);
  REFUSED(ACLNN_ERR_INNER_NULLPTR, aclSetDynamicInputTensorAddr, NULL, 0, 0, list, x.data);
  OK_(aclDestroyAclOpExecutor(executor));
  OK_(aclDestroyTensorList(list)); /* and with it x's tensor */
  OK_(aclrtFree(x.data));
  drop(step), drop(v[0]), drop(v[1]), drop(v[2]), drop(v[3]);
}

int main(void) {
  CHECK(OK == 0);
  OK_(aclInit(NULL));
  OK_(aclrtSetDevice(0));
  OK_(aclrtCreateStream(&stream));
  device_and_context();
  memory();
  streams_and_events();
  descriptions();
  tensors();
  ema();
  adam_w_quant();
  lazy_adam();
  norm(1);
  norm(2);
  matmul();
  grouped_matmul(0);
  grouped_matmul(1);
  beside();
  addresses_of_lists();
  OK_(aclrtDestroyStream(stream));
  OK_(aclrtResetDevice(0));
  OK_(aclrtSetDevice(0));
  OK_(aclrtResetDeviceForce(0));
  OK_(aclFinalize());
  printf("all_entries: %d failed\n", failed);
  return failed == 0 ? 0 : 1;
}
