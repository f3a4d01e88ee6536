// Bytes become the params struct of an operator over buffers of exactly the size that its sizes ask for, so that the
// sanitizer sees the first byte beyond. Whatever the bytes say, the operator answers with a status.
#include <anyfuse.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace {

class Bytes {
 public:
  Bytes(const uint8_t *data, size_t size) : data_(data), size_(size) {}

  uint8_t byte() { return at_ < size_ ? data_[at_++] : 0; }
  int64_t below(int64_t limit) { return limit > 0 ? (byte() | byte() << 8) % limit : 0; }
  bool one_in(int n) { return byte() % n == n - 1; }

  template <typename T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[byte() % values.size()];
  }

  double number() {
    if (!one_in(4)) return pick({0.9, 0.999, 1e-3, 1e-8, 0.0, 1.0, 0.5});
    double value;
    uint8_t raw[sizeof(value)];
    for (uint8_t &part : raw) part = byte();
    std::memcpy(&value, raw, sizeof(value));
    return value;
  }

  // Mostly a dtype that some operator takes.
  anyfuse_dtype dtype() { return one_in(16) ? byte() : pick<anyfuse_dtype>({0, 0, 1, 27, 2, 3, 4, 9, 29, 34, 35, 36}); }
  anyfuse_dtype floating() { return one_in(32) ? dtype() : pick<anyfuse_dtype>({0, 1, 27}); }
  int32_t small() { return one_in(16) ? static_cast<int32_t>(byte()) - 128 : byte() & 1; }

  // 32 where a struct is given short: fields beyond its end count as 0, which may ask for larger buffers.
  int64_t room = 1;

  // The structs of a call as a caller with an older header has them: each ends after `size` bytes.
  template <typename Row>
  const Row *shortened(const Row *rows, int64_t count, size_t size) {
    owned_.emplace_back(new uint8_t[static_cast<size_t>(count) * size]);
    for (int64_t i = 0; i < count; ++i) std::memcpy(owned_.back().get() + i * size, rows + i, size);
    return reinterpret_cast<const Row *>(owned_.back().get());
  }

  // Memory of its own, filled from the bytes and, beyond them, by a pattern; now and then none.
  void *memory(int64_t size, bool may_be_null = true) {
    if (may_be_null && one_in(64)) return nullptr;
    size *= room;
    owned_.emplace_back(new uint8_t[static_cast<size_t>(size)]);
    uint8_t *result = owned_.back().get();
    const uint8_t seed = byte();
    for (int64_t i = 0; i < size; ++i)
      result[i] = at_ < size_ && i < 16 ? data_[at_++] : static_cast<uint8_t>(seed + i * 37);
    return result;
  }

 private:
  const uint8_t *data_;
  size_t size_, at_ = 0;
  std::vector<std::unique_ptr<uint8_t[]>> owned_;
};

int64_t width(anyfuse_dtype dtype) {
  switch (dtype) {
    case ANYFUSE_INT64:
      return 8;
    case ANYFUSE_FLOAT32:
    case ANYFUSE_INT32:
      return 4;
    case ANYFUSE_FLOAT16:
    case ANYFUSE_BFLOAT16:
      return 2;
    default:
      return 1;
  }
}

template <typename Params>
void common(Bytes &in, Params &p) {
  p.size = in.one_in(64) ? (in.room = 32, static_cast<size_t>(in.below(sizeof(Params) / 8) * 8)) : sizeof(Params);
  p.convention = in.small();
  p.threads = in.one_in(8) ? in.small() : 1;
}

