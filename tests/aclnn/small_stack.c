/* Every operator of the plain C API on a thread with a small stack, with one thread and with four. */
#define _GNU_SOURCE
#include <anyfuse.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define STACK_KIB 256 /* docs/c-api.md names it */

enum { ROWS = 33, COLUMNS = 1000, N = ROWS * COLUMNS, IDS = 200 };

static int failed = 0;

static void check(anyfuse_status status, const char *what) {
  if (status == ANYFUSE_OK) return;
  ++failed;
  fprintf(stderr, "%s: %s\n", what, anyfuse_status_name(status));
}

static void *zeros(size_t bytes) {
  void *memory = calloc(1, bytes);
  if (memory == NULL) abort();
  return memory;
}

static const anyfuse_dtype kFloats[] = {ANYFUSE_FLOAT32, ANYFUSE_FLOAT16, ANYFUSE_BFLOAT16};

static void norm(int32_t threads) {
  const anyfuse_dtype codes[] = {ANYFUSE_INT8, ANYFUSE_INT4, ANYFUSE_FLOAT8_E4M3FN, ANYFUSE_FLOAT8_E5M2,
                                 ANYFUSE_HIFLOAT8};
  void *x = zeros(N * 4), *weight = zeros(COLUMNS * 4), *sum = zeros(N * 4), *y1 = zeros(N), *y2 = zeros(N);
  float *scale1 = zeros(ROWS * 4), *scale2 = zeros(ROWS * 4);
  for (int dtype = 0; dtype < 3; ++dtype)
    for (int code = 0; code < 5; ++code)
      for (int32_t convention = 0; convention < 2; ++convention) {
        anyfuse_add_rms_norm_dynamic_quant_params p = {0};
        p.size = sizeof p;
        p.rows = ROWS;
        p.cols = COLUMNS;
        p.x1 = p.x2 = x;
        p.gamma = p.beta = p.smooth_scale1 = p.smooth_scale2 = weight;
        p.x = sum;
        p.y1 = y1;
        p.y2 = y2;
        p.scale1 = scale1;
        p.scale2 = scale2;
        p.epsilon = 1e-6;
        p.x_dtype = p.gamma_dtype = p.beta_dtype = p.smooth_scale1_dtype = p.smooth_scale2_dtype = kFloats[dtype];
        p.y_dtype = codes[code];
        p.convention = convention;
        p.threads = threads;
        check(anyfuse_add_rms_norm_dynamic_quant(&p), "norm");
      }
  free(x), free(weight), free(sum), free(y1), free(y2), free(scale1), free(scale2);
}

static void ema(int32_t threads) {
  void *memory[5];
  for (int i = 0; i < 5; ++i) memory[i] = zeros(N * 4);
  for (int dtype = 0; dtype < 3; ++dtype) {
    anyfuse_apply_fused_ema_adamw_row row = {N, memory[0], memory[1], memory[2], memory[3], memory[4], 1,
                                             0, 0,         0,         0,         0,         7};
    row.grad_dtype = row.var_dtype = row.m_dtype = row.v_dtype = row.s_dtype = kFloats[dtype];
    anyfuse_apply_fused_ema_adamw_params p = {0};
    p.size = sizeof p;
    p.row_size = sizeof row;
    p.rows = &row;
    p.count = 1;
    p.lr = 1e-3;
    p.beta1 = .9;
    p.beta2 = .999;
    p.eps = 1e-8;
    p.mode = p.bias_correction = 1;
    p.stochastic_rounding = dtype > 0;
    p.threads = threads;
    check(anyfuse_apply_fused_ema_adamw(&p), "ema");
  }
  for (int i = 0; i < 5; ++i) free(memory[i]);
}

static void adam(int32_t threads) {
  void *grad = zeros(N * 4), *var = zeros(N * 4), *m = zeros(N), *v = zeros(N), *s = zeros(N * 4);
  float *absmax_m = zeros(N), *absmax_v = zeros(N), map[256];
  for (int i = 0; i < 256; ++i) map[i] = (float)i / 255;
  for (int dtype = 0; dtype < 3; ++dtype)
    for (int64_t block = 64; block <= 2048; block *= 2) {
      anyfuse_apply_adam_w_quant_row row = {0};
      row.numel = N;
      row.grad = grad;
      row.var = var;
      row.m = m;
      row.v = v;
      row.s = s;
      row.absmax_m = absmax_m;
      row.absmax_v = absmax_v;
      row.step = 1;
      row.grad_dtype = row.var_dtype = row.s_dtype = kFloats[dtype];
      anyfuse_apply_adam_w_quant_params p = {0};
      p.size = sizeof p;
      p.row_size = sizeof row;
      p.rows = &row;
      p.count = 1;
      p.qmap_m = p.qmap_v = map;
      p.block_size = block;
      p.lr = 1e-3;
      p.beta1 = .9;
      p.beta2 = .999;
      p.eps = 1e-8;
      p.gnorm_scale = 1;
      p.threads = threads;
      check(anyfuse_apply_adam_w_quant(&p), "adam");
    }
  free(grad), free(var), free(m), free(v), free(s), free(absmax_m), free(absmax_v);
}

