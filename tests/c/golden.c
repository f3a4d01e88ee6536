/* The operators through the C API on inputs made here, on every target that this CPU (or an emulator) runs and on
 * several threads: the bits of all results are those noted below.
 *
 * The notes are of the x86 library, which Python's tests hold against the reference bit for bit; this program carries
 * that to processors that have no torch. `c_golden print` prints new ones, for an operator whose numbers have changed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "anyfuse.h"

enum { CALLS = 120, MAX = 6000, TENSORS = 2 };

static const uint64_t GOLDEN[] = {0xc74e07168cbf7b80, 0x0dcd882f5c966e80, 0x1c4c7921f5b803bd,
                                  0xba558db15da8dc15, 0x87e943f2de386c26, 0x16997dac5b24b361};

static uint32_t state;
static uint64_t hash;

static uint32_t bits(void) {
  state = state * 1664525u + 1013904223u;
  return state >> 8;
}

static int64_t below(int64_t limit) { return bits() % limit; }

#define PICK(values) ((values)[below((int64_t)(sizeof(values) / sizeof(*(values))))])

static const anyfuse_dtype FLOATING[] = {ANYFUSE_FLOAT32, ANYFUSE_FLOAT16, ANYFUSE_BFLOAT16};

static size_t width(anyfuse_dtype dtype) { return dtype == ANYFUSE_FLOAT32 ? 4 : 2; }

/* Floats of either sign (or none) between 2^-4 and 2^3, now and then 0: sums and quotients of them stay finite. */
static void fill(void *to, anyfuse_dtype dtype, int64_t n, int positive) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t random = bits() | bits() << 24, sign = positive ? 0 : random >> 31, power = random >> 24 & 127;
    const uint32_t zero = random % 50 == 0;
    if (dtype == ANYFUSE_FLOAT32)
      ((uint32_t *)to)[i] = zero ? 0 : sign << 31 | (123 + power % 7) << 23 | (random & 0x7fffff);
    else if (dtype == ANYFUSE_FLOAT16)
      ((uint16_t *)to)[i] = (uint16_t)(zero ? 0 : sign << 15 | (11 + power % 7) << 10 | (random & 0x3ff));
    else
      ((uint16_t *)to)[i] = (uint16_t)(zero ? 0 : sign << 15 | (123 + power % 7) << 7 | (random & 0x7f));
  }
}

static void fill_bytes(void *to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) ((uint8_t *)to)[i] = (uint8_t)bits();
}

/* FNV-1a */
static void add(const void *from, size_t size) {
  for (size_t i = 0; i < size; ++i) hash = (hash ^ ((const uint8_t *)from)[i]) * 1099511628211u;
}

/* Room for each tensor of a call. */
static union {
  float alignment;
  uint8_t bytes[MAX * 4];
} memory[TENSORS][10];

static int64_t size(void) {
  static const int64_t sizes[] = {1, 7, 16, 63, 64, 65, 255, 256, 257, 1000, 5000};
  return PICK(sizes);
}

