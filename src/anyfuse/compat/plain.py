"""Functions of torch_npu that scripts call around the operators, in plain PyTorch: float32 inside, rounded at the end.

They are here for scripts' inputs and goldens: none is fast, and a device may differ from them in the last digit.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

from ..formats.lowbits import pack_int4
from ._modules import runtime_errors


class Format(IntEnum):
    """Layouts of a device's memory, by torch_npu's numbers."""

    UNDEFINED = -1
    NCHW = 0
    NHWC = 1
    ND = 2
    NC1HWC0 = 3
    FRACTAL_Z = 4
    FRACTAL_NZ = 29
    NCDHW = 30
    NDHWC = 31
    NDC1HWC0 = 32
    FRACTAL_Z_3D = 33


# ---- layouts: a device's own affair, which shapes and values do not show ----


def npu_format_cast(self: Tensor, acl_format: int) -> Tensor:
    """The tensor in another layout (29: FRACTAL_NZ, 2: ND): a copy of the same shape and the same values, as on an NPU,
    whose layout only `get_npu_format` tells. A tensor that is in that layout already is returned as it is.

    Raises RuntimeError for a number that is none of `Format`, and for FRACTAL_NZ of less than 2 dimensions.
    """
    return self if get_npu_format(self) == acl_format else npu_format_cast_(self.clone(), acl_format)


def npu_format_cast_(self: Tensor, acl_format: int) -> Tensor:
    """As `npu_format_cast`, in place."""
    with runtime_errors():
        layout = Format(acl_format)
        if layout == Format.FRACTAL_NZ and self.dim() < 2:
            raise ValueError(f"self has {self.dim()} dimensions; accepted: 2 or more in FRACTAL_NZ")
    self._npu_format = layout  # type: ignore[attr-defined]
    return self


def get_npu_format(self: Tensor) -> int:
    """The number of the tensor's layout."""
    by_rank = {4: Format.NCHW, 5: Format.NCDHW}.get(self.dim(), Format.ND)
    return int(getattr(self, "_npu_format", by_rank))


# ---- quantization ----


def npu_dynamic_quant(
    input: Tensor,
    *,
    smooth_scales: Tensor | None = None,
    group_index: Tensor | None = None,
    dst_type: torch.dtype | int | None = None,
) -> tuple[Tensor, Tensor]:
    """Rows quantized to int8, each with a scale of its own: scale = max|v| / 127, y = round(v / scale), v = input, or
    input·smooth_scales. A row of zeros has the scale 0 and codes 0.

    Args:
        input: (..., k); float32, float16 or bfloat16.
        smooth_scales: (k,).
        group_index: must be None.
        dst_type: torch.int8 (also None), or torch.quint4x2: max|v| / 7, eight codes to an int32 word.

    Returns:
        (y, scale): codes with input's shape, and float32 of shape (...).

    Raises:
        RuntimeError: another group_index or dst_type.
    """
    if group_index is not None:
        raise RuntimeError("group_index is given; accepted: None")
    if dst_type not in (None, torch.int8, torch.quint4x2, 1, 16):
        raise RuntimeError(f"dst_type is {dst_type!r}; accepted: None, torch.int8, torch.quint4x2")
    largest = 7 if dst_type in (torch.quint4x2, 16) else 127
    v = input.float() if smooth_scales is None else input.float() * smooth_scales.float()
    scale = v.abs().amax(-1) / largest
    codes = torch.where(scale[..., None] == 0, 0.0, v / scale[..., None]).round().clamp(-largest, largest)
    return _stored(codes, torch.quint4x2 if largest == 7 else torch.qint8), scale


def npu_quantize(
    self: Tensor, scales: Tensor, zero_points: Tensor | None, dtype: torch.dtype, axis: int = 1, div_mode: bool = True
) -> Tensor:
    """round(self / scales) + zero_points, saturated; with `div_mode=False` round(self·scales) + zero_points.

    Args:
        self: float32, float16 or bfloat16.
        scales, zero_points: one value, or one for each index of the dimension `axis`.
        dtype: torch.qint8, torch.quint8, torch.qint32 (the result is int8, uint8, int32), or torch.quint4x2: eight
            codes to an int32 word.

    Raises:
        RuntimeError: another dtype, scales of another shape.
    """
    _qint(dtype)

    def along(values: Tensor, name: str) -> Tensor:
        if values.numel() == 1:
            return values.reshape(()).float()
        if values.dim() != 1 or len(values) != self.shape[axis]:
            raise RuntimeError(f"{name} has shape {tuple(values.shape)}; accepted: (1,) or ({self.shape[axis]},)")
        shape = [1] * self.dim()
        shape[axis] = -1
        return values.float().reshape(shape)

    scale = along(scales, "scales")
    codes = (self.float() / scale if div_mode else self.float() * scale).round()
    if zero_points is not None:
        codes = codes + along(zero_points, "zero_points")
    return _stored(codes, dtype)


def _qint(dtype: torch.dtype) -> tuple[torch.dtype, int, int]:
    """The dtype that carries codes of a quantized dtype, and their range."""
    known = {
        torch.qint8: (torch.int8, -128, 127),
        torch.int8: (torch.int8, -128, 127),
        torch.quint8: (torch.uint8, 0, 255),
        torch.qint32: (torch.int32, -(2**31), 2**31 - 1),
        torch.quint4x2: (torch.int32, -8, 7),
    }
    if dtype not in known:
        raise RuntimeError(f"dtype is {dtype}; accepted: {', '.join(map(str, known))}")
    return known[dtype]


def _stored(codes: Tensor, dtype: torch.dtype) -> Tensor:
    carrier, smallest, largest = _qint(dtype)
    codes = codes.double().nan_to_num(0.0).clamp(smallest, largest)
    if dtype != torch.quint4x2:
        return codes.to(carrier)
    with runtime_errors():
        return pack_int4(codes.to(torch.int8), carrier)


# ---- norms, activation ----


def npu_rms_norm(self: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """self / sqrt(mean(self²) + epsilon) · gamma over the last dimensions, those of gamma.

    Returns:
        (y, rstd): y of self's shape and dtype; 1 / sqrt(…) in float32, with dimensions of 1 in place of gamma's.

    Raises:
        RuntimeError: a gamma whose shape is not the end of self's.
    """
    return _normed(self.float(), gamma, epsilon, self.dtype)


def npu_add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """`npu_rms_norm` of x1 + x2. Returns (y, rstd, x), x being the sum in x1's dtype; the norm is of the sum before it
    is rounded."""
    x = x1.float() + x2.float()
    return *_normed(x, gamma, epsilon, x1.dtype), x.to(x1.dtype)


def _normed(x: Tensor, gamma: Tensor, epsilon: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    axes = tuple(range(-gamma.dim(), 0))
    if gamma.dim() == 0 or x.shape[-gamma.dim() :] != gamma.shape:
        raise RuntimeError(f"gamma has shape {tuple(gamma.shape)}; accepted: the end of {tuple(x.shape)}")
    rstd = 1.0 / ((x * x).mean(axes, keepdim=True) + epsilon).sqrt()
    return (x * rstd * gamma.float()).to(dtype), rstd


def npu_swiglu(self: Tensor, dim: int = -1) -> Tensor:
    """silu(a)·b of the halves a and b of a dimension. RuntimeError where its size is odd."""
    if self.shape[dim] % 2:
        raise RuntimeError(f"self has {self.shape[dim]} entries in dimension {dim}; accepted: an even number")
    a, b = self.float().chunk(2, dim)
    return (torch.nn.functional.silu(a) * b).to(self.dtype)
