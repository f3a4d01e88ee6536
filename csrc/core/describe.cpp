// Descriptions of Python's tensors through functions that the caller has found in its process.
#include <cstddef>
#include <cstdint>

#include "anyfuse_internal.h"

namespace anyfuse {
namespace {

// As DLPack 1.x lays it out.
struct DLTensor {
  void *data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  const int64_t *shape, *strides;  // strides in elements; null when contiguous
  uint64_t byte_offset;
};

using Item = void *(*)(void *list, ptrdiff_t index);
using Look = int (*)(void *object, DLTensor *out);

anyfuse_dtype dtype_of(const DLTensor &t) {
  static constexpr struct {
    uint8_t code, bits;
    anyfuse_dtype dtype;
  } kTypes[] = {
      {2, 32, ANYFUSE_FLOAT32},       {2, 16, ANYFUSE_FLOAT16},     {4, 16, ANYFUSE_BFLOAT16}, {0, 8, ANYFUSE_INT8},
      {0, 32, ANYFUSE_INT32},         {0, 64, ANYFUSE_INT64},       {1, 8, ANYFUSE_UINT8},     {6, 8, ANYFUSE_BOOL},
      {10, 8, ANYFUSE_FLOAT8_E4M3FN}, {12, 8, ANYFUSE_FLOAT8_E5M2},
  };
  for (const auto &type : kTypes)
    if (t.code == type.code && t.bits == type.bits && t.lanes == 1) return type.dtype;
  return -1;
}

uint64_t mixed(uint64_t state, int64_t value) {
  state = (state ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15u;
  return state ^ (state >> 29);
}

anyfuse_description description_of(const void *object, const DLTensor &t) {
  int64_t numel = 1, last = 0;
  uint64_t layout = static_cast<uint64_t>(t.ndim);
  bool contiguous = true;
  for (int32_t d = t.ndim - 1; d >= 0; --d) {
    const int64_t size = t.shape[d], stride = t.strides == nullptr ? numel : t.strides[d];
    if (size != 1 && stride != numel) contiguous = false;
    layout = mixed(mixed(layout, size), stride);
    numel *= size;
    last += (size - 1) * stride;
  }
  anyfuse_description out;
  out.object = object;
  out.data = static_cast<char *>(t.data) + t.byte_offset;
  out.numel = numel;
  out.extent = numel == 0 ? 0 : (last + 1) * ((t.bits * t.lanes + 7) / 8);
  out.layout = layout;
  out.dtype = dtype_of(t);
  out.device = t.device_type;
  out.contiguous = contiguous || numel == 0;
  out.dimensions = t.ndim;
  return out;
}

}  // namespace
}  // namespace anyfuse

extern "C" anyfuse_status anyfuse_describe(void *tensors, int64_t count, const void *item, const void *look,
                                           anyfuse_description *out) {
  if (count < 0) return ANYFUSE_INVALID_SIZE;
  if (count == 0) return ANYFUSE_OK;
  if (tensors == nullptr || item == nullptr || look == nullptr || out == nullptr) return ANYFUSE_INVALID_POINTER;
  const auto item_at = reinterpret_cast<anyfuse::Item>(const_cast<void *>(item));
  const auto look_at = reinterpret_cast<anyfuse::Look>(const_cast<void *>(look));
  for (int64_t i = 0; i < count; ++i) {
    void *object = item_at(tensors, i);
    anyfuse::DLTensor tensor;
    if (object == nullptr || look_at(object, &tensor) != 0) return ANYFUSE_INVALID_POINTER;
    out[i] = anyfuse::description_of(object, tensor);
  }
  return ANYFUSE_OK;
}
