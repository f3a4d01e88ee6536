#include "torch/door.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "anyfuse_internal.h"

namespace anyfuse::door {

Functions torch;

namespace {

// ---- dtypes: torch's numbers, asked once ----

constexpr int kDtypes = 64;
anyfuse_dtype dtype_of[kDtypes];  // by torch's number; -1 for others
int32_t number_of[kDtypes];       // by anyfuse's

void learn_dtypes() {
  const struct {
    int32_t number;
    anyfuse_dtype dtype;
  } known[] = {
      {torch.aoti_torch_dtype_float32(), ANYFUSE_FLOAT32},
      {torch.aoti_torch_dtype_float16(), ANYFUSE_FLOAT16},
      {torch.aoti_torch_dtype_bfloat16(), ANYFUSE_BFLOAT16},
      {torch.aoti_torch_dtype_float64(), kFloat64},
      {torch.aoti_torch_dtype_float8_e5m2(), ANYFUSE_FLOAT8_E5M2},
      {torch.aoti_torch_dtype_float8_e4m3fn(), ANYFUSE_FLOAT8_E4M3FN},
      {torch.aoti_torch_dtype_int8(), ANYFUSE_INT8},
      {torch.aoti_torch_dtype_uint8(), ANYFUSE_UINT8},
      {torch.aoti_torch_dtype_int32(), ANYFUSE_INT32},
      {torch.aoti_torch_dtype_int64(), ANYFUSE_INT64},
      {torch.aoti_torch_dtype_bool(), ANYFUSE_BOOL},
  };
  std::fill_n(dtype_of, kDtypes, -1);
  for (const auto &pair : known)
    if (pair.number >= 0 && pair.number < kDtypes) {
      dtype_of[pair.number] = pair.dtype;
      number_of[pair.dtype] = pair.number;
    }
}

anyfuse_dtype known_dtype(int64_t number) { return number >= 0 && number < kDtypes ? dtype_of[number] : -1; }

int64_t element_size(anyfuse_dtype dtype) {
  switch (dtype) {
    case ANYFUSE_FLOAT32:
    case ANYFUSE_INT32:
      return 4;
    case ANYFUSE_FLOAT16:
    case ANYFUSE_BFLOAT16:
      return 2;
    case kFloat64:
    case ANYFUSE_INT64:
      return 8;
    default:
      return 1;
  }
}

int32_t cpu, strided;  // torch's numbers of the device and the layout

// ---- what a thread is in ----

std::atomic<bool> generally{false};
thread_local int in_general = 0;  // calls that came here from a general implementation stay
thread_local int32_t refused = 0;
thread_local char refusal[4096];

struct Step {
  int64_t *tensor, next;
};

// Arguments of calls that wait: a view that torch made of an argument for the call would be gone with it.
struct Held {
  static constexpr int kMaxInputs = 32;
  Held *next;
  const Schema *schema;
  const Field *fields;
  StableIValue stack[kMaxInputs];
};

struct Together {
  bool active;
  Waiting *first, *last;
  Held *held;
  Step *steps;
  size_t count, room;
};
thread_local Together waiting = {};

bool note_step(int64_t *step) {
  if (waiting.count == waiting.room) {
    const size_t room = waiting.room == 0 ? 64 : 2 * waiting.room;
    void *larger = std::realloc(waiting.steps, room * sizeof *waiting.steps);
    if (larger == nullptr) return false;
    waiting.steps = static_cast<Step *>(larger);
    waiting.room = room;
  }
  waiting.steps[waiting.count++] = {step, *step + 1};
  return true;
}

// ---- freeing arguments ----

void free_tensors(ListHandle list, bool optional) {
  size_t count = 0;
  torch.torch_list_size(list, &count);
  for (size_t i = 0; i < count; ++i) {
    StableIValue item = 0;
    torch.torch_list_get_item(list, i, &item);
    if (!optional) {
      torch.aoti_torch_delete_tensor_object(reinterpret_cast<Handle>(item));
    } else if (item != 0) {
      torch.aoti_torch_delete_tensor_object(*reinterpret_cast<Handle *>(item));
      torch.operator_delete(reinterpret_cast<void *>(item));
    }
  }
  torch.torch_delete_list(list);
}

void free_argument(StableIValue value, Kind kind) {
  switch (kind) {
    case kPlain:
      return;
    case kTensor:
      torch.aoti_torch_delete_tensor_object(reinterpret_cast<Handle>(value));
      return;
    case kTensors:
    case kOptionalTensors:
      return free_tensors(reinterpret_cast<ListHandle>(value), kind == kOptionalTensors);
    case kNumbers:
      torch.torch_delete_list(reinterpret_cast<ListHandle>(value));
      return;
    case kChoice:
      torch.torch_delete_string(reinterpret_cast<StringHandle>(value));
      return;
    case kOptionalTensor:
    case kOptionalNumbers:
    case kOptionalNumber:
      break;
  }
  if (value == 0) return;
  const StableIValue inner = *reinterpret_cast<StableIValue *>(value);
  if (kind == kOptionalTensor) torch.aoti_torch_delete_tensor_object(reinterpret_cast<Handle>(inner));
  if (kind == kOptionalNumbers) torch.torch_delete_list(reinterpret_cast<ListHandle>(inner));
  torch.operator_delete(reinterpret_cast<void *>(value));
}

// ---- the general way ----

[[noreturn]] void raise(int32_t kind, const char *message) {
  if (kind == ANYFUSE_VALUE_ERROR && torch.throw_value_error != nullptr) torch.throw_value_error(message);
  if (kind == ANYFUSE_INDEX_ERROR && torch.throw_index_error != nullptr) torch.throw_index_error(message);
  torch.aoti_torch_check(false, "anyfuse", __FILE__, __LINE__, message);
  std::abort();
}

void free_arguments(const Schema &schema, const Field *fields, StableIValue *stack) {
  for (int i = 0; i < schema.inputs; ++i) free_argument(stack[i], fields[i].kind);
}

// The argument of the overload for one tensor as the list that the general implementation takes.
StableIValue listed(StableIValue value, Kind one, Kind list) {
  if (one == list) return value;
  ListHandle items = nullptr;
  torch.torch_new_list_reserve_size(1, &items);
  if (one == kTensor) {
    if (list == kOptionalTensors) {
      auto *box = static_cast<StableIValue *>(torch.operator_new(sizeof(StableIValue)));
      *box = value;
      value = reinterpret_cast<StableIValue>(box);
    }
    torch.torch_list_push_back(items, value);
  } else if (list == kOptionalTensors) {
    torch.torch_list_push_back(items, value);
  } else if (value != 0) {
    torch.torch_list_push_back(items, *reinterpret_cast<StableIValue *>(value));
    torch.operator_delete(reinterpret_cast<void *>(value));
  }
  return reinterpret_cast<StableIValue>(items);
}

void call_general(const Schema &schema, const Field *fields, StableIValue *stack) {
  // A string that goes through the dispatcher from here would leak; its number says as much.
  for (int i = 0; i < schema.inputs; ++i) {
    if (fields[i].kind == kChoice) {
      const int32_t choice = Arguments(stack, fields).choice(i);
      free_argument(stack[i], kChoice);
      stack[i] = static_cast<StableIValue>(static_cast<int64_t>(choice));
    } else {
      stack[i] = listed(stack[i], fields[i].kind, schema.fields[i].kind);
    }
  }
  char name[128] = "anyfuse::_general_";
  std::strncat(name, schema.name, sizeof name - std::strlen(name) - 1);
  // What the implementation does to tensors is no part of a graph: the operator is, or is not.
  const bool grad = torch.aoti_torch_grad_mode_is_enabled();
  torch.aoti_torch_grad_mode_set_enabled(false);
  ++in_general;
  refused = 0;
  const Error error = torch.torch_call_dispatcher(name, "", stack, kAbiVersion);
  --in_general;
  torch.aoti_torch_grad_mode_set_enabled(grad);
  if (error != 0)
    raise(ANYFUSE_RUNTIME_ERROR,
          "anyfuse: without Python an operator takes dense, contiguous tensors on the CPU alone");
  if (refused == 0) return;
  for (int i = 0; i < schema.outputs; ++i) free_argument(stack[i], kTensor);
  raise(refused, refusal);
}

bool hold(const Schema &schema, const Field *fields, const StableIValue *stack) {
  auto *held = static_cast<Held *>(std::malloc(sizeof(Held)));
  if (held == nullptr || schema.inputs > Held::kMaxInputs) {
    std::free(held);
    return false;
  }
  held->next = waiting.held;
  held->schema = &schema;
  held->fields = fields;
  std::copy_n(stack, schema.inputs, held->stack);
  waiting.held = held;
  return true;
}

void enter(const Schema &schema, const Field *fields, Operator op, StableIValue *stack) {
  if (in_general > 0 || !generally.load(std::memory_order_relaxed)) {
    Arguments arguments(stack, fields);
    if (op(arguments)) {
      if (together() && hold(schema, fields, stack)) return;
      free_arguments(schema, fields, stack);
      arguments.give_results(stack, schema.outputs);
      return;
    }
    arguments.drop_results(schema.outputs);
  }
  if (in_general > 0 || together()) {
    free_arguments(schema, fields, stack);
    raise(ANYFUSE_RUNTIME_ERROR, "anyfuse: the arguments are not plain, and here nothing else is taken");
  }
  call_general(schema, fields, stack);
}

template <const Schema &schema, Operator op>
void boxed(StableIValue *stack, uint64_t, uint64_t) {
  enter(schema, schema.fields, op, stack);
}

template <const Schema &schema, Operator op>
void boxed_one(StableIValue *stack, uint64_t, uint64_t) {
  enter(schema, schema.fields_of_one, op, stack);
}

// ---- registration ----

template <const Schema &schema, Operator op>
bool add(LibraryHandle definitions, LibraryHandle implementations) {
  if (torch.aoti_torch_library_def(definitions, schema.schema) ||
      torch.aoti_torch_library_def(definitions, schema.schema_of_general) ||
      torch.torch_library_impl(implementations, schema.name, boxed<schema, op>, kAbiVersion))
    return false;
  if (schema.schema_of_one == nullptr) return true;
  char name[128] = "";
  std::strncat(name, schema.name, 100);
  std::strcat(name, ".one");
  return !torch.aoti_torch_library_def(definitions, schema.schema_of_one) &&
         !torch.torch_library_impl(implementations, name, boxed_one<schema, op>, kAbiVersion);
}

const char *find_functions() {
  // torch's libraries are not in the global scope of a Python process: they are asked for by name.
  void *library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return "torch is not in this process (no libtorch_cpu.so)";
#define ANYFUSE_TORCH_FIND(Result, name, arguments)                          \
  torch.name = reinterpret_cast<Result(*) arguments>(dlsym(library, #name)); \
  if (torch.name == nullptr) return "this torch has no function " #name "; accepted: torch 2.10 or later";
  ANYFUSE_TORCH_FUNCTIONS(ANYFUSE_TORCH_FIND)
#undef ANYFUSE_TORCH_FIND
  const auto find = [library](const char *name, auto *out) {
    *out = reinterpret_cast<std::remove_pointer_t<decltype(out)>>(dlsym(library, name));
  };
  find("_Znwm", &torch.operator_new);
  find("_ZdlPv", &torch.operator_delete);
  find("_ZSt24__throw_invalid_argumentPKc", &torch.throw_value_error);
  find("_ZSt20__throw_out_of_rangePKc", &torch.throw_index_error);
  return torch.operator_new && torch.operator_delete ? nullptr : "torch's C++ library was not found";
}

const char *register_all() {
  if (const char *missing = find_functions()) return missing;
  learn_dtypes();
  cpu = torch.aoti_torch_device_type_cpu();
  strided = torch.aoti_torch_layout_strided();
  LibraryHandle definitions = nullptr, implementations = nullptr;  // never freed: that would take the operators away
  if (torch.aoti_torch_library_init_def("anyfuse", __FILE__, __LINE__, &definitions) ||
      torch.aoti_torch_library_init_impl("anyfuse", "CPU", __FILE__, __LINE__, &implementations))
    return "torch does not take the library anyfuse; is another copy of it loaded?";
#define ANYFUSE_ADD(op) add<schemas::op::kSchema, op>(definitions, implementations)
  const bool added = ANYFUSE_ADD(add_rms_norm_dynamic_quant) && ANYFUSE_ADD(apply_adam_w_quant) &&
                     ANYFUSE_ADD(apply_fused_ema_adamw) && ANYFUSE_ADD(lazy_adam) &&
                     ANYFUSE_ADD(quant_grouped_matmul_dequant) && ANYFUSE_ADD(quant_matmul_dequant);
#undef ANYFUSE_ADD
  return added ? nullptr : "torch does not take an operator of anyfuse";
}

}  // namespace

// ---- reading ----

int64_t Tensor::bytes() const { return numel * element_size(dtype); }

Tensor Arguments::described(Handle handle) {
  Tensor out;
  int32_t device = -1, layout = -1, dtype = -1;
  bool contiguous = false;
  torch.aoti_torch_get_device_type(handle, &device);
  torch.aoti_torch_get_layout(handle, &layout);
  if (device != cpu || layout != strided) {
    plain_ = false;
    return out;
  }
  int64_t *sizes = nullptr, offset = 0, held = 0;
  torch.aoti_torch_is_contiguous(handle, &contiguous);
  torch.aoti_torch_get_dtype(handle, &dtype);
  torch.aoti_torch_get_dim(handle, &out.dim);
  torch.aoti_torch_get_numel(handle, &out.numel);
  torch.aoti_torch_get_sizes(handle, &sizes);
  torch.aoti_torch_get_storage_offset(handle, &offset);
  torch.aoti_torch_get_storage_size(handle, &held);
  out.dtype = known_dtype(dtype);
  static const int64_t kNoSizes = 0;
  out.sizes = sizes == nullptr ? &kNoSizes : sizes;  // of no dimensions
  // A storage may have been released or shrunk under its tensor.
  plain_ = plain_ && contiguous && out.dtype >= 0;
  if (!plain_ || out.numel == 0) return out;
  torch.aoti_torch_get_data_ptr(handle, &out.data);
  plain_ = out.data != nullptr && held >= offset * element_size(out.dtype) + out.bytes();
  return out;
}

int32_t Arguments::choice(int i) {
  const char *text = nullptr;
  torch.torch_string_c_str(reinterpret_cast<StringHandle>(stack_[i]), &text);
  for (int32_t k = 0; text != nullptr && fields_[i].choices[k] != nullptr; ++k)
    if (std::strcmp(text, fields_[i].choices[k]) == 0) return k;
  plain_ = false;
  return -1;
}

anyfuse_dtype Arguments::dtype_or(int i, anyfuse_dtype otherwise) {
  return stack_[i] == 0 ? otherwise : known_dtype(integer_or(i, -1));
}

double Arguments::scalar(const Tensor &one) {
  require(one.numel == 1 && (one.is(ANYFUSE_FLOAT32) || one.is(kFloat64)));
  if (!plain_) return 0.0;
  if (one.is(kFloat64)) return *static_cast<const double *>(one.data);
  return static_cast<double>(*static_cast<const float *>(one.data));
}

double Arguments::scalar_or(int i, double otherwise) { return stack_[i] == 0 ? otherwise : scalar(optional(i)); }

int64_t Arguments::step(const Tensor &one) {
  require(one.numel == 1 && one.is(ANYFUSE_INT64));
  if (!plain_) return 0;
  auto *value = static_cast<int64_t *>(one.data);
  if (!together()) return *value;
  require(*value < INT64_MAX && note_step(value));
  return plain_ ? *value + 1 : 0;
}

ListHandle Arguments::list(int i) const { return reinterpret_cast<ListHandle>(stack_[i]); }

int64_t Arguments::count(int i) {
  if (fields_[i].kind == kTensor) return 1;
  if (fields_[i].kind == kOptionalTensor) return stack_[i] != 0;
  size_t count = 0;
  torch.torch_list_size(list(i), &count);
  return static_cast<int64_t>(count);
}

Tensor Arguments::at(int i, int64_t index) {
  if (fields_[i].kind == kTensor) return tensor(i);
  if (fields_[i].kind == kOptionalTensor) return optional(i);
  StableIValue item = 0;
  if (torch.torch_list_get_item(list(i), static_cast<size_t>(index), &item) != 0) plain_ = false;
  if (!plain_ || item == 0) return Tensor();
  return described(fields_[i].kind == kTensors ? reinterpret_cast<Handle>(item) : *reinterpret_cast<Handle *>(item));
}

int64_t Arguments::numbers(int i) {
  size_t count = 0;
  const StableIValue value = fields_[i].kind == kNumbers ? stack_[i] : *reinterpret_cast<StableIValue *>(stack_[i]);
  torch.torch_list_size(reinterpret_cast<ListHandle>(value), &count);
  return static_cast<int64_t>(count);
}

int64_t Arguments::number_at(int i, int64_t index) {
  StableIValue item = 0;
  const StableIValue value = fields_[i].kind == kNumbers ? stack_[i] : *reinterpret_cast<StableIValue *>(stack_[i]);
  torch.torch_list_get_item(reinterpret_cast<ListHandle>(value), static_cast<size_t>(index), &item);
  return static_cast<int64_t>(item);
}

bool Ranges::lie_apart() {
  if (ranges_.failed()) return false;
  Range *const first = ranges_.data(), *const last = first + count_;
  const auto starts_before = [](const Range &a, const Range &b) { return a.begin < b.begin; };
  if (!std::is_sorted(first, last, starts_before)) std::sort(first, last, starts_before);
  uintptr_t end = 0, written_end = 0;  // of what begins before
  for (const Range *range = first; range != last; ++range) {
    if (range->begin < (range->written ? end : written_end)) return false;
    end = std::max(end, range->end);
    if (range->written) written_end = std::max(written_end, range->end);
  }
  return true;
}

// ---- results ----

void *Arguments::result(int i, int64_t dim, const int64_t *sizes, anyfuse_dtype dtype) {
  constexpr int64_t kMaxDim = 64;
  if (dim > kMaxDim) plain_ = false;
  if (!plain_) return nullptr;
  int64_t strides[kMaxDim];
  for (int64_t d = dim, step = 1; d-- > 0; step *= std::max<int64_t>(sizes[d], 1)) strides[d] = step;
  void *data = nullptr;
  if (torch.aoti_torch_empty_strided(dim, sizes, strides, number_of[dtype], cpu, 0, &results_[i]) != 0 ||
      torch.aoti_torch_get_data_ptr(results_[i], &data) != 0)
    plain_ = false;
  return data;
}

void Arguments::give_results(StableIValue *stack, int outputs) {
  for (int i = 0; i < outputs; ++i) stack[i] = reinterpret_cast<StableIValue>(results_[i]);
}

void Arguments::drop_results(int outputs) {
  for (int i = 0; i < outputs; ++i)
    if (results_[i] != nullptr) torch.aoti_torch_delete_tensor_object(results_[i]);
}

int32_t Arguments::threads() {
  uint32_t threads = 1;
  torch.torch_get_num_threads(&threads);
  return static_cast<int32_t>(threads);
}

// ---- together ----

bool together() { return waiting.active; }

Waiting *wait(size_t bytes) {
  auto *call = static_cast<Waiting *>(std::calloc(1, bytes));
  if (call == nullptr) return nullptr;
  (waiting.last == nullptr ? waiting.first : waiting.last->next) = call;
  return waiting.last = call;
}

}  // namespace anyfuse::door

using namespace anyfuse::door;

extern "C" const char *anyfuse_torch_register(void) {
  static const char *const problem = register_all();
  return problem;
}

extern "C" void anyfuse_torch_generally(int32_t on) { generally.store(on != 0); }

extern "C" void anyfuse_torch_refuse(int32_t kind, const char *message) {
  refused = kind;
  std::strncpy(refusal, message, sizeof refusal - 1);
}

extern "C" void anyfuse_torch_together(void) { waiting.active = true; }

extern "C" anyfuse_status anyfuse_torch_together_end(int32_t run) {
  anyfuse_status status = ANYFUSE_OK;
  for (Waiting *call = waiting.first, *next; call != nullptr; call = next) {
    next = call->next;
    if (run != 0 && status == ANYFUSE_OK) status = call->run(call);
    std::free(call);
  }
  if (run != 0 && status == ANYFUSE_OK)
    for (size_t i = 0; i < waiting.count; ++i) *waiting.steps[i].tensor = waiting.steps[i].next;
  for (Held *held = waiting.held, *next; held != nullptr; held = next) {
    next = held->next;
    free_arguments(*held->schema, held->fields, held->stack);
    std::free(held);
  }
  std::free(waiting.steps);
  waiting = {};
  return status;
}
