"""Activations in int8."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..ops import _checks as checks


class QuantizedRows:
    """Rows of int8 codes and the scale of each: row i stands for `codes[i] * scale[i]`.

    Attributes:
        codes: (..., k) int8.
        scale: codes' leading dimensions, float32; 0 where a row is zero, NaN where the row is.
        dtype: what the rows stand for, and what a linear returns: float32, float16 or bfloat16.

    Raises:
        TypeError: codes or scale of another dtype, or a dtype that no linear returns.
        ValueError: a scale whose shape is not that of codes' rows.
    """

    __slots__ = ("codes", "dtype", "product", "scale")

    def __init__(self, codes: Tensor, scale: Tensor, dtype: torch.dtype) -> None:
        if not isinstance(codes, Tensor) or codes.dtype != torch.int8:
            checks.require_tensor("codes", codes, (torch.int8,))
        if not isinstance(scale, Tensor) or scale.dtype != torch.float32:
            checks.require_tensor("scale", scale, (torch.float32,))
        if scale.shape != codes.shape[:-1]:
            checks.require_shape("scale", scale, codes.shape[:-1], "codes without its last dimension")
        if dtype not in checks.FLOATS:
            raise TypeError(f"dtype is {dtype}; accepted: {checks.names(checks.FLOATS)}")
        self.codes, self.scale, self.dtype = codes, scale, dtype
        # A linear and what it made of these rows: left by the first of several parts of that linear for the others.
        self.product: tuple[nn.Module, Tensor] | None = None

    @property
    def shape(self) -> torch.Size:
        """The shape of the activation: (..., k)."""
        return self.codes.shape

    @property
    def device(self) -> torch.device:
        return self.codes.device

    def dequantize(self) -> Tensor:
        """The activation that the rows stand for, in `dtype`."""
        return (self.codes * self.scale.unsqueeze(-1)).to(self.dtype)

    def __repr__(self) -> str:
        return f"QuantizedRows(shape={tuple(self.shape)}, dtype={self.dtype})"
