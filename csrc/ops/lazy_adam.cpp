// Adam for the rows of a table that a step names. The mathematics, and its reference in a few lines of PyTorch, is in
// src/anyfuse/ops/lazy_adam.py; the two must agree to the last bit.
//
// The rows given are sorted by id (core/order.h); each run of equal ids is one row of the table, which one thread sums
// and updates. Ids that prove to be distinct, by a bit for each row of the table, are not sorted (measured on 564 096
// of 2 000 000 rows: 0.6 of the time). A row is read and written once, and nothing is touched that was not named.
#include "anyfuse.h"
#include "core/dispatch.h"

namespace anyfuse {

// The numbers of one step that the bias correction has to do with.
struct LazyAdamStep {
  float minus_lr, epsilon;
};

// One table and the numbers of its step, all of them rounded to fp32 once.
struct LazyAdamTable {
  anyfuse_lazy_adam_row row;
  uint32_t *order;  // positions of the entries to visit, equal ids side by side; null: all, as they come
  int64_t entries;  // of the ids; elements where the table is stepped element by element
  int64_t padding_idx;
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float decay, grad_factor;
  LazyAdamStep step;  // of all rows, unless each has its own
  struct {
    double lr, beta1, beta2, epsilon, decay;
  } exact;        // what the numbers of a single row are made of
  int64_t moves;  // of the steps that a row was not named in, those that still move it
  int32_t bias_correction;
  bool eps_outside, catch_up, stochastic, by_element;
};

}  // namespace anyfuse

namespace {

// base^n by repeated squaring: the same double wherever it is computed.
inline double power(double base, int64_t n) {
  double result = 1.0;
  for (; n > 0; n >>= 1, base *= base)
    if ((n & 1) != 0) result *= base;
  return result;
}

struct ExactStep {
  double lr, epsilon;
};

// The learning rate and epsilon after beta1^n and beta2^n, n the number of the step.
inline ExactStep corrected(const anyfuse::LazyAdamTable &t, double power1, double power2) {
  if (t.bias_correction == ANYFUSE_LR_AS_GIVEN) return {t.exact.lr, t.exact.epsilon};
  const double root = __builtin_sqrt(1.0 - power2);
  return {t.exact.lr * root / (1.0 - power1), t.eps_outside ? t.exact.epsilon * root : t.exact.epsilon};
}

inline anyfuse::LazyAdamStep step_numbers(const anyfuse::LazyAdamTable &t, int64_t n) {
  const ExactStep exact = corrected(t, power(t.exact.beta1, n), power(t.exact.beta2, n));
  return {-static_cast<float>(exact.lr), static_cast<float>(exact.epsilon)};
}

}  // namespace

#if defined(ANYFUSE_TARGET)  // ---- the kernel, once per target ----

#include "core/convert.h"
#include "core/rounding.h"

namespace {

using Table = anyfuse::LazyAdamTable;

constexpr int64_t kColumns = 256;      // of a sum at a time, in L1
constexpr int64_t kLine = 64;          // bytes
constexpr int64_t kPrefetched = 512;   // bytes of a row; what follows is a stream, which the processor sees itself
constexpr int64_t kAheadBytes = 1024;  // of each of the four arrays
constexpr int64_t kMoves = 64;         // of a row at a time, their numbers in L1

ANYFUSE_INLINE void prefetch(const void *data, int64_t offset, int64_t bytes) {
  const char *p = static_cast<const char *>(data) + offset;
  const int64_t size = bytes < kPrefetched ? bytes : kPrefetched;
  for (int64_t i = 0; i < size; i += kLine) __builtin_prefetch(p + i);
  __builtin_prefetch(p + size - 1);  // a row need not begin at a line
}

ANYFUSE_INLINE int64_t size_of(anyfuse_dtype dtype) { return dtype == ANYFUSE_FLOAT32 ? 4 : 2; }

typedef uint8_t Mask;

// The row of the table that entry i names; below 0: none.
template <typename Id>
ANYFUSE_INLINE int64_t named_by(const Id *ids, int64_t i) {
  return ids[i];
}
ANYFUSE_INLINE int64_t named_by(const Mask *mask, int64_t i) { return mask == nullptr || mask[i] != 0 ? i : -1; }

// The entries of one table, in the order of their visit.
template <typename Id>
struct Entries {
  const Table &table;
  int64_t prefetched, ahead;
  int64_t count;  // of steps, whose numbers these are
  anyfuse::LazyAdamStep numbers;

