// Bytes become tensors (shapes, strides, offsets, formats, dtypes, some null) and a call of the C face in its two
// phases. Storage is as long as a tensor's view reaches, or as the face allows at all. Every call answers with a code.
#include <acl/acl.h>
#include <aclnn/acl_meta.h>
#include <aclnnop/aclnn_add_rms_norm_dynamic_quant.h>
#include <aclnnop/aclnn_add_rms_norm_dynamic_quant_v2.h>
#include <aclnnop/aclnn_apply_adam_w_quant.h>
#include <aclnnop/aclnn_apply_fused_ema_adam.h>
#include <aclnnop/aclnn_lazy_adam.h>
#include <aclnnop/aclnn_quant_grouped_matmul_dequant.h>
#include <aclnnop/aclnn_quant_grouped_matmul_dequant_weight_nz.h>
#include <aclnnop/aclnn_quant_matmul_dequant.h>
#include <aclnnop/aclnn_trans_matmul_weight.h>

#include <cmath>
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
  double number() { return pick({0.9, 0.999, 1e-3, 1e-8, 0.0, 1.0, -1.0, 1e300, 0.5, HUGE_VAL}); }
  aclDataType floating() { return pick({ACL_FLOAT16, ACL_BF16, ACL_FLOAT}); }
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

  aclTensor *maybe(std::vector<int64_t> shape, aclDataType dtype) {
    return in_.one_in(2) ? make(std::move(shape), dtype) : nullptr;
  }

  // In blocks, known by the dimensions of its shape or of its storage; or plain, with room for the blocks. `groups` of
  // matrices, or one without such a dimension.
  aclTensor *matrix(int64_t rows, int64_t cols, aclDataType dtype, std::vector<int64_t> groups = {}) {
    const int64_t wide = dtype == ACL_INT8 ? 32 : 16;
    std::vector<int64_t> plain = groups, blocks = groups;
    plain.insert(plain.end(), {rows, cols});
    blocks.insert(blocks.end(), {(cols + wide - 1) / wide, (rows + 15) / 16, 16, wide});
    const std::vector<int64_t> &shape = in_.one_in(2) ? plain : blocks;
    const std::vector<int64_t> &storage = in_.one_in(2) ? plain : blocks;
    int64_t bytes = wide == 32 ? 1 : 2;
    for (int64_t size : blocks) bytes *= size;
    void *memory = std::calloc(static_cast<size_t>(bytes) + 1, 1);
    memory_.push_back(memory);
    aclTensor *tensor =
        aclCreateTensor(shape.data(), shape.size(), dtype, nullptr, 0, in_.pick({ACL_FORMAT_ND, ACL_FORMAT_FRACTAL_NZ}),
                        storage.data(), storage.size(), memory);
    if (tensor != nullptr) tensors_.push_back(tensor);
    return tensor;
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
    // small numbers: indices and steps are among them
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
  const aclDataType dtype = in.floating();
  const aclDataType codes = in.pick({ACL_INT8, ACL_HIFLOAT8, ACL_FLOAT8_E5M2, ACL_FLOAT8_E4M3FN});
  const aclTensor *x1 = tensors.make({rows, cols}, dtype), *x2 = tensors.make({rows, cols}, dtype);
  const aclTensor *gamma = tensors.make({cols}, dtype);
  const aclTensor *smooth1 = tensors.maybe({cols}, dtype), *smooth2 = tensors.maybe({cols}, dtype);
  aclTensor *y1 = tensors.make({rows, cols}, codes), *y2 = tensors.make({rows, cols}, codes);
  aclTensor *x = tensors.make({rows, cols}, dtype);
  aclTensor *scale1 = tensors.make({rows}, ACL_FLOAT), *scale2 = tensors.make({rows}, ACL_FLOAT);
  uint64_t size = 0;
  aclOpExecutor *executor = nullptr;
  const int code = aclnnAddRmsNormDynamicQuantGetWorkspaceSize(x1, x2, gamma, smooth1, smooth2, 1e-6, y1, y2, x, scale1,
                                                               scale2, &size, &executor);
  finish(code, aclnnAddRmsNormDynamicQuant, size, executor);
}

