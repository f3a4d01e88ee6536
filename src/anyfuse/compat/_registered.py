"""`torch.ops.npu.*`: the functions of torch_npu as operators of torch, with the official schemas.

They are composite: torch runs the function itself, on real tensors, on fake ones and in a trace, whose graph then holds
anyfuse's operators and plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_SCHEMAS = (
    "npu_add_rms_norm_dynamic_quant(Tensor x1, Tensor x2, Tensor gamma, *, Tensor? smooth_scale1=None, "
    "Tensor? smooth_scale2=None, Tensor? beta=None, float epsilon=1e-6, bool[2]? output_mask=None, int? y_dtype=None) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "npu_quant_matmul_dequant(Tensor x, Tensor quantized_weight, Tensor weight_scale, *, Tensor? bias=None, "
    "Tensor? x_scale=None, Tensor? x_offset=None, Tensor? smooth_scale=None, str? quant_mode='pertoken') -> Tensor",
    "npu_quant_grouped_matmul_dequant(Tensor x, Tensor quantized_weight, Tensor weight_scale, Tensor group_list, *, "
    "Tensor? bias=None, Tensor? x_scale=None, Tensor? x_offset=None, Tensor? smooth_scale=None, "
    "str? quant_mode='pertoken') -> Tensor",
    "npu_format_cast(Tensor self, int acl_format) -> Tensor",
    "npu_format_cast_(Tensor(a!) self, int acl_format) -> Tensor(a!)",
    "get_npu_format(Tensor self) -> int",
    "npu_dynamic_quant(Tensor input, *, Tensor? smooth_scales=None, Tensor? group_index=None, "
    "ScalarType? dst_type=None) -> (Tensor, Tensor)",
    "npu_quantize(Tensor self, Tensor scales, Tensor? zero_points, ScalarType dtype, int axis=1, bool div_mode=True) "
    "-> Tensor",
    "npu_rms_norm(Tensor self, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)",
    "npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor, Tensor)",
    "npu_swiglu(Tensor self, int dim=-1) -> Tensor",
)

_library: Any = None


def install(functions: Mapping[str, Any]) -> None:
    """Registers those functions that torch_npu has as operators."""
    global _library
    _library = torch.library.Library("npu", "FRAGMENT")
    for schema in _SCHEMAS:
        _library.impl(_library.define(schema), functions[schema.partition("(")[0]], "CompositeImplicitAutograd")


def uninstall() -> None:
    global _library
    if _library is not None:
        _library._destroy()
    _library = None