static void lazy(int32_t threads) {
  void *gradient = zeros(IDS * COLUMNS * 4), *m = zeros(N * 4), *v = zeros(N * 4), *var = zeros(N * 4);
  int64_t *ids = zeros(IDS * 8);
  for (int i = 0; i < IDS; ++i) ids[i] = i * 7 % ROWS; /* equal ones among them */
  for (int dtype = 0; dtype < 3; ++dtype) {
    anyfuse_lazy_adam_row row = {0};
    row.n = IDS;
    row.rows = ROWS;
    row.dim = COLUMNS;
    row.gradient = gradient;
    row.indices = ids;
    row.m = m;
    row.v = v;
    row.var = var;
    row.lr = 1e-3;
    row.gradient_dtype = row.var_dtype = kFloats[dtype];
    row.indices_dtype = ANYFUSE_INT64;
    anyfuse_lazy_adam_params p = {0};
    p.size = sizeof p;
    p.row_size = sizeof row;
    p.rows = &row;
    p.count = 1;
    p.beta1 = .9;
    p.beta2 = .999;
    p.epsilon = 1e-8;
    p.threads = threads;
    check(anyfuse_lazy_adam(&p), "lazy");
  }
  free(gradient), free(m), free(v), free(var), free(ids);
}

static void matmul(int32_t threads) {
  const int64_t n = 48, m = ROWS, k = 992;
  void *x = zeros((size_t)(m * k) * 4), *weight = zeros((size_t)(2 * n * k)), *smooth = zeros((size_t)k * 4);
  void *out = zeros((size_t)(m * n) * 4);
  float *scale = zeros((size_t)(2 * n) * 4);
  int64_t ends[2] = {5, ROWS};
  for (int dtype = 0; dtype < 3; ++dtype)
    for (int32_t layout = ANYFUSE_WEIGHT_NK; layout <= ANYFUSE_WEIGHT_PACKED; ++layout) {
      anyfuse_quant_matmul_dequant_params p = {0};
      p.size = sizeof p;
      p.m = m;
      p.n = n;
      p.k = k;
      p.x = x;
      p.weight = weight;
      p.weight_scale = scale;
      p.smooth_scale = smooth;
      p.out = out;
      p.x_dtype = p.out_dtype = p.smooth_scale_dtype = kFloats[dtype];
      p.weight_layout = layout;
      p.threads = threads;
      check(anyfuse_quant_matmul_dequant(&p), "matmul");
      anyfuse_quant_grouped_matmul_dequant_params all = {0};
      all.size = sizeof all;
      all.matmul = &p;
      all.groups = 2;
      all.group_list = ends;
      check(anyfuse_quant_grouped_matmul_dequant(&all), "grouped matmul");
      p.m = 1;
      check(anyfuse_quant_matmul_dequant(&p), "matmul of one row");
    }
  free(x), free(weight), free(smooth), free(out), free(scale);
}

static void *everything(void *unused) {
  (void)unused;
  for (int32_t threads = 1; threads <= 4; threads += 3) {
    norm(threads);
    ema(threads);
    adam(threads);
    lazy(threads);
    matmul(threads);
  }
  return NULL;
}

int main(int count, char **words) {
  pthread_attr_t attributes;
  pthread_t thread;
  const size_t kib = count > 1 ? strtoul(words[1], NULL, 10) : STACK_KIB;
  for (int target = 0; anyfuse_target_name(target) != NULL; ++target) {
    if (!anyfuse_target_available(target)) continue;
    check(anyfuse_target_set(anyfuse_target_name(target)), "target");
    pthread_attr_init(&attributes);
    if (pthread_attr_setstacksize(&attributes, kib * 1024) != 0 ||
        pthread_create(&thread, &attributes, everything, NULL) != 0 || pthread_join(thread, NULL) != 0)
      ++failed;
    pthread_attr_destroy(&attributes);
  }
  printf("small_stack: %d failed\n", failed);
  return failed == 0 ? 0 : 1;
}
