// The native door: operators that torch's dispatcher calls without Python.
//
// It decides one thing: plain or not. A call is plain when its tensors are dense, contiguous and apart in the CPU's
// memory, its dtypes and shapes fit, and the core takes it. Any other call goes, untouched, to the operator's general
// implementation in Python, which alone has words for errors, copies for views, the rules of products and the
// reference; it comes back through the door with plain tensors. So nothing here needs to be complete, only safe.
#pragma once
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

#include "anyfuse.h"
#include "torch/shim.h"

namespace anyfuse::door {

// ---- what schemas.py writes ----

enum Kind : uint8_t {
  kPlain,
  kTensor,
  kOptionalTensor,
  kTensors,
  kOptionalTensors,
  kNumbers,
  kOptionalNumbers,
  kOptionalNumber,
  kChoice,  // a string
};

struct Field {
  Kind kind;
  const char *const *choices;  // of a kChoice: its strings, numbered by their places
};

struct Schema {
  const char *name, *schema, *schema_of_one, *schema_of_general;
  const Field *fields, *fields_of_one;
  int inputs, outputs;
};

// ---- tensors and lists ----

constexpr anyfuse_dtype kFloat64 = 11;  // as aclDataType has it; read for scalars alone

struct Tensor {
  void *data = nullptr;
  const int64_t *sizes = nullptr;
  int64_t dim = 0, numel = 0;
  anyfuse_dtype dtype = -1;

  bool given() const { return sizes != nullptr; }
  int64_t bytes() const;
  bool is(anyfuse_dtype wanted) const { return dtype == wanted; }
  bool is_float() const { return is(ANYFUSE_FLOAT32) || is(ANYFUSE_FLOAT16) || is(ANYFUSE_BFLOAT16); }
  bool has_shape(int64_t size) const { return dim == 1 && sizes[0] == size; }
  bool has_shape(int64_t first, int64_t second) const { return dim == 2 && sizes[0] == first && sizes[1] == second; }
  bool has_shape_of(const Tensor &other) const {
    return dim == other.dim && std::memcmp(sizes, other.sizes, static_cast<size_t>(dim) * sizeof(int64_t)) == 0;
  }
};

// An array whose first few elements need no allocation. `failed` where there is no memory.
template <typename T, int inline_count = 8>
class Array {
  static_assert(std::is_trivially_copyable<T>::value, "moved by memcpy");

 public:
  explicit Array(int64_t count) {
    if (count > inline_count) data_ = static_cast<T *>(std::calloc(static_cast<size_t>(count), sizeof(T)));
  }
  ~Array() {
    if (data_ != inline_) std::free(data_);
  }
  Array(const Array &) = delete;
  Array &operator=(const Array &) = delete;
  bool failed() const { return data_ == nullptr; }
  T *data() { return data_; }
  T &operator[](int64_t i) { return data_[i]; }

 private:
  T inline_[inline_count] = {};
  T *data_ = inline_;
};

// The memory of a call's tensors: whether what is written lies apart from everything else.
class Ranges {
 public:
  explicit Ranges(int64_t count) : ranges_(count) {}
  void reads(const Tensor &tensor) { add(tensor, false); }
  void writes(const Tensor &tensor) { add(tensor, true); }
  bool lie_apart();

 private:
  struct Range {
    uintptr_t begin, end;
    bool written;
  };
  void add(const Tensor &tensor, bool written) {
    const auto begin = reinterpret_cast<uintptr_t>(tensor.data);
    if (tensor.numel > 0 && !ranges_.failed())
      ranges_[count_++] = {begin, begin + static_cast<uintptr_t>(tensor.bytes()), written};
  }
  Array<Range, 16> ranges_;
  int64_t count_ = 0;
};

// The arguments of one call, by their places. What does not fit makes the call not plain.
class Arguments {
 public:
  Arguments(StableIValue *stack, const Field *fields) : stack_(stack), fields_(fields) {}

  bool plain() const { return plain_; }
  void require(bool condition) { plain_ = plain_ && condition; }