void ema(Bytes &in) {
  anyfuse_apply_fused_ema_adamw_row rows[3] = {};
  anyfuse_apply_fused_ema_adamw_params p = {};
  common(in, p);
  p.row_size = in.one_in(64) ? (in.room = 32, in.below(sizeof(rows[0]) / 8) * 8) : sizeof(rows[0]);
  const bool given = !in.one_in(64);
  p.count = in.one_in(64) ? -1 : in.below(4);
  for (auto &r : rows) {
    r.numel = in.one_in(32) ? -1 : in.below(700);
    r.grad_dtype = in.floating(), r.var_dtype = in.floating(), r.m_dtype = in.floating();
    r.v_dtype = in.floating(), r.s_dtype = in.floating();
    const int64_t n = r.numel < 0 ? 0 : r.numel;
    r.grad = in.memory(n * width(r.grad_dtype));
    r.var = in.memory(n * width(r.var_dtype));
    r.m = in.memory(n * width(r.m_dtype));
    r.v = in.memory(n * width(r.v_dtype));
    r.s = in.memory(n * width(r.s_dtype));
    r.step = in.one_in(8) ? INT64_MIN + in.byte() : in.below(1000);
    r.seed = in.byte();
  }
  p.lr = in.number(), p.ema_decay = in.number(), p.beta1 = in.number(), p.beta2 = in.number(), p.eps = in.number();
  p.weight_decay = in.number(), p.grad_scale = in.number();
  p.mode = in.small(), p.bias_correction = in.small(), p.maximize = in.small(), p.stochastic_rounding = in.small();
  if (given) p.rows = in.shortened(rows, 3, p.row_size);
  anyfuse_apply_fused_ema_adamw(&p);
}

void norm(Bytes &in) {
  anyfuse_add_rms_norm_dynamic_quant_params p = {};
  common(in, p);
  p.rows = in.one_in(32) ? -1 : in.below(6);
  p.cols = in.one_in(32) ? -1 : in.below(700);
  p.x_dtype = in.floating(), p.gamma_dtype = in.floating(), p.beta_dtype = in.floating(), p.y_dtype = in.dtype();
  p.smooth_scale1_dtype = in.floating(), p.smooth_scale2_dtype = in.floating();
  const int64_t rows = p.rows < 0 ? 0 : p.rows, cols = p.cols < 0 ? 0 : p.cols, n = rows * cols;
  p.x1 = in.memory(n * width(p.x_dtype)), p.x2 = in.memory(n * width(p.x_dtype));
  p.x = in.memory(n * width(p.x_dtype));
  p.gamma = in.memory(cols * width(p.gamma_dtype));
  if (in.byte() & 1) p.beta = in.memory(cols * width(p.beta_dtype));
  if (in.byte() & 1) p.smooth_scale1 = in.memory(cols * width(p.smooth_scale1_dtype));
  if (in.byte() & 1) p.smooth_scale2 = in.memory(cols * width(p.smooth_scale2_dtype));
  const int64_t codes = p.y_dtype == ANYFUSE_INT4 ? rows * (cols / 2) : n;
  if (!in.one_in(8)) p.y1 = in.memory(codes), p.scale1 = static_cast<float *>(in.memory(rows * 4));
  if (in.byte() & 1) p.y2 = in.memory(codes), p.scale2 = static_cast<float *>(in.memory(rows * 4));
  p.epsilon = in.number();
  anyfuse_add_rms_norm_dynamic_quant(&p);
}