static anyfuse_status ema(int32_t threads) {
  anyfuse_apply_fused_ema_adamw_row rows[TENSORS];
  anyfuse_apply_fused_ema_adamw_params p;
  memset(rows, 0, sizeof rows), memset(&p, 0, sizeof p);
  for (int t = 0; t < TENSORS; ++t) {
    rows[t].numel = size();
    anyfuse_dtype *dtypes[] = {&rows[t].grad_dtype, &rows[t].var_dtype, &rows[t].m_dtype, &rows[t].v_dtype,
                               &rows[t].s_dtype};
    for (int i = 0; i < 5; ++i) fill(memory[t][i].bytes, *dtypes[i] = PICK(FLOATING), rows[t].numel, i == 3);
    rows[t].grad = memory[t][0].bytes, rows[t].var = memory[t][1].bytes, rows[t].m = memory[t][2].bytes;
    rows[t].v = memory[t][3].bytes, rows[t].s = memory[t][4].bytes;
    rows[t].step = 1 + below(100), rows[t].seed = bits();
  }
  p.size = sizeof p, p.row_size = sizeof rows[0], p.rows = rows, p.count = TENSORS;
  p.lr = 1e-2, p.ema_decay = 0.99, p.beta1 = 0.9, p.beta2 = 0.999, p.eps = 1e-8, p.weight_decay = 0.1;
  p.grad_scale = (double)below(3), p.mode = (int32_t)below(2), p.bias_correction = (int32_t)below(2);
  p.convention = (int32_t)below(2), p.maximize = (int32_t)below(2), p.stochastic_rounding = (int32_t)below(2);
  p.threads = threads;
  const anyfuse_status status = anyfuse_apply_fused_ema_adamw(&p);
  for (int t = 0; t < TENSORS; ++t) {
    add(rows[t].var, (size_t)rows[t].numel * width(rows[t].var_dtype));
    add(rows[t].m, (size_t)rows[t].numel * width(rows[t].m_dtype));
    add(rows[t].v, (size_t)rows[t].numel * width(rows[t].v_dtype));
    add(rows[t].s, (size_t)rows[t].numel * width(rows[t].s_dtype));
  }
  return status;
}

static anyfuse_status norm(int32_t threads) {
  static const anyfuse_dtype codes[] = {ANYFUSE_INT8, ANYFUSE_INT4, ANYFUSE_FLOAT8_E4M3FN, ANYFUSE_FLOAT8_E5M2,
                                        ANYFUSE_HIFLOAT8};
  anyfuse_add_rms_norm_dynamic_quant_params p;
  memset(&p, 0, sizeof p);
  p.size = sizeof p, p.rows = 1 + below(5), p.cols = size() % 1024 / 2 * 2 + 2, p.epsilon = 1e-6, p.threads = threads;
  p.convention = (int32_t)below(2);
  const size_t n = (size_t)(p.rows * p.cols);
  p.x_dtype = PICK(FLOATING), p.gamma_dtype = PICK(FLOATING), p.beta_dtype = PICK(FLOATING), p.y_dtype = PICK(codes);
  p.smooth_scale1_dtype = PICK(FLOATING), p.smooth_scale2_dtype = PICK(FLOATING);
  fill(memory[0][0].bytes, p.x_dtype, (int64_t)n, 0), fill(memory[0][1].bytes, p.x_dtype, (int64_t)n, 0);
  fill(memory[0][2].bytes, p.gamma_dtype, p.cols, 0), fill(memory[0][3].bytes, p.beta_dtype, p.cols, 0);
  fill(memory[0][4].bytes, p.smooth_scale1_dtype, p.cols, 1);
  fill(memory[0][5].bytes, p.smooth_scale2_dtype, p.cols, 1);
  p.x1 = memory[0][0].bytes, p.x2 = memory[0][1].bytes, p.gamma = memory[0][2].bytes;
  if (below(2)) p.beta = memory[0][3].bytes;
  if (below(2)) p.smooth_scale1 = memory[0][4].bytes;
  if (below(2)) p.smooth_scale2 = memory[0][5].bytes;
  p.x = memory[0][6].bytes, p.y1 = memory[0][7].bytes, p.y2 = memory[0][8].bytes;
  float scales[2][8] = {{0}};
  p.scale1 = scales[0], p.scale2 = scales[1];
  const anyfuse_status status = anyfuse_add_rms_norm_dynamic_quant(&p);
  const size_t bytes = p.y_dtype == ANYFUSE_INT4 ? n / 2 : n;
  add(p.x, n * width(p.x_dtype)), add(p.y1, bytes), add(p.y2, bytes), add(scales, sizeof scales);
  return status;
}

