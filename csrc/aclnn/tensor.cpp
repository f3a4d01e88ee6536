// Tensors, scalars, arrays and lists: making, reading, destroying.
#include "tensor.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#include "aclnn/aclnn_base.h"
#include "errors.h"

namespace anyfuse::acl {
namespace {

constexpr uint64_t kMaxRank = 25;

struct Scalar {
  static constexpr uint64_t kKind = kScalar;
  aclDataType dtype;
  unsigned char bytes[16];
};

struct FloatArray {
  static constexpr uint64_t kKind = kFloatArray;
  std::vector<float> values;
};

struct TensorList {
  static constexpr uint64_t kKind = kTensorList;
  std::vector<const aclTensor *> members;
};

struct ScalarList {
  static constexpr uint64_t kKind = kScalarList;
  std::vector<const aclScalar *> members;
};

struct Description {
  const int64_t *shape;
  uint64_t rank;
  aclDataType dtype;
  const int64_t *strides;
  int64_t offset;
  aclFormat format;
  const int64_t *storage;
  uint64_t storage_rank;
  void *data;
};

std::vector<int64_t> row_major(const std::vector<int64_t> &shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(shape[i], 1);
  return strides;
}

aclnnStatus check_dims(const char *function, const char *name, const int64_t *dims, uint64_t count) {
  if (count > kMaxRank || (count > 0 && dims == nullptr))
    return fail(ACLNN_ERR_PARAM_INVALID, "%s: %s has %llu entries%s; accepted: 0 to 25", function, name,
                static_cast<unsigned long long>(count), dims == nullptr ? " and is null" : "");
  for (uint64_t i = 0; i < count; ++i) {
    if (dims[i] < 0)
      return fail(ACLNN_ERR_PARAM_INVALID, "%s: %s[%d] is %lld; accepted: 0 or more", function, name,
                  static_cast<int>(i), static_cast<long long>(dims[i]));
  }
  if (!fit_memory(dims, count))
    return fail(ACLNN_ERR_PARAM_INVALID, "%s: %s has more elements than memory can hold", function, name);
  return ACLNN_SUCCESS;
}

// Fills `out` unless the description makes no sense; the view's last element then has an address within 64 bits.
aclnnStatus describe(const char *function, const Description &d, Tensor *out) {
  if (bits_of(d.dtype) == 0)
    return fail(ACLNN_ERR_PARAM_INVALID, "%s: dataType is %d; accepted: a type of fixed size", function,
                static_cast<int>(d.dtype));
  ANYFUSE_TRY(check_dims(function, "viewDims", d.shape, d.rank));
  ANYFUSE_TRY(check_dims(function, "storageDims", d.storage, d.storage == nullptr ? 0 : d.storage_rank));
  if (d.offset < 0)
    return fail(ACLNN_ERR_PARAM_INVALID, "%s: offset is %lld; accepted: 0 or more", function,
                static_cast<long long>(d.offset));
  Tensor made;
  made.dtype = d.dtype;
  made.format = d.format;
  made.offset = d.offset;
  made.data = d.data;
  if (d.rank > 0) made.shape.assign(d.shape, d.shape + d.rank);
  made.strides = row_major(made.shape);
  if (d.strides != nullptr && d.rank > 0) made.strides.assign(d.strides, d.strides + d.rank);
  made.storage = made.shape;
  if (d.storage != nullptr && d.storage_rank > 0) made.storage.assign(d.storage, d.storage + d.storage_rank);
  int64_t last = d.offset;
  for (size_t i = 0; i < made.shape.size(); ++i) {
    int64_t reach;
    if (made.strides[i] < 0)
      return fail(ACLNN_ERR_PARAM_INVALID, "%s: stride[%zu] is %lld; accepted: 0 or more", function, i,
                  static_cast<long long>(made.strides[i]));
    if (__builtin_mul_overflow(std::max<int64_t>(made.shape[i] - 1, 0), made.strides[i], &reach) ||
        __builtin_add_overflow(last, reach, &last) || last > INT64_MAX / 256)
      return fail(ACLNN_ERR_PARAM_INVALID, "%s: the view reaches beyond any memory", function);
  }
  *out = std::move(made);
  return ACLNN_SUCCESS;
}

// Getters hand out arrays that C++ programs release with delete[] and C programs with free. A C++ program has its own
// operator new[] in the process; taking that one keeps the pair matched for memory checkers too. (A checker alone
// brings operator new[] into a C program, but not the rest of the C++ library.)
using New = void *(*)(size_t);

New operator_new_of_process() {
  void *const of_cpp = dlsym(RTLD_DEFAULT, "_ZSt9terminatev");
  return of_cpp == nullptr ? nullptr : reinterpret_cast<New>(dlsym(RTLD_DEFAULT, "_Znam"));
}

int64_t *array_for_caller(const std::vector<int64_t> &values) {
  const New process_new = operator_new_of_process();
  const size_t bytes = std::max<size_t>(values.size(), 1) * sizeof(int64_t);
  void *memory = process_new != nullptr ? process_new(bytes) : std::malloc(bytes);
  if (memory != nullptr && !values.empty()) std::memcpy(memory, values.data(), values.size() * sizeof(int64_t));
  return static_cast<int64_t *>(memory);
}

aclnnStatus find_tensor(const char *function, const aclTensor *handle, bool out_given,
                        std::shared_ptr<Tensor> *tensor) {
  if (handle == nullptr || !out_given) return fail(ACLNN_ERR_PARAM_NULLPTR, "%s: an argument is null", function);
  *tensor = table<Tensor>().find(handle);
  return *tensor != nullptr ? ACLNN_SUCCESS
                            : fail(ACLNN_ERR_PARAM_INVALID, "%s: tensor is not a living tensor", function);
}

aclnnStatus give_dims(const char *function, const aclTensor *handle, std::vector<int64_t> Tensor::*member,
                      int64_t **dims, uint64_t *count) {
  std::shared_ptr<Tensor> tensor;
  ANYFUSE_TRY(find_tensor(function, handle, dims != nullptr && count != nullptr, &tensor));
  const std::vector<int64_t> &values = (*tensor).*member;
  *dims = array_for_caller(values);
  *count = values.size();
  return *dims != nullptr ? ACLNN_SUCCESS : fail(ACLNN_ERR_RUNTIME_ERROR, "%s: no memory", function);
}

template <typename T>
aclnnStatus destroy(const char *function, const void *handle) {
  if (handle == nullptr || table<T>().take(handle) != nullptr) return ACLNN_SUCCESS;
  return fail(ACLNN_ERR_PARAM_INVALID, "%s: not a living handle of this kind, or destroyed before", function);
}

template <typename Handle, typename Array, typename Value>
Handle *create_array(const char *function, const Value *values, uint64_t size) {
  if (size > 0 && values == nullptr) {
    fail(ACLNN_ERR_PARAM_NULLPTR, "%s: value is null", function);
    return nullptr;
  }
  auto array = std::make_shared<Array>();
  if (size > 0) array->values.assign(values, values + size);
  return static_cast<Handle *>(table<Array>().add(std::move(array)));
}

template <typename Array>
aclnnStatus array_size(const char *function, const void *handle, uint64_t *size) {
  if (handle == nullptr || size == nullptr) return fail(ACLNN_ERR_PARAM_NULLPTR, "%s: an argument is null", function);
  const auto array = table<Array>().find(handle);
  if (array == nullptr) return fail(ACLNN_ERR_PARAM_INVALID, "%s: not a living handle of this kind", function);
  if constexpr (std::is_same_v<Array, TensorList> || std::is_same_v<Array, ScalarList>)
    *size = array->members.size();
  else
    *size = array->values.size();
  return ACLNN_SUCCESS;
}

template <typename Handle, typename List, typename Member, typename MemberHandle>
Handle *create_list(const char *function, const MemberHandle *const *members, uint64_t size) {
  if (size > 0 && members == nullptr) {
    fail(ACLNN_ERR_PARAM_NULLPTR, "%s: value is null", function);
    return nullptr;
  }
  auto list = std::make_shared<List>();
  for (uint64_t i = 0; i < size; ++i) {
    if (members[i] != nullptr && table<Member>().find(members[i]) == nullptr) {
      fail(ACLNN_ERR_PARAM_INVALID, "%s: value[%llu] is not alive", function, static_cast<unsigned long long>(i));
      return nullptr;
    }
    list->members.push_back(members[i]);
  }
  return static_cast<Handle *>(table<List>().add(std::move(list)));
}

template <typename List, typename Member>
aclnnStatus destroy_list(const char *function, const void *handle) {
  if (handle == nullptr) return ACLNN_SUCCESS;
  const auto list = table<List>().take(handle);
  if (list == nullptr)
    return fail(ACLNN_ERR_PARAM_INVALID, "%s: not a living handle of this kind, or destroyed before", function);
  for (const auto *member : list->members) table<Member>().take(member);
  return ACLNN_SUCCESS;
}

}  // namespace

bool fit_memory(const int64_t *dims, uint64_t count) {
  int64_t elements = 1;
  for (uint64_t i = 0; i < count; ++i)
    if (__builtin_mul_overflow(elements, std::max<int64_t>(dims[i], 1), &elements) || elements > INT64_MAX / 128)
      return false;
  return true;
}

int64_t product(const std::vector<int64_t> &dims) {
  int64_t elements = 1;
  for (int64_t size : dims) elements *= size;
  return elements;
}

int64_t Tensor::numel() const { return product(shape); }

bool Tensor::is_contiguous() const {
  if (numel() == 0) return true;
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

int64_t Tensor::first_bit() const { return offset * bits_of(dtype); }

int64_t Tensor::end_bit() const {
  if (numel() == 0) return first_bit();
  int64_t elements = 1;
  if (is_blocked()) {
    elements = product(storage);
  } else {
    for (size_t i = 0; i < shape.size(); ++i) elements += (shape[i] - 1) * strides[i];
  }
  return first_bit() + elements * bits_of(dtype);
}

std::string text_of(const std::vector<int64_t> &dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(dims[i]);
  return text + "]";
}

const char *name_of(aclFormat format) {
  switch (format) {
    case ACL_FORMAT_ND:
      return "ND";
    case ACL_FORMAT_FRACTAL_NZ:
      return "FRACTAL_NZ";
    case ACL_FORMAT_NCHW:
      return "NCHW";
    case ACL_FORMAT_NHWC:
      return "NHWC";
    default:
      return "another format";
  }
}

}  // namespace anyfuse::acl

using namespace anyfuse::acl;

extern "C" {

aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType, const int64_t *stride,
                           int64_t offset, aclFormat format, const int64_t *storageDims, uint64_t storageDimsNum,
                           void *tensorData) {
  auto tensor = std::make_shared<Tensor>();
  const Description description = {viewDims, viewDimsNum, dataType,       stride,    offset,
                                   format,   storageDims, storageDimsNum, tensorData};
  if (describe("aclCreateTensor", description, tensor.get()) != ACLNN_SUCCESS) return nullptr;
  return static_cast<aclTensor *>(table<Tensor>().add(std::move(tensor)));
}

aclnnStatus aclInitTensor(aclTensor *tensor, const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType,
                          const int64_t *stride, int64_t offset, aclFormat format, const int64_t *storageDims,
                          uint64_t storageDimsNum, void *tensorDataAddr) {
  std::shared_ptr<Tensor> found;
  ANYFUSE_TRY(find_tensor("aclInitTensor", tensor, true, &found));
  return describe(
      "aclInitTensor",
      {viewDims, viewDimsNum, dataType, stride, offset, format, storageDims, storageDimsNum, tensorDataAddr},
      found.get());
}

aclnnStatus aclDestroyTensor(const aclTensor *tensor) { return destroy<Tensor>("aclDestroyTensor", tensor); }

aclnnStatus aclGetViewShape(const aclTensor *tensor, int64_t **viewDims, uint64_t *viewDimsNum) {
  return give_dims("aclGetViewShape", tensor, &Tensor::shape, viewDims, viewDimsNum);
}

aclnnStatus aclGetStorageShape(const aclTensor *tensor, int64_t **storageDims, uint64_t *storageDimsNum) {
  return give_dims("aclGetStorageShape", tensor, &Tensor::storage, storageDims, storageDimsNum);
}

aclnnStatus aclGetViewStrides(const aclTensor *tensor, int64_t **stridesValue, uint64_t *stridesNum) {
  return give_dims("aclGetViewStrides", tensor, &Tensor::strides, stridesValue, stridesNum);
}

aclnnStatus aclGetViewOffset(const aclTensor *tensor, int64_t *offset) {
  std::shared_ptr<Tensor> found;
  ANYFUSE_TRY(find_tensor("aclGetViewOffset", tensor, offset != nullptr, &found));
  *offset = found->offset;
  return ACLNN_SUCCESS;
}

aclnnStatus aclGetFormat(const aclTensor *tensor, aclFormat *format) {
  std::shared_ptr<Tensor> found;
  ANYFUSE_TRY(find_tensor("aclGetFormat", tensor, format != nullptr, &found));
  *format = found->format;
  return ACLNN_SUCCESS;
}

aclnnStatus aclGetDataType(const aclTensor *tensor, aclDataType *dataType) {
  std::shared_ptr<Tensor> found;
  ANYFUSE_TRY(find_tensor("aclGetDataType", tensor, dataType != nullptr, &found));
  *dataType = found->dtype;
  return ACLNN_SUCCESS;
}

aclnnStatus aclGetRawTensorAddr(const aclTensor *tensor, void **addr) {
  std::shared_ptr<Tensor> found;
  ANYFUSE_TRY(find_tensor("aclGetRawTensorAddr", tensor, addr != nullptr, &found));
  *addr = found->data;
  return ACLNN_SUCCESS;
}

aclnnStatus aclSetRawTensorAddr(aclTensor *tensor, void *addr) {
  std::shared_ptr<Tensor> found;
  ANYFUSE_TRY(find_tensor("aclSetRawTensorAddr", tensor, true, &found));
  found->data = addr;
  return ACLNN_SUCCESS;
}

// ---- scalars and arrays ----

aclScalar *aclCreateScalar(void *value, aclDataType dataType) {
  const size_t size = aclDataTypeSize(dataType);
  if (value == nullptr || size == 0) {
    fail(ACLNN_ERR_PARAM_INVALID, "aclCreateScalar: value is null, or dataType %s has no size", name_of(dataType));
    return nullptr;
  }
  auto scalar = std::make_shared<Scalar>();
  scalar->dtype = dataType;
  std::memcpy(scalar->bytes, value, size);
  return static_cast<aclScalar *>(table<Scalar>().add(std::move(scalar)));
}

aclnnStatus aclDestroyScalar(const aclScalar *scalar) { return destroy<Scalar>("aclDestroyScalar", scalar); }

aclIntArray *aclCreateIntArray(const int64_t *value, uint64_t size) {
  return create_array<aclIntArray, IntArray>("aclCreateIntArray", value, size);
}

aclFloatArray *aclCreateFloatArray(const float *value, uint64_t size) {
  return create_array<aclFloatArray, FloatArray>("aclCreateFloatArray", value, size);
}

aclBoolArray *aclCreateBoolArray(const bool *value, uint64_t size) {
  return create_array<aclBoolArray, BoolArray>("aclCreateBoolArray", value, size);
}

aclnnStatus aclDestroyIntArray(const aclIntArray *array) { return destroy<IntArray>("aclDestroyIntArray", array); }

aclnnStatus aclDestroyFloatArray(const aclFloatArray *array) {
  return destroy<FloatArray>("aclDestroyFloatArray", array);
}

aclnnStatus aclDestroyBoolArray(const aclBoolArray *array) { return destroy<BoolArray>("aclDestroyBoolArray", array); }

aclnnStatus aclGetIntArraySize(const aclIntArray *array, uint64_t *size) {
  return array_size<IntArray>("aclGetIntArraySize", array, size);
}

aclnnStatus aclGetFloatArraySize(const aclFloatArray *array, uint64_t *size) {
  return array_size<FloatArray>("aclGetFloatArraySize", array, size);
}

aclnnStatus aclGetBoolArraySize(const aclBoolArray *array, uint64_t *size) {
  return array_size<BoolArray>("aclGetBoolArraySize", array, size);
}

// ---- lists ----

aclTensorList *aclCreateTensorList(const aclTensor *const *value, uint64_t size) {
  return create_list<aclTensorList, TensorList, Tensor>("aclCreateTensorList", value, size);
}

aclScalarList *aclCreateScalarList(const aclScalar *const *value, uint64_t size) {
  return create_list<aclScalarList, ScalarList, Scalar>("aclCreateScalarList", value, size);
}

aclnnStatus aclDestroyTensorList(const aclTensorList *array) {
  return destroy_list<TensorList, Tensor>("aclDestroyTensorList", array);
}

aclnnStatus aclDestroyScalarList(const aclScalarList *array) {
  return destroy_list<ScalarList, Scalar>("aclDestroyScalarList", array);
}

aclnnStatus aclGetTensorListSize(const aclTensorList *tensorList, uint64_t *size) {
  return array_size<TensorList>("aclGetTensorListSize", tensorList, size);
}

aclnnStatus aclGetScalarListSize(const aclScalarList *scalarList, uint64_t *size) {
  return array_size<ScalarList>("aclGetScalarListSize", scalarList, size);
}

}  // extern "C"
