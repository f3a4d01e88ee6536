// Bytes become tensors (shapes, strides, offsets, formats, dtypes, some null) and a call of the C face in its two
// phases. Storage is as long as a tensor's view reaches, or as the face allows at all. Every call answers with a code.
#include <acl/acl.h>
#include <aclnn/acl_meta.h>
#include <aclnnop/aclnn_add_rms_norm_dynamic_quant.h>
#include <aclnnop/aclnn_lazy_adam.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <vector>

namespace {

class Bytes {
 public:
  Bytes(const uint8_t *data, size_t size) : data_(data), size_(size) {}
  uint8_t byte() { return at_ < size_ ? data_[at_++] : 0; }
  bool one_in(int n) { return byte() % n == n - 1; }
  template <typename T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[byte() % values.size()];
  }

 private:
  const uint8_t *data_;
  size_t size_, at_ = 0;
};

// The tensors of one input, over memory that ends where the last element of each does.
class Tensors {
 public:
  explicit Tensors(Bytes &in) : in_(in) {}
  ~Tensors() {
    for (const aclTensor *tensor : tensors_) aclDestroyTensor(tensor);
    for (void *memory : memory_) std::free(memory);
  }

  aclTensor *make(std::vector<int64_t> shape, aclDataType dtype) {
    if (in_.one_in(32)) return nullptr;
    if (in_.one_in(16)) dtype = static_cast<aclDataType>(in_.byte() % 48);
    if (in_.one_in(8) && !shape.empty()) shape[in_.byte() % shape.size()] = in_.pick<int64_t>({0, 1, 2, 5, 40});
    if (in_.one_in(16)) shape.insert(shape.begin(), in_.byte() % 12, 1);
    std::vector<int64_t> strides(shape.size());
    int64_t stride = 1, reach = 1, count = 1;
    const bool stepped = in_.one_in(4);
    for (size_t i = shape.size(); i-- > 0;) {
      strides[i] = stepped ? stride * 2 : stride;
      if (in_.one_in(16)) strides[i] = in_.byte() % 4;  // repeats, or overlaps
      reach += shape[i] > 0 ? (shape[i] - 1) * strides[i] : 0;
      count *= shape[i];
      stride *= shape[i] > 0 ? shape[i] * (stepped ? 2 : 1) : 1;
    }
    if (reach < count) reach = count;  // the strides may not be given
    const int64_t offset = in_.one_in(8) ? in_.byte() % 8 : 0;
    const size_t bytes = static_cast<size_t>(count > 0 ? reach + offset : 0) * (aclDataTypeSize(dtype) + 1);
    void *memory = std::calloc(bytes > 0 ? bytes : 1, 1);
    memory_.push_back(memory);
    for (size_t i = 0; i < bytes && i < 64; ++i) static_cast<uint8_t *>(memory)[i] = in_.byte() % 4;
    const int64_t storage = reach + offset;
    aclTensor *tensor =
        aclCreateTensor(shape.data(), shape.size(), dtype, in_.one_in(2) ? strides.data() : nullptr, offset,
                        in_.one_in(16) ? static_cast<aclFormat>(in_.byte() % 32) : ACL_FORMAT_ND, &storage, 1, memory);
    if (tensor != nullptr) tensors_.push_back(tensor);
    return tensor;
  }

 private:
  Bytes &in_;
  std::vector<const aclTensor *> tensors_;
  std::vector<void *> memory_;
};

template <typename Phase2>
void finish(int code, Phase2 phase2, uint64_t size, aclOpExecutor *executor) {
  if (code != 0) return;
  void *workspace = size > 0 ? std::malloc(size) : nullptr;
  phase2(workspace, size, executor, nullptr);
  aclrtSynchronizeStream(nullptr);
  std::free(workspace);
}

void lazy_adam(Bytes &in) {
  Tensors tensors(in);
  const int64_t n = in.byte() % 9, rows = in.byte() % 9, dim = in.byte() % 9;
  const aclTensor *gradient = tensors.make({n, dim}, ACL_FLOAT);
  const aclTensor *indices = tensors.make({n, 1}, ACL_INT32);
  aclTensor *m = tensors.make({rows, dim}, ACL_FLOAT), *v = tensors.make({rows, dim}, ACL_FLOAT);
  aclTensor *var = tensors.make({rows, dim}, ACL_FLOAT);
  const aclTensor *lr = tensors.make({1}, ACL_FLOAT);
  uint64_t size = 0;
  aclOpExecutor *executor = nullptr;
  const int code = aclnnLazyAdamGetWorkspaceSize(gradient, indices, m, v, var, lr, 0.9, 0.999, 1e-8,
                                                 in.one_in(32) ? nullptr : &size, in.one_in(32) ? nullptr : &executor);
  finish(code, aclnnLazyAdam, size, executor);
}

void norm(Bytes &in) {
  Tensors tensors(in);
  const int64_t rows = in.byte() % 5, cols = in.byte() % 70;
  const aclDataType dtype = in.pick({ACL_FLOAT16, ACL_BF16, ACL_FLOAT});
  const aclDataType codes = in.pick({ACL_INT8, ACL_HIFLOAT8, ACL_FLOAT8_E5M2, ACL_FLOAT8_E4M3FN});
  const aclTensor *x1 = tensors.make({rows, cols}, dtype), *x2 = tensors.make({rows, cols}, dtype);
  const aclTensor *gamma = tensors.make({cols}, dtype);
  const aclTensor *smooth1 = in.one_in(2) ? tensors.make({cols}, dtype) : nullptr;
  const aclTensor *smooth2 = in.one_in(2) ? tensors.make({cols}, dtype) : nullptr;
  aclTensor *y1 = tensors.make({rows, cols}, codes), *y2 = tensors.make({rows, cols}, codes);
  aclTensor *x = tensors.make({rows, cols}, dtype);
  aclTensor *scale1 = tensors.make({rows}, ACL_FLOAT), *scale2 = tensors.make({rows}, ACL_FLOAT);
  uint64_t size = 0;
  aclOpExecutor *executor = nullptr;
  const int code = aclnnAddRmsNormDynamicQuantGetWorkspaceSize(x1, x2, gamma, smooth1, smooth2, 1e-6, y1, y2, x, scale1,
                                                               scale2, &size, &executor);
  finish(code, aclnnAddRmsNormDynamicQuant, size, executor);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int *, char ***) {
  setenv("ANYFUSE_SOC", "any", 1);
  aclInit(nullptr);
  aclrtSetDevice(0);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Bytes in(data, size);
  if (in.byte() & 1) {
    lazy_adam(in);
  } else {
    norm(in);
  }
  return 0;
}
