// Adam for the rows of a table that a step names. The mathematics, and its reference in a few lines of PyTorch, is in
// src/anyfuse/ops/lazy_adam.py; the two must agree to the last bit.
//
// The rows given are sorted by id (core/order.h); each run of equal ids is one row of the table, which one thread sums
// and updates. Ids that prove to be distinct, by a bit for each row of the table, are not sorted (measured on 564 096
// of 2 000 000 rows: 0.6 of the time). A row is read and written once, and nothing is touched that was not named.
#include "anyfuse.h"
#include "core/dispatch.h"

namespace anyfuse {

// One table and the numbers of its step, all of them rounded to fp32 once.
struct LazyAdamTable {
  anyfuse_lazy_adam_row row;
  uint32_t *order;  // positions of the entries to visit, equal ids side by side; null: all, as they come
  int64_t entries;
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float epsilon, minus_lr;
};

}  // namespace anyfuse

#if defined(ANYFUSE_TARGET)  // ---- the kernel, once per target ----

#include "core/simd.h"

namespace {

using Table = anyfuse::LazyAdamTable;

constexpr int64_t kColumns = 256;      // of a sum at a time, in L1
constexpr int64_t kLine = 64;          // bytes
constexpr int64_t kPrefetched = 512;   // bytes of a row; what follows is a stream, which the processor sees itself
constexpr int64_t kAheadBytes = 1024;  // of each of the four arrays

ANYFUSE_INLINE void prefetch(const void *data, int64_t offset, int64_t bytes) {
  const char *p = static_cast<const char *>(data) + offset;
  const int64_t size = bytes < kPrefetched ? bytes : kPrefetched;
  for (int64_t i = 0; i < size; i += kLine) __builtin_prefetch(p + i);
  __builtin_prefetch(p + size - 1);  // a row need not begin at a line
}

ANYFUSE_INLINE int64_t size_of(anyfuse_dtype dtype) { return dtype == ANYFUSE_FLOAT32 ? 4 : 2; }

// The entries of one table, in the order of their visit.
template <typename Id>
struct Entries {
  const Table &table;
  int64_t prefetched, ahead;

  int64_t position(int64_t i) const { return table.order != nullptr ? static_cast<int64_t>(table.order[i]) : i; }
  int64_t id(int64_t i) const { return static_cast<const Id *>(table.row.indices)[position(i)]; }
  bool same_row(int64_t i, int64_t j) const { return table.order != nullptr && id(i) == id(j); }

