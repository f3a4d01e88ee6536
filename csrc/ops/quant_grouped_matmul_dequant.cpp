// Groups of rows quantized to int8, each times int8 weights of its own, back to float. The mathematics, and its
// reference, is in src/anyfuse/ops/quant_grouped_matmul_dequant.py.
//
// There is no kernel pass here: the kernels of quant_matmul_dequant.cpp take their rows in groups, and work on the
// tiles and strips of all groups in one parallel loop.
#if !defined(ANYFUSE_TARGET)

#include "core/params.h"
#include "ops/quant_matmul_dequant.h"

namespace {

using Params = anyfuse_quant_grouped_matmul_dequant_params;

anyfuse_status run(const Params &p) {
  anyfuse_quant_matmul_dequant_params matmul;
  if (anyfuse_status status = anyfuse::read_params(p.matmul, &matmul)) return status;
  return anyfuse::quant_matmul(matmul, {p.groups, p.group_list, p.own_smooth_scale != 0});
}

}  // namespace

extern "C" anyfuse_status anyfuse_quant_grouped_matmul_dequant(const Params *params) {
  return anyfuse::enter(run, params);
}

#endif
