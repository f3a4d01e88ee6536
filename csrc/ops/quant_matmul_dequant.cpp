// Rows quantized to int8, times int8 weights, back to float, in one pass. The mathematics, and its reference in a few
// lines of PyTorch, is in src/anyfuse/ops/quant_matmul_dequant.py; the two must agree to the last bit.
//
// Two loops: the rows of x become tiles of codes (core/dot.h), then every strip of 64 columns is multiplied with every
// block of tiles, 256 values of k at a time, so that the strip's weights stay in L1 while the tiles pass. Weights that
// are not packed are brought into panels there, block by block. Rows come in groups, each with a weight of its own; the
// plain operator has one group, quant_grouped_matmul_dequant.cpp any number.
#include "core/dispatch.h"
#include "ops/quant_matmul_groups.h"

namespace anyfuse {

constexpr int kStripPanels = 4, kStripColumns = 16 * kStripPanels;
constexpr int kBlockTiles = 43;  // 256 rows; their sums of one strip are 64 KiB (128 KiB where a column has two parts)

constexpr int kMostParts = 4;  // sums of a column on any target

// One call for a range of rows. A row's factor is what its outputs are multiplied with last.
struct QuantMatmul {
  anyfuse_quant_matmul_dequant_params p;  // weight, weight_scale and bias are those of the groups, one after the other
  const RowGroup *groups;                 // those that have rows
  int64_t group_count;
  int64_t weight_bytes;  // of one group
  int64_t smooth_bytes;  // of one group; 0 where all share one smooth_scale
  int64_t depth;         // k rounded up to whole steps
  int64_t strips;        // of columns
  void *codes;           // rows * depth codes of the target's own type
  float *factors;        // for each row: its scale; 1 when weight_scale includes it; NaN for a row that is NaN
  int32_t *sums;         // for each row: the sum of its codes
  char *scratch;  // of the thread that multiplies: kPackedBytes where weights are not packed, then a block's sums
};

constexpr int64_t kPackedBytes = kStripPanels * 4096;  // of a block of weights, 256 values of k

}  // namespace anyfuse

#if defined(ANYFUSE_TARGET)  // ---- the kernels, once per target ----

#include "core/dot.h"
#include "core/panels.h"
#include "core/tile.h"