void lazy(Bytes &in) {
  anyfuse_lazy_adam_row rows[3] = {};
  anyfuse_lazy_adam_params p = {};
  common(in, p);
  p.row_size = in.one_in(64) ? (in.room = 32, in.below(sizeof(rows[0]) / 8) * 8) : sizeof(rows[0]);
  const bool given = !in.one_in(64);
  p.count = in.one_in(64) ? -1 : in.below(4);
  for (auto &r : rows) {
    r.n = in.one_in(32) ? -1 : in.below(40);
    r.rows = in.one_in(32) ? -1 : in.below(30);
    r.dim = in.one_in(32) ? -1 : in.below(40);
    r.gradient_dtype = in.floating(), r.var_dtype = in.floating();
    r.indices_dtype = in.one_in(16) ? in.dtype() : in.pick<anyfuse_dtype>({3, 9});
    const int64_t n = r.n < 0 ? 0 : r.n, table = (r.rows < 0 ? 0 : r.rows) * (r.dim < 0 ? 0 : r.dim);
    r.gradient = in.memory(n * (r.dim < 0 ? 0 : r.dim) * width(r.gradient_dtype));
    void *ids = in.memory(n * width(r.indices_dtype));
    for (int64_t i = 0; ids != nullptr && i < n && !in.one_in(64); ++i) {
      const int64_t id = in.below((r.rows < 0 ? 0 : r.rows) + 2) - 1;  // one below, one beyond
      if (r.indices_dtype == ANYFUSE_INT64) std::memcpy(static_cast<int64_t *>(ids) + i, &id, 8);
      const int32_t narrow = static_cast<int32_t>(id);
      if (r.indices_dtype == ANYFUSE_INT32) std::memcpy(static_cast<int32_t *>(ids) + i, &narrow, 4);
    }
    r.indices = ids;
    r.m = in.memory(table * 4), r.v = in.memory(table * 4), r.var = in.memory(table * width(r.var_dtype));
    r.lr = in.number();
  }
  p.beta1 = in.number(), p.beta2 = in.number(), p.epsilon = in.number();
  p.assume_unique = in.small();
  if (given) p.rows = in.shortened(rows, 3, p.row_size);
  anyfuse_lazy_adam(&p);
}

// Ends of groups, mostly ascending and at most m.
int64_t *group_list(Bytes &in, int64_t groups, int64_t m) {
  auto *ends = static_cast<int64_t *>(in.memory(groups * 8));
  for (int64_t i = 0, end = 0; ends != nullptr && i < groups; ++i) {
    end = std::min(m, end + in.below(9));
    ends[i] = in.one_in(64) ? in.pick<int64_t>({-1, m + 1, INT64_MIN, INT64_MAX}) : end;
  }
  return ends;
}

void matmul(Bytes &in, bool grouped) {
  anyfuse_quant_matmul_dequant_params p = {};
  anyfuse_quant_grouped_matmul_dequant_params all = {};
  if (grouped) {
    all.size = in.one_in(64) ? (in.room = 32, static_cast<size_t>(in.below(sizeof all / 8) * 8)) : sizeof all;
    all.groups = in.one_in(32) ? -1 : in.below(6);
    all.own_smooth_scale = in.small();
  }
  const int64_t groups = !grouped ? 1 : all.groups < 0 ? 0 : all.groups;
  common(in, p);
  p.m = in.one_in(32) ? -1 : in.below(20), p.n = in.one_in(32) ? -1 : in.below(70);
  p.k = in.one_in(32) ? in.pick<int64_t>({-1, 131072, INT64_MAX}) : in.below(200);
  p.x_dtype = in.one_in(4) ? in.dtype() : in.floating();
  p.weight_scale_dtype = in.one_in(16) ? in.dtype() : in.pick<anyfuse_dtype>({0, 9});
  p.x_scale_dtype = in.one_in(16) ? in.dtype() : in.pick<anyfuse_dtype>({0, 1});
  p.smooth_scale_dtype = in.floating(), p.out_dtype = in.floating();
  p.weight_layout = in.one_in(16) ? in.byte() : static_cast<int32_t>(in.below(5));
  p.quant_mode = in.small();
  const int64_t m = p.m < 0 ? 0 : p.m, n = p.n < 0 ? 0 : p.n, k = p.k < 0 || p.k > 131071 ? 0 : p.k;
  const auto up = [](int64_t size, int64_t block) { return (size + block - 1) / block * block; };
  const int64_t weights[] = {n * k, n * k, up(k, 32) * up(n, 16), up(n, 32) * up(k, 16), up(n, 16) * up(k, 4)};
  p.x = in.memory(m * k * width(p.x_dtype));
  // a layout that does not exist is 0 to a struct that ends before it
  p.weight = in.memory(groups * weights[p.weight_layout >= 0 && p.weight_layout < 5 ? p.weight_layout : 0]);
  p.weight_scale = in.memory(groups * n * width(p.weight_scale_dtype));
  if (in.byte() & 1) p.bias = static_cast<int32_t *>(in.memory(groups * n * 4));
  if (in.byte() & 1) p.x_scale = in.memory((p.quant_mode == ANYFUSE_PER_TENSOR ? 1 : m) * width(p.x_scale_dtype));
  const int64_t smooth = k * (all.own_smooth_scale != 0 ? groups : 1);
  if (in.byte() & 1) p.smooth_scale = in.memory(smooth * width(p.smooth_scale_dtype));
  p.out = in.memory(m * n * width(p.out_dtype));
  if (!grouped) {
    anyfuse_quant_matmul_dequant(&p);
    return;
  }
  all.matmul = in.one_in(64) ? nullptr : &p;
  all.group_list = group_list(in, groups, m);
  anyfuse_quant_grouped_matmul_dequant(&all);
}

