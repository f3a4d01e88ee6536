/* op::fp16_t, a number of 16 bits that programs fill tensors with: made from a float, rounded half to even, and read as
 * one. C has aclFloatToFloat16 and aclFloat16ToFloat. */
#ifndef ANYFUSE_ACLNN_OPDEV_FP16_T_H
#define ANYFUSE_ACLNN_OPDEV_FP16_T_H

#include "acl/acl_base.h"

#ifdef __cplusplus
namespace op {

struct fp16_t {
  uint16_t val;

  fp16_t() : val(0) {}
  fp16_t(float value) : val(aclFloatToFloat16(value)) {}
  operator float() const { return aclFloat16ToFloat(val); }
};

}  // namespace op
#endif
#endif
