// PyTorch's stable C ABI: the plain C functions by which a library that is built without torch registers operators and
// reads tensors. They are found in the process (torch >= 2.10), so that one file serves every Python and torch.
#pragma once
#include <cstddef>
#include <cstdint>

namespace anyfuse::door {

using StableIValue = uint64_t;  // an argument or result, by its bits: a number, a handle, or a pointer to one (optional)
using Handle = struct AtenTensorOpaque *;
using ListHandle = struct StableListOpaque *;
using StringHandle = struct StringOpaque *;
using LibraryHandle = struct TorchLibraryOpaque *;
using BoxedKernel = void (*)(StableIValue *stack, uint64_t inputs, uint64_t outputs);
using Error = int32_t;  // 0: none

// The version by which libtorch reads what is given to it: 2.10.0, the oldest that has all of these.
constexpr uint64_t kAbiVersion = (uint64_t{2} << 56) | (uint64_t{10} << 48);

// (result, name, arguments)
#define ANYFUSE_TORCH_FUNCTIONS(F)                                                                                  \
  F(Error, aoti_torch_library_init_def, (const char *name, const char *file, uint32_t line, LibraryHandle *out))    \
  F(Error, aoti_torch_library_init_impl,                                                                            \
    (const char *name, const char *key, const char *file, uint32_t line, LibraryHandle *out))                       \
  F(Error, aoti_torch_library_def, (LibraryHandle library, const char *schema))                                     \
  F(Error, torch_library_impl, (LibraryHandle library, const char *name, BoxedKernel kernel, uint64_t version))     \
  F(Error, torch_call_dispatcher, (const char *name, const char *overload, StableIValue *stack, uint64_t version))  \
  F(Error, torch_new_list_reserve_size, (size_t size, ListHandle *out))                                             \
  F(Error, torch_list_push_back, (ListHandle list, StableIValue element))                                           \
  F(Error, torch_list_size, (ListHandle list, size_t *out))                                                         \
  F(Error, torch_list_get_item, (ListHandle list, size_t index, StableIValue *out))                                 \
  F(Error, torch_delete_list, (ListHandle list))                                                                    \
  F(Error, torch_string_c_str, (StringHandle string, const char **out))                                             \
  F(Error, torch_delete_string, (StringHandle string))                                                              \
  F(Error, torch_get_num_threads, (uint32_t * out))                                                                 \
  F(Error, aoti_torch_get_data_ptr, (Handle tensor, void **out))                                                    \
  F(Error, aoti_torch_get_dim, (Handle tensor, int64_t *out))                                                       \
  F(Error, aoti_torch_get_numel, (Handle tensor, int64_t *out))                                                     \
  F(Error, aoti_torch_get_sizes, (Handle tensor, int64_t **out))                                                    \
  F(Error, aoti_torch_get_dtype, (Handle tensor, int32_t *out))                                                     \
  F(Error, aoti_torch_get_device_type, (Handle tensor, int32_t *out))                                               \
  F(Error, aoti_torch_get_layout, (Handle tensor, int32_t *out))                                                    \
  F(Error, aoti_torch_is_contiguous, (Handle tensor, bool *out))                                                    \
  F(Error, aoti_torch_get_storage_offset, (Handle tensor, int64_t *out))                                            \
  F(Error, aoti_torch_get_storage_size, (Handle tensor, int64_t *out))                                              \
  F(Error, aoti_torch_delete_tensor_object, (Handle tensor))                                                        \
  F(Error, aoti_torch_empty_strided,                                                                                \
    (int64_t dim, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device, int32_t device_index, \
     Handle *out))                                                                                                  \
  F(int32_t, aoti_torch_device_type_cpu, ())                                                                        \
  F(int32_t, aoti_torch_layout_strided, ())                                                                         \
  F(int32_t, aoti_torch_dtype_float32, ())                                                                          \
  F(int32_t, aoti_torch_dtype_float16, ())                                                                          \
  F(int32_t, aoti_torch_dtype_bfloat16, ())                                                                         \
  F(int32_t, aoti_torch_dtype_float64, ())                                                                          \
  F(int32_t, aoti_torch_dtype_float8_e5m2, ())                                                                      \
  F(int32_t, aoti_torch_dtype_float8_e4m3fn, ())                                                                    \
  F(int32_t, aoti_torch_dtype_int8, ())                                                                             \
  F(int32_t, aoti_torch_dtype_uint8, ())                                                                            \
  F(int32_t, aoti_torch_dtype_int32, ())                                                                            \
  F(int32_t, aoti_torch_dtype_int64, ())                                                                            \
  F(int32_t, aoti_torch_dtype_bool, ())                                                                             \
  F(bool, aoti_torch_grad_mode_is_enabled, ())                                                                      \
  F(void, aoti_torch_grad_mode_set_enabled, (bool enabled))                                                         \
  F(void, aoti_torch_check, (bool condition, const char *function, const char *file, uint32_t line, const char *message))

struct Functions {
#define ANYFUSE_TORCH_POINTER(Result, name, arguments) Result(*name) arguments;
  ANYFUSE_TORCH_FUNCTIONS(ANYFUSE_TORCH_POINTER)
#undef ANYFUSE_TORCH_POINTER
  // The following belong to the C++ library that torch uses.
  void *(*operator_new)(size_t);
  void (*operator_delete)(void *);
  void (*throw_value_error)(const char *);
  void (*throw_index_error)(const char *);
};

extern Functions torch;  // filled by anyfuse_torch_register

}  // namespace anyfuse::door
