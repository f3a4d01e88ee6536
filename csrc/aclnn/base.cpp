// Element types, float16, data buffers, tensor descriptions, and the log line.
#include <strings.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "acl/acl.h"
#include "errors.h"
#include "tensor.h"

namespace anyfuse::acl {
namespace {

struct DataBuffer {
  static constexpr uint64_t kKind = kDataBuffer;
  void *data;
  size_t size;
};

struct TensorDesc {
  static constexpr uint64_t kKind = kTensorDesc;
  aclDataType dtype;
  aclFormat format;
  std::vector<int64_t> dims;
  std::string name;
};

struct TypeEntry {
  aclDataType dtype;
  const char *name;
  int64_t bits;
};

constexpr TypeEntry kTypes[] = {{ACL_FLOAT, "FLOAT", 32},
                                {ACL_FLOAT16, "FLOAT16", 16},
                                {ACL_INT8, "INT8", 8},
                                {ACL_INT32, "INT32", 32},
                                {ACL_UINT8, "UINT8", 8},
                                {ACL_INT16, "INT16", 16},
                                {ACL_UINT16, "UINT16", 16},
                                {ACL_UINT32, "UINT32", 32},
                                {ACL_INT64, "INT64", 64},
                                {ACL_UINT64, "UINT64", 64},
                                {ACL_DOUBLE, "DOUBLE", 64},
                                {ACL_BOOL, "BOOL", 8},
                                {ACL_STRING, "STRING", 0},
                                {ACL_COMPLEX64, "COMPLEX64", 64},
                                {ACL_COMPLEX128, "COMPLEX128", 128},
                                {ACL_BF16, "BF16", 16},
                                {ACL_INT4, "INT4", 4},
                                {ACL_UINT1, "UINT1", 0},
                                {ACL_COMPLEX32, "COMPLEX32", 32},
                                {ACL_HIFLOAT8, "HIFLOAT8", 8},
                                {ACL_FLOAT8_E5M2, "FLOAT8_E5M2", 8},
                                {ACL_FLOAT8_E4M3FN, "FLOAT8_E4M3FN", 8},
                                {ACL_FLOAT8_E8M0, "FLOAT8_E8M0", 8},
                                {ACL_FLOAT6_E3M2, "FLOAT6_E3M2", 0},
                                {ACL_FLOAT6_E2M3, "FLOAT6_E2M3", 0},
                                {ACL_FLOAT4_E2M1, "FLOAT4_E2M1", 4},
                                {ACL_FLOAT4_E1M2, "FLOAT4_E1M2", 4}};

const TypeEntry *entry_of(aclDataType dtype) {
  for (const TypeEntry &entry : kTypes)
    if (entry.dtype == dtype) return &entry;
  return nullptr;
}

uint32_t bits_of_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

int log_threshold() {
  const char *value = std::getenv("ANYFUSE_ACL_LOG");
  constexpr const char *kLevels[] = {"debug", "info", "warning", "error"};
  for (int level = 0; value != nullptr && level < 4; ++level)
    if (strcasecmp(value, kLevels[level]) == 0) return level;
  return 4;
}

}  // namespace

int64_t bits_of(aclDataType dtype) {
  const TypeEntry *entry = entry_of(dtype);
  return entry == nullptr ? 0 : entry->bits;
}

const char *name_of(aclDataType dtype) {
  const TypeEntry *entry = entry_of(dtype);
  return entry == nullptr ? "undefined" : entry->name;
}

}  // namespace anyfuse::acl

using namespace anyfuse::acl;

extern "C" {

size_t aclDataTypeSize(aclDataType dataType) { return static_cast<size_t>(bits_of(dataType) / 8); }

float aclFloat16ToFloat(aclFloat16 value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x8000) << 16, exponent = value >> 10 & 31,
                 mantissa = value & 1023;
  if (exponent == 31) return float_of_bits(sign | 0x7F800000 | mantissa << 13);
  if (exponent > 0) return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
  return float_of_bits(sign | bits_of_float(static_cast<float>(mantissa) * 0x1p-24f));
}

aclFloat16 aclFloatToFloat16(float value) {
  const uint32_t bits = bits_of_float(value), magnitude = bits & 0x7FFFFFFF;
  const aclFloat16 sign = static_cast<aclFloat16>(bits >> 16 & 0x8000);
  if (magnitude > 0x7F800000) return sign | 0x7E00;
  if (magnitude >= 0x47800000) return sign | 0x7C00;  // 65536 and more
  if (magnitude < 0x38800000) {                       // below 2^-14: a multiple of 2^-24
    const uint32_t dropped = std::min(126 - (magnitude >> 23), 25u), mantissa = (magnitude & 0x7FFFFF) | 0x800000;
    const uint32_t half = (1u << (dropped - 1)) - 1 + (mantissa >> dropped & 1);
    return static_cast<aclFloat16>(sign | (mantissa + half) >> dropped);
  }
  // A carry out of the mantissa goes into the exponent, as it should, up to infinity.
  const uint32_t rounded = magnitude - 0x38000000 + 0xFFF + (magnitude >> 13 & 1);
  return static_cast<aclFloat16>(sign | rounded >> 13);
}

// ---- data buffers ----

aclDataBuffer *aclCreateDataBuffer(void *data, size_t size) {
  return static_cast<aclDataBuffer *>(table<DataBuffer>().add(std::make_shared<DataBuffer>(DataBuffer{data, size})));
}

