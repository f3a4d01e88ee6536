// Add, RMSNorm and one or two row-wise quantizations in one pass. The mathematics, and its reference in a few lines of
// PyTorch, is in src/anyfuse/ops/add_rms_norm_dynamic_quant.py; the two must agree to the last bit.
#include "anyfuse.h"
#include "core/dispatch.h"

namespace anyfuse {

constexpr int64_t kNormSegment = 16384;  // elements of a row that stay in scratch

// A call, its numbers rounded to fp32 once. `count` branches are produced, packed to the front.
struct NormQuant {
  struct Branch {
    const void *smooth;  // null: absent
    anyfuse_dtype smooth_dtype;
    void *y;
    float *scale;
  };
  int64_t cols;
  const void *x1, *x2, *gamma, *beta;
  void *x;
  Branch branch[2];
  int count;
  anyfuse_dtype x_dtype, gamma_dtype, beta_dtype, y_dtype;
  float eps, inverse_cols;
  bool device;
  float *scratch;       // of the thread that works: a row of fp32 values for each branch
  int64_t scratch_row;  // elements from one to the next
};

}  // namespace anyfuse

#if defined(ANYFUSE_TARGET)  // ---- the kernel, once per target ----

#include "core/codes.h"
#include "core/convert.h"
#include "core/lane_sum.h"

namespace {

using anyfuse::NormQuant;

// A row is worked on in blocks of 64 elements, one of each lane of the sum. Its fp32 values stay in scratch between the
// passes; a row longer than the scratch goes in segments, and later passes add x1 + x2 again.
constexpr int kBlock = kLanes;
constexpr int64_t kSegment = anyfuse::kNormSegment;

// The dtype of the weights when gamma, beta and the smooth scales are not all of one: looked at in every load.
constexpr anyfuse_dtype kMixed = -1;

ANYFUSE_INLINE int64_t element_size(anyfuse_dtype dtype) { return dtype == ANYFUSE_FLOAT32 ? 4 : 2; }

ANYFUSE_INLINE const char *at(const void *data, anyfuse_dtype dtype, int64_t index) {
  return static_cast<const char *>(data) + index * element_size(dtype);
}

ANYFUSE_INLINE vf load_as(anyfuse_dtype dtype, const void *data, int64_t index) {
  if (dtype == ANYFUSE_FLOAT32) return load(static_cast<const float *>(data) + index);
  vh h;
  memcpy(&h, static_cast<const uint16_t *>(data) + index, sizeof h);
  return half_to_float(dtype, h);
}

// A row's start in a tensor that may be absent.
ANYFUSE_INLINE const char *at_if(const void *data, anyfuse_dtype dtype, int64_t index) {
  return data == nullptr ? nullptr : at(data, dtype, index);
}

ANYFUSE_INLINE void store_as(anyfuse_dtype dtype, void *data, int64_t index, vf v) {
  if (dtype == ANYFUSE_FLOAT32) return store(static_cast<float *>(data) + index, v);
  const vh h = float_to_half(dtype, v);
  memcpy(static_cast<uint16_t *>(data) + index, &h, sizeof h);
}

// ---- pass 1: x = x1 + x2 (x2 null: x1), and the sum of its squares ----

template <anyfuse_dtype dtype>
ANYFUSE_INLINE void add_block(const void *x1, const void *x2, void *x, int64_t i, float *sum, LaneSum *squares) {
  for (int v = 0; v < kLaneVectors; ++v) {
    const int64_t k = i + v * kWidth;
    vf value = load_as(dtype, x1, k);
    if (x2 != nullptr) value = value + load_as(dtype, x2, k);
    store(sum + k, value);
    if (x != nullptr) store_as(dtype, x, k, value);
    squares->lane[v] = squares->lane[v] + value * value;
  }
}

template <anyfuse_dtype dtype>
ANYFUSE_INLINE void add_row(const void *x1, const void *x2, void *x, int64_t n, float *sum, LaneSum *squares) {
  LaneSum lanes = *squares;
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) add_block<dtype>(x1, x2, x, i, sum, &lanes);
  if (i < n) {
    alignas(64) char a[kBlock * 4] = {}, b[kBlock * 4] = {}, out[kBlock * 4];
    const int64_t bytes = (n - i) * element_size(dtype);
    memcpy(a, at(x1, dtype, i), bytes);
    if (x2 != nullptr) memcpy(b, at(x2, dtype, i), bytes);
    add_block<dtype>(a, x2 == nullptr ? nullptr : b, out, 0, sum + i, &lanes);
    if (x != nullptr) memcpy(const_cast<char *>(at(x, dtype, i)), out, bytes);
    // The padding repeats the last element from here on: it then changes no maximum.
    const float last = sum[n - 1];
    for (int64_t k = n; k < i + kBlock; ++k) sum[k] = last;
  }
  *squares = lanes;
}