namespace {

using anyfuse::kStripColumns;
using anyfuse::kStripPanels;
using anyfuse::QuantMatmul;
using anyfuse::RowGroup;

static_assert(anyfuse::kTileRows == kDotRows, "one size of tiles");
constexpr int kBlockSteps = 64;  // steps of k in a block: its weights are 16 KiB a strip, half of a usual L1
constexpr int kStripLanes = kStripPanels * kDotPanelLanes;

// ---- quantization ----

ANYFUSE_INLINE int64_t element_size(anyfuse_dtype dtype) {
  return dtype == ANYFUSE_FLOAT32 ? 4 : dtype == ANYFUSE_INT8 ? 1 : 2;
}

// x·smooth of one row, a tile at a time; past the row's end it is 0.
struct SmoothRow {
  const char *x;
  const void *smooth;
  int64_t k;
  anyfuse_dtype dtype, smooth_dtype;
};

ANYFUSE_INLINE void smooth_tile(const SmoothRow &row, int64_t index, float *tile) {
  alignas(64) float x_scratch[kTile], smooth_scratch[kTile];
  const int64_t n = row.k - index < kTile ? row.k - index : kTile;
  const float *x = tile_read(row.dtype, row.x, index, n, x_scratch);
  if (row.smooth == nullptr) {
    for (int i = 0; i < kTile; i += kWidth) store(tile + i, load(x + i));
    return;
  }
  const float *smooth = tile_read(row.smooth_dtype, row.smooth, index, n, smooth_scratch);
  for (int i = 0; i < kTile; i += kWidth) store(tile + i, load(x + i) * load(smooth + i));
}

// The device takes the magnitude of the product as it is in x's own precision.
ANYFUSE_INLINE vf in_precision_of(anyfuse_dtype dtype, vf v) {
  return dtype == ANYFUSE_FLOAT32 ? v : half_to_float(dtype, float_to_half(dtype, v));
}

ANYFUSE_INLINE float magnitude(const SmoothRow &row, bool device) {
  alignas(64) float tile[kTile];
  vu largest = {};
  for (int64_t i = 0; i < row.k; i += kTile) {
    smooth_tile(row, i, tile);
    for (int j = 0; j < kTile; j += kWidth) {
      const vf v = load(tile + j);
      largest = max_magnitude(largest, bits(abs(device ? in_precision_of(row.dtype, v) : v)));
    }
  }
  const uint32_t top = horizontal_max(largest);
  float result;
  memcpy(&result, &top, sizeof result);
  return result;
}

ANYFUSE_INLINE vi quantize(vf v, float scale, float reciprocal, bool device) {
  const vf q = device ? v * reciprocal : v / scale;
  const vf low = q < -128.0f ? set(-128.0f) : q;
  const vf clamped = low > 127.0f ? set(127.0f) : low;
  const vf number = clamped == clamped ? clamped : vf{};
  return (vi)(bits(number + 12582912.0f) - bits(set(12582912.0f)));  // the rounding of rint_small, read as an integer
}

ANYFUSE_INLINE int32_t horizontal_sum(vi v) {
  int32_t lanes[kWidth], sum = 0;
  memcpy(lanes, &v, sizeof v);
  for (int i = 0; i < kWidth; ++i) sum += lanes[i];
  return sum;
}

// The codes of one tile of a row (n of them; n is only odd at the row's end), from its step `step` on, into their
// places between the other rows.
ANYFUSE_INLINE void put_codes(const int8_t *codes, int64_t n, int64_t step, int64_t rows, dot_code *to) {
  dot_code wide[kTile];
  for (int i = 0; i < kTile; ++i) wide[i] = codes[i];
  to += step * rows * kDotDepth;
  for (int64_t i = 0; i < n; i += kDotDepth) memcpy(to + i * rows, wide + i, kDotDepth * sizeof(dot_code));
}

struct RowResult {
  int32_t sum;
  bool nan;
};

// Writes the codes of a row. scale 0 makes them all 0.
ANYFUSE_INLINE RowResult quantize_row(const SmoothRow &row, float scale, bool device, int64_t rows, dot_code *to) {
  alignas(64) float tile[kTile];
  alignas(64) int8_t codes[kTile];
  const float divisor = scale == 0.0f ? __builtin_inff() : scale;
  const float reciprocal = 1.0f / divisor;
  vi sum = {}, nan = {};
  for (int64_t i = 0; i < row.k; i += kTile) {
    smooth_tile(row, i, tile);
    for (int j = 0; j < kTile; j += 4 * kWidth) {
      vi q[4];
      for (int part = 0; part < 4; ++part) {
        const vf v = load(tile + j + part * kWidth);
        q[part] = quantize(v, divisor, reciprocal, device);
        nan |= v != v;
        sum += q[part];
      }
      store_bytes(codes + j, q);
    }
    put_codes(codes, row.k - i < kTile ? row.k - i : kTile, i / kDotDepth, rows, to);
  }
  return {horizontal_sum(sum), horizontal_max((vu)nan) != 0};
}

ANYFUSE_INLINE int32_t copy_row(const int8_t *from, int64_t k, int64_t rows, dot_code *to) {
  int32_t sum = 0;
  for (int64_t i = 0; i < k; i += kTile) {
    const int64_t n = k - i < kTile ? k - i : kTile;
    int8_t codes[kTile] = {};
    memcpy(codes, from + i, n);
    for (int j = 0; j < kTile; ++j) sum += codes[j];
    put_codes(codes, n, i / kDotDepth, rows, to);
  }
  return sum;
}

ANYFUSE_INLINE float given_scale(const anyfuse_quant_matmul_dequant_params &p, int64_t row) {
  alignas(64) float one[kTile];
  const int64_t index = p.quant_mode == ANYFUSE_PER_TENSOR ? 0 : row;
  return tile_read(p.x_scale_dtype, p.x_scale, index, 1, one)[0];
}

ANYFUSE_INLINE bool is_finite(float x) { return x - x == 0.0f; }

ANYFUSE_INLINE void quantize_into(const QuantMatmul &args, int64_t weight, int64_t row, int64_t rows, dot_code *to) {
  const auto &p = args.p;
  const bool device = p.convention == ANYFUSE_DEVICE;
  const char *x = static_cast<const char *>(p.x) + row * p.k * element_size(p.x_dtype);
  if (p.x_dtype == ANYFUSE_INT8) {
    args.sums[row] = copy_row(reinterpret_cast<const int8_t *>(x), p.k, rows, to);
    args.factors[row] = given_scale(p, row);
    return;
  }
  const char *factors = static_cast<const char *>(p.smooth_scale);
  if (factors != nullptr) factors += weight * args.smooth_bytes;
  const SmoothRow smooth = {x, factors, p.k, p.x_dtype, p.smooth_scale_dtype};
  const bool dynamic = p.x_scale == nullptr;
  const float scale = dynamic ? magnitude(smooth, device) / 127.0f : given_scale(p, row);
  const RowResult result = quantize_row(smooth, scale, device, rows, to);
  const bool included = p.weight_scale_dtype == ANYFUSE_INT64 && scale != 0.0f;
  const bool nan = result.nan || (dynamic && !is_finite(scale));
  args.sums[row] = result.sum;
  args.factors[row] = nan ? __builtin_nanf("") : included ? 1.0f : scale;
}

// ---- one strip of columns, one block of rows ----

struct Strip {
  const int8_t *weight;  // of the group, all columns
  int64_t column, columns;
  int panels;
  float scale[kStripColumns];
  double bias[kStripColumns];
};

ANYFUSE_INLINE Strip read_strip(const QuantMatmul &args, int64_t weight, int64_t index) {
  const auto &p = args.p;
  Strip strip;
  strip.weight = static_cast<const int8_t *>(p.weight) + weight * args.weight_bytes;
  strip.column = index * kStripColumns;
  strip.columns = p.n - strip.column < kStripColumns ? p.n - strip.column : kStripColumns;
  strip.panels = static_cast<int>((strip.columns + kDotPanel - 1) / kDotPanel);
  for (int64_t j = 0; j < kStripColumns; ++j) {
    const int64_t column = weight * p.n + strip.column + (j < strip.columns ? j : 0);
    const bool packed = p.weight_scale_dtype == ANYFUSE_INT64;
    const uint32_t low = packed ? static_cast<uint32_t>(static_cast<const int64_t *>(p.weight_scale)[column]) : 0;
    memcpy(&strip.scale[j],
           packed ? static_cast<const void *>(&low) : static_cast<const float *>(p.weight_scale) + column,
           sizeof(float));
    strip.bias[j] = p.bias == nullptr ? 0.0 : p.bias[column];
  }
  return strip;
}

// acc + bias fits a double exactly, so that the conversion to fp32 is the only rounding.
ANYFUSE_INLINE void dequantize_row(const QuantMatmul &args, const Strip &strip, int64_t row, const int32_t *sums) {
  alignas(64) float out[kStripColumns];
  const auto &p = args.p;
  const float factor = args.factors[row];
  const uint32_t offset = static_cast<uint32_t>(args.sums[row]) * static_cast<uint32_t>(kDotOffset);
  int32_t acc[kStripColumns];
  for (int j = 0; j < kStripColumns; ++j) {
    uint32_t sum = 0u - offset;
    for (int part = 0; part < kDotParts; ++part) sum += static_cast<uint32_t>(sums[j * kDotParts + part]);
    acc[j] = static_cast<int32_t>(sum);
  }
  if (factor == 0.0f)
    memset(out, 0, sizeof out);
  else if (p.bias == nullptr)
    for (int j = 0; j < kStripColumns; ++j) out[j] = static_cast<float>(acc[j]) * strip.scale[j] * factor;
  else
    for (int j = 0; j < kStripColumns; ++j)
      out[j] = static_cast<float>(static_cast<double>(acc[j]) + strip.bias[j]) * strip.scale[j] * factor;
  const int64_t index = row * p.n + strip.column;
  if (p.out_dtype == ANYFUSE_FLOAT32)
    memcpy(static_cast<float *>(p.out) + index, out, strip.columns * sizeof(float));
  else
    floats_to_halves(p.out_dtype, out, static_cast<uint16_t *>(p.out) + index, strip.columns);
}

// The weights that come next, spread over the products of a block of tiles (most of which are full).
ANYFUSE_INLINE DotAhead spread(const int8_t *weights, int panels, int64_t tiles) {
  const int64_t lines = tiles * dot_ahead_lines(kDotRows, panels);
  DotAhead ahead = {weights, 0, 0, panels};
  while (ahead.shift < 4 && 2 * ahead.parts <= lines) {
    ++ahead.shift;
    ahead.parts *= 2;
  }
  return ahead;
}

ANYFUSE_INLINE void multiply_block(const QuantMatmul &args, const RowGroup &group, const Strip &strip, int64_t block) {
  static_assert(anyfuse::kPackedBytes == kStripPanels * kBlockSteps * kDotLine, "a block of packed weights");
  static_assert(kStripLanes <= anyfuse::kStripColumns * anyfuse::kMostParts, "a row's sums");
  const auto &p = args.p;
  const int64_t first_tile = block * group.tiles / group.blocks, last_tile = (block + 1) * group.tiles / group.blocks;
  const int64_t steps = args.depth / kDotDepth, first_row = group.begin(first_tile);
  const bool packed_weights = p.weight_layout == ANYFUSE_WEIGHT_PACKED;
  char *const scratch = static_cast<char *>(__builtin_assume_aligned(args.scratch, 64));
  int8_t *const packed = reinterpret_cast<int8_t *>(scratch);
  int32_t *const sums = reinterpret_cast<int32_t *>(scratch + (packed_weights ? 0 : anyfuse::kPackedBytes));
  for (int64_t step = 0; step < steps; step += kBlockSteps) {
    const int64_t count = steps - step < kBlockSteps ? steps - step : kBlockSteps;
    const int64_t panel = strip.column / kDotPanel;
    const int8_t *weights = strip.weight + (panel * steps + step) * kDotLine;
    int64_t panel_bytes = steps * kDotLine;
    if (!packed_weights) {
      const int64_t k = step * kDotDepth, depth = p.k - k < kBlockSteps * kDotDepth ? p.k - k : kBlockSteps * kDotDepth;
      weights = packed;
      panel_bytes = kBlockSteps * kDotLine;
      const PlainWeight plain = {strip.weight, p.weight_layout, p.n, p.k};
      for (int i = 0; i < strip.panels; ++i)
        pack_panel(plain, panel + i, k, depth, kBlockSteps * kDotDepth, packed + i * panel_bytes);
    }
    for (int first = 0; first < strip.panels; first += kDotGroup) {
      DotWork work = {};
      work.weights = weights + first * panel_bytes;
      work.panel_bytes = panel_bytes;
      work.panels = strip.panels - first < kDotGroup ? strip.panels - first : kDotGroup;
      work.steps = count;
      work.sum_stride = kStripLanes;
      work.add = step > 0;
      const bool more = first + kDotGroup < strip.panels;
      const int8_t *next = more ? work.weights + kDotGroup * panel_bytes : weights + kBlockSteps * kDotLine;
      if (packed_weights) work.ahead = spread(next, work.panels, last_tile - first_tile);
      for (int64_t tile = first_tile; tile < last_tile; ++tile) {
        const int64_t row = group.begin(tile);
        const int rows = static_cast<int>(group.begin(tile + 1) - row);
        work.codes = static_cast<const dot_code *>(args.codes) + row * args.depth + step * rows * kDotDepth;
        work.sums = sums + (row - first_row) * kStripLanes + first * kDotPanelLanes;
        dot_panels(rows, work);
      }
    }
  }
  const int64_t last_row = group.begin(last_tile);
  if (steps == 0) memset(sums, 0, (last_row - first_row) * kStripLanes * sizeof *sums);
  for (int64_t row = first_row; row < last_row; ++row)
    dequantize_row(args, strip, row, sums + (row - first_row) * kStripLanes);
}

}  // namespace

