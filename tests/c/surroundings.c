/* The operators through the C API in surroundings that are not a plain program's: other floating-point modes, threads
 * with a stack of 64 KiB, a fork while other threads are inside calls, and memory that cannot be had. The bits of all
 * results are those of a plain call, in the emulator too. */
#include <fenv.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "anyfuse.h"

enum { N = 5 * 16384, ROWS = 8, COLUMNS = N / ROWS, DEPTH = 640, OPERATORS = 5, FORKS = 40 };

static int failed;

static void check(int good, const char *what, int a, int b) {
  if (good) return;
  fprintf(stderr, "%s (%d, %d)\n", what, a, b);
  failed = 1;
}

/* Memory of the library's kernels; the calls for it fail while this is set. */
static int without_memory;

void *aligned_alloc(size_t alignment, size_t size) {
  void *memory = NULL;
  return without_memory || posix_memalign(&memory, alignment, size) != 0 ? NULL : memory;
}

/* ---- one call of each operator, with numbers that are subnormal or become so ---- */

static float grad[N], maps[2][256];
static int8_t weight[COLUMNS * DEPTH];
static int32_t ids[ROWS];
static const void *odd_map;

struct call {
  union {
    float floats[N];
    uint8_t codes[N * 4];
  } tensor[4];
  float scales[2][N / 64];
};

static void fill(float *to, float size) {
  for (int i = 0; i < N; ++i) to[i] = size * (float)((i * 7919 % 2003) - 1001);
}

static void prepare(void) {
  fill(grad, 1e-22f); /* their squares are about 1e-38 and below: subnormal, or lost where those are flushed */
  for (int i = 0; i < 256; ++i) maps[0][i] = (float)(i - 128) / 127.0f, maps[1][i] = (float)i / 255.0f;
  for (int i = 0; i < COLUMNS * DEPTH; ++i) weight[i] = (int8_t)(i * 37 % 251 - 125);
  for (int i = 0; i < ROWS; ++i) ids[i] = i * 5 % ROWS;
}

static void flush(int on) {
#if defined(__x86_64__)
  uint32_t word;
  __asm__ volatile("stmxcsr %0" : "=m"(word));
  word = on ? word | 0x8040 : word & ~0x8040u;
  __asm__ volatile("ldmxcsr %0" : : "m"(word));
#elif defined(__aarch64__)
  uint64_t word;
  __asm__ volatile("mrs %0, fpcr" : "=r"(word));
  word = on ? word | 1 << 24 : word & ~(UINT64_C(1) << 24);
  __asm__ volatile("msr fpcr, %0" : : "r"(word));
#else
  (void)on;
#endif
}

static int flushes(void) {
  volatile float small = 1e-30f, product = small * 1e-10f;
  return product == 0;
}

/* The rounding of the call itself; what goes into it is made under the usual one. */
static int rounding = FE_TONEAREST, flushing;

#define CALL(expression)                                                                   \
  do {                                                                                     \
    fesetround(rounding), flush(flushing);                                                 \
    const anyfuse_status status = (expression);                                            \
    check(fegetround() == rounding, "the caller's rounding is gone", operator_, rounding); \
    check(flushes() == flushing, "the caller's mode is gone", operator_, flushing);        \
    fesetround(FE_TONEAREST), flush(0);                                                    \
    return status;                                                                         \
  } while (0)