  int64_t position(int64_t i) const { return table.order != nullptr ? static_cast<int64_t>(table.order[i]) : i; }
  int64_t id(int64_t i) const { return named_by(static_cast<const Id *>(table.row.indices), position(i)); }
  bool same_row(int64_t i, int64_t j) const { return table.order != nullptr && id(i) == id(j); }
  bool visits(int64_t id) const { return id >= 0 && id != table.padding_idx; }

  // Asks for all that the entries after i will need.
  inline __attribute__((always_inline)) void prefetch_after(int64_t i) {
    const auto &row = table.row;
    const int64_t limit = i + ahead < table.entries ? i + ahead : table.entries;
    for (; prefetched < limit; ++prefetched) {
      const int64_t gradient_row = row.dim * size_of(row.gradient_dtype), var_row = row.dim * size_of(row.var_dtype);
      const int64_t state_row = row.dim * 4, target = id(prefetched);
      if (target < 0) continue;
      prefetch(row.gradient, position(prefetched) * gradient_row, gradient_row);
      prefetch(row.m, target * state_row, state_row);
      prefetch(row.v, target * state_row, state_row);
      prefetch(row.var, target * var_row, var_row);
    }
  }
};

// sum[0, n) = or += a gradient row's elements [column, column + n).
template <anyfuse_dtype dtype>
ANYFUSE_INLINE void accumulate(const void *gradient, int64_t column, int64_t n, bool first, float *sum) {
  for (int64_t i = 0; i < n; i += kWidth) {
    const vf g = read_lanes<dtype>(gradient, column + i, n - i < kWidth ? n - i : kWidth);
    store(sum + i, first ? g : load(sum + i) + g);
  }
}

ANYFUSE_INLINE void accumulate(const Table &table, int64_t position, int64_t column, int64_t n, bool first,
                               float *sum) {
  const int64_t from = position * table.row.dim + column;
  if (table.row.gradient_dtype == ANYFUSE_FLOAT32)
    accumulate<ANYFUSE_FLOAT32>(table.row.gradient, from, n, first, sum);
  else if (table.row.gradient_dtype == ANYFUSE_BFLOAT16)
    accumulate<ANYFUSE_BFLOAT16>(table.row.gradient, from, n, first, sum);
  else
    accumulate<ANYFUSE_FLOAT16>(table.row.gradient, from, n, first, sum);
}

// How one row is stepped.
struct RowStep {
  anyfuse::LazyAdamStep numbers;
  int64_t last, skipped;  // the step that named the row last, and the steps since that did not
};

// Counts the step of a row. Rows that follow each other with the same count share their numbers.
template <typename Id>
ANYFUSE_INLINE RowStep begin_row(Entries<Id> &entries, int64_t id) {
  const Table &t = entries.table;
  if (t.row.row_step == nullptr) return {t.step, 0, 0};
  int32_t &count = t.row.row_step[id];
  const int64_t last = count > 0 ? count : 0;
  if (!t.catch_up) {
    count = static_cast<int32_t>(last < INT32_MAX ? last + 1 : last);
    if (count != entries.count) entries.numbers = step_numbers(t, entries.count = count);
    return {entries.numbers, last, 0};
  }
  count = static_cast<int32_t>(t.row.step);
  return {t.step, last, t.row.step - 1 > last ? t.row.step - 1 - last : 0};
}

ANYFUSE_INLINE int64_t lanes_of(int64_t n) { return n < kWidth ? n : kWidth; }

// A step that a row was not named in, by which its weights move m * minus_lr / (root * root_decay + epsilon).
struct Move {
  float minus_lr, root_decay, epsilon;
};

// Adds up the moves of n weights; those that came before decay.
ANYFUSE_INLINE void add_moves(const Move *moves, int64_t count, float decay, const float *m_row, const float *v_row,
                              int64_t n, float *sum) {
  for (int64_t i = 0; i < n; i += kWidth) {
    const vf m = read_lanes<ANYFUSE_FLOAT32>(m_row, i, lanes_of(n - i));
    const vf root = sqrt(abs(read_lanes<ANYFUSE_FLOAT32>(v_row, i, lanes_of(n - i))));
    vf total = load(sum + i);
    for (int64_t k = 0; k < count; ++k)
      total = total * decay + (m * moves[k].minus_lr) / (root * moves[k].root_decay + moves[k].epsilon);
    store(sum + i, total);
  }
}

// Takes the skipped steps for n elements of a row, from element `at` of the table on: the moments where they lie, the
// weights into fp32 that is not rounded before the step is over.
template <anyfuse_dtype var_dtype>
ANYFUSE_INLINE void catch_up(const Table &t, const RowStep &r, int64_t at, int64_t n, float *weights) {
  float *m = static_cast<float *>(t.row.m) + at, *v = static_cast<float *>(t.row.v) + at;
  const int64_t wanted = r.skipped < t.moves ? r.skipped : t.moves, moves = r.last > 0 ? wanted : 0;
  const double root_beta2 = __builtin_sqrt(t.exact.beta2);
  double power1 = power(t.exact.beta1, r.last), power2 = power(t.exact.beta2, r.last), decay1 = 1.0, root_decay = 1.0;
  for (int64_t i = 0; i < n; i += kWidth) store(weights + i, set(0.0f));
  for (int64_t done = 0; done < moves; done += kMoves) {
    Move some[kMoves];
    const int64_t count = moves - done < kMoves ? moves - done : kMoves;
    for (int64_t k = 0; k < count; ++k) {
      power1 *= t.exact.beta1;
      power2 *= t.exact.beta2;
      decay1 *= t.exact.beta1;
      root_decay *= root_beta2;
      const ExactStep step = corrected(t, power1, power2);
      some[k] = {-static_cast<float>(step.lr * decay1), static_cast<float>(root_decay),
                 static_cast<float>(step.epsilon)};
    }
    add_moves(some, count, t.decay, m, v, n, weights);
  }
  const float var_decay = static_cast<float>(power(t.exact.decay, r.skipped));
  const float sum_decay = static_cast<float>(power(t.exact.decay, r.skipped - moves));
  const float m_decay = static_cast<float>(power(t.exact.beta1, r.skipped));
  const float v_decay = static_cast<float>(power(t.exact.beta2, r.skipped));
  for (int64_t i = 0; i < n; i += kWidth) {
    const int64_t lanes = lanes_of(n - i);
    store(weights + i, read_lanes<var_dtype>(t.row.var, at + i, lanes) * var_decay + load(weights + i) * sum_decay);
    write_lanes<ANYFUSE_FLOAT32>(m, i, lanes, read_lanes<ANYFUSE_FLOAT32>(m, i, lanes) * m_decay);
    write_lanes<ANYFUSE_FLOAT32>(v, i, lanes, read_lanes<ANYFUSE_FLOAT32>(v, i, lanes) * v_decay);
  }
}

// Random bits for the elements from `index` on; `dither` is that of `at`, in the same row or before.
ANYFUSE_INLINE vu random_at(const Table &t, Dither dither, int64_t at, int64_t index) {
  if ((index + kWidth - 1) >> 32 == at >> 32) return random_bits(dither, index);
  uint32_t lanes[kWidth], some[kWidth];
  for (int i = 0; i < kWidth; ++i) {  // once in 2^32 elements
    const vu all = random_bits(dither_of(t.row.seed, t.row.step, index + i, 0), index);
    memcpy(some, &all, sizeof some);
    lanes[i] = some[i];
  }
  vu random;
  memcpy(&random, lanes, sizeof random);
  return random;
}

template <anyfuse_dtype var_dtype>
ANYFUSE_INLINE void write_randomly(const Table &t, Dither dither, int64_t at, int64_t i, int64_t n, vf v) {
  const vu random = random_at(t, dither, at, at + i);
  const vh h = var_dtype == ANYFUSE_BFLOAT16 ? float_to_bf16_randomly(v, random) : float_to_fp16_randomly(v, random);
  uint16_t lanes[kWidth], *to = static_cast<uint16_t *>(t.row.var) + at + i;
  memcpy(lanes, &h, sizeof lanes);
  if (n == kWidth)
    memcpy(to, lanes, sizeof lanes);
  else
    copy_part(to, lanes, n);
}

// With weights that have caught up, those are stepped in place of the table's.
template <anyfuse_dtype var_dtype, bool caught_up>
ANYFUSE_INLINE void step_lanes(const Table &t, const anyfuse::LazyAdamStep &s, const float *gradient,
                               const float *weights, float *m_row, float *v_row, Dither dither, int64_t at, int64_t i,
                               int64_t n) {
  const vf g = read_lanes<ANYFUSE_FLOAT32>(gradient, i, n) * t.grad_factor;
  const vf m = read_lanes<ANYFUSE_FLOAT32>(m_row, i, n) * t.beta1 + g * t.one_minus_beta1;
  const vf v = abs(read_lanes<ANYFUSE_FLOAT32>(v_row, i, n) * t.beta2 + (g * g) * t.one_minus_beta2);
  const vf var = caught_up ? load(weights + i) : read_lanes<var_dtype>(t.row.var, at + i, n);
  const vf next = var * t.decay + (m * s.minus_lr) / (sqrt(v) + s.epsilon);
  write_lanes<ANYFUSE_FLOAT32>(m_row, i, n, m);
  write_lanes<ANYFUSE_FLOAT32>(v_row, i, n, v);
  if (var_dtype != ANYFUSE_FLOAT32 && t.stochastic)
    write_randomly<var_dtype>(t, dither, at, i, n, next);
  else
    write_lanes<var_dtype>(t.row.var, at + i, n, next);
}

// n elements of the table from element `at` on, with their gradient.
template <anyfuse_dtype var_dtype, bool caught_up = false>
ANYFUSE_INLINE void step(const Table &t, const anyfuse::LazyAdamStep &s, const float *gradient, int64_t at, int64_t n,
                         const float *weights = nullptr) {
  float *m = static_cast<float *>(t.row.m) + at, *v = static_cast<float *>(t.row.v) + at;
  const Dither dither =
      var_dtype != ANYFUSE_FLOAT32 && t.stochastic ? dither_of(t.row.seed, t.row.step, at, 0) : Dither{};
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth)
    step_lanes<var_dtype, caught_up>(t, s, gradient, weights, m, v, dither, at, i, kWidth);
  if (i < n) step_lanes<var_dtype, caught_up>(t, s, gradient, weights, m, v, dither, at, i, n - i);
}