// Elements [begin, begin + n) of a row; x null: they are not stored.
void add_segment(const NormQuant &p, int64_t first, int64_t n, void *x, float *sum, LaneSum *squares) {
  const char *x1 = at(p.x1, p.x_dtype, first), *x2 = at_if(p.x2, p.x_dtype, first);
  switch (p.x_dtype) {
    case ANYFUSE_FLOAT32:
      return add_row<ANYFUSE_FLOAT32>(x1, x2, x, n, sum, squares);
    case ANYFUSE_FLOAT16:
      return add_row<ANYFUSE_FLOAT16>(x1, x2, x, n, sum, squares);
    default:
      return add_row<ANYFUSE_BFLOAT16>(x1, x2, x, n, sum, squares);
  }
}

// ---- pass 2: the values to quantize, and their absolute maxima ----

struct Weights {
  const void *gamma, *beta, *smooth[2];
};

// The next row, whose x1 and x2 are fetched while this one is computed, which by itself leaves memory idle.
struct NextRow {
  const char *x1, *x2;  // null: there is none
  int64_t element_size;
};

ANYFUSE_INLINE void prefetch_block(const NextRow &next, int64_t i) {
  if (next.x1 == nullptr) return;
  for (int64_t k = i * next.element_size; k < (i + kBlock) * next.element_size; k += 64) {
    __builtin_prefetch(next.x1 + k, 0, 2);
    __builtin_prefetch(next.x2 + k, 0, 2);
  }
}

// The last, partial block of each weight, padded by repeating the last element.
struct PaddedWeights {
  Weights weights;
  alignas(64) char bytes[4][kBlock * 4];
};

ANYFUSE_INLINE const void *pad(char *to, const void *data, anyfuse_dtype dtype, int64_t cols) {
  if (data == nullptr) return nullptr;
  const int64_t size = element_size(dtype), left = cols % kBlock * size;
  memcpy(to, at(data, dtype, cols - cols % kBlock), left);
  for (int64_t k = left; k < kBlock * size; ++k) to[k] = to[k - size];
  return to;
}

ANYFUSE_INLINE void pad_weights(const NormQuant &p, PaddedWeights *padded) {
  padded->weights = {};
  if (p.cols % kBlock == 0) return;
  padded->weights.gamma = pad(padded->bytes[0], p.gamma, p.gamma_dtype, p.cols);
  padded->weights.beta = pad(padded->bytes[1], p.beta, p.beta_dtype, p.cols);
  for (int k = 0; k < p.count; ++k)
    padded->weights.smooth[k] = pad(padded->bytes[2 + k], p.branch[k].smooth, p.branch[k].smooth_dtype, p.cols);
}

template <anyfuse_dtype common, int count>
ANYFUSE_INLINE void weigh_block(const NormQuant &p, const Weights &w, int64_t i, float r, const float *x,
                                float *const *out, vu *max) {
  const bool mixed = common == kMixed;
  for (int v = 0; v < kLaneVectors; ++v) {
    const int64_t k = i + v * kWidth;
    vf y = (load(x + v * kWidth) * r) * load_as(mixed ? p.gamma_dtype : common, w.gamma, k);
    if (w.beta != nullptr) y = y + load_as(mixed ? p.beta_dtype : common, w.beta, k);
    for (int b = count - 1; b >= 0; --b) {  // branch 0 writes where x was read
      vf value = y;
      if (w.smooth[b] != nullptr) value = y * load_as(mixed ? p.branch[b].smooth_dtype : common, w.smooth[b], k);
      store(out[b] + v * kWidth, value);
      max[b] = max_magnitude(max[b], bits(abs(value)));
    }
  }
}

