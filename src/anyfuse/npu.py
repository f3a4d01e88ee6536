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
from .packed import PackedWeight

#: torch_npu's numbers of the y_dtypes that torch has no dtype for, and dtypes for the rest.
_Y_DTYPES: dict[str, Any] = {
    "int8": torch.int8,
    "int4": 285,
    "hifloat8": 290,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e4m3fn": torch.float8_e4m3fn,
}


def apply_fused_ema_adamw(
    grad: list[Tensor],
    var: list[Tensor],
    m: list[Tensor],
    v: list[Tensor],
    s: list[Tensor],
    step: list[Tensor],
    lr: float,
    ema_decay: float,
    beta1: float,
    beta2: float,
    eps: float,
    adam_mode: int,
    bias_correction: bool,
    weight_decay: float,
    convention: str,
    lr_tensor: Tensor | None,
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
    maximize: bool,
    stochastic_rounding: list[int] | None,
) -> None:
    """By MindSpeed's operator, one call a parameter."""
    d.require(stochastic_rounding is None, "stochastic_rounding is given; accepted on an NPU: None")
    operator = import_module("mindspeed.ops.npu_apply_fused_ema_adamw").npu_apply_fused_ema_adamw
    if found_inf is not None and float(found_inf) != 0.0:
        return
    lr = lr if lr_tensor is None else float(lr_tensor)
    factor = (-1.0 if maximize else 1.0) / (1.0 if grad_scale is None else float(grad_scale))
    steps = step * len(var) if len(step) == 1 else step
    for g, p, m_, v_, s_, now in zip(grad, var, m, v, s, steps, strict=True):
        g = g if factor == 1.0 else g * factor
        now = now.reshape(1).to(p.device)
        operator(g, p, m_, v_, s_, now, lr, ema_decay, beta1, beta2, eps, adam_mode, bias_correction, weight_decay)


def quant_matmul_dequant(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    x_scale: Tensor | None,
    smooth_scale: Tensor | None,
    quant_mode: str,
    transpose_weight: bool,
    packed: list[int],
    out_dtype: torch.dtype | None,
    convention: str,
) -> Tensor:
    """By torch_npu's operator, whose weight is (n, k): other layouts are brought into that one first."""
    d.require(x.dtype != torch.int8, "x is int8; accepted on an NPU: float16, which the operator quantizes itself")
    n, k = weight_scale.shape[-1], x.shape[-1]
    if packed:
        weight = PackedWeight(weight, (n, k)).to_nd()
    elif weight.dim() == 4:
        weight = nz_to_nd(weight, (n, k) if transpose_weight else (k, n))
    if not packed and not transpose_weight:
        weight = weight.t().contiguous()
    out = import_module("torch_npu").npu_quant_matmul_dequant(
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


def add_rms_norm_dynamic_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    smooth_scale1: Tensor | None,
    smooth_scale2: Tensor | None,
    beta: Tensor | None,
    epsilon: float,
    output1: bool,
    output2: bool,
    y_dtype: str,
    convention: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """By torch_npu's operator. A mask goes along only where it says something: some products take none."""
    by_scales = (True, smooth_scale1 is not None and smooth_scale2 is not None)
    y1, y2, x, scale1, scale2 = import_module("torch_npu").npu_add_rms_norm_dynamic_quant(
        x1,
        x2,
        gamma,
        smooth_scale1=smooth_scale1,
        smooth_scale2=smooth_scale2,
        beta=beta,
        epsilon=epsilon,
        output_mask=None if (output1, output2) == by_scales else [output1, output2],
        y_dtype=_Y_DTYPES[y_dtype],
    )
    if y_dtype == "int4":  # words of eight codes; here two share a byte
        y1, y2 = (y.view(torch.uint8) if made else y for y, made in ((y1, output1), (y2, output2)))
    if not output1:
        y1, scale1 = y1.new_empty(0), scale1.new_empty(0)
    if not output2:
        y2, scale2 = y2.new_empty(0), scale2.new_empty(0)
    return y1, y2, x, scale1, scale2


def _without(name: str) -> Any:
    def refuse(*arguments: Any) -> None:
        raise NotImplementedError(
            f"{name}: torch_npu has no such operator; accepted: tensors on another device, or the operator's C entry"
        )

    return refuse


d.library.impl("apply_fused_ema_adamw_", apply_fused_ema_adamw, "PrivateUse1")
d.library.impl("quant_matmul_dequant", quant_matmul_dequant, "PrivateUse1")
d.library.impl("add_rms_norm_dynamic_quant", add_rms_norm_dynamic_quant, "PrivateUse1")
d.library.impl("apply_adam_w_quant_", _without("apply_adam_w_quant_"), "PrivateUse1")
d.library.impl("lazy_adam_", _without("lazy_adam_"), "PrivateUse1")