static anyfuse_status lazy(int32_t threads) {
  anyfuse_lazy_adam_row rows[TENSORS];
  anyfuse_lazy_adam_params p;
  memset(rows, 0, sizeof rows), memset(&p, 0, sizeof p);
  for (int t = 0; t < TENSORS; ++t) {
    anyfuse_lazy_adam_row *r = &rows[t];
    r->n = 1 + below(90), r->rows = 1 + below(60), r->dim = 1 + below(66);
    r->gradient_dtype = PICK(FLOATING), r->var_dtype = PICK(FLOATING), r->indices_dtype = ANYFUSE_INT64;
    fill(memory[t][0].bytes, r->gradient_dtype, r->n * r->dim, 0);
    for (int64_t i = 0; i < r->n; ++i) ((int64_t *)(void *)memory[t][1].bytes)[i] = below(r->rows + 1) - 1;
    fill(memory[t][2].bytes, ANYFUSE_FLOAT32, r->rows * r->dim, 0);
    fill(memory[t][3].bytes, ANYFUSE_FLOAT32, r->rows * r->dim, 1);
    fill(memory[t][4].bytes, r->var_dtype, r->rows * r->dim, 0);
    r->gradient = memory[t][0].bytes, r->indices = memory[t][1].bytes, r->m = memory[t][2].bytes;
    r->v = memory[t][3].bytes, r->var = memory[t][4].bytes;
    r->lr = 1e-2, r->step = 1 + below(9), r->seed = bits(), r->padding_idx = INT64_MIN;
    for (int64_t i = 0; i < r->rows; ++i) ((int32_t *)(void *)memory[t][5].bytes)[i] = (int32_t)below(r->step);
    r->row_step = (int32_t *)(void *)memory[t][5].bytes;
  }
  p.size = sizeof p, p.row_size = sizeof rows[0], p.rows = rows, p.count = TENSORS, p.threads = threads;
  p.beta1 = 0.9, p.beta2 = 0.999, p.epsilon = 1e-8, p.weight_decay = below(2) ? 0.1 : 0;
  p.bias_correction = (int32_t)below(3), p.eps_outside = (int32_t)below(2), p.maximize = (int32_t)below(2);
  p.catch_up = p.bias_correction != ANYFUSE_CORRECTED_BY_ROW && below(2);
  p.stochastic_rounding = (int32_t)below(2);
  const anyfuse_status status = anyfuse_lazy_adam(&p);
  for (int t = 0; t < TENSORS; ++t) {
    const size_t n = (size_t)(rows[t].rows * rows[t].dim);
    add(rows[t].m, n * 4), add(rows[t].v, n * 4), add(rows[t].var, n * width(rows[t].var_dtype));
    add(rows[t].row_step, (size_t)rows[t].rows * 4);
  }
  return status;
}

static anyfuse_status matmul(int32_t threads) {
  static const anyfuse_dtype x_dtypes[] = {ANYFUSE_FLOAT32, ANYFUSE_FLOAT16, ANYFUSE_BFLOAT16, ANYFUSE_INT8};
  static int8_t weight[64 * 300];
  anyfuse_quant_matmul_dequant_params p;
  memset(&p, 0, sizeof p);
  p.size = sizeof p, p.m = 1 + below(18), p.n = 1 + below(64), p.k = 1 + below(300), p.threads = threads;
  p.x_dtype = PICK(x_dtypes), p.smooth_scale_dtype = PICK(FLOATING), p.out_dtype = PICK(FLOATING);
  p.convention = (int32_t)below(2), p.weight_layout = (int32_t)below(2);
  const int quantized = p.x_dtype == ANYFUSE_INT8;
  if (quantized)
    fill_bytes(memory[0][0].bytes, p.m * p.k);
  else
    fill(memory[0][0].bytes, p.x_dtype, p.m * p.k, 0);
  fill_bytes(weight, p.n * p.k), fill(memory[0][1].bytes, ANYFUSE_FLOAT32, p.n, 1);
  fill(memory[0][2].bytes, p.smooth_scale_dtype, p.k, 1), fill(memory[0][3].bytes, ANYFUSE_FLOAT32, p.m, 1);
  for (int64_t i = 0; i < p.n; ++i) ((int32_t *)(void *)memory[0][4].bytes)[i] = (int32_t)below(20000) - 10000;
  p.x = memory[0][0].bytes, p.weight = weight, p.weight_scale = memory[0][1].bytes, p.out = memory[0][5].bytes;
  if (!quantized && below(2)) p.smooth_scale = memory[0][2].bytes;
  if (quantized || below(2)) p.x_scale = memory[0][3].bytes;
  if (below(2)) p.bias = (const int32_t *)(const void *)memory[0][4].bytes;
  const anyfuse_status status = anyfuse_quant_matmul_dequant(&p);
  add(p.out, (size_t)(p.m * p.n) * width(p.out_dtype));
  return status;
}