template <anyfuse_dtype common, int count>
ANYFUSE_INLINE void weigh_row(const NormQuant &p, const PaddedWeights &padded, int64_t begin, int64_t n, float r,
                              const NextRow &next, float *const *scratch, vu *max) {
  const Weights w = {p.gamma, p.beta, {p.branch[0].smooth, p.branch[1].smooth}};
  vu m[2] = {max[0], max[1]};
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    float *const out[2] = {scratch[0] + i, scratch[1] + i};
    weigh_block<common, count>(p, w, begin + i, r, scratch[0] + i, out, m);
    prefetch_block(next, i);
  }
  if (i < n) {
    float *const out[2] = {scratch[0] + i, scratch[1] + i};
    weigh_block<common, count>(p, padded.weights, 0, r, scratch[0] + i, out, m);
  }
  max[0] = m[0];
  max[1] = m[1];
}

anyfuse_dtype common_dtype(const NormQuant &p) {
  const anyfuse_dtype dtype = p.gamma_dtype;
  bool same = p.beta == nullptr || p.beta_dtype == dtype;
  for (int k = 0; k < p.count; ++k) same = same && (p.branch[k].smooth == nullptr || p.branch[k].smooth_dtype == dtype);
  return same ? dtype : kMixed;
}

template <int count>
void weigh_segment(const NormQuant &p, anyfuse_dtype common, const PaddedWeights &padded, int64_t begin, int64_t n,
                   float r, const NextRow &next, float *const *scratch, vu *max) {
  switch (common) {
    case ANYFUSE_FLOAT32:
      return weigh_row<ANYFUSE_FLOAT32, count>(p, padded, begin, n, r, next, scratch, max);
    case ANYFUSE_FLOAT16:
      return weigh_row<ANYFUSE_FLOAT16, count>(p, padded, begin, n, r, next, scratch, max);
    case ANYFUSE_BFLOAT16:
      return weigh_row<ANYFUSE_BFLOAT16, count>(p, padded, begin, n, r, next, scratch, max);
    default:
      return weigh_row<kMixed, count>(p, padded, begin, n, r, next, scratch, max);
  }
}

// ---- pass 3: codes ----

struct Step {
  float scale;   // what is stored
  float factor;  // device: values are multiplied by it. Formula: 1 / scale, a first guess of the quotient
  float max;     // of the codes
};

ANYFUSE_INLINE float largest_code(anyfuse_dtype y_dtype) {
  switch (y_dtype) {
    case ANYFUSE_INT8:
      return 127.0f;
    case ANYFUSE_INT4:
      return 7.0f;
    case ANYFUSE_FLOAT8_E4M3FN:
      return 448.0f;
    case ANYFUSE_FLOAT8_E5M2:
      return 57344.0f;
    default:
      return 32768.0f;
  }
}

ANYFUSE_INLINE bool is_integer(anyfuse_dtype y_dtype) { return y_dtype == ANYFUSE_INT8 || y_dtype == ANYFUSE_INT4; }

ANYFUSE_INLINE Step make_step(const NormQuant &p, uint32_t max_bits) {
  float absmax;
  memcpy(&absmax, &max_bits, sizeof absmax);
  Step step;
  step.max = largest_code(p.y_dtype);
  const float factor = step.max / absmax;
  step.scale = p.device ? 1.0f / factor : absmax / step.max;
  step.factor = p.device ? factor : 1.0f / step.scale;
  if (!(step.scale == step.scale)) step.scale = __builtin_nanf("");  // one NaN, whatever came in
  return step;
}

constexpr float kMagic = 12582912.0f;  // as in rint_small; the sum's low bits are the integer

ANYFUSE_INLINE vi clamped_integers(vf quotient, float max) {
  const vf high = set(max), low = set(-max);
  const vf capped = quotient < high ? quotient : high;
  return (vi)bits((capped > low ? capped : low) + kMagic) - (vi)bits(set(kMagic));
}

ANYFUSE_INLINE void integer_block(const float *in, Step step, int8_t *codes) {
  for (int g = 0; g < kBlock; g += 4 * kWidth) {
    vi code[4];
    for (int v = 0; v < 4; ++v) code[v] = clamped_integers(load(in + g + v * kWidth) / step.scale, step.max);
    store_bytes(codes + g, code);
  }
}

