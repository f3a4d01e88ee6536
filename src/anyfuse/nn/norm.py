"""RMSNorm whose output is int8 rows, with and without the residual add before it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._settings import convention_or_default
from ..ops import _checks as checks
from ..ops.add_rms_norm_dynamic_quant import add_rms_norm_dynamic_quant
from ..ops._register import REFUSALS, reason
from .rows import QuantizedRows

OPERATOR = torch.ops.anyfuse.add_rms_norm_dynamic_quant.default
CONVENTION = convention_or_default(None)


class _Norm(nn.Module):
    """The norm's parameters. They are buffers: quantized modules are for inference."""

    weight: Tensor
    smooth_scale: Tensor | None
    bias: Tensor | None

    def __init__(
        self, weight: Tensor, epsilon: float = 1e-6, *, smooth_scale: Tensor | None = None, bias: Tensor | None = None
    ) -> None:
        super().__init__()
        checks.require_tensor("weight", weight, checks.FLOATS)
        checks.require(weight.dim() == 1, f"weight has shape {tuple(weight.shape)}; accepted: one dimension")
        checks.require(epsilon >= 0, f"epsilon is {epsilon}; accepted: 0 or more")
        for name, value in (("smooth_scale", smooth_scale), ("bias", bias)):
            if value is not None:
                checks.require_tensor(name, value, checks.FLOATS)
                checks.require_shape(name, value, weight.shape, "weight")
        self.epsilon = epsilon
        for name, value in (("weight", weight), ("smooth_scale", smooth_scale), ("bias", bias)):
            self.register_buffer(name, None if value is None else value.detach().clone())

    def _rows(self, x1: Tensor, x2: Tensor | None) -> tuple[Tensor, QuantizedRows]:
        buffers: dict[str, Any] = self._buffers
        weight, smooth_scale, bias = buffers["weight"], buffers["smooth_scale"], buffers["bias"]
        if torch.is_grad_enabled():  # the sum is differentiable
            codes, _, total, scale, _ = add_rms_norm_dynamic_quant(
                x1, x2, weight, smooth_scale1=smooth_scale, beta=bias, epsilon=self.epsilon
            )
            return total, QuantizedRows(codes, scale, x1.dtype)
        # Without the public function's frames, which are much of the time that a decoded token takes.
        arguments = x1, x2, weight, smooth_scale, None, bias, self.epsilon, True, False, "int8", CONVENTION
        try:
            codes, _, total, scale, _ = OPERATOR(*arguments)
        except REFUSALS as error:
            raise reason(OPERATOR, arguments, error) from None
        return total, QuantizedRows(codes, scale, x1.dtype)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, epsilon={self.epsilon}, smooth={self.smooth_scale is not None}"


class AddRMSNormQuant(_Norm):
    r"""Residual add, RMSNorm and quantization in one pass, by `anyfuse.add_rms_norm_dynamic_quant`.

        total = residual + x
        rows  ≈ total / sqrt(mean(total²) + epsilon) · weight (+ bias) · smooth_scale

    Args:
        weight: (d,), the norm's gain: float32, float16 or bfloat16; the activations' dtype or float32.
        epsilon: added to the mean square; 0 or more.
        smooth_scale: (d,), factors of the columns before they are quantized; the linears that read the rows hold
            weights that are divided by them (`QuantLinear.from_float(..., smooth_scale=...)`).
        bias: (d,), the norm's bias.

    Raises:
        TypeError: a dtype or a kind of argument that is not accepted.
        ValueError: shapes that do not fit, an epsilon below 0.

    Source: CANN's document of `aclnnAddRmsNormDynamicQuantV2`.
    """

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, QuantizedRows]:
        """The sum, in x's dtype, and the quantized norm of it. x and residual: one shape (..., d), one dtype."""
        return self._rows(residual, x)


class RMSNormQuant(_Norm):
    """RMSNorm and quantization in one pass, for a norm with no residual before it. Arguments of `AddRMSNormQuant`."""

    def forward(self, x: Tensor) -> QuantizedRows:
        """The quantized norm of x (..., d)."""
        return self._rows(x, None)[1]