aclError aclDestroyDataBuffer(const aclDataBuffer *dataBuffer) {
  return table<DataBuffer>().take(dataBuffer) != nullptr
             ? ACL_SUCCESS
             : fail(ACL_ERROR_INVALID_PARAM, "aclDestroyDataBuffer: dataBuffer is not a living buffer");
}

aclError aclUpdateDataBuffer(aclDataBuffer *dataBuffer, void *data, size_t size) {
  const auto buffer = table<DataBuffer>().find(dataBuffer);
  if (buffer == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "aclUpdateDataBuffer: dataBuffer is not a living buffer");
  *buffer = {data, size};
  return ACL_SUCCESS;
}

void *aclGetDataBufferAddr(const aclDataBuffer *dataBuffer) {
  const auto buffer = table<DataBuffer>().find(dataBuffer);
  return buffer == nullptr ? nullptr : buffer->data;
}

size_t aclGetDataBufferSizeV2(const aclDataBuffer *dataBuffer) {
  const auto buffer = table<DataBuffer>().find(dataBuffer);
  return buffer == nullptr ? 0 : buffer->size;
}

uint32_t aclGetDataBufferSize(const aclDataBuffer *dataBuffer) {
  return static_cast<uint32_t>(aclGetDataBufferSizeV2(dataBuffer));
}

// ---- tensor descriptions ----

aclTensorDesc *aclCreateTensorDesc(aclDataType dataType, int numDims, const int64_t *dims, aclFormat format) {
  if (numDims < 0 || (numDims > 0 && dims == nullptr)) {
    fail(ACL_ERROR_INVALID_PARAM, "aclCreateTensorDesc: numDims is %d and dims %p", numDims,
         static_cast<const void *>(dims));
    return nullptr;
  }
  if (!fit_memory(dims, static_cast<uint64_t>(numDims))) {
    fail(ACL_ERROR_INVALID_PARAM, "aclCreateTensorDesc: dims has more elements than memory can hold");
    return nullptr;
  }
  auto desc = std::make_shared<TensorDesc>(TensorDesc{dataType, format, {}, {}});
  if (numDims > 0) desc->dims.assign(dims, dims + numDims);
  return static_cast<aclTensorDesc *>(table<TensorDesc>().add(std::move(desc)));
}

void aclDestroyTensorDesc(const aclTensorDesc *desc) { table<TensorDesc>().take(desc); }

aclDataType aclGetTensorDescType(const aclTensorDesc *desc) {
  const auto found = table<TensorDesc>().find(desc);
  return found == nullptr ? ACL_DT_UNDEFINED : found->dtype;
}

aclFormat aclGetTensorDescFormat(const aclTensorDesc *desc) {
  const auto found = table<TensorDesc>().find(desc);
  return found == nullptr ? ACL_FORMAT_UNDEFINED : found->format;
}

size_t aclGetTensorDescElementCount(const aclTensorDesc *desc) {
  const auto found = table<TensorDesc>().find(desc);
  if (found == nullptr) return 0;
  size_t count = 1;
  for (int64_t size : found->dims) count *= static_cast<size_t>(std::max<int64_t>(size, 0));  // below 0: not known
  return count;
}

size_t aclGetTensorDescSize(const aclTensorDesc *desc) {
  return (aclGetTensorDescElementCount(desc) * static_cast<size_t>(bits_of(aclGetTensorDescType(desc))) + 7) / 8;
}

size_t aclGetTensorDescNumDims(const aclTensorDesc *desc) {
  const auto found = table<TensorDesc>().find(desc);
  return found == nullptr ? 0 : found->dims.size();
}

aclError aclGetTensorDescDimV2(const aclTensorDesc *desc, size_t index, int64_t *dimSize) {
  const auto found = table<TensorDesc>().find(desc);
  if (found == nullptr || dimSize == nullptr || index >= found->dims.size())
    return fail(ACL_ERROR_INVALID_PARAM, "aclGetTensorDescDimV2: desc, index or dimSize is not valid");
  *dimSize = found->dims[index];
  return ACL_SUCCESS;
}

int64_t aclGetTensorDescDim(const aclTensorDesc *desc, size_t index) {
  int64_t size = -1;
  aclGetTensorDescDimV2(desc, index, &size);
  return size;
}

void aclSetTensorDescName(aclTensorDesc *desc, const char *name) {
  const auto found = table<TensorDesc>().find(desc);
  if (found != nullptr) found->name = name == nullptr ? "" : name;
}

const char *aclGetTensorDescName(aclTensorDesc *desc) {
  const auto found = table<TensorDesc>().find(desc);
  return found == nullptr ? "" : found->name.c_str();
}

// ---- log ----

void aclAppLog(aclLogLevel logLevel, const char *func, const char *file, uint32_t line, const char *fmt, ...) {
  if (fmt == nullptr || static_cast<int>(logLevel) < log_threshold()) return;
  char text[1024];
  va_list arguments;
  va_start(arguments, fmt);
  std::vsnprintf(text, sizeof text, fmt, arguments);
  va_end(arguments);
  std::fprintf(stderr, "[%d] %s:%u %s: %s\n", static_cast<int>(logLevel), file == nullptr ? "" : file, line,
               func == nullptr ? "" : func, text);
}

}  // extern "C"