void norm_v2(Bytes &in) {
  Tensors tensors(in);
  const int64_t rows = in.byte() % 5, cols = in.byte() % 70;
  const aclDataType dtype = in.floating();
  const aclDataType codes = in.pick({ACL_INT8, ACL_INT4, ACL_INT32, ACL_HIFLOAT8, ACL_FLOAT8_E5M2});
  const int64_t width = codes == ACL_INT32 ? cols / 8 : cols;
  const bool mask[2] = {in.one_in(2), in.one_in(2)};
  aclBoolArray *outputs = in.one_in(2) ? aclCreateBoolArray(mask, 2 - in.one_in(16)) : nullptr;
  const aclTensor *x1 = tensors.make({rows, cols}, dtype), *x2 = tensors.make({rows, cols}, dtype);
  const aclTensor *gamma = tensors.make({cols}, dtype), *beta = tensors.maybe({cols}, dtype);
  const aclTensor *smooth1 = tensors.maybe({cols}, dtype), *smooth2 = tensors.maybe({cols}, dtype);
  const auto output = [&](std::vector<int64_t> shape, aclDataType type) {
    return tensors.make(in.one_in(4) ? std::vector<int64_t>{1} : shape, type);
  };
  aclTensor *y1 = output({rows, width}, codes), *y2 = output({rows, width}, codes);
  aclTensor *x = tensors.make({rows, cols}, dtype);
  aclTensor *scale1 = output({rows}, ACL_FLOAT), *scale2 = output({rows}, ACL_FLOAT);
  uint64_t size = 0;
  aclOpExecutor *executor = nullptr;
  const int code = aclnnAddRmsNormDynamicQuantV2GetWorkspaceSize(x1, x2, gamma, smooth1, smooth2, beta, in.number(),
                                                                 outputs, y1, y2, x, scale1, scale2, &size, &executor);
  finish(code, aclnnAddRmsNormDynamicQuantV2, size, executor);
  aclDestroyBoolArray(outputs);
}

void adamw(Bytes &in) {
  Tensors tensors(in);
  const int64_t n = in.byte() % 4 * 200 + in.byte() % 9, blocks = (n + 255) / 256;
  const aclDataType dtype = in.floating();
  aclTensor *var = tensors.make({n}, dtype);
  const aclTensor *grad = tensors.make({n}, dtype);
  aclTensor *m = tensors.make({n}, ACL_UINT8), *v = tensors.make({n}, ACL_UINT8);
  const aclTensor *qmap_m = tensors.make({256}, ACL_FLOAT), *qmap_v = tensors.make({256}, ACL_FLOAT);
  aclTensor *absmax_m = tensors.make({blocks}, ACL_FLOAT), *absmax_v = tensors.make({blocks}, ACL_FLOAT);
  const aclTensor *step = tensors.make({1}, ACL_INT64);
  char mode[] = "BLOCKWISE";
  uint64_t size = 0;
  aclOpExecutor *executor = nullptr;
  const int code = aclnnApplyAdamWQuantGetWorkspaceSize(
      var, grad, m, v, qmap_m, qmap_v, absmax_m, absmax_v, step, in.number(), in.number(), in.number(), in.number(),
      in.number(), in.number(), in.one_in(2) ? mode : nullptr, in.one_in(8) ? in.byte() : 256, &size, &executor);
  finish(code, aclnnApplyAdamWQuant, size, executor);
}

void ema(Bytes &in) {
  Tensors tensors(in);
  const std::vector<int64_t> shape = {in.byte() % 9, in.byte() % 9};
  const aclDataType dtype = in.floating();
  const aclTensor *grad = tensors.make(shape, dtype);
  aclTensor *var = tensors.make(shape, dtype), *m = tensors.make(shape, dtype);
  aclTensor *v = tensors.make(shape, dtype), *s = tensors.make(shape, dtype);
  const aclTensor *step = tensors.make({1}, ACL_INT64);
  uint64_t size = 0;
  aclOpExecutor *executor = nullptr;
  const int code = aclnnApplyFusedEmaAdamGetWorkspaceSize(grad, var, m, v, s, step, in.number(), in.number(),
                                                          in.number(), in.number(), in.number(), in.byte() % 3,
                                                          in.one_in(2), in.number(), &size, &executor);
  finish(code, aclnnApplyFusedEmaAdam, size, executor);
}

struct Matmul {
  const aclTensor *x, *weight, *weight_scale, *group_list, *bias, *x_scale, *x_offset, *smooth;
  aclTensor *out;
  bool transpose;
  char mode[16];
};

