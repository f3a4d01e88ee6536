/* quant_grouped_matmul_dequant through the C API, without Python: groups of any sizes on every target that this CPU
 * runs, against 64-bit integers; rows beyond the last end; ends that are refused before anything is written. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "anyfuse.h"

enum { M = 40, N = 70, K = 67, GROUPS = 7 };

static int failures;

static int8_t byte(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  return (int8_t)(*state >> 24);
}

static void fail(const char *target, const char *what, const int64_t *ends) {
  printf("%s: %s; ends", target, what);
  for (int i = 0; i < GROUPS; ++i) printf(" %lld", (long long)ends[i]);
  printf("\n");
  ++failures;
}

/* Memory of exactly the size, so that a sanitizer sees what is read or written beyond. */
static void *copy(const void *from, size_t bytes) {
  void *to = malloc(bytes);
  memcpy(to, from, bytes);
  return to;
}

static anyfuse_status run(anyfuse_quant_matmul_dequant_params *matmul, const int64_t *ends) {
  anyfuse_quant_grouped_matmul_dequant_params p;
  memset(&p, 0, sizeof p);
  p.size = sizeof p;
  p.matmul = matmul;
  p.groups = GROUPS;
  p.group_list = ends;
  return anyfuse_quant_grouped_matmul_dequant(&p);
}

static void check(const char *target, const int64_t *given) {
  static int8_t x[M * K], weight[GROUPS * N * K];
  static float scale[GROUPS * N], x_scale[M];
  uint32_t state = 7;
  for (size_t i = 0; i < sizeof x; ++i) x[i] = byte(&state);
  for (size_t i = 0; i < sizeof weight; ++i) weight[i] = byte(&state);
  for (int i = 0; i < GROUPS * N; ++i) scale[i] = (float)(1 << i % 4);
  for (int i = 0; i < M; ++i) x_scale[i] = 1.0f;

  anyfuse_quant_matmul_dequant_params p;
  memset(&p, 0, sizeof p);
  p.size = sizeof p;
  p.m = M, p.n = N, p.k = K;
  float *out = malloc(M * N * sizeof(float));
  void *memory[] = {copy(x, sizeof x),
                    copy(weight, sizeof weight),
                    copy(scale, sizeof scale),
                    copy(x_scale, sizeof x_scale),
                    copy(given, GROUPS * sizeof(int64_t)),
                    out};
  p.x = memory[0], p.weight = memory[1], p.weight_scale = memory[2], p.x_scale = memory[3], p.out = out;
  p.x_dtype = ANYFUSE_INT8;
  p.threads = 2;
  int64_t *ends = memory[4];
  for (int i = 0; i < M * N; ++i) out[i] = 5.0f;

  ends[GROUPS - 1] = M + 1;
  if (run(&p, ends) != ANYFUSE_INVALID_VALUE || out[0] != 5.0f) fail(target, "an end beyond m was taken", ends);
  ends[GROUPS - 1] = given[GROUPS - 2] - 1;
  if (run(&p, ends) != ANYFUSE_INVALID_VALUE || out[0] != 5.0f) fail(target, "ends that descend were taken", ends);
  ends[GROUPS - 1] = given[GROUPS - 1];

  if (run(&p, ends) != ANYFUSE_OK) fail(target, "refused", ends);
  for (int row = 0, wrong = 0; row < M && !wrong; ++row)
    for (int j = 0; j < N && !wrong; ++j) {
      int group = 0;
      while (group < GROUPS && ends[group] <= row) ++group;
      int64_t sum = 0;
      for (int k = 0; k < K && group < GROUPS; ++k) sum += (int64_t)x[row * K + k] * weight[(group * N + j) * K + k];
      const float expected = group < GROUPS ? (float)sum * scale[group * N + j] : 0.0f;
      if (out[row * N + j] != expected) fail(target, "a wrong number", ends), wrong = 1;
    }
  for (size_t i = 0; i < sizeof memory / sizeof memory[0]; ++i) free(memory[i]);
}

int main(void) {
  static const int64_t lists[][GROUPS] = {
      {0, 1, 3, 9, 15, 28, 40},    {40, 40, 40, 40, 40, 40, 40}, {0, 0, 0, 0, 0, 0, 40},
      {6, 12, 18, 24, 30, 36, 37}, {1, 2, 3, 4, 5, 6, 7},        {0, 0, 0, 0, 0, 0, 0},
  };
  for (int32_t i = 0; anyfuse_target_name(i) != NULL; ++i) {
    if (!anyfuse_target_available(i)) continue;
    anyfuse_target_set(anyfuse_target_name(i));
    for (size_t j = 0; j < sizeof lists / sizeof lists[0]; ++j) check(anyfuse_target_name(i), lists[j]);
    printf("%s: %s\n", anyfuse_target_name(i), failures ? "FAILED" : "right");
  }
  return failures > 0;
}
