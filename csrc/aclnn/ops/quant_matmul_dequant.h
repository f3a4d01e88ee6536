// Phase 1 of aclnnQuantMatmulDequant, of which the grouped calls are a form: each argument of theirs that belongs to a
// group has the number of groups in front of its dimensions.
#pragma once
#include "executor.h"

namespace anyfuse::acl {

struct MatmulArguments {
  const aclTensor *x, *weight, *weight_scale, *group_list, *bias, *x_scale, *x_offset, *smooth_scale;
  const char *mode;
  bool transpose;
  const aclTensor *out;
};

enum class MatmulForm {
  plain,
  grouped,
  grouped_nz,  // weight is read as FRACTAL_NZ, whatever its format says
};

aclnnStatus plan_quant_matmul(const char *op, MatmulForm form, const MatmulArguments &given, uint64_t *workspace_size,
                              aclOpExecutor **executor);

}  // namespace anyfuse::acl