// The row of the table that the entries [begin, end) name.
template <anyfuse_dtype var_dtype, typename Id>
ANYFUSE_INLINE void step_row(Entries<Id> &entries, int64_t begin, int64_t end) {
  const Table &t = entries.table;
  const int64_t dim = t.row.dim, id = entries.id(begin), at = id * dim;
  const RowStep r = begin_row(entries, id);
  const bool direct = end - begin == 1 && t.row.gradient_dtype == ANYFUSE_FLOAT32;
  const float *gradient = static_cast<const float *>(t.row.gradient) + entries.position(begin) * dim;
  if (direct && r.skipped == 0) return step<var_dtype>(t, r.numbers, gradient, at, dim);
  alignas(64) float sum[kColumns], weights[kColumns];
  for (int64_t column = 0; column < dim; column += kColumns) {
    const int64_t n = dim - column < kColumns ? dim - column : kColumns;
    for (int64_t i = begin; i < end && !direct; ++i) {
      entries.prefetch_after(i);
      accumulate(t, entries.position(i), column, n, i == begin, sum);
    }
    const float *g = direct ? gradient + column : sum;
    if (r.skipped == 0) {
      step<var_dtype>(t, r.numbers, g, at + column, n);
    } else {
      catch_up<var_dtype>(t, r, at + column, n, weights);
      step<var_dtype, true>(t, r.numbers, g, at + column, n, weights);
    }
  }
}