  Tensor tensor(int i) { return described(reinterpret_cast<Handle>(stack_[i])); }
  Tensor optional(int i) { return stack_[i] == 0 ? Tensor() : described(*reinterpret_cast<Handle *>(stack_[i])); }
  double number(int i) const { return bits_as<double>(stack_[i]); }
  bool is_absent(int i) const { return stack_[i] == 0; }
  bool is_optional(int i) const { return fields_[i].kind == kOptionalTensor; }
  int64_t integer(int i) const { return static_cast<int64_t>(stack_[i]); }
  bool flag(int i) const { return bits_as<bool>(stack_[i]); }
  int64_t integer_or(int i, int64_t otherwise) const {
    return stack_[i] == 0 ? otherwise : static_cast<int64_t>(*reinterpret_cast<StableIValue *>(stack_[i]));
  }
  int32_t choice(int i);                                       // its place among the field's choices
  anyfuse_dtype dtype_or(int i, anyfuse_dtype otherwise);      // of a ScalarType?
  double scalar_or(int i, double otherwise);                   // of an optional tensor with one element
  double scalar(const Tensor &one);
  int64_t step(const Tensor &one);                             // of an int64 tensor with one element

  // A list of tensors or, in the overload for one tensor, that one.
  int64_t count(int i);
  Tensor at(int i, int64_t index);
  Tensor at_if(int i, int64_t index) { return count(i) == 0 ? Tensor() : at(i, index); }  // of Perhaps
  Tensor shared_at(int i, int64_t index) { return at(i, count(i) == 1 ? 0 : index); }     // one for all, or for each
  // Numbers: of an optional list, `count` where there is one.
  bool has_numbers(int i) const { return stack_[i] != 0; }
  int64_t numbers(int i);
  int64_t number_at(int i, int64_t index);

  // A new tensor, a result of the call; it is not looked at again by the door.
  void *result(int i, int64_t dim, const int64_t *sizes, anyfuse_dtype dtype);
  void *empty_result(int i, anyfuse_dtype dtype) {
    const int64_t none = 0;
    return result(i, 1, &none, dtype);
  }

  static int32_t threads();

  // Ends: results take the place of the arguments, or are dropped.
  void give_results(StableIValue *stack, int outputs);
  void drop_results(int outputs);

 private:
  template <typename T>
  static T bits_as(StableIValue bits) {
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  Tensor described(Handle handle);
  ListHandle list(int i) const;

  static constexpr int kMaxResults = 5;
  StableIValue *stack_;
  const Field *fields_;
  Handle results_[kMaxResults] = {};
  bool plain_ = true;
};

// ---- calls that are together: see anyfuse_torch_together in anyfuse_internal.h ----

// A call of the core that waits, with its params and rows behind it.
struct Waiting {
  Waiting *next;
  anyfuse_status (*run)(Waiting *);
};

bool together();
Waiting *wait(size_t bytes);  // at the end of those that wait; null where there is no memory

// Calls the core. False where it refuses.
template <auto core, typename Params>
bool run(const Params &params) {
  return core(&params) == ANYFUSE_OK;
}

// That of an operator over lists: now or, together with others, at their end.
template <auto core, typename Params, typename Row>
bool run(Params params, Row *rows, int64_t count) {
  params.size = sizeof params;
  params.row_size = sizeof(Row);
  params.rows = rows;
  params.count = count;
  params.threads = Arguments::threads();
  if (!together()) return core(&params) == ANYFUSE_OK;
  struct Call : Waiting {
    Params params;
  };
  const size_t bytes = static_cast<size_t>(count) * sizeof(Row);
  auto *call = static_cast<Call *>(wait(sizeof(Call) + bytes));
  if (call == nullptr) return false;
  call->params = params;
  call->params.rows = reinterpret_cast<Row *>(call + 1);
  std::memcpy(call + 1, rows, bytes);
  call->run = [](Waiting *waiting) { return core(&static_cast<Call *>(waiting)->params); };
  return true;
}

// The operator of each file in csrc/torch: true when the call was plain and has run.
using Operator = bool (*)(Arguments &);
bool add_rms_norm_dynamic_quant(Arguments &in);
bool apply_adam_w_quant(Arguments &in);
bool apply_fused_ema_adamw(Arguments &in);
bool lazy_adam(Arguments &in);
bool quant_grouped_matmul_dequant(Arguments &in);
bool quant_matmul_dequant(Arguments &in);

namespace schemas {
#include "schemas.inc"
}

}  // namespace anyfuse::door
