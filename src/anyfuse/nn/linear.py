"""Linears with int8 weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .. import packed
from .._settings import convention_or_default
from ..ops import _checks as checks
from ..ops._register import REFUSALS, reason
from ..packed import PackedWeight, pack_weight
from .rows import QuantizedRows

OPERATOR = torch.ops.anyfuse.quant_matmul_dequant.default
CONVENTION = convention_or_default(None)


class QuantLinear(nn.Module):
    """A linear with int8 weights on int8 rows, by `anyfuse.quant_matmul_dequant`: y = x Wᵀ + bias.

    x (..., k) may be `QuantizedRows`, which are multiplied as they are, or a float tensor, whose rows are quantized on
    the way: each with a scale of its own, or all with the one scale given as `x_scale`.

    Args:
        weight: a `PackedWeight` with float32 scales.
        bias: (n,) float32, float16 or bfloat16, added after the product is scaled, in the output's dtype.
        smooth_scale: (k,) factors of x's columns before a float x is quantized. The weight is divided by them.
        x_scale: one positive float32 number (static quantization), or None (dynamic).

    Buffers: `weight` (the packed codes), `weight_scale`, `bias`, `smooth_scale`, `x_scale`; those of a linear without
    them are None. Nothing is trainable, and no gradient passes through to x. Codes stay int8 and scales float32 when a
    module is cast (`half()`, `to(torch.bfloat16)`, `type(...)`): codes mean nothing but with the very scales that they
    were made with.

    Raises:
        TypeError: a dtype or a kind of argument that is not accepted.
        ValueError: shapes that do not fit together; a weight without scales; a scale that is not positive.

    Source: torch_npu's document of `npu_quant_matmul_dequant`.
    """

    weight: Tensor
    weight_scale: Tensor
    bias: Tensor | None
    smooth_scale: Tensor | None
    x_scale: Tensor | None

    def __init__(
        self,
        weight: PackedWeight,
        bias: Tensor | None = None,
        *,
        smooth_scale: Tensor | None = None,
        x_scale: Tensor | float | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(weight, PackedWeight):
            raise TypeError(f"weight is a {type(weight).__name__}; accepted: a PackedWeight")
        if weight.scale is None or weight.scale.dtype != torch.float32 or len(weight.shape) != 2:
            raise ValueError(f"weight is {weight}; accepted: one matrix with float32 scales")
        self.out_features, self.in_features = weight.shape
        for name, value, size in (("bias", bias, self.out_features), ("smooth_scale", smooth_scale, self.in_features)):
            if value is not None:
                checks.require_tensor(name, value, checks.FLOATS)
                checks.require_shape(name, value, (size,), "weight's outputs or inputs")
        self.register_buffer("weight", weight.data)
        self.register_buffer("weight_scale", weight.scale)
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        self.register_buffer("smooth_scale", None if smooth_scale is None else smooth_scale.detach().clone())
        self.register_buffer("x_scale", None if x_scale is None else _static_scale(x_scale))

    @classmethod
    def from_float(
        cls,
        linear: nn.Linear | Sequence[nn.Linear],
        *,
        smooth_scale: Tensor | None = None,
        act: str | float | Tensor = "dynamic",
    ) -> QuantLinear:
        """The quantized form of a linear, or of several that read the same activation, one below the other.

        Each output has a symmetric scale of its own, max|w| / 127, computed in float32.

        Args:
            linear: a `torch.nn.Linear`, or a list of them with equal inputs; they are left as they are.
            smooth_scale: (k,) positive factors: x is multiplied by them before it is quantized, the weight divided.
            act: "dynamic", or the one scale of all rows, a positive number.

        Raises:
            TypeError: not a linear, or an `act` of another kind.
            ValueError: linears whose inputs differ, weights that are not finite, smooth scales that are not positive.
        """
        linears: list[nn.Linear] = [linear] if isinstance(linear, nn.Module) else list(linear)
        for one in linears:
            if not isinstance(one, nn.Linear):
                raise TypeError(f"linear is a {type(one).__name__}; accepted: a torch.nn.Linear, or a list of them")
        checks.require(bool(linears), "linear is empty; accepted: one linear or more")
        if isinstance(act, str) and act != "dynamic":
            raise ValueError(f"act is {act!r}; accepted: 'dynamic' or a scale")
        inputs = {one.in_features for one in linears}
        checks.require(len(inputs) == 1, f"linear has inputs {sorted(inputs)}; accepted: linears of equal inputs")
        weight = torch.cat([one.weight.detach().float() for one in linears])
        if smooth_scale is not None:
            checks.require_tensor("smooth_scale", smooth_scale, checks.FLOATS)
            checks.require_shape("smooth_scale", smooth_scale, (weight.shape[1],), "the inputs")
            smooth_scale = smooth_scale.detach().float()
            checks.require(_positive(smooth_scale), "smooth_scale holds other than finite positive numbers")
            weight = weight / smooth_scale
        return cls(
            quantize_weight(weight), _joined_bias(linears), smooth_scale=smooth_scale,
            x_scale=None if isinstance(act, str) else act,
        )  # fmt: skip

    @classmethod
    def empty(
        cls, n: int, k: int, *, bias: torch.dtype | None = None, smooth: bool = False, static: bool = False
    ) -> QuantLinear:
        """A linear of n outputs and k inputs with room for numbers to be loaded, all zero (scales one)."""
        data = torch.zeros(packed.packed_shape(n, k), dtype=torch.int8)
        return cls(
            PackedWeight(data, (n, k), torch.ones(n, dtype=torch.float32)),
            None if bias is None else torch.zeros(n, dtype=bias),
            smooth_scale=torch.ones(k, dtype=torch.float32) if smooth else None,
            x_scale=1.0 if static else None,
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantLinear:
        """What `to`, `half`, `cuda` and their like go through."""
        before = {name: self._buffers[name] for name in ("weight", "weight_scale", "smooth_scale", "x_scale")}
        super()._apply(fn, recurse)
        for name, scale in before.items():
            moved = self._buffers[name]
            if scale is not None and moved is not None and moved.dtype != scale.dtype:
                self._buffers[name] = scale.to(moved.device)
        return self

    @property
    def packed_weight(self) -> PackedWeight:
        """The weights, sharing this module's memory."""
        return PackedWeight(self.weight, (self.out_features, self.in_features), self.weight_scale)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.nbytes for buffer in self.buffers())

    def forward(self, x: Tensor | QuantizedRows) -> Tensor:
        """(..., n) of x (..., k), in x's dtype."""
        buffers = self._buffers
        if isinstance(x, QuantizedRows):  # which have the smooth scales already
            rows: Tensor = x.codes
            scale: Tensor | None = x.scale
            smooth, mode = None, "pertoken"
        elif isinstance(x, Tensor):
            rows, scale, smooth = x, buffers["x_scale"], buffers["smooth_scale"]
            mode = "pertoken" if scale is None else "pertensor"
        else:
            raise TypeError(f"x is a {type(x).__name__}; accepted: a tensor or QuantizedRows")
        flat = rows.dim() == 1
        if flat:
            rows, scale = rows.unsqueeze(0), None if scale is None else scale.reshape(1)
        arguments = (
            rows, buffers["weight"], buffers["weight_scale"], None, scale, smooth, mode, True,
            (self.out_features, self.in_features), x.dtype, CONVENTION,
        )  # fmt: skip
        try:
            out: Tensor = OPERATOR(*arguments)
        except REFUSALS as error:
            raise reason(OPERATOR, arguments, error) from None
        out = out.squeeze(0) if flat else out
        bias = buffers["bias"]
        return out if bias is None else out + bias.to(x.dtype)

    def extra_repr(self) -> str:
        parts = {
            "bias": self.bias is not None,
            "smooth": self.smooth_scale is not None,
            "static": self.x_scale is not None,
        }
        return ", ".join([f"{self.in_features}, {self.out_features}", *(name for name, has in parts.items() if has)])