// Tiles [begin, end) of rows.
ANYFUSE_KERNEL(quant_matmul_dequant_rows, QuantMatmul) {
  for (int64_t tile = begin; tile < end; ++tile) {
    const RowGroup &group = find_group(args.groups, args.group_count, &RowGroup::first_tile, tile);
    const int64_t first = group.begin(tile - group.first_tile), last = group.begin(tile - group.first_tile + 1);
    dot_code *codes = static_cast<dot_code *>(args.codes) + first * args.depth;
    for (int64_t row = first; row < last; ++row)
      quantize_into(args, group.weight, row, last - first, codes + (row - first) * kDotDepth);
  }
}

// Pieces [begin, end): group by group, in it block by block, and within a block strip by strip.
ANYFUSE_KERNEL(quant_matmul_dequant, QuantMatmul) {
  for (int64_t piece = begin; piece < end; ++piece) {
    const RowGroup &group = find_group(args.groups, args.group_count, &RowGroup::first_piece, piece);
    const int64_t part = piece - group.first_piece;
    multiply_block(args, group, read_strip(args, group.weight, part % args.strips), part / args.strips);
  }
}

#else  // ---- the entry point, once ----

#include <algorithm>
#include <cmath>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "core/arena.h"
#include "core/parallel.h"
#include "core/params.h"