// Codes by multiplication with step.factor. With `check`, false where some lane might differ from the division's code:
// a quotient of magnitude up to 127 and value * fl(1/scale) are less than 2^-15 apart (three roundings of 2^-24 each),
// so that they round to one integer unless the product is that close to a tie.
template <bool check>
ANYFUSE_INLINE bool product_block(const float *in, float factor, int8_t *codes) {
  constexpr float kFarFromTie = 0.5f - 1.0f / 32768;
  vu distance = {};
  for (int g = 0; g < kBlock; g += 4 * kWidth) {
    vi code[4];
    for (int v = 0; v < 4; ++v) {
      const vf product = load(in + g + v * kWidth) * factor;
      const vf rounded = product + kMagic;
      if (check) distance = max_magnitude(distance, bits(abs(product - (rounded - kMagic))));
      code[v] = (vi)bits(rounded) - (vi)bits(set(kMagic));
    }
    store_bytes(codes + g, code);
  }
  return !check || !any_above(distance, bits(set(kFarFromTie))[0]);
}

template <anyfuse_dtype y_dtype, bool device>
ANYFUSE_INLINE void encode_block(const float *in, Step step, bool guess, int8_t *codes) {
  if (is_integer(y_dtype)) {
    if (device)
      product_block<false>(in, step.factor, codes);
    else if (!guess || !product_block<true>(in, step.factor, codes))
      integer_block(in, step, codes);
    return;
  }
  for (int g = 0; g < kBlock; g += 4 * kWidth) {
    vi code[4];
    for (int v = 0; v < 4; ++v) {
      const vf value = load(in + g + v * kWidth);
      const vf quotient = device ? value * step.factor : value / step.scale;
      code[v] = y_dtype == ANYFUSE_HIFLOAT8 ? hifloat8_code(quotient)
                                            : float8_code(y_dtype == ANYFUSE_FLOAT8_E5M2 ? kE5M2 : kE4M3, quotient);
    }
    store_bytes(codes + g, code);
  }
}

template <anyfuse_dtype y_dtype, bool device>
ANYFUSE_INLINE void encode_row(const float *in, int64_t n, Step step, int8_t *y) {
  constexpr int kPerByte = y_dtype == ANYFUSE_INT4 ? 2 : 1;
  // 1 / scale is a normal number, and so is scale.
  const bool guess = step.scale >= 0x1p-126f && step.scale <= 0x1p126f;
  alignas(64) int8_t codes[kBlock];
  alignas(64) uint8_t packed[kBlock / 2];
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    encode_block<y_dtype, device>(in + i, step, guess, kPerByte == 1 ? y + i : codes);
    if (kPerByte == 2) pack_nibbles(codes, reinterpret_cast<uint8_t *>(y) + i / 2);
  }
  if (i < n) {
    encode_block<y_dtype, device>(in + i, step, guess, codes);
    if (kPerByte == 2) pack_nibbles(codes, packed);
    memcpy(y + i / kPerByte, kPerByte == 2 ? static_cast<const void *>(packed) : codes, (n - i) / kPerByte);
  }
}

template <anyfuse_dtype y_dtype>
void encode_as(bool device, const float *in, int64_t n, Step step, int8_t *y) {
  device ? encode_row<y_dtype, true>(in, n, step, y) : encode_row<y_dtype, false>(in, n, step, y);
}

void encode_segment(const NormQuant &p, const float *in, int64_t n, Step step, int8_t *y) {
  // Integer codes of a row whose scale is infinite or NaN are 0: its quotients are 0 or NaN.
  const bool finite = step.scale < __builtin_inff();
  if (step.scale == 0.0f || (is_integer(p.y_dtype) && !finite)) {
    memset(y, 0, p.y_dtype == ANYFUSE_INT4 ? n / 2 : n);
    return;
  }
  switch (p.y_dtype) {
    case ANYFUSE_INT8:
      return encode_as<ANYFUSE_INT8>(p.device, in, n, step, y);
    case ANYFUSE_INT4:
      return encode_as<ANYFUSE_INT4>(p.device, in, n, step, y);
    case ANYFUSE_FLOAT8_E4M3FN:
      return encode_as<ANYFUSE_FLOAT8_E4M3FN>(p.device, in, n, step, y);
    case ANYFUSE_FLOAT8_E5M2:
      return encode_as<ANYFUSE_FLOAT8_E5M2>(p.device, in, n, step, y);
    default:
      return encode_as<ANYFUSE_HIFLOAT8>(p.device, in, n, step, y);
  }
}

// ---- a row ----