// The elements [begin, end) of a table of which all rows are stepped alike.
template <anyfuse_dtype var_dtype>
ANYFUSE_INLINE void step_elements(const Table &table, int64_t begin, int64_t end) {
  const Table t = table;  // a copy of this function's own needs no second load after a store
  if (t.row.gradient_dtype == ANYFUSE_FLOAT32)
    return step<var_dtype>(t, t.step, static_cast<const float *>(t.row.gradient) + begin, begin, end - begin);
  alignas(64) float gradient[kColumns];
  for (; begin < end; begin += kColumns) {
    const int64_t n = end - begin < kColumns ? end - begin : kColumns;
    accumulate(t, 0, begin, n, true, gradient);
    step<var_dtype>(t, t.step, gradient, begin, n);
  }
}

template <typename Id, anyfuse_dtype var_dtype>
void step_entries(const Table &table, int64_t begin, int64_t end) {
  const int64_t bytes = table.row.dim * 4, ahead = kAheadBytes / (bytes < kLine ? kLine : bytes);
  Entries<Id> entries{table, begin, ahead < 2 ? 2 : ahead, -1, {}};
  while (begin < end && begin > 0 && entries.same_row(begin - 1, begin)) ++begin;  // the piece before has that run
  for (int64_t next; begin < end; begin = next) {
    for (next = begin + 1; next < table.entries && entries.same_row(begin, next);) ++next;
    entries.prefetch_after(begin);
    if (entries.visits(entries.id(begin))) step_row<var_dtype>(entries, begin, next);
  }
}

