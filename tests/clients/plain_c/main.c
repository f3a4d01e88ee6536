/* The plain C API: one function over one params struct. */
#include <anyfuse.h>
#include <stdio.h>

int main(void) {
  float x[4] = {1, 2, 3, 4}, gamma[4] = {1, 1, 1, 1}, sum[4], scale;
  signed char codes[4];
  anyfuse_add_rms_norm_dynamic_quant_params p = {0};
  p.size = sizeof p;
  p.rows = 1;
  p.cols = 4;
  p.x1 = p.x2 = x;
  p.gamma = gamma;
  p.x = sum;
  p.y1 = codes;
  p.scale1 = &scale;
  p.y_dtype = ANYFUSE_INT8;
  p.epsilon = 1e-6;
  p.threads = 1;
  const anyfuse_status status = anyfuse_add_rms_norm_dynamic_quant(&p);
  if (status != ANYFUSE_OK) {
    fprintf(stderr, "%s\n", anyfuse_status_name(status));
    return 1;
  }
  printf("%d %d %d %d\n", codes[0], codes[1], codes[2], codes[3]);
  return 0;
}
