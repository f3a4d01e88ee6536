// The product of quantized rows in groups, of which quant_matmul_dequant is the case of one group.
#pragma once
#include "anyfuse.h"

namespace anyfuse {

// Rows [ends[i - 1], ends[i]) belong to group i.
struct GroupedRows {
  int64_t count;
  const int64_t *ends;
  bool own_smooth_scale;  // smooth_scale has k factors for each group, not k in all

  int64_t rows() const { return count > 0 ? ends[count - 1] : 0; }
};

// `p` with weight, weight_scale and bias of all groups, one after the other. Checks everything before it writes; rows
// beyond the last end are not read, and their outputs are +0.
anyfuse_status quant_matmul(const anyfuse_quant_matmul_dequant_params &p, const GroupedRows &groups);

}  // namespace anyfuse