ANYFUSE_DISPATCH(quant_matmul_dequant_rows, QuantMatmul)
ANYFUSE_DISPATCH(quant_matmul_dequant, QuantMatmul)

namespace {

using anyfuse::GroupedRows;
using anyfuse::kTileRows;
using anyfuse::QuantMatmul;
using anyfuse::RowGroup;
using Params = anyfuse_quant_matmul_dequant_params;

constexpr int64_t kMaxK = 131071;             // 131072 * 2^14 would not fit int32
constexpr int64_t kCodeBytes = 2;             // of the widest code type
constexpr int64_t kCodesInMemory = 64 << 20;  // bytes; longer inputs are taken in ranges of rows
// What a thread must have to do before it pays: 7 us of one core, where a second thread costs 5. A weight is read,
// which takes as long as three rows' products, and multiplied with m rows.
constexpr double kWeightReads = 3.0, kThreadMatmul = 1.5 * (1 << 20);  // 384 KiB of weights for each thread at m = 1
constexpr double kThreadQuantize = 1 << 14;                            // elements, for the same reason
constexpr int64_t kCodesInCache = 1 << 20;                             // bytes; half of it where a code is one byte
constexpr int64_t kManyPieces = 32;  // fewer than these, and the rows are cut into smaller blocks
constexpr int64_t kFewTiles = 8;     // but not below this: a strip's weights are read for each block

template <typename T>
T *offset(T *pointer, int64_t bytes) {
  using Byte = std::conditional_t<std::is_const<T>::value, const char, char>;
  return pointer == nullptr ? nullptr : reinterpret_cast<T *>(reinterpret_cast<Byte *>(pointer) + bytes);
}

int64_t bytes_of(anyfuse_dtype dtype) { return dtype == ANYFUSE_FLOAT32 ? 4 : dtype == ANYFUSE_INT8 ? 1 : 2; }

anyfuse_status check_dtypes(const Params &p) {
  const bool quantized = p.x_dtype == ANYFUSE_INT8, packed_scale = p.weight_scale_dtype == ANYFUSE_INT64;
  if (!(quantized || anyfuse::is_float(p.x_dtype)) || !anyfuse::is_float(p.out_dtype)) return ANYFUSE_INVALID_DTYPE;
  if (!packed_scale && p.weight_scale_dtype != ANYFUSE_FLOAT32) return ANYFUSE_INVALID_DTYPE;
  if (p.x_scale != nullptr && p.x_scale_dtype != (packed_scale ? ANYFUSE_FLOAT16 : ANYFUSE_FLOAT32))
    return ANYFUSE_INVALID_DTYPE;
  if (p.smooth_scale != nullptr && !anyfuse::is_float(p.smooth_scale_dtype)) return ANYFUSE_INVALID_DTYPE;
  return ANYFUSE_OK;
}

anyfuse_status check_values(const Params &p, int64_t rows) {
  const bool per_tensor = p.quant_mode == ANYFUSE_PER_TENSOR;
  if (!per_tensor && p.quant_mode != ANYFUSE_PER_TOKEN) return ANYFUSE_INVALID_VALUE;
  if (p.convention != ANYFUSE_FORMULA && p.convention != ANYFUSE_DEVICE) return ANYFUSE_INVALID_VALUE;
  if (p.weight_layout < ANYFUSE_WEIGHT_NK || p.weight_layout > ANYFUSE_WEIGHT_PACKED) return ANYFUSE_INVALID_VALUE;
  if (per_tensor && p.x_scale == nullptr) return ANYFUSE_INVALID_VALUE;
  if (p.weight_scale_dtype == ANYFUSE_INT64 && (!per_tensor || p.x_dtype == ANYFUSE_INT8)) return ANYFUSE_INVALID_VALUE;
  if (p.x_dtype == ANYFUSE_INT8) {  // the scales are results of a quantization: NaN marks a row that is NaN
    return p.smooth_scale != nullptr || per_tensor || p.x_scale == nullptr ? ANYFUSE_INVALID_VALUE : ANYFUSE_OK;
  }
  if (p.x_scale == nullptr) return ANYFUSE_OK;
  for (int64_t i = 0; i < (per_tensor ? 1 : rows); ++i) {
    const uint16_t half = p.x_scale_dtype == ANYFUSE_FLOAT16 ? static_cast<const uint16_t *>(p.x_scale)[i] : 0;
    const bool nan = p.x_scale_dtype == ANYFUSE_FLOAT16 ? (half & 0x7fff) > 0x7c00
                                                        : std::isnan(static_cast<const float *>(p.x_scale)[i]);
    if (nan) return ANYFUSE_INVALID_VALUE;
  }
  return ANYFUSE_OK;
}

anyfuse_status check(const Params &p, const GroupedRows &groups) {
  if (p.m < 0 || p.n < 0 || p.k < 0 || p.k > kMaxK || groups.count < 0) return ANYFUSE_INVALID_SIZE;
  if (anyfuse_status status = check_dtypes(p)) return status;
  if (groups.count > 0 && groups.ends == nullptr) return ANYFUSE_INVALID_POINTER;
  for (int64_t i = 0, before = 0; i < groups.count; before = groups.ends[i++])
    if (groups.ends[i] < before || groups.ends[i] > p.m) return ANYFUSE_INVALID_VALUE;
  if (p.m == 0 || p.n == 0) return ANYFUSE_OK;
  if (p.out == nullptr) return ANYFUSE_INVALID_POINTER;
  const int64_t rows = groups.rows();
  if (rows > 0 && (p.weight_scale == nullptr || (p.k > 0 && (p.x == nullptr || p.weight == nullptr))))
    return ANYFUSE_INVALID_POINTER;
  return check_values(p, rows);
}

int64_t bytes_of_weight(const Params &p) {
  switch (p.weight_layout) {
    case ANYFUSE_WEIGHT_NZ_NK:
      return divide_up(p.k, 32) * divide_up(p.n, 16) * 512;
    case ANYFUSE_WEIGHT_NZ_KN:
      return divide_up(p.n, 32) * divide_up(p.k, 16) * 512;
    case ANYFUSE_WEIGHT_PACKED:
      return divide_up(p.n, 16) * divide_up(p.k, 4) * 64;
    default:
      return p.n * p.k;
  }
}

// A block's codes stay in L2 while all strips pass. Weights that are packed on the way are packed once for each block,
// so that it is then as large as may be.
int64_t most_tiles_in_block(const QuantMatmul &args) {
  if (args.p.weight_layout != ANYFUSE_WEIGHT_PACKED) return anyfuse::kBlockTiles;
  const int64_t tiles = kCodesInCache / (kTileRows * kCodeBytes * std::max<int64_t>(1, args.depth));
  return std::clamp<int64_t>(tiles, kFewTiles, anyfuse::kBlockTiles);
}

// What a thread works in that multiplies blocks of up to so many rows.
int64_t scratch_bytes(const QuantMatmul &args, int64_t rows) {
  const int64_t tiles = std::min(most_tiles_in_block(args), divide_up(rows, kTileRows));
  const int64_t sums = tiles * kTileRows * anyfuse::kStripColumns * anyfuse::kMostParts * sizeof(int32_t);
  return sums + (args.p.weight_layout == ANYFUSE_WEIGHT_PACKED ? 0 : anyfuse::kPackedBytes);
}

// How many threads multiply so many rows.
int32_t threads_to_multiply(const Params &p, int64_t rows, int64_t groups) {
  const double reads = kWeightReads * static_cast<double>(groups);
  const double work = (static_cast<double>(rows) + reads) * static_cast<double>(p.n) * static_cast<double>(p.k);
  return anyfuse::threads_for(work, kThreadMatmul, p.threads);
}

// One range of rows.
void run_rows(QuantMatmul &args, RowGroup *groups, int32_t target, const anyfuse::Arena &arena) {
  const Params &p = args.p;
  const auto quantize = quant_matmul_dequant_rows_kernel_of(target);
  const auto multiply = quant_matmul_dequant_kernel_of(target);
  int64_t tiles_in_block = most_tiles_in_block(args), blocks = cut(groups, args.group_count, tiles_in_block);
  while (tiles_in_block > kFewTiles && args.strips * blocks < kManyPieces)
    blocks = cut(groups, args.group_count, tiles_in_block /= 2);
  for (int64_t i = 1; i < args.group_count; ++i)
    groups[i].first_piece = groups[i - 1].first_piece + groups[i - 1].blocks * args.strips;

  const RowGroup &last = groups[args.group_count - 1];
  const double rows = static_cast<double>(p.m), depth = static_cast<double>(p.k);
  anyfuse::parallel_for(last.first_tile + last.tiles, anyfuse::threads_for(rows * depth, kThreadQuantize, p.threads),
                        [&](int64_t tile) { quantize(args, tile, tile + 1); });
  anyfuse::parallel_for(args.strips * blocks, threads_to_multiply(p, p.m, args.group_count),
                        [&](int64_t piece, int32_t worker) {
                          QuantMatmul mine = args;
                          mine.scratch = static_cast<char *>(arena.of(worker));
                          multiply(mine, piece, piece + 1);
                        });
}

// All rows of the groups, in ranges whose codes fit the memory that is set aside for them.
anyfuse_status run_groups(const Params &p, const GroupedRows &groups, int32_t target) {
  const int64_t all = groups.rows();
  if (all == 0) return ANYFUSE_OK;
  QuantMatmul args = {};
  args.depth = divide_up(p.k, 4) * 4;
  args.strips = divide_up(p.n, anyfuse::kStripColumns);
  args.weight_bytes = bytes_of_weight(p);
  args.smooth_bytes = groups.own_smooth_scale ? p.k * bytes_of(p.smooth_scale_dtype) : 0;
  const int64_t rows =
      std::min(all, std::max<int64_t>(kTileRows, kCodesInMemory / std::max<int64_t>(1, kCodeBytes * args.depth)));
  const int64_t row_bytes = kCodeBytes * args.depth + sizeof(float) + sizeof(int32_t);
  const int64_t table_bytes = std::min(groups.count, all) * sizeof(RowGroup);
  const anyfuse::Arena memory(1, rows * row_bytes + table_bytes);
  args.p = p;
  const int64_t most_pieces = args.strips * (divide_up(rows, kTileRows) + groups.count);
  const int32_t workers = anyfuse::workers_of(most_pieces, threads_to_multiply(p, rows, groups.count));
  const anyfuse::Arena arena(workers, scratch_bytes(args, rows));
  if (!memory.allocated() || !arena.allocated()) return ANYFUSE_OUT_OF_MEMORY;
  args.codes = memory.of(0);
  args.factors = reinterpret_cast<float *>(static_cast<char *>(memory.of(0)) + rows * kCodeBytes * args.depth);
  args.sums = reinterpret_cast<int32_t *>(args.factors + rows);
  RowGroup *table = reinterpret_cast<RowGroup *>(args.sums + rows);
  args.groups = table;
  for (int64_t first = 0; first < all; first += rows) {
    args.p = p;
    args.p.m = std::min(rows, all - first);
    args.p.x = offset(p.x, first * p.k * bytes_of(p.x_dtype));
    args.p.out = offset(p.out, first * p.n * bytes_of(p.out_dtype));
    if (p.quant_mode == ANYFUSE_PER_TOKEN) args.p.x_scale = offset(p.x_scale, first * bytes_of(p.x_scale_dtype));
    args.group_count = list_groups(groups, first, first + args.p.m, table);
    run_rows(args, table, target, arena);
  }
  return ANYFUSE_OK;
}

// ---- the known question, for instruction sets that the builder's machine may not have been able to try ----

// Every number of rows that a tile may have, partial strips, panels and steps, and the extremes of int8.
enum Answer : int8_t { kNotAsked, kRight, kWrong };

// kNotAsked: there was no memory to ask it.
Answer ask(int32_t target) {
  constexpr int kRows = 7, kColumns = 71, kDepth = 39;
  int8_t x[kRows * kDepth], weight[kColumns * kDepth];
  const auto pattern = [](int i) { return static_cast<int8_t>(i % 5 == 0 ? -128 : i % 7 == 0 ? 127 : i * 37); };
  for (int i = 0; i < kRows * kDepth; ++i) x[i] = pattern(i);
  for (int i = 0; i < kColumns * kDepth; ++i) weight[i] = pattern(i + 3);
  float ones[kColumns], out[kRows * kColumns];
  std::fill(ones, ones + kColumns, 1.0f);
  for (int rows = 1; rows <= kRows; ++rows) {
    Params p = {};
    p.m = rows, p.n = kColumns, p.k = kDepth;
    p.x = x, p.weight = weight, p.weight_scale = ones, p.x_scale = ones, p.out = out;
    p.x_dtype = ANYFUSE_INT8;
    p.threads = 1;
    if (run_groups(p, {1, &p.m, false}, target) != ANYFUSE_OK) return kNotAsked;
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < kColumns; ++j) {
        int32_t sum = 0;
        for (int k = 0; k < kDepth; ++k) sum += x[i * kDepth + k] * weight[j * kDepth + k];
        if (out[i * kColumns + j] != static_cast<float>(sum)) return kWrong;  // below 2^24: exact
      }
  }
  return kRight;
}