/* Groups of any sizes, some of them empty; now and then rows beyond the last end. */
static anyfuse_status grouped_matmul(int32_t threads) {
  enum { GROUPS = 4, ROWS = 18, COLUMNS = 64, DEPTH = 100 };
  static int8_t weight[GROUPS * COLUMNS * DEPTH];
  int64_t ends[GROUPS];
  anyfuse_quant_matmul_dequant_params p;
  anyfuse_quant_grouped_matmul_dequant_params all;
  memset(&p, 0, sizeof p), memset(&all, 0, sizeof all);
  p.size = sizeof p, p.m = 1 + below(ROWS), p.n = 1 + below(COLUMNS), p.k = 1 + below(DEPTH), p.threads = threads;
  all.size = sizeof all, all.matmul = &p, all.groups = 1 + below(GROUPS), all.group_list = ends;
  all.own_smooth_scale = (int32_t)below(2);
  p.x_dtype = PICK(FLOATING), p.smooth_scale_dtype = PICK(FLOATING), p.out_dtype = PICK(FLOATING);
  p.convention = (int32_t)below(2), p.weight_layout = (int32_t)below(2);
  for (int64_t i = 0, end = 0; i < all.groups; ++i) ends[i] = end += below(p.m - end + 1);
  const int64_t smooth = p.k * (all.own_smooth_scale ? all.groups : 1);
  fill(memory[0][0].bytes, p.x_dtype, p.m * p.k, 0), fill_bytes(weight, all.groups * p.n * p.k);
  fill(memory[0][1].bytes, ANYFUSE_FLOAT32, all.groups * p.n, 1);
  fill(memory[0][2].bytes, p.smooth_scale_dtype, smooth, 1), fill(memory[0][3].bytes, ANYFUSE_FLOAT32, p.m, 1);
  for (int64_t i = 0; i < all.groups * p.n; ++i)
    ((int32_t *)(void *)memory[0][4].bytes)[i] = (int32_t)below(20000) - 10000;
  p.x = memory[0][0].bytes, p.weight = weight, p.weight_scale = memory[0][1].bytes, p.out = memory[0][5].bytes;
  if (below(2)) p.smooth_scale = memory[0][2].bytes;
  if (below(2)) p.x_scale = memory[0][3].bytes;
  if (below(2)) p.bias = (const int32_t *)(const void *)memory[0][4].bytes;
  const anyfuse_status status = anyfuse_quant_grouped_matmul_dequant(&all);
  add(p.out, (size_t)(p.m * p.n) * width(p.out_dtype));
  return status;
}