template <int count>
ANYFUSE_INLINE void quantize_row(const NormQuant &p, anyfuse_dtype common, const PaddedWeights &padded, int64_t row,
                                 bool last, float *const *scratch) {
  const int64_t base = row * p.cols;
  const bool kept = p.cols <= kSegment;  // the scratch holds the whole row
  LaneSum squares = {}, unused = {};
  for (int64_t i = 0; i < p.cols; i += kSegment) {
    const int64_t n = p.cols - i < kSegment ? p.cols - i : kSegment;
    add_segment(p, base + i, n, const_cast<char *>(at_if(p.x, p.x_dtype, base + i)), scratch[0], &squares);
  }
  const float r = 1.0f / __builtin_sqrtf(total(squares) * p.inverse_cols + p.eps);

  NextRow next = {nullptr, nullptr, element_size(p.x_dtype)};
  if (kept && !last) {
    next.x1 = at(p.x1, p.x_dtype, base + p.cols);
    next.x2 = p.x2 == nullptr ? next.x1 : at(p.x2, p.x_dtype, base + p.cols);
  }

  vu max[2] = {};
  for (int64_t i = 0; i < p.cols; i += kSegment) {
    const int64_t n = p.cols - i < kSegment ? p.cols - i : kSegment;
    if (!kept) add_segment(p, base + i, n, nullptr, scratch[0], &unused);
    weigh_segment<count>(p, common, padded, i, n, r, next, scratch, max);
  }
  Step step[count];
  for (int b = 0; b < count; ++b) {
    step[b] = make_step(p, horizontal_max(max[b]));
    p.branch[b].scale[row] = step[b].scale;
  }
  const int per_byte = p.y_dtype == ANYFUSE_INT4 ? 2 : 1;
  for (int64_t i = 0; i < p.cols; i += kSegment) {
    const int64_t n = p.cols - i < kSegment ? p.cols - i : kSegment;
    if (!kept) {
      add_segment(p, base + i, n, nullptr, scratch[0], &unused);
      weigh_segment<count>(p, common, padded, i, n, r, next, scratch, max);
    }
    for (int b = 0; b < count; ++b)
      encode_segment(p, scratch[b], n, step[b], static_cast<int8_t *>(p.branch[b].y) + (base + i) / per_byte);
  }
}

}  // namespace

ANYFUSE_KERNEL(add_rms_norm_dynamic_quant, NormQuant) {
  float *const scratch[2] = {args.scratch, args.scratch + args.scratch_row};
  PaddedWeights padded;
  pad_weights(args, &padded);
  const anyfuse_dtype common = common_dtype(args);
  for (int64_t row = begin; row < end; ++row)
    args.count == 2 ? quantize_row<2>(args, common, padded, row, row + 1 == end, scratch)
                    : quantize_row<1>(args, common, padded, row, row + 1 == end, scratch);
}

#else  // ---- the entry point, once ----

#include <algorithm>
#include <cmath>

#include "core/arena.h"
#include "core/parallel.h"
#include "core/params.h"

ANYFUSE_DISPATCH(add_rms_norm_dynamic_quant, NormQuant)

