"""`torch_npu` without an NPU: its operators by anyfuse's, under their official names, defaults and errors.

Errors are RuntimeError, as torch_npu raises them, with the words of anyfuse's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..npu import Y_DTYPES
from ..ops.add_rms_norm_dynamic_quant import add_rms_norm_dynamic_quant
from ..ops.quant_grouped_matmul_dequant import quant_grouped_matmul_dequant
from ..ops.quant_matmul_dequant import quant_matmul_dequant
from . import plain
from ._modules import runtime_errors
from .mindspeed import npu_apply_fused_ema_adamw as npu_apply_fused_ema_adamw

__version__ = f"{torch.__version__.partition('+')[0]}+anyfuse"

# The numbers that torch_npu gives to types that torch has not.
int4, hifloat8 = Y_DTYPES["int4"], Y_DTYPES["hifloat8"]
float8_e5m2 = 291
float8_e4m3fn = 292
NUMBERS = {"int4": int4, "hifloat8": hifloat8, "float8_e5m2": float8_e5m2, "float8_e4m3fn": float8_e4m3fn}

#: y_dtype as torch_npu takes it (a torch.dtype, or torch_npu's number of one) and as anyfuse does.
_Y_DTYPES: dict[Any, Any] = {
    None: torch.int8,
    torch.int8: torch.int8,
    torch.quint4x2: "int4",
    torch.float8_e5m2: torch.float8_e5m2,
    torch.float8_e4m3fn: torch.float8_e4m3fn,
    1: torch.int8,
    16: "int4",
    23: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
    int4: "int4",
    hifloat8: "hifloat8",
    float8_e5m2: torch.float8_e5m2,
    float8_e4m3fn: torch.float8_e4m3fn,
}


def npu_add_rms_norm_dynamic_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    *,
    smooth_scale1: Tensor | None = None,
    smooth_scale2: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
    output_mask: Sequence[bool | int] | None = None,
    y_dtype: torch.dtype | int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Adds a residual, normalizes each row and quantizes it (`anyfuse.add_rms_norm_dynamic_quant`).

    Args:
        x1, x2: of 2 to 8 dimensions.
        output_mask: two of True and False, or of 1 and 0.
        y_dtype: torch.int8 (also None), torch.float8_e5m2, torch.float8_e4m3fn, torch.quint4x2, or a number of
            torch_npu's: `torch_npu.int4`, `hifloat8`, `float8_e5m2`, `float8_e4m3fn`.

    Returns:
        (y1, y2, x_out, scale1, scale2). Outputs that are not produced are 0-dim tensors whose value means nothing. int4
        codes are int32 words, eight in one, the last dimension being that of x1 divided by 8; HiFloat8 codes are uint8.

    Raises:
        RuntimeError: arguments that are not accepted.
    """
    with runtime_errors():
        for name, x in (("x1", x1), ("x2", x2)):
            if isinstance(x, Tensor) and not 2 <= x.dim() <= 8:
                raise ValueError(f"{name} has {x.dim()} dimensions; accepted: 2 to 8")
        wanted, mask = _y_dtype(y_dtype), _flags(output_mask)
        if wanted == "int4" and isinstance(x1, Tensor) and x1.shape[-1] % 8:
            raise ValueError(f"x1 has a last dimension of {x1.shape[-1]}; accepted with int4: a multiple of 8")
        y1, y2, x_out, scale1, scale2 = add_rms_norm_dynamic_quant(
            x1,
            x2,
            gamma,
            smooth_scale1=smooth_scale1,
            smooth_scale2=smooth_scale2,
            beta=beta,
            epsilon=epsilon,
            output_mask=mask,
            y_dtype=wanted,
        )
    first, second = mask if mask else (True, smooth_scale2 is not None)
    if wanted == "int4":
        y1, y2 = y1.view(torch.int32), y2.view(torch.int32)
    if not first:
        y1, scale1 = y1.new_empty(()), scale1.new_empty(())
    if not second:
        y2, scale2 = y2.new_empty(()), scale2.new_empty(())
    return y1, y2, x_out, scale1, scale2


