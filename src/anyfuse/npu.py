"""Tensors on a real NPU: the operators there are those of torch_npu and MindSpeed.

The kernels of torch's private device type are registered here. They are reached only by tensors that a real torch_npu
has made, and import it only then. The numbers are the NPU's own: `convention` and backends make no difference there.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ._opspec import REGISTRY
from .ops import _checks as checks
from .ops import add_rms_norm_dynamic_quant as norm
from .ops import apply_fused_ema_adamw as ema
from .ops import quant_grouped_matmul_dequant as grouped
from .ops import quant_matmul_dequant as matmul
from .ops._register import implement

#: torch_npu's numbers of the y_dtypes that torch has no dtype for, and dtypes for the rest.
Y_DTYPES: dict[str, Any] = {
    "int8": torch.int8,
    "int4": 285,
    "hifloat8": 290,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e4m3fn": torch.float8_e4m3fn,
}


def apply_fused_ema_adamw(call: ema.Call) -> None:
    """By MindSpeed's operator, one call a parameter."""
    checks.require(call.stochastic_rounding is None, "stochastic_rounding is given; accepted on an NPU: None")
    operator = import_module("mindspeed.ops.npu_apply_fused_ema_adamw").npu_apply_fused_ema_adamw
    if call.found_inf is not None and float(call.found_inf) != 0.0:
        return
    lr = call.lr if call.lr_tensor is None else float(call.lr_tensor)
    checks.require_grad_scale(call)
    factor = checks.grad_factor(call)
    steps = call.step * len(call.var) if len(call.step) == 1 else call.step
    numbers = (lr, call.ema_decay, call.beta1, call.beta2, call.eps, call.adam_mode, call.bias_correction)
    for grad, var, m, v, s, step in zip(call.grad, *call.updated, steps, strict=True):
        grad = grad if factor == 1.0 else grad * factor
        operator(grad, var, m, v, s, step.reshape(1).to(var.device), *numbers, call.weight_decay)


def quant_matmul_dequant(call: matmul.Call) -> Tensor:
    """By torch_npu's operator, whose weight is (n, k): other layouts are brought into that one first."""
    n, k = call.weight_scale.shape[-1], call.x.shape[-1]
    out: Tensor = import_module("torch_npu").npu_quant_matmul_dequant(
        _float_rows(call.x),
        matmul.plain_weight(call.weight, n, k, call.transpose_weight, bool(call.packed)).contiguous(),
        call.weight_scale.reshape(-1),
        **_options(call),
    )
    out = out.reshape(*call.x.shape[:-1], n)
    return out if call.out_dtype is None else out.to(call.out_dtype)


def quant_grouped_matmul_dequant(call: grouped.Call) -> Tensor:
    """By torch_npu's operator, whose weights are (G, n, k), and which leaves rows that are no group's as they were."""
    n, k = call.weight_scale.shape[-1], call.x.shape[-1]
    smooth = call.smooth_scale
    checks.require(call.group_list.numel() > 0, "group_list is empty; accepted on an NPU: one group or more")
    checks.require(smooth is None or smooth.dim() == 1, "smooth_scale has 2 dimensions; accepted on an NPU: (k,)")
    weight, rows = call.weight, _float_rows(call.x)
    if call.packed or weight.dim() == 5:
        each = (matmul.plain_weight(one, n, k, call.transpose_weight, bool(call.packed)) for one in weight)
        weight = torch.stack(list(each))
    elif not call.transpose_weight:
        weight = weight.mT.contiguous()
    out: Tensor = import_module("torch_npu").npu_quant_grouped_matmul_dequant(
        rows, weight, call.weight_scale, call.group_list, **_options(call)
    )
    beyond = torch.arange(len(rows), device=rows.device) >= call.group_list[-1]
    out = out.masked_fill(beyond[:, None], 0.0).reshape(*call.x.shape[:-1], n)
    return out if call.out_dtype is None else out.to(call.out_dtype)


def _float_rows(x: Tensor) -> Tensor:
    checks.require(x.dtype != torch.int8, "x is int8; accepted on an NPU: float16, which the operator quantizes itself")
    return x.reshape(-1, x.shape[-1])


def _options(call: matmul.Call | grouped.Call) -> dict[str, Any]:
    x_scale = None if call.x_scale is None else call.x_scale.reshape(-1)
    return {
        "bias": call.bias,
        "x_scale": x_scale,
        "smooth_scale": call.smooth_scale,
        "quant_mode": call.quant_mode,
    }


def add_rms_norm_dynamic_quant(call: norm.Call) -> norm.Results:
    """By torch_npu's operator. A mask goes along only where it says something: some products take none."""
    checks.require(call.x2 is not None, "x2 is None; accepted on an NPU: a tensor")
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
        y_dtype=Y_DTYPES[call.y_dtype],
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


def _register(name: str) -> None:
    """By the function of the operator's name here; where there is none, torch_npu has no such operator."""
    implementation = globals().get(name)
    implement(name, "PrivateUse1", _without(name) if implementation is None else implementation)


for _name in REGISTRY:
    _register(_name)