// `groups` is the dimension in front of what belongs to a group, or nothing.
Matmul matmul_of(Bytes &in, Tensors &tensors, const std::vector<int64_t> &groups) {
  const auto each = [&](std::vector<int64_t> dims) {
    dims.insert(dims.begin(), groups.begin(), groups.end());
    return dims;
  };
  Matmul c = {};
  const int64_t m = in.byte() % 5, n = in.byte() % 40, k = in.byte() % 70;
  c.transpose = !in.one_in(4);
  const bool packed = in.one_in(4);
  c.x = tensors.make({m, k}, in.floating());
  const std::vector<int64_t> plain = c.transpose ? std::vector<int64_t>{n, k} : std::vector<int64_t>{k, n};
  c.weight = in.one_in(2) ? tensors.make(each(plain), ACL_INT8) : tensors.matrix(plain[0], plain[1], ACL_INT8, groups);
  c.weight_scale = tensors.make(each({n}), packed ? ACL_INT64 : ACL_FLOAT);
  c.bias = tensors.maybe(each({n}), ACL_INT32);
  c.x_scale = tensors.maybe({in.one_in(2) ? 1 : m}, packed ? ACL_FLOAT16 : ACL_FLOAT);
  c.x_offset = in.one_in(16) ? tensors.make({m}, ACL_FLOAT) : nullptr;
  c.smooth = tensors.maybe(!groups.empty() && in.one_in(4) ? each({k}) : std::vector<int64_t>{k}, in.floating());
  c.out = tensors.make({m, n}, in.floating());
  std::strcpy(c.mode, in.pick({"pertoken", "pertensor", "pertoken", "pertensor", "other", ""}));
  if (!groups.empty()) c.group_list = tensors.make(groups, ACL_INT64);
  return c;
}

void matmul(Bytes &in) {
  Tensors tensors(in);
  Matmul c = matmul_of(in, tensors, {});
  uint64_t size = 0;
  aclOpExecutor *executor = nullptr;
  const int code =
      aclnnQuantMatmulDequantGetWorkspaceSize(c.x, c.weight, c.weight_scale, c.bias, c.x_scale, c.x_offset, c.smooth,
                                              in.one_in(32) ? nullptr : c.mode, c.transpose, c.out, &size, &executor);
  finish(code, aclnnQuantMatmulDequant, size, executor);
}

template <typename Phase1, typename Phase2>
void grouped(Bytes &in, Phase1 phase1, Phase2 phase2) {
  Tensors tensors(in);
  Matmul c = matmul_of(in, tensors, {in.byte() % 5});
  uint64_t size = 0;
  aclOpExecutor *executor = nullptr;
  const int code = phase1(c.x, c.weight, c.weight_scale, c.group_list, c.bias, c.x_scale, c.x_offset, c.smooth,
                          in.one_in(32) ? nullptr : c.mode, c.transpose, c.out, &size, &executor);
  finish(code, phase2, size, executor);
}

void grouped_matmul(Bytes &in) {
  grouped(in, aclnnQuantGroupedMatmulDequantGetWorkspaceSize, aclnnQuantGroupedMatmulDequant);
}

void grouped_matmul_nz(Bytes &in) {
  grouped(in, aclnnQuantGroupedMatmulDequantWeightNZGetWorkspaceSize, aclnnQuantGroupedMatmulDequantWeightNZ);
}

void trans_weight(Bytes &in) {
  Tensors tensors(in);
  const aclDataType dtype = in.pick({ACL_INT8, ACL_FLOAT16, ACL_BF16, ACL_FLOAT});
  std::vector<int64_t> shape = {in.byte() % 40, in.byte() % 70};
  aclTensor *matrix = tensors.matrix(shape[0], shape[1], dtype);
  if (in.one_in(8)) shape = {in.pick<int64_t>({0, -1, INT64_MAX, 1 << 30}), in.pick<int64_t>({3, INT64_MIN, 1 << 30})};
  if (in.one_in(8)) shape.resize(in.byte() % 5, 7);
  aclIntArray *array = aclCreateIntArray(shape.data(), shape.size());
  uint64_t size = 0;
  aclnnCalculateMatmulWeightSize(in.one_in(32) ? nullptr : array, in.one_in(32) ? nullptr : &size);
  aclnnCalculateMatmulWeightSizeV2(array, in.one_in(8) ? static_cast<aclDataType>(in.byte() % 48) : dtype, &size);
  aclDestroyIntArray(array);
  aclOpExecutor *executor = nullptr;
  const int code = aclnnTransMatmulWeightGetWorkspaceSize(matrix, &size, &executor);
  finish(code, aclnnTransMatmulWeight, size, executor);
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
  constexpr void (*calls[])(Bytes &) = {lazy_adam,    norm,           norm_v2,          adamw, ema, matmul,
                                        trans_weight, grouped_matmul, grouped_matmul_nz};
  calls[in.byte() % (sizeof calls / sizeof *calls)](in);
  return 0;
}
