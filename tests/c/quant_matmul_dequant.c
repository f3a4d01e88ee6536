/* quant_matmul_dequant through the C API, without Python: every target that this CPU runs, against 64-bit integers.
 * It runs under an emulator too, where instruction sets are checked that the machine lacks (see CONTRIBUTING.md).
 *
 * Arguments: a target and another one: the first one's kernel is known to be wrong (the build has put a fault in), and
 * the operator must be found running on the second, with right results. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "anyfuse.h"

enum { MAX_M = 14, MAX_N = 140, MAX_K = 1100 };

static int8_t x[MAX_M * MAX_K], weight[MAX_N * MAX_K], blocks[MAX_N * 2 * MAX_K * 2];
static float out[MAX_M * MAX_N], ones[MAX_N];
static int failures;

static int8_t byte(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  const uint32_t bits = *state >> 20;
  return (int8_t)(bits % 9 == 0 ? -128 : bits % 9 == 1 ? 127 : (int)(bits & 255) - 128);
}

/* The weight in one of the layouts; padding holds garbage where a layout says that it is not used. */
static const int8_t *lay_out(int32_t layout, int n, int k) {
  memset(blocks, 99, sizeof blocks);
  for (int j = 0; j < n; ++j)
    for (int i = 0; i < k; ++i) {
      size_t at = (size_t)j * k + i;
      if (layout == ANYFUSE_WEIGHT_KN) at = (size_t)i * n + j;
      if (layout == ANYFUSE_WEIGHT_NZ_NK)
        at = ((size_t)(i / 32) * ((n + 15) / 16) + j / 16) * 512 + j % 16 * 32 + i % 32;
      if (layout == ANYFUSE_WEIGHT_NZ_KN)
        at = ((size_t)(j / 32) * ((k + 15) / 16) + i / 16) * 512 + i % 16 * 32 + j % 32;
      if (layout == ANYFUSE_WEIGHT_PACKED) at = ((size_t)(j / 16) * ((k + 3) / 4) + i / 4) * 64 + j % 16 * 4 + i % 4;
      blocks[at] = weight[(size_t)j * k + i];
    }
  return blocks;
}

static void check(const char *target, int m, int n, int k, int32_t layout, int threads) {
  anyfuse_quant_matmul_dequant_params p;
  memset(&p, 0, sizeof p);
  p.size = sizeof p;
  p.m = m, p.n = n, p.k = k;
  p.x = x, p.weight = lay_out(layout, n, k), p.weight_scale = ones, p.x_scale = ones, p.out = out;
  p.x_dtype = ANYFUSE_INT8;
  p.weight_layout = layout;
  p.threads = threads;
  const anyfuse_status status = anyfuse_quant_matmul_dequant(&p);
  if (status != ANYFUSE_OK) {
    printf("%s: m=%d n=%d k=%d layout=%d: %s\n", target, m, n, k, layout, anyfuse_status_name(status));
    ++failures;
    return;
  }
  for (int r = 0; r < m; ++r)
    for (int j = 0; j < n; ++j) {
      int64_t sum = 0;
      for (int i = 0; i < k; ++i) sum += (int64_t)x[r * k + i] * weight[j * k + i];
      if (out[r * n + j] != (float)sum) {
        printf("%s: m=%d n=%d k=%d layout=%d: [%d, %d] is %.0f, expected %.0f\n", target, m, n, k, layout, r, j,
               out[r * n + j], (double)(float)sum);
        ++failures;
        return;
      }
    }
}

static void check_target(const char *target) {
  static const int ns[] = {1, 16, 17, 71, 140}, ks[] = {0, 1, 4, 33, 255, 256, 257, 1027};
  for (int m = 1; m <= MAX_M; ++m)
    for (int i = 0; i < 5; ++i)
      for (int j = 0; j < 8; ++j)
        for (int32_t layout = ANYFUSE_WEIGHT_NK; layout <= ANYFUSE_WEIGHT_PACKED; ++layout)
          if (m <= 7 || layout == ANYFUSE_WEIGHT_PACKED) check(target, m, ns[i], ks[j], layout, 1 + m % 2);
}

static int32_t index_of(const char *name) {
  for (int32_t i = 0; anyfuse_target_name(i) != NULL; ++i)
    if (strcmp(anyfuse_target_name(i), name) == 0) return i;
  return -1;
}

int main(int argc, char **argv) {
  uint32_t state = 1;
  for (size_t i = 0; i < sizeof x; ++i) x[i] = byte(&state);
  for (size_t i = 0; i < sizeof weight; ++i) weight[i] = byte(&state);
  for (int i = 0; i < MAX_N; ++i) ones[i] = 1.0f;

  if (argc == 3) {
    if (anyfuse_target_set(argv[1]) != ANYFUSE_OK) {
      printf("%s cannot run here\n", argv[1]);
      return 77; /* skipped */
    }
    const char *used = anyfuse_target_name(anyfuse_quant_matmul_dequant_target());
    printf("%s is wrong; in use: %s\n", argv[1], used);
    check_target(argv[1]);
    return failures > 0 || strcmp(used, argv[2]) != 0 || anyfuse_target_current() != index_of(argv[1]);
  }
  for (int32_t i = 0; anyfuse_target_name(i) != NULL; ++i) {
    if (!anyfuse_target_available(i)) continue;
    const char *name = anyfuse_target_name(i);
    anyfuse_target_set(name);
    if (anyfuse_quant_matmul_dequant_target() != i) {
      printf("%s: its kernel answers the known question wrong\n", name);
      ++failures;
    }
    check_target(name);
    printf("%s: %s\n", name, failures ? "FAILED" : "right");
  }
  return failures > 0;
}