static anyfuse_status adamw(int32_t threads) {
  static float maps[2][256];
  for (int i = 0; i < 256; ++i) maps[0][i] = (float)(i - 128) / 127.0f, maps[1][i] = (float)i / 255.0f;
  anyfuse_apply_adam_w_quant_row rows[TENSORS];
  anyfuse_apply_adam_w_quant_params p;
  memset(rows, 0, sizeof rows), memset(&p, 0, sizeof p);
  p.size = sizeof p, p.row_size = sizeof rows[0], p.rows = rows, p.count = TENSORS, p.threads = threads;
  p.block_size = 64 << below(6), p.qmap_m = maps[0], p.qmap_v = maps[1];
  for (int t = 0; t < TENSORS; ++t) {
    anyfuse_apply_adam_w_quant_row *r = &rows[t];
    r->numel = size();
    r->grad_dtype = PICK(FLOATING), r->var_dtype = PICK(FLOATING), r->s_dtype = PICK(FLOATING);
    fill(memory[t][0].bytes, r->grad_dtype, r->numel, 0), fill(memory[t][1].bytes, r->var_dtype, r->numel, 0);
    fill_bytes(memory[t][2].bytes, r->numel), fill_bytes(memory[t][3].bytes, r->numel);
    fill(memory[t][4].bytes, ANYFUSE_FLOAT32, 100, 1), fill(memory[t][5].bytes, ANYFUSE_FLOAT32, 100, 1);
    fill(memory[t][6].bytes, r->s_dtype, r->numel, 0);
    r->grad = memory[t][0].bytes, r->var = memory[t][1].bytes, r->m = memory[t][2].bytes, r->v = memory[t][3].bytes;
    r->absmax_m = (float *)(void *)memory[t][4].bytes, r->absmax_v = (float *)(void *)memory[t][5].bytes;
    if (below(2)) r->s = memory[t][6].bytes;
    r->step = 1 + below(100), r->seed = bits();
  }
  p.lr = 1e-2, p.beta1 = 0.9, p.beta2 = 0.999, p.weight_decay = 0.1, p.eps = 1e-8, p.gnorm_scale = 0.5;
  p.grad_scale = (double)below(3), p.convention = (int32_t)below(2), p.maximize = (int32_t)below(2);
  p.nonzero_v = (int32_t)below(2), p.stochastic_rounding = (int32_t)below(2), p.ema_decay = 0.99;
  const anyfuse_status status = anyfuse_apply_adam_w_quant(&p);
  for (int t = 0; t < TENSORS; ++t) {
    add(rows[t].var, (size_t)rows[t].numel * width(rows[t].var_dtype));
    add(rows[t].m, (size_t)rows[t].numel), add(rows[t].v, (size_t)rows[t].numel);
    add(memory[t][4].bytes, 400), add(memory[t][5].bytes, 400);
    if (rows[t].s != NULL) add(rows[t].s, (size_t)rows[t].numel * width(rows[t].s_dtype));
  }
  return status;
}

static const struct {
  const char *name;
  anyfuse_status (*call)(int32_t threads);
} OPERATORS[] = {{"apply_fused_ema_adamw", ema},
                 {"add_rms_norm_dynamic_quant", norm},
                 {"lazy_adam", lazy},
                 {"quant_matmul_dequant", matmul},
                 {"apply_adam_w_quant", adamw},
                 {"quant_grouped_matmul_dequant", grouped_matmul}};

enum { OPERATOR_COUNT = sizeof OPERATORS / sizeof *OPERATORS };

/* The hash of all results of an operator; 0 after a call that was refused. */
static uint64_t results(int operator_, int32_t threads) {
  state = 1, hash = 14695981039346656037u;
  for (int i = 0; i < CALLS; ++i)
    if (OPERATORS[operator_].call(threads) != ANYFUSE_OK) {
      printf("%s: call %d is refused\n", OPERATORS[operator_].name, i);
      return 0;
    }
  return hash;
}

int main(int argc, char **argv) {
  int failures = 0;
  if (argc == 2 && strcmp(argv[1], "print") == 0) {
    for (int i = 0; i < OPERATOR_COUNT; ++i) printf("0x%016llx, ", (unsigned long long)results(i, 1));
    return 0;
  }
  for (int32_t target = 0; anyfuse_target_name(target) != NULL; ++target) {
    if (!anyfuse_target_available(target)) continue;
    anyfuse_target_set(anyfuse_target_name(target));
    for (int i = 0; i < OPERATOR_COUNT; ++i)
      for (int32_t threads = 1; threads <= 3; threads += 2)
        if (results(i, threads) != GOLDEN[i]) {
          printf("%s, %s on %d threads: other bits\n", anyfuse_target_name(target), OPERATORS[i].name, (int)threads);
          ++failures;
        }
    printf("%s: %d calls, %d failed\n", anyfuse_target_name(target), 2 * OPERATOR_COUNT * CALLS, failures);
  }
  return failures > 0;
}