namespace {

using Params = anyfuse_add_rms_norm_dynamic_quant_params;

constexpr int64_t kPieces = 64;                         // enough for the threads of most machines to share evenly
constexpr int64_t kMinPiece = 8192, kMaxPiece = 65536;  // elements
constexpr int64_t kParallel = 65536;                    // below this a second thread costs more than it saves

bool is_code(anyfuse_dtype dtype) {
  return dtype == ANYFUSE_INT8 || dtype == ANYFUSE_INT4 || dtype == ANYFUSE_FLOAT8_E4M3FN ||
         dtype == ANYFUSE_FLOAT8_E5M2 || dtype == ANYFUSE_HIFLOAT8;
}

anyfuse_status check(const Params &p) {
  if (p.rows < 0 || p.cols < 0 || (p.y_dtype == ANYFUSE_INT4 && p.cols % 2 != 0)) return ANYFUSE_INVALID_SIZE;
  if (p.convention != ANYFUSE_FORMULA && p.convention != ANYFUSE_DEVICE) return ANYFUSE_INVALID_VALUE;
  if (!(p.epsilon >= 0.0)) return ANYFUSE_INVALID_VALUE;
  if (!anyfuse::is_float(p.x_dtype) || !anyfuse::is_float(p.gamma_dtype) || !is_code(p.y_dtype))
    return ANYFUSE_INVALID_DTYPE;
  if (p.smooth_scale1 != nullptr && !anyfuse::is_float(p.smooth_scale1_dtype)) return ANYFUSE_INVALID_DTYPE;
  if (p.smooth_scale2 != nullptr && !anyfuse::is_float(p.smooth_scale2_dtype)) return ANYFUSE_INVALID_DTYPE;
  if (p.beta != nullptr && !anyfuse::is_float(p.beta_dtype)) return ANYFUSE_INVALID_DTYPE;
  if (p.rows == 0) return ANYFUSE_OK;
  if (p.scale1 == nullptr && p.scale2 == nullptr) return ANYFUSE_INVALID_POINTER;
  if (p.cols == 0) return ANYFUSE_OK;
  if ((p.y1 == nullptr) != (p.scale1 == nullptr) || (p.y2 == nullptr) != (p.scale2 == nullptr))
    return ANYFUSE_INVALID_POINTER;
  return p.x1 && p.gamma ? ANYFUSE_OK : ANYFUSE_INVALID_POINTER;
}

// Elements of scratch for a row of so many, and from it to the second one: they start a few cache lines apart in their
// 4 KiB pages, so that they do not compete for one set.
int64_t scratch_row(int64_t cols) {
  constexpr int64_t kPage = 1024, kApart = 256;
  return (std::min(cols, anyfuse::kNormSegment) + kPage - 1) / kPage * kPage + kApart;
}

anyfuse::NormQuant prepare(const Params &p) {
  anyfuse::NormQuant call = {};
  call.cols = p.cols;
  call.x1 = p.x1;
  call.x2 = p.x2;
  call.gamma = p.gamma;
  call.beta = p.beta;
  call.x = p.x;
  if (p.scale1 != nullptr) call.branch[call.count++] = {p.smooth_scale1, p.smooth_scale1_dtype, p.y1, p.scale1};
  if (p.scale2 != nullptr) call.branch[call.count++] = {p.smooth_scale2, p.smooth_scale2_dtype, p.y2, p.scale2};
  call.x_dtype = p.x_dtype;
  call.gamma_dtype = p.gamma_dtype;
  call.beta_dtype = p.beta_dtype;
  call.y_dtype = p.y_dtype;
  call.eps = static_cast<float>(p.epsilon);
  call.inverse_cols = static_cast<float>(1.0 / static_cast<double>(p.cols));
  call.device = p.convention == ANYFUSE_DEVICE;
  call.scratch_row = scratch_row(p.cols);
  return call;
}

int64_t rows_per_piece(const Params &p) {
  const int64_t least = std::max<int64_t>(kMinPiece / p.cols, 1), most = std::max<int64_t>(kMaxPiece / p.cols, 1);
  return std::min(std::max(p.rows / kPieces, least), most);
}

anyfuse_status run(const Params &p) {
  if (anyfuse_status status = check(p)) return status;
  const auto kernel = add_rms_norm_dynamic_quant_kernel();
  if (kernel == nullptr) return ANYFUSE_NO_TARGET;
  if (p.rows == 0) return ANYFUSE_OK;
  if (p.cols == 0) {  // the maximum of nothing is 0
    for (float *scale : {p.scale1, p.scale2})
      if (scale != nullptr) std::fill_n(scale, p.rows, 0.0f);
    return ANYFUSE_OK;
  }
  const anyfuse::NormQuant call = prepare(p);
  const int64_t size = rows_per_piece(p);
  // The product cannot overflow: that many elements lie in memory.
  const bool small = p.rows * p.cols < kParallel;
  const int64_t pieces = small ? 1 : (p.rows + size - 1) / size;
  const anyfuse::Arena arena(anyfuse::workers_of(pieces, p.threads), call.count * call.scratch_row * sizeof(float));
  if (!arena.allocated()) return ANYFUSE_OUT_OF_MEMORY;
  anyfuse::parallel_for(pieces, p.threads, [&](int64_t piece, int32_t worker) {
    anyfuse::NormQuant mine = call;
    mine.scratch = static_cast<float *>(arena.of(worker));
    kernel(mine, small ? 0 : piece * size, small ? p.rows : std::min((piece + 1) * size, p.rows));
  });
  return ANYFUSE_OK;
}

}  // namespace

extern "C" anyfuse_status anyfuse_add_rms_norm_dynamic_quant(const Params *params) {
  return anyfuse::enter(run, params);
}

#endif