def _flags(mask: Any) -> Any:
    """A mask of 1 and 0 as one of booleans; the operator refuses what else is none."""
    numbers = isinstance(mask, (list, tuple)) and all(isinstance(flag, int) and flag in (0, 1) for flag in mask)
    return [bool(flag) for flag in mask] if numbers else mask


def _y_dtype(given: Any) -> Any:
    known = given is None or isinstance(given, torch.dtype) or (isinstance(given, int) and not isinstance(given, bool))
    if not known or given not in _Y_DTYPES:
        raise ValueError(
            f"y_dtype is {given!r}; accepted: None, torch.int8, torch.quint4x2, torch.float8_e5m2, "
            "torch.float8_e4m3fn, torch_npu.int4, hifloat8, float8_e5m2, float8_e4m3fn"
        )
    return _Y_DTYPES[given]


def _check_rows(x: Any, x_offset: Any) -> None:
    """Refuses what the official calls do not take: another rank, asymmetric quantization."""
    if isinstance(x, Tensor) and x.dim() != 2:
        raise ValueError(f"x has {x.dim()} dimensions; accepted: 2")
    if x_offset is not None:
        raise ValueError("x_offset is given; accepted: None")


def npu_quant_matmul_dequant(
    x: Tensor,
    quantized_weight: Tensor,
    weight_scale: Tensor,
    *,
    bias: Tensor | None = None,
    x_scale: Tensor | None = None,
    x_offset: Tensor | None = None,
    smooth_scale: Tensor | None = None,
    quant_mode: str = "pertoken",
) -> Tensor:
    """Quantizes the rows of x, multiplies them with int8 weights and scales back (`anyfuse.quant_matmul_dequant`).

    Args:
        x: (m, k).
        quantized_weight: (n, k) int8, or its FRACTAL_NZ blocks (ceil(k/32), ceil(n/16), 16, 32).
        weight_scale: (n,).

    Returns:
        (m, n), of x's dtype.

    Raises:
        RuntimeError: arguments that are not accepted.
    """
    with runtime_errors():
        _check_rows(x, x_offset)
        return quant_matmul_dequant(
            x,
            quantized_weight,
            weight_scale,
            bias=bias,
            x_scale=x_scale,
            smooth_scale=smooth_scale,
            quant_mode=quant_mode,
        )


def npu_quant_grouped_matmul_dequant(
    x: Tensor,
    quantized_weight: Tensor,
    weight_scale: Tensor,
    group_list: Tensor,
    *,
    bias: Tensor | None = None,
    x_scale: Tensor | None = None,
    x_offset: Tensor | None = None,
    smooth_scale: Tensor | None = None,
    quant_mode: str = "pertoken",
) -> Tensor:
    """`npu_quant_matmul_dequant` of groups of rows, each with a weight of its own
    (`anyfuse.quant_grouped_matmul_dequant`).

    Args:
        x: (m, k), sorted by group.
        quantized_weight: (G, n, k) int8, or its FRACTAL_NZ blocks (G, ceil(k/32), ceil(n/16), 16, 32).
        weight_scale: (G, n).
        group_list: (G,) int64, the end of each group's rows.

    Returns:
        (m, n), of x's dtype; 0 in rows that are no group's.

    Raises:
        RuntimeError: arguments that are not accepted.
    """
    with runtime_errors():
        _check_rows(x, x_offset)
        return quant_grouped_matmul_dequant(
            x,
            quantized_weight,
            weight_scale,
            group_list,
            bias=bias,
            x_scale=x_scale,
            smooth_scale=smooth_scale,
            quant_mode=quant_mode,
        )


#: Why a name is not provided.
REASONS = {
    "torch_npu.contrib": (
        'transfer_to_npu would tell all of torch, and every library, that there is CUDA; write "npu" for "cuda" and '
        "leave the line out"
    ),
}

#: What torch_npu has: the operators, what scripts call around them, and torch_npu's numbers.
CONTENTS = {
    "__version__": __version__,
    **{name: value for name, value in {**vars(plain), **globals()}.items() if name.startswith(("npu_", "get_npu_"))},
    "Format": plain.Format,
    **NUMBERS,
}