template <anyfuse_dtype var_dtype>
ANYFUSE_INLINE void step_table(const Table &table, int64_t begin, int64_t end) {
  if (table.by_element)
    step_elements<var_dtype>(table, begin, end);
  else if (table.row.indices_dtype == ANYFUSE_INT64)
    step_entries<int64_t, var_dtype>(table, begin, end);
  else if (table.row.indices_dtype == ANYFUSE_INT32)
    step_entries<int32_t, var_dtype>(table, begin, end);
  else
    step_entries<Mask, var_dtype>(table, begin, end);
}

}  // namespace

// begin, end count entries, or elements: a run of equal ids belongs to the piece in which it begins.
ANYFUSE_KERNEL(lazy_adam, LazyAdamTable) {
  if (args.row.var_dtype == ANYFUSE_FLOAT32)
    step_table<ANYFUSE_FLOAT32>(args, begin, end);
  else if (args.row.var_dtype == ANYFUSE_BFLOAT16)
    step_table<ANYFUSE_BFLOAT16>(args, begin, end);
  else
    step_table<ANYFUSE_FLOAT16>(args, begin, end);
}

#else  // ---- the entry point, once ----

#include <atomic>
#include <cmath>
#include <limits>

#include "core/chunks.h"
#include "core/order.h"
#include "core/parallel.h"
#include "core/params.h"

ANYFUSE_DISPATCH(lazy_adam, LazyAdamTable)

