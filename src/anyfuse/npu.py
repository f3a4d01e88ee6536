"""Tensors on a real NPU: the operators there are those of torch_npu and MindSpeed.

The kernels of torch's private device type are registered here. They are reached only by tensors that a real torch_npu
has made, and import it only then. The numbers are the NPU's own: `convention` and backends make no difference there.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from .formats.blocked import nz_to_nd
from .ops import _dispatch as d
from .ops import add_rms_norm_dynamic_quant as norm
from .ops import apply_fused_ema_adamw as ema
from .ops import quant_matmul_dequant as matmul
from .packed import PackedWeight

#: torch_npu's numbers of the y_dtypes that torch has no dtype for, and dtypes for the rest.
_Y_DTYPES: dict[str, Any] = {
    "int8": torch.int8,
    "int4": 285,
    "hifloat8": 290,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e4m3fn": torch.float8_e4m3fn,
}


def apply_fused_ema_adamw(call: ema.Call) -> None:
    """By MindSpeed's operator, one call a parameter."""
    d.require(call.stochastic_rounding is None, "stochastic_rounding is given; accepted on an NPU: None")
    operator = import_module("mindspeed.ops.npu_apply_fused_ema_adamw").npu_apply_fused_ema_adamw
    if call.found_inf is not None and float(call.found_inf) != 0.0:
        return
    lr = call.lr if call.lr_tensor is None else float(call.lr_tensor)
    factor = (-1.0 if call.maximize else 1.0) / (1.0 if call.grad_scale is None else float(call.grad_scale))
    steps = call.step * len(call.var) if len(call.step) == 1 else call.step
    numbers = (lr, call.ema_decay, call.beta1, call.beta2, call.eps, call.adam_mode, call.bias_correction)
    for grad, var, m, v, s, step in zip(call.grad, *call.updated, steps, strict=True):
        grad = grad if factor == 1.0 else grad * factor
        operator(grad, var, m, v, s, step.reshape(1).to(var.device), *numbers, call.weight_decay)


def quant_matmul_dequant(call: matmul.Call) -> Tensor:
    """By torch_npu's operator, whose weight is (n, k): other layouts are brought into that one first."""
    x, weight, weight_scale, bias, x_scale, smooth_scale, quant_mode, transpose_weight, packed, out_dtype, _ = call
    d.require(x.dtype != torch.int8, "x is int8; accepted on an NPU: float16, which the operator quantizes itself")
    n, k = weight_scale.shape[-1], x.shape[-1]
    if packed:
        weight = PackedWeight(weight, (n, k)).to_nd()
    elif weight.dim() == 4:
        weight = nz_to_nd(weight, (n, k) if transpose_weight else (k, n))
    if not packed and not transpose_weight:
        weight = weight.t().contiguous()
    out: Tensor = import_module("torch_npu").npu_quant_matmul_dequant(
        x.reshape(-1, k),
        weight,
        weight_scale.reshape(-1),
        bias=bias,
        x_scale=None if x_scale is None else x_scale.reshape(-1),
        smooth_scale=smooth_scale,
        quant_mode=quant_mode,
    )
    out = out.reshape(*x.shape[:-1], n)
    return out if out_dtype is None else out.to(out_dtype)


def add_rms_norm_dynamic_quant(call: norm.Call) -> norm.Results:
    """By torch_npu's operator. A mask goes along only where it says something: some products take none."""
    by_scales = (True, call.smooth_scale1 is not None and call.smooth_scale2 is not None)
    y1, y2, x, scale1, scale2 = import_module("torch_npu").npu_add_rms_norm_dynamic_quant(
        call.x1,
        call.x2,
        call.gamma,
        smooth_scale1=call.smooth_scale1,
        smooth_scale2=call.smooth_scale2,
        beta=call.beta,
        epsilon=call.epsilon,
        output_mask=None if call.outputs == by_scales else list(call.outputs),
        y_dtype=_Y_DTYPES[call.y_dtype],
    )
    if call.y_dtype == "int4":  # words of eight codes; here two share a byte
        y1, y2 = (y.view(torch.uint8) if made else y for y, made in zip((y1, y2), call.outputs, strict=True))
    if not call.output1:
        y1, scale1 = y1.new_empty(0), scale1.new_empty(0)
    if not call.output2:
        y2, scale2 = y2.new_empty(0), scale2.new_empty(0)
    return y1, y2, x, scale1, scale2


def _without(name: str) -> Any:
    def refuse(*arguments: Any) -> None:
        raise NotImplementedError(
            f"{name}: torch_npu has no such operator; accepted: tensors on another device, or the operator's C entry"
        )

    return refuse


def _register(name: str, record: type[Any], implementation: d.Implementation) -> None:
    d.library.impl(name, lambda *arguments: implementation(record(*arguments)), "PrivateUse1")


_register("apply_fused_ema_adamw_", ema.Call, apply_fused_ema_adamw)
_register("quant_matmul_dequant", matmul.Call, quant_matmul_dequant)
_register("add_rms_norm_dynamic_quant", norm.Call, add_rms_norm_dynamic_quant)
d.library.impl("apply_adam_w_quant_", _without("apply_adam_w_quant_"), "PrivateUse1")
d.library.impl("lazy_adam_", _without("lazy_adam_"), "PrivateUse1")