static anyfuse_status run(int operator_, struct call *c, int32_t threads) {
  memset(c, 0, sizeof *c);
  fill(c->tensor[0].floats, 1e-3f);
  if (operator_ == 0) {
    anyfuse_apply_fused_ema_adamw_row row;
    anyfuse_apply_fused_ema_adamw_params p;
    memset(&row, 0, sizeof row), memset(&p, 0, sizeof p);
    row.numel = N, row.grad = grad, row.var = c->tensor[0].floats, row.m = c->tensor[1].floats, row.step = 3;
    row.v = c->tensor[2].floats, row.s = c->tensor[3].floats;
    p.size = sizeof p, p.row_size = sizeof row, p.rows = &row, p.count = 1, p.threads = threads;
    p.lr = 1e-3, p.ema_decay = 0.999, p.beta1 = 0.9, p.beta2 = 0.999, p.eps = 1e-20, p.weight_decay = 0.1, p.mode = 1;
    p.bias_correction = 1;
    CALL(anyfuse_apply_fused_ema_adamw(&p));
  }
  if (operator_ == 1) {
    anyfuse_apply_adam_w_quant_row row;
    anyfuse_apply_adam_w_quant_params p;
    memset(&row, 0, sizeof row), memset(&p, 0, sizeof p);
    row.numel = N, row.grad = grad, row.var = c->tensor[0].floats, row.m = c->tensor[1].codes, row.step = 3;
    row.v = c->tensor[2].codes, row.absmax_m = c->scales[0], row.absmax_v = c->scales[1];
    p.size = sizeof p, p.row_size = sizeof row, p.rows = &row, p.count = 1, p.threads = threads, p.block_size = 64;
    p.lr = 1e-3, p.beta1 = 0.9, p.beta2 = 0.999, p.eps = 1e-20, p.weight_decay = 0.1, p.gnorm_scale = 1;
    p.qmap_m = odd_map != NULL ? odd_map : maps[0], p.qmap_v = maps[1];
    CALL(anyfuse_apply_adam_w_quant(&p));
  }
  if (operator_ == 2) {
    anyfuse_lazy_adam_row row;
    anyfuse_lazy_adam_params p;
    memset(&row, 0, sizeof row), memset(&p, 0, sizeof p);
    row.n = row.rows = ROWS, row.dim = COLUMNS, row.gradient = grad, row.indices = ids, row.lr = 1e-3;
    row.indices_dtype = ANYFUSE_INT32, row.m = c->tensor[1].floats, row.v = c->tensor[2].floats;
    row.var = c->tensor[0].floats, row.step = 3;
    p.size = sizeof p, p.row_size = sizeof row, p.rows = &row, p.count = 1, p.threads = threads;
    p.beta1 = 0.9, p.beta2 = 0.999, p.epsilon = 1e-8;
    CALL(anyfuse_lazy_adam(&p));
  }
  if (operator_ == 3) {
    anyfuse_add_rms_norm_dynamic_quant_params p;
    memset(&p, 0, sizeof p);
    for (int i = COLUMNS; i < 2 * COLUMNS; ++i) c->tensor[0].floats[i] = grad[i] * 1e-17f;
    p.size = sizeof p, p.rows = ROWS, p.cols = COLUMNS, p.x1 = c->tensor[0].floats, p.gamma = grad;
    p.y1 = c->tensor[1].codes, p.y2 = c->tensor[2].codes, p.smooth_scale2 = grad + COLUMNS, p.scale1 = c->scales[0];
    p.scale2 = c->scales[1], p.epsilon = 1e-30, p.y_dtype = ANYFUSE_INT8, p.threads = threads,
    p.x = c->tensor[3].floats;
    CALL(anyfuse_add_rms_norm_dynamic_quant(&p));
  }
  anyfuse_quant_matmul_dequant_params p;
  memset(&p, 0, sizeof p);
  for (int i = 0; i < N; ++i) c->tensor[0].floats[i] = grad[i] * (i / DEPTH % 2 ? 1.0f : 1e-17f);
  p.size = sizeof p, p.m = N / DEPTH, p.n = 512, p.k = DEPTH, p.x = c->tensor[0].floats, p.weight = weight;
  p.weight_scale = c->tensor[3].floats, p.out = c->tensor[1].floats, p.threads = threads;
  for (int i = 0; i < 512; ++i) c->tensor[3].floats[i] = 0.01f + (float)i;
  CALL(anyfuse_quant_matmul_dequant(&p));
}

static struct call plain[OPERATORS], other;

static void compare(int operator_, int32_t threads, const char *where, int detail) {
  check(run(operator_, &other, threads) == ANYFUSE_OK, "refused", operator_, threads);
  check(memcmp(&plain[operator_], &other, sizeof other) == 0, where, operator_ * 10 + threads, detail);
}

/* ---- floating-point modes ---- */