  // Asks for all that the entries after i will need.
  inline __attribute__((always_inline)) void prefetch_after(int64_t i) {
    const auto &row = table.row;
    const int64_t limit = i + ahead < table.entries ? i + ahead : table.entries;
    for (; prefetched < limit; ++prefetched) {
      const int64_t gradient_row = row.dim * size_of(row.gradient_dtype), var_row = row.dim * size_of(row.var_dtype);
      const int64_t state_row = row.dim * 4, target = id(prefetched);
      prefetch(row.gradient, position(prefetched) * gradient_row, gradient_row);
      if (target < 0) continue;
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

template <anyfuse_dtype var_dtype>
ANYFUSE_INLINE void step_lanes(const Table &t, const float *gradient, float *m_row, float *v_row, void *var, int64_t at,
                               int64_t i, int64_t n) {
  const vf g = read_lanes<ANYFUSE_FLOAT32>(gradient, i, n);
  const vf m = read_lanes<ANYFUSE_FLOAT32>(m_row, i, n) * t.beta1 + g * t.one_minus_beta1;
  const vf v = abs(read_lanes<ANYFUSE_FLOAT32>(v_row, i, n) * t.beta2 + (g * g) * t.one_minus_beta2);
  const vf next = read_lanes<var_dtype>(var, at + i, n) + (m * t.minus_lr) / (sqrt(v) + t.epsilon);
  write_lanes<ANYFUSE_FLOAT32>(m_row, i, n, m);
  write_lanes<ANYFUSE_FLOAT32>(v_row, i, n, v);
  write_lanes<var_dtype>(var, at + i, n, next);
}

// n elements of the table from element `at` on, with their gradient.
template <anyfuse_dtype var_dtype>
ANYFUSE_INLINE void step(const Table &t, const float *gradient, int64_t at, int64_t n) {
  float *m = static_cast<float *>(t.row.m) + at, *v = static_cast<float *>(t.row.v) + at;
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) step_lanes<var_dtype>(t, gradient, m, v, t.row.var, at, i, kWidth);
  if (i < n) step_lanes<var_dtype>(t, gradient, m, v, t.row.var, at, i, n - i);
}

// The row of the table that the entries [begin, end) name.
template <anyfuse_dtype var_dtype, typename Id>
ANYFUSE_INLINE void step_row(Entries<Id> &entries, int64_t begin, int64_t end) {
  const Table &t = entries.table;
  const int64_t dim = t.row.dim, at = entries.id(begin) * dim;
  if (end - begin == 1 && t.row.gradient_dtype == ANYFUSE_FLOAT32) {
    const float *gradient = static_cast<const float *>(t.row.gradient) + entries.position(begin) * dim;
    return step<var_dtype>(t, gradient, at, dim);
  }
  alignas(64) float sum[kColumns];
  for (int64_t column = 0; column < dim; column += kColumns) {
    const int64_t n = dim - column < kColumns ? dim - column : kColumns;
    for (int64_t i = begin; i < end; ++i) {
      entries.prefetch_after(i);
      accumulate(t, entries.position(i), column, n, i == begin, sum);
    }
    step<var_dtype>(t, sum, at + column, n);
  }
}

template <typename Id, anyfuse_dtype var_dtype>
void step_entries(const Table &table, int64_t begin, int64_t end) {
  const int64_t bytes = table.row.dim * 4, ahead = kAheadBytes / (bytes < kLine ? kLine : bytes);
  Entries<Id> entries{table, begin, ahead < 2 ? 2 : ahead};
  while (begin < end && begin > 0 && entries.same_row(begin - 1, begin)) ++begin;  // the piece before has that run
  for (int64_t next; begin < end; begin = next) {
    for (next = begin + 1; next < table.entries && entries.same_row(begin, next);) ++next;
    entries.prefetch_after(begin);
    if (entries.id(begin) >= 0) step_row<var_dtype>(entries, begin, next);
  }
}

template <typename Id>
ANYFUSE_INLINE void step_entries(const Table &table, int64_t begin, int64_t end) {
  if (table.row.var_dtype == ANYFUSE_FLOAT32)
    step_entries<Id, ANYFUSE_FLOAT32>(table, begin, end);
  else if (table.row.var_dtype == ANYFUSE_BFLOAT16)
    step_entries<Id, ANYFUSE_BFLOAT16>(table, begin, end);
  else
    step_entries<Id, ANYFUSE_FLOAT16>(table, begin, end);
}

}  // namespace

// begin, end count entries: a run of equal ids belongs to the piece in which it begins.
ANYFUSE_KERNEL(lazy_adam, LazyAdamTable) {
  if (args.row.indices_dtype == ANYFUSE_INT64)
    step_entries<int64_t>(args, begin, end);
  else
    step_entries<int32_t>(args, begin, end);
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

bool is_float(anyfuse_dtype dtype) {
  return dtype == ANYFUSE_FLOAT32 || dtype == ANYFUSE_FLOAT16 || dtype == ANYFUSE_BFLOAT16;
}

bool overflows(int64_t a, int64_t b) {
  int64_t bytes;
  return __builtin_mul_overflow(a, b, &bytes) || __builtin_mul_overflow(bytes, int64_t{sizeof(float)}, &bytes);
}

anyfuse_status check(const Row &row, bool assume_unique) {
  if (row.n < 0 || row.rows < 0 || row.dim < 0) return ANYFUSE_INVALID_SIZE;
  if (overflows(row.rows, row.dim) || overflows(row.n, row.dim)) return ANYFUSE_INVALID_SIZE;
  if (!assume_unique && row.n > std::numeric_limits<uint32_t>::max()) return ANYFUSE_INVALID_SIZE;
  if (row.n > 0 && row.indices == nullptr) return ANYFUSE_INVALID_POINTER;
  if (row.n > 0 && row.dim > 0 && row.gradient == nullptr) return ANYFUSE_INVALID_POINTER;
  if (row.rows > 0 && row.dim > 0 && !(row.m && row.v && row.var)) return ANYFUSE_INVALID_POINTER;
  if (!is_float(row.gradient_dtype) || !is_float(row.var_dtype)) return ANYFUSE_INVALID_DTYPE;
  if (row.indices_dtype != ANYFUSE_INT32 && row.indices_dtype != ANYFUSE_INT64) return ANYFUSE_INVALID_DTYPE;
  return ANYFUSE_OK;
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
  table.epsilon = static_cast<float>(p.epsilon);
  table.minus_lr = -static_cast<float>(row.lr);
  return table;
}

template <typename Id>
bool ids_fit(const Row &row, int64_t chunks, int32_t threads) {
  const Id *ids = static_cast<const Id *>(row.indices);
  std::atomic<bool> fit{true};
  anyfuse::parallel_for(chunks, threads, [&](int64_t chunk) {
    bool beyond = false;
    for (int64_t i = row.n * chunk / chunks; i < row.n * (chunk + 1) / chunks; ++i) beyond |= ids[i] >= row.rows;
    if (beyond) fit.store(false, std::memory_order_relaxed);
  });
  return fit;
}

// Checks a table's ids and, where it has an order, finds it. Nothing but scratch is written.
template <typename Id>
bool arrange(Table &table, const anyfuse::OrderPlan &plan, uint32_t *spare, uint32_t *counts, int32_t threads) {
  if (!ids_fit<Id>(table.row, plan.chunks, threads)) return false;
  if (table.order == nullptr) return true;
  const Id *ids = static_cast<const Id *>(table.row.indices);
  if (table.row.rows <= 32 * table.row.n && anyfuse::all_distinct(ids, table.row.n, table.row.rows, spare, threads))
    table.order = nullptr;
  else
    table.entries = anyfuse::order_by_id(ids, table.row.n, plan, table.order, spare, counts, threads);
  return true;
}

bool arrange(Table &table, uint32_t *spare, uint32_t *counts, int32_t threads) {
  const anyfuse::OrderPlan plan(table.row.n, table.row.rows);
  uint32_t few[1 << anyfuse::OrderPlan::kMaxBits];
  if (plan.chunks == 1) counts = few;
  return table.row.indices_dtype == ANYFUSE_INT64 ? arrange<int64_t>(table, plan, spare, counts, threads)
                                                  : arrange<int32_t>(table, plan, spare, counts, threads);
}

// All tables: the large ones by all threads one after the other, then the small ones side by side.
bool arrange_all(Table *tables, int64_t count, uint32_t *spare, uint32_t *counts, int32_t threads) {
  std::atomic<bool> fit{true};
  const uint32_t *const first = count > 0 ? tables[0].order : nullptr;  // a visit may end with no order
  const auto visit = [&](int64_t i, bool large, int32_t team) {
    if ((anyfuse::OrderPlan(tables[i].row.n, tables[i].row.rows).chunks > 1) != large) return;
    uint32_t *mine = tables[i].order != nullptr ? spare + (tables[i].order - first) : nullptr;
    if (!arrange(tables[i], mine, counts, team)) fit.store(false, std::memory_order_relaxed);
  };
  for (int64_t i = 0; i < count; ++i) visit(i, true, threads);
  anyfuse::parallel_for(count, threads, [&](int64_t i) { visit(i, false, 1); });
  return fit;
}

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

extern "C" anyfuse_status anyfuse_lazy_adam(const anyfuse_lazy_adam_params *params) {
  Params p;
  if (anyfuse_status status = anyfuse::read_params(params, &p)) return status;
  if (p.count < 0 || p.row_size > 4096) return ANYFUSE_INVALID_SIZE;
  if (p.count > 0 && p.rows == nullptr) return ANYFUSE_INVALID_POINTER;
  if (p.convention != ANYFUSE_FORMULA && p.convention != ANYFUSE_DEVICE) return ANYFUSE_INVALID_VALUE;
  if (!(std::fabs(static_cast<float>(p.epsilon)) >= 1e-8f)) return ANYFUSE_INVALID_VALUE;
  const auto kernel = lazy_adam_kernel();
  if (kernel == nullptr) return ANYFUSE_NO_TARGET;

  const bool ordered = p.assume_unique == 0;
  Scratch<Table> tables;
  if (!tables.allocate(p.count)) return ANYFUSE_OUT_OF_MEMORY;
  int64_t given = 0, elements = 0, counts = 0;
  for (int64_t i = 0; i < p.count; ++i) {
    Row row;
    const char *source = reinterpret_cast<const char *>(p.rows) + i * p.row_size;
    if (anyfuse_status status = anyfuse::read_struct(source, p.row_size, &row)) return status;
    if (anyfuse_status status = check(row, !ordered)) return status;
    tables.get()[i] = prepare(p, row);
    given += row.n;
    elements += row.n * row.dim;
    counts = std::max(counts, anyfuse::OrderPlan(row.n, row.rows).counts());
  }
  const int32_t threads = elements < kParallel ? 1 : p.threads;

  Scratch<uint32_t> positions;  // of all tables, twice (the sort moves them to and fro), and the counts of the sort
  if (ordered) {
    if (!positions.allocate(2 * given + counts)) return ANYFUSE_OUT_OF_MEMORY;
    uint32_t *order = positions.get();
    for (int64_t i = 0; i < p.count; ++i) {
      tables.get()[i].order = order;
      order += tables.get()[i].row.n;
    }
  }
  anyfuse::Chunks chunks(p.count, kPiece);
  if (!chunks.allocated()) return ANYFUSE_OUT_OF_MEMORY;
  uint32_t *const spare = positions.get() + (ordered ? given : 0), *const tally = spare + (ordered ? given : 0);
  if (!arrange_all(tables.get(), p.count, spare, tally, threads)) return ANYFUSE_INVALID_INDEX;

  for (int64_t i = 0; i < p.count; ++i) chunks.set(i, tables.get()[i].entries * tables.get()[i].row.dim);
  anyfuse::parallel_for(chunks.pieces(), threads, [&](int64_t i) {
    const auto piece = chunks.at(i);
    const Table &table = tables.get()[piece.tensor];
    const int64_t dim = table.row.dim;  // an entry belongs to the piece that holds its first element
    kernel(table, ceil_divide(piece.begin, dim), std::min(ceil_divide(piece.limit, dim), table.entries));
  });
  return ANYFUSE_OK;
}

#endif