void adamw(Bytes &in) {
  static float qmap[256];
  for (int i = 0; i < 256; ++i) qmap[i] = static_cast<float>(i - 127) / 128.0f;
  anyfuse_apply_adam_w_quant_row rows[3] = {};
  anyfuse_apply_adam_w_quant_params p = {};
  common(in, p);
  p.row_size = in.one_in(64) ? (in.room = 32, in.below(sizeof(rows[0]) / 8) * 8) : sizeof(rows[0]);
  const bool given = !in.one_in(64);
  p.count = in.one_in(64) ? -1 : in.below(4);
  p.block_size = in.one_in(16) ? in.pick<int64_t>({0, -1, 100, INT64_MAX}) : 64 << in.below(6);
  p.qmap_m = in.one_in(8) ? static_cast<float *>(in.memory(1024)) : qmap;
  p.qmap_v = in.one_in(8) ? static_cast<float *>(in.memory(1024)) : qmap;
  for (auto &r : rows) {
    r.numel = in.one_in(32) ? -1 : in.below(700);
    r.grad_dtype = in.floating(), r.var_dtype = in.floating(), r.s_dtype = in.floating();
    r.state_bits = in.one_in(16) ? in.byte() : in.pick({0, 8, 32});
    const int64_t n = r.numel < 0 ? 0 : r.numel, state = r.state_bits == 32 ? 4 : 1;
    const int64_t blocks = p.block_size > 0 && p.block_size < 4096 ? (n + p.block_size - 1) / p.block_size : 0;
    r.grad = in.memory(n * width(r.grad_dtype)), r.var = in.memory(n * width(r.var_dtype));
    r.m = in.memory(n * state), r.v = in.memory(n * state);
    if (r.state_bits != 32 || in.one_in(2)) {
      r.absmax_m = static_cast<float *>(in.memory(blocks * 4)),
      r.absmax_v = static_cast<float *>(in.memory(blocks * 4));
    }
    if (in.one_in(4)) r.s = in.memory(n * width(r.s_dtype));
    r.step = in.one_in(8) ? INT64_MIN + in.byte() : in.below(1000);
    r.seed = in.byte();
  }
  p.lr = in.number(), p.beta1 = in.number(), p.beta2 = in.number(), p.weight_decay = in.number(), p.eps = in.number();
  p.gnorm_scale = in.number(), p.grad_scale = in.number(), p.ema_decay = in.number();
  p.maximize = in.small(), p.skip_nonfinite = in.small(), p.nonzero_v = in.small(), p.stochastic_rounding = in.small();
  if (given) p.rows = in.shortened(rows, 3, p.row_size);
  anyfuse_apply_adam_w_quant(&p);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Bytes in(data, size);
  static const char *const targets[] = {"base", "avx2", "avx512", "neon", "neon_dot", ""};
  anyfuse_target_set(targets[in.byte() % 6]);  // one that is not here leaves the choice as it was
  switch (in.byte() % 6) {
    case 0:
      ema(in);
      break;
    case 1:
      norm(in);
      break;
    case 2:
      lazy(in);
      break;
    case 3:
      matmul(in, false);
      break;
    case 4:
      adamw(in);
      break;
    default:
      matmul(in, true);
  }
  return 0;
}