class QuantLinearPart(nn.Module):
    """Some of the outputs of a `QuantLinear` that several linears share (q, k, v; gate, up).

    The first part to be called on `QuantizedRows` computes all outputs in one product and leaves them with the rows,
    and the other parts take theirs from there. The shared linear is not a child of this module: it is registered once,
    where it belongs to, so that state dicts hold its weights once.

    Args:
        shared: the linear of all outputs.
        start, stop: which of its outputs are this part's.

    Raises ValueError for a range outside the outputs.
    """

    def __init__(self, shared: QuantLinear, start: int, stop: int) -> None:
        super().__init__()
        if not 0 <= start < stop <= shared.out_features:
            raise ValueError(
                f"start and stop are {start}, {stop}; accepted: a range within {shared.out_features} outputs"
            )
        self._shared = (shared,)  # in a tuple, lest it become a child
        self.start, self.stop = start, stop

    @property
    def shared(self) -> QuantLinear:
        return self._shared[0]

    @property
    def in_features(self) -> int:
        return self.shared.in_features

    @property
    def out_features(self) -> int:
        return self.stop - self.start

    def forward(self, x: Tensor | QuantizedRows) -> Tensor:
        """(..., stop - start) of x (..., k), in x's dtype."""
        shared, out = self._shared[0], None
        if isinstance(x, QuantizedRows) and x.product is not None and x.product[0] is shared:
            out = x.product[1]
        if out is None:
            out = shared(x)
            if isinstance(x, QuantizedRows):
                x.product = (shared, out)
        return out[..., self.start : self.stop]

    def extra_repr(self) -> str:
        return f"{self.in_features}, outputs {self.start} to {self.stop} of {self.shared.out_features}"


def quantize_weight(weight: Tensor) -> PackedWeight:
    """A float32 weight (n, k) in int8, packed: symmetric, a scale for each output, max|w| / 127.

    Raises ValueError where a weight is not finite. An output of zeros has scale 1.
    """
    absmax = weight.abs().amax(1) if weight.shape[1] else weight.new_zeros(weight.shape[0])
    checks.require(bool(absmax.isfinite().all()), "weight holds an infinity or a NaN; accepted: finite numbers")
    scale = absmax / 127
    scale = torch.where(scale > 0, scale, 1.0)  # also where the 127th part underflows, and codes would be huge
    return pack_weight((weight / scale[:, None]).round().clamp(-127, 127).to(torch.int8), scale)


def _joined_bias(linears: Sequence[nn.Linear]) -> Tensor | None:
    """The linears' biases one after the other, zeros where one has none; None where none has one."""
    if all(one.bias is None for one in linears):
        return None
    return torch.cat(
        [one.weight.new_zeros(one.out_features) if one.bias is None else one.bias.detach() for one in linears]
    )


def _static_scale(scale: Tensor | float) -> Tensor:
    value = torch.as_tensor(scale, dtype=torch.float32).detach().clone()
    checks.require(value.numel() == 1, f"x_scale has shape {tuple(value.shape)}; accepted: one number")
    checks.require(_positive(value), f"x_scale is {value.item()}; accepted: a finite positive number")
    return value.reshape(1)


def _positive(values: Tensor) -> bool:
    return bool((values > 0).all() and values.isfinite().all())