namespace {

using Params = anyfuse_lazy_adam_params;
using Row = anyfuse_lazy_adam_row;
using Table = anyfuse::LazyAdamTable;

constexpr int64_t kPiece = 16384;     // elements; 256 rows of 64 keep a core busy for about 40 us
constexpr int64_t kParallel = 32768;  // below this a second thread costs more than it saves
constexpr int64_t kNoPadding = std::numeric_limits<int64_t>::min();
constexpr double kSmallestMove = 1.0 / (1 << 24);
constexpr int64_t kMostMoves = 1 << 16;  // where moves do not become smaller

// Memory that need not be there: null is an answer.
template <typename T>
class Scratch {
 public:
  bool allocate(int64_t size) {
    data_ = static_cast<T *>(std::malloc((size > 0 ? size : 1) * sizeof(T)));
    return data_ != nullptr;
  }
  ~Scratch() { std::free(data_); }
  T *get() const { return data_; }

 private:
  T *data_ = nullptr;
};

bool overflows(int64_t a, int64_t b) {
  int64_t bytes;
  return __builtin_mul_overflow(a, b, &bytes) || __builtin_mul_overflow(bytes, int64_t{sizeof(float)}, &bytes);
}

bool is_mask(const Row &row) { return row.indices_dtype == ANYFUSE_BOOL; }

bool counts_rows(const Params &p) { return p.bias_correction == ANYFUSE_CORRECTED_BY_ROW || p.catch_up != 0; }

anyfuse_status check(const Params &p) {
  if (p.count < 0 || p.row_size > 4096) return ANYFUSE_INVALID_SIZE;
  if (p.count > 0 && p.rows == nullptr) return ANYFUSE_INVALID_POINTER;
  if (p.convention != ANYFUSE_FORMULA && p.convention != ANYFUSE_DEVICE) return ANYFUSE_INVALID_VALUE;
  if (!(std::fabs(static_cast<float>(p.epsilon)) >= 1e-8f)) return ANYFUSE_INVALID_VALUE;
  if (p.bias_correction < ANYFUSE_LR_AS_GIVEN || p.bias_correction > ANYFUSE_CORRECTED_BY_ROW)
    return ANYFUSE_INVALID_VALUE;
  // A row has one count: of its own steps, or of the table's when it was named last.
  if (p.bias_correction == ANYFUSE_CORRECTED_BY_ROW && p.catch_up != 0) return ANYFUSE_INVALID_VALUE;
  return ANYFUSE_OK;
}

anyfuse_status check(const Params &p, const Row &row) {
  if (row.n < 0 || row.rows < 0 || row.dim < 0) return ANYFUSE_INVALID_SIZE;
  if (overflows(row.rows, row.dim) || overflows(row.n, row.dim)) return ANYFUSE_INVALID_SIZE;
  if (is_mask(row) && row.n != row.rows) return ANYFUSE_INVALID_SIZE;
  if (!is_mask(row) && p.assume_unique == 0 && row.n > std::numeric_limits<uint32_t>::max())
    return ANYFUSE_INVALID_SIZE;
  if (row.n > 0 && row.indices == nullptr && !is_mask(row)) return ANYFUSE_INVALID_POINTER;
  if (row.n > 0 && row.dim > 0 && row.gradient == nullptr) return ANYFUSE_INVALID_POINTER;
  if (row.rows > 0 && row.dim > 0 && !(row.m && row.v && row.var)) return ANYFUSE_INVALID_POINTER;
  if (!anyfuse::is_float(row.gradient_dtype) || !anyfuse::is_float(row.var_dtype)) return ANYFUSE_INVALID_DTYPE;
  if (row.indices_dtype != ANYFUSE_INT32 && row.indices_dtype != ANYFUSE_INT64 && !is_mask(row))
    return ANYFUSE_INVALID_DTYPE;
  if (row.rows > 0 && row.row_step == nullptr && counts_rows(p)) return ANYFUSE_INVALID_POINTER;
  if ((p.bias_correction == ANYFUSE_CORRECTED_BY_STEP || p.catch_up != 0) && row.step < 1) return ANYFUSE_INVALID_VALUE;
  if (p.catch_up != 0 && row.step > INT32_MAX) return ANYFUSE_INVALID_VALUE;
  return ANYFUSE_OK;
}

// After how many steps without a gradient a row no longer moves: a move is beta1/sqrt(beta2) of the one before, until
// it is below the rounding of the first.
int64_t moves_that_count(double beta1, double beta2) {
  const double ratio = beta1 / std::sqrt(beta2);
  double size = 1.0;
  int64_t moves = 0;
  for (; size >= kSmallestMove && moves < kMostMoves; ++moves) size *= ratio;
  return moves;
}

Table prepare(const Params &p, const Row &row) {
  const bool device = p.convention == ANYFUSE_DEVICE;
  // Formula: 1 - x in double, rounded once. Device: x is rounded to fp32 first.
  const auto complement = [device](double x) {
    return device ? 1.0f - static_cast<float>(x) : static_cast<float>(1.0 - x);
  };
  Table table = {};
  table.row = row;
  table.entries = row.n;
  table.beta1 = static_cast<float>(p.beta1);
  table.beta2 = static_cast<float>(p.beta2);
  table.one_minus_beta1 = complement(p.beta1);
  table.one_minus_beta2 = complement(p.beta2);
  table.exact = {row.lr, p.beta1, p.beta2, p.epsilon, 1.0 - row.lr * p.weight_decay};
  table.decay = static_cast<float>(table.exact.decay);
  table.grad_factor = static_cast<float>((p.maximize != 0 ? -1.0 : 1.0) / (p.grad_scale == 0.0 ? 1.0 : p.grad_scale));
  table.bias_correction = p.bias_correction;
  table.eps_outside = p.eps_outside != 0;
  table.catch_up = p.catch_up != 0;
  table.stochastic = p.stochastic_rounding != 0;
  table.step = step_numbers(table, row.step);
  if (!counts_rows(p)) table.row.row_step = nullptr;
  table.moves = table.catch_up ? moves_that_count(p.beta1, p.beta2) : 0;
  table.padding_idx = p.refuse_negative != 0 && !is_mask(row) ? row.padding_idx : kNoPadding;
  table.by_element = is_mask(row) && row.indices == nullptr && table.row.row_step == nullptr;
  if (table.by_element) table.entries = row.rows * row.dim;
  return table;
}

// No id beyond the table, and with refuse_negative none below it but the padding.
template <typename Id>
bool ids_fit(const Row &row, bool refuse_negative, int64_t chunks, int32_t threads) {
  const Id *ids = static_cast<const Id *>(row.indices);
  const int64_t lowest = refuse_negative ? 0 : std::numeric_limits<int64_t>::min();
  const int64_t padding = refuse_negative && row.padding_idx != kNoPadding ? row.padding_idx : 0;
  std::atomic<bool> fit{true};
  anyfuse::parallel_for(chunks, threads, [&](int64_t chunk) {
    bool beyond = false;
    for (int64_t i = row.n * chunk / chunks; i < row.n * (chunk + 1) / chunks; ++i)
      beyond |= ids[i] >= row.rows || (ids[i] < lowest && ids[i] != padding);
    if (beyond) fit.store(false, std::memory_order_relaxed);
  });
  return fit;
}

// Checks a table's ids and, where it has an order, finds it. Nothing but scratch is written.
template <typename Id>
bool arrange(Table &table, bool refuse_negative, const anyfuse::OrderPlan &plan, uint32_t *spare, uint32_t *counts,
             int32_t threads) {
  if (!ids_fit<Id>(table.row, refuse_negative, plan.chunks, threads)) return false;
  if (table.order == nullptr) return true;
  const Id *ids = static_cast<const Id *>(table.row.indices);
  if (table.row.rows <= 32 * table.row.n && anyfuse::all_distinct(ids, table.row.n, table.row.rows, spare, threads))
    table.order = nullptr;
  else
    table.entries = anyfuse::order_by_id(ids, table.row.n, plan, table.order, spare, counts, threads);
  return true;
}

bool arrange(Table &table, bool refuse_negative, uint32_t *spare, uint32_t *counts, int32_t threads) {
  const anyfuse::OrderPlan plan(table.row.n, table.row.rows);
  uint32_t few[1 << anyfuse::OrderPlan::kMaxBits];
  if (plan.chunks == 1) counts = few;
  return table.row.indices_dtype == ANYFUSE_INT64
             ? arrange<int64_t>(table, refuse_negative, plan, spare, counts, threads)
             : arrange<int32_t>(table, refuse_negative, plan, spare, counts, threads);
}

// All tables: the large ones by all threads one after the other, then the small ones side by side. `order` begins the
// orders of all of them, `spare` as much again.
bool arrange_all(Table *tables, const Params &p, const uint32_t *order, uint32_t *spare, uint32_t *counts,
                 int32_t threads) {
  std::atomic<bool> fit{true};
  const auto visit = [&](int64_t i, bool large, int32_t team) {
    Table &table = tables[i];
    if (is_mask(table.row)) return;
    if ((anyfuse::OrderPlan(table.row.n, table.row.rows).chunks > 1) != large) return;
    uint32_t *mine = table.order != nullptr ? spare + (table.order - order) : nullptr;
    if (!arrange(table, p.refuse_negative != 0, mine, counts, team)) fit.store(false, std::memory_order_relaxed);
  };
  for (int64_t i = 0; i < p.count; ++i) visit(i, true, threads);
  anyfuse::parallel_for(p.count, threads, [&](int64_t i) { visit(i, false, 1); });
  return fit;
}

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

anyfuse_status run(const Params &p) {
  if (anyfuse_status status = check(p)) return status;
  const auto kernel = lazy_adam_kernel();
  if (kernel == nullptr) return ANYFUSE_NO_TARGET;

  const bool ordered = p.assume_unique == 0;
  Scratch<Table> tables;
  if (!tables.allocate(p.count)) return ANYFUSE_OUT_OF_MEMORY;
  int64_t given = 0, elements = 0, counts = 0;
  for (int64_t i = 0; i < p.count; ++i) {
    Row row;
    if (anyfuse_status status = anyfuse::read_row(p, i, &row)) return status;
    if (anyfuse_status status = check(p, row)) return status;
    tables.get()[i] = prepare(p, row);
    elements += row.n * row.dim;
    if (is_mask(row)) continue;
    given += row.n;
    counts = std::max(counts, anyfuse::OrderPlan(row.n, row.rows).counts());
  }
  const int32_t threads = elements < kParallel ? 1 : p.threads;

  Scratch<uint32_t> positions;  // of all tables, twice (the sort moves them to and fro), and the counts of the sort
  if (ordered) {
    if (!positions.allocate(2 * given + counts)) return ANYFUSE_OUT_OF_MEMORY;
    uint32_t *order = positions.get();
    for (int64_t i = 0; i < p.count; ++i) {
      if (is_mask(tables.get()[i].row)) continue;
      tables.get()[i].order = order;
      order += tables.get()[i].row.n;
    }
  }
  anyfuse::Chunks chunks(p.count, kPiece);
  if (!chunks.allocated()) return ANYFUSE_OUT_OF_MEMORY;
  uint32_t *const spare = positions.get() + (ordered ? given : 0), *const tally = spare + (ordered ? given : 0);
  if (!arrange_all(tables.get(), p, positions.get(), spare, tally, threads)) return ANYFUSE_INVALID_INDEX;

  for (int64_t i = 0; i < p.count; ++i) {
    const Table &table = tables.get()[i];
    chunks.set(i, table.by_element ? table.entries : table.entries * table.row.dim);
  }
  anyfuse::parallel_for(chunks.pieces(), threads, [&](int64_t i) {
    const auto piece = chunks.at(i);
    const Table &table = tables.get()[piece.tensor];
    const int64_t unit = table.by_element ? 1 : table.row.dim;  // an entry belongs to the piece of its first element
    kernel(table, ceil_divide(piece.begin, unit), std::min(ceil_divide(piece.limit, unit), table.entries));
  });
  return ANYFUSE_OK;
}

}  // namespace

extern "C" anyfuse_status anyfuse_lazy_adam(const Params *params) { return anyfuse::enter(run, params); }

#endif