static void modes(void) {
  static const int roundings[] = {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
  flushing = 1;
  run(0, &other, 4); /* the pool's threads are made here, and keep the mode */
  flushing = 0;
  for (int operator_ = 0; operator_ < OPERATORS; ++operator_) {
    check(run(operator_, &plain[operator_], 1) == ANYFUSE_OK, "refused", operator_, 1);
    for (int32_t threads = 1; threads <= 4; threads *= 2) {
      compare(operator_, threads, "threads that flush", 0);
      flushing = 1;
      compare(operator_, threads, "a caller that flushes", 0);
      flushing = 0;
      for (int i = 0; i < 4; ++i) {
        rounding = roundings[i];
        compare(operator_, threads, "rounding", i);
      }
      rounding = FE_TONEAREST;
    }
  }
}

/* ---- small stacks ---- */

/* 64 KiB, or what the system gives a thread at least (128 KiB on Arm). */
static size_t small_stack(void) {
  const long least = sysconf(_SC_THREAD_STACK_MIN);
  return least > 65536 ? (size_t)least : 65536;
}

static void *on_small_stack(void *unused) {
  (void)unused;
  for (int operator_ = 0; operator_ < OPERATORS; ++operator_)
    for (int32_t threads = 1; threads <= 4; threads *= 2) compare(operator_, threads, "small stack", 0);
  return NULL;
}

static void small_stacks(void) {
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  check(pthread_attr_setstacksize(&attributes, small_stack()) == 0, "pthread_attr_setstacksize", 0, 0);
  check(pthread_create(&thread, &attributes, on_small_stack, NULL) == 0, "pthread_create", 0, 0);
  pthread_join(thread, NULL);
}

/* ---- forks ---- */

static volatile int stop;

static void *call_on(void *memory) {
  for (int i = 0; !stop; ++i) {
    maps[0][0] = -2 - (float)(i % 64); /* a codebook is made under a lock at each call */
    run(1, memory, 2);
  }
  return NULL;
}

static void forks(void) {
  pthread_t thread;
  check(pthread_create(&thread, NULL, call_on, malloc(sizeof(struct call))) == 0, "pthread_create", 0, 0);
  for (int i = 0; i < FORKS; ++i) {
    usleep(500);
    const pid_t child = fork();
    if (child == 0) {
      alarm(60); /* a child that hangs is ended */
      maps[0][0] = -1;
      for (int operator_ = 0; operator_ < OPERATORS; ++operator_)
        if (run(operator_, &other, 4) != ANYFUSE_OK) _exit(2);
      _exit(0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    check(status == 0, "a child of fork", i, status);
  }
  stop = 1;
  pthread_join(thread, NULL);
  maps[0][0] = -128 / 127.0f;
}

/* ---- memory ---- */

/* A map may lie at any address; the sanitizer sees whether it is read as if at one of its type. */
static void odd_address(void) {
  static char bytes[sizeof maps[0] + 1];
  odd_map = memcpy(bytes + 1, maps[0], sizeof maps[0]);
  compare(1, 1, "a map at an odd address", 0);
  odd_map = NULL;
}

static void no_memory(void) {
  static struct call untouched;
  static const int need[] = {1, 3, 4}; /* these operators take scratch from the heap */
  without_memory = 1;
  for (int i = 0; i < 3; ++i) {
    check(run(need[i], &other, 2) == ANYFUSE_OUT_OF_MEMORY, "not out of memory", need[i], 0);
    memset(&untouched, 0, sizeof untouched);
    check(memcmp(other.tensor[1].codes, untouched.tensor[1].codes, sizeof other.tensor[1]) == 0, "written", need[i], 0);
    check(memcmp(other.scales, untouched.scales, sizeof other.scales) == 0, "written", need[i], 1);
  }
  const int32_t asked = anyfuse_quant_matmul_dequant_target();
  without_memory = 0;
  check(asked == anyfuse_target_current(), "the target without memory", asked, 0);
  check(anyfuse_quant_matmul_dequant_target() == anyfuse_target_current(), "a target lost for lack of memory", 0, 0);
}

int main(void) {
  char bytes[32];
  snprintf(bytes, sizeof bytes, "%zuB", small_stack());
  setenv("OMP_STACKSIZE", bytes, 1); /* before the library first looks for OpenMP */
  prepare();
  no_memory(); /* the first of all: it finds the known question unasked */
  modes();
  odd_address();
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they need larger stacks */
  small_stacks();
#endif
#if !defined(__SANITIZE_THREAD__) /* it takes no threads in a child of fork */
  forks();
#endif
  printf("%s\n", failed ? "failed" : "passed");
  return failed;
}