// The target in use, or the best one below it that is right; the answers are remembered. Without memory to ask, it is
// the one that is to be asked.
anyfuse_status find_trusted_target(int32_t *found) {
  static std::atomic<int8_t> answers[anyfuse::kTargetCount];
  int32_t target = anyfuse::current_target();
  for (; target > 0; --target) {
    int8_t answer = answers[target].load(std::memory_order_relaxed);
    if (answer == kNotAsked) answers[target].store(answer = ask(target), std::memory_order_relaxed);
    *found = target;
    if (answer != kWrong) return answer == kRight ? ANYFUSE_OK : ANYFUSE_OUT_OF_MEMORY;
  }
  *found = target;
  return target < 0 ? ANYFUSE_NO_TARGET : ANYFUSE_OK;
}

}  // namespace

anyfuse_status anyfuse::quant_matmul(const Params &p, const GroupedRows &groups) {
  if (anyfuse_status status = check(p, groups)) return status;
  int32_t target;
  if (anyfuse_status status = find_trusted_target(&target)) return status;
  if (p.m == 0 || p.n == 0) return ANYFUSE_OK;
  if (anyfuse_status status = run_groups(p, groups, target)) return status;
  const int64_t done = groups.rows(), row_bytes = p.n * bytes_of(p.out_dtype);
  if (done < p.m) std::memset(offset(p.out, done * row_bytes), 0, (p.m - done) * row_bytes);
  return ANYFUSE_OK;
}

namespace {

int32_t trusted_target(int32_t) {
  int32_t target;
  find_trusted_target(&target);
  return target;
}

anyfuse_status run(const Params &p) { return anyfuse::quant_matmul(p, {1, &p.m, false}); }

}  // namespace

extern "C" int32_t anyfuse_quant_matmul_dequant_target(void) { return anyfuse::in_default_mode(trusted_target, 0); }

extern "C" anyfuse_status anyfuse_quant_matmul_dequant(const Params *params) { return anyfuse::enter(run, params); }

#endif
