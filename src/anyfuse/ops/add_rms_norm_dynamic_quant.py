r"""Residual add, RMSNorm and dynamic per-row quantization in one pass (CANN's `aclnnAddRmsNormDynamicQuantV2`).

For each row of n elements, in fp32, every operation rounded once, in this order:

    x     = x1 + x2                                (returned rounded to x1's dtype; used unrounded below)
    ms    = (Σ x·x) · fp32(1/n)
    r     = 1 / sqrt(ms + epsilon)
    norm  = ((x·r)·gamma) + beta                   (without beta: (x·r)·gamma)
    in_k  = norm·smooth_scale_k                    (without smooth_scale_k: norm)        k = 1, 2
    A     = max |in_k|
    scale_k = A / Q
    y_k   = code(in_k / scale_k)

with code and Q of y_dtype:

    int8             127     nearest integer, ties to even, clamped to ±Q
    int4               7     the same; two codes in a byte
    float8_e4m3fn    448     nearest, ties to even, saturating
    float8_e5m2    57344     the same
    hifloat8       32768     nearest, ties away from zero, saturating

The sum of a row has one order: 64 lanes, element k in lane k mod 64, each lane adding in order from +0; then lane i +
lane i+half for half = 32, 16, 8, 4, 2, 1.

A row whose scale is 0 (a zero row, or a scale that underflows) has the code 0 everywhere. An infinity or a NaN in x
makes that row's scale NaN; so does a zero row when epsilon is 0, being 0/0. An infinity that first arises in gamma,
beta or smooth_scale makes the scale infinite. Codes of NaN are 0 (integers), 0x7F (8-bit floats), 0x80 (HiFloat8).
Rows do not touch each other, and a row of no elements has scale 0.

`convention="device"` is the order of the Ascend 910B kernel: k = Q / A, scale_k = 1 / k, y_k = code(in_k·k).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .._opspec import OpSpec, register
from .._settings import convention_or_default, use_reference
from .._soc import Profiles, restricted
from ..formats.lowbits import cast_float8, encode_hifloat8, pack_int4
from . import _checks as checks
from . import _memory as memory
from . import _numerics as numerics
from ._record import Convention
from ._register import define

RETURNS = "(Tensor y1, Tensor y2, Tensor x, Tensor scale1, Tensor scale2)"

YDtype = Literal["int8", "int4", "float8_e4m3fn", "float8_e5m2", "hifloat8"]

NAMES = ("gamma", "smooth_scale1", "smooth_scale2", "beta")


#: y1, y2, x, scale1, scale2
Results = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class Call(NamedTuple):
    """The schema's arguments."""

    x1: Tensor
    x2: Tensor | None
    gamma: Tensor
    smooth_scale1: Tensor | None
    smooth_scale2: Tensor | None
    beta: Tensor | None
    epsilon: float
    output1: bool
    output2: bool
    y_dtype: YDtype
    convention: Convention

    @property
    def weights(self) -> tuple[Tensor | None, ...]:
        return self.gamma, self.smooth_scale1, self.smooth_scale2, self.beta

    @property
    def outputs(self) -> tuple[bool, bool]:
        return self.output1, self.output2


#: Accepted y_dtype and its name in the schema and the C API.
Y_NAMES: dict[Any, str] = {
    torch.int8: "int8",
    "int4": "int4",
    torch.float8_e4m3fn: "float8_e4m3fn",
    torch.float8_e5m2: "float8_e5m2",
    "hifloat8": "hifloat8",
}

#: What a row's largest magnitude is scaled to.
LARGEST = {"int8": 127.0, "int4": 7.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "hifloat8": 32768.0}

#: What carries the codes.
CARRIERS = {
    "int8": torch.int8,
    "int4": torch.uint8,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "hifloat8": torch.uint8,
}


PROFILES = Profiles("add_rms_norm_dynamic_quant")


def add_rms_norm_dynamic_quant(
    x1: Tensor,
    x2: Tensor | None,
    gamma: Tensor,
    *,
    smooth_scale1: Tensor | None = None,
    smooth_scale2: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
    output_mask: Sequence[bool] | None = None,
    y_dtype: torch.dtype | str = torch.int8,
    convention: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Adds a residual, normalizes each row (RMSNorm) and quantizes it with a scale of its own, once or twice.

    The mathematics is in this module's docstring. `y * scale.unsqueeze(-1)` is close to `norm * smooth_scale`.

    Args:
        x1, x2: what is added; one shape of at least one dimension, rows along the last one; one dtype: float32, float16
            or bfloat16. May be the same tensor. x2 None: nothing is added, and x, which would be x1, is not produced.
        gamma: the norm's weight, shape (x1.shape[-1],), x1's dtype or float32.
        smooth_scale1, smooth_scale2: factors of each branch before it is quantized; as gamma.
        beta: the norm's bias, added before the smooth scales; as gamma.
        epsilon: added to the mean square; 0 or more.
        output_mask: which branches are produced, two booleans. None or empty: the first one, and the second one when
            both smooth scales are given. With a mask, a branch without smooth scale quantizes the plain norm.
        y_dtype: torch.int8, torch.float8_e4m3fn, torch.float8_e5m2, "hifloat8" (codes in uint8) or "int4" (two codes in
            a uint8, the first one in the low nibble; an even last dimension; `y.view(torch.int32)` gives the words of
            eight where the last dimension is a multiple of 8).
        convention: "formula" (the document) or "device" (the order of the NPU's kernel); default `ANYFUSE_CONVENTION`.

    Returns:
        (y1, y2, x, scale1, scale2): codes with x1's shape ("int4": half of the last dimension), the sum in x1's dtype,
        and float32 scales of shape x1.shape[:-1]. What is not produced has shape (0,). All are contiguous and new.

        Gradients: x is differentiable, as the sum that it is. Codes and scales are constants for autograd, as results
        of a quantization are: they require no gradient, and none reaches gamma, beta or the smooth scales.

    Raises:
        TypeError: a dtype or a kind of argument that is not accepted.
        ValueError: shapes that do not fit, an epsilon below 0, an output_mask that contradicts the smooth scales.

    Example:
        >>> import torch, anyfuse
        >>> x1, x2 = torch.tensor([[1.0, 2, 3, 4]]), torch.tensor([[1.0, 0, -1, 4]])
        >>> y, _, x, scale, _ = anyfuse.add_rms_norm_dynamic_quant(x1, x2, torch.ones(4))
        >>> y, x
        (tensor([[ 32,  32,  32, 127]], dtype=torch.int8), tensor([[2., 2., 2., 8.]]))
    """
    output1, output2 = produced(output_mask, smooth_scale1 is not None, smooth_scale2 is not None)
    if output_mask and not torch.compiler.is_compiling() and restricted():  # a trace cannot follow context variables
        PROFILES.check(output_mask=tuple(output_mask))
    arguments = (
        x1, x2, gamma, smooth_scale1, smooth_scale2, beta, epsilon, output1, output2, y_name(y_dtype),
        convention_or_default(convention),
    )  # fmt: skip
    if torch.is_grad_enabled() and _requires_grad(*arguments[:6]):
        results: Results = _WithGradient.apply(*arguments)  # type: ignore[no-untyped-call]
        return results
    return _op(*arguments)


def _requires_grad(*tensors: Any) -> bool:
    return True in [isinstance(tensor, Tensor) and tensor.requires_grad for tensor in tensors]


def y_name(y_dtype: Any) -> str:
    """The name of an accepted y_dtype; TypeError for another one."""
    name = Y_NAMES.get(y_dtype) if isinstance(y_dtype, (torch.dtype, str)) else None
    if name is None:
        raise TypeError(f"y_dtype is {y_dtype!r}; accepted: {', '.join(map(repr, Y_NAMES))}")
    return name


def produced(output_mask: Sequence[bool] | None, smooth1: bool, smooth2: bool) -> tuple[bool, bool]:
    """Which branches a call produces, from its mask and the smooth scales it has."""
    if output_mask is not None and not (
        isinstance(output_mask, (list, tuple)) and all(isinstance(flag, bool) for flag in output_mask)
    ):
        raise TypeError(f"output_mask is {output_mask!r}; accepted: two booleans, or None")
    if not output_mask:
        checks.require(
            smooth1 or not smooth2, "smooth_scale2 comes without smooth_scale1; accepted: both, or an output_mask"
        )
        return True, smooth1 and smooth2
    checks.require(len(output_mask) == 2, f"output_mask has {len(output_mask)} entries; accepted: 2")
    first, second = output_mask
    checks.require(first or second, "output_mask is (False, False); accepted: at least one True")
    checks.require(
        first or not smooth1, "output_mask[0] is False, and smooth_scale1 is given; accepted: one or the other"
    )
    checks.require(
        second or not smooth2, "output_mask[1] is False, and smooth_scale2 is given; accepted: one or the other"
    )
    return first, second


def check(call: Call) -> None:
    """Refuses dtypes, shapes and attributes; looks at no value and no address."""
    x1, x2, epsilon = call.x1, call.x2, call.epsilon
    dtype, shape = x1.dtype, x1.shape
    checks.require_tensor("x1", x1, checks.FLOATS)
    checks.require(len(shape) > 0, "x1 has shape (); accepted: at least one dimension")
    if x2 is not None:
        checks.require_tensor("x2", x2, (dtype,))
        checks.require_shape("x2", x2, shape, "x1")
    cols = shape[-1]
    for name, weight in zip(NAMES, call.weights, strict=True):
        if weight is None:
            continue
        if weight.dtype != dtype and weight.dtype != torch.float32:
            checks.require_tensor(name, weight, [dtype] if dtype == torch.float32 else [dtype, torch.float32])
        if weight.dim() != 1 or weight.shape[0] != cols:
            raise ValueError(f"{name} has shape {tuple(weight.shape)}; accepted: ({cols},), x1's last dimension")
    if not epsilon >= 0:
        raise ValueError(f"epsilon is {epsilon}; accepted: 0 or more")
    if call.y_dtype == "int4" and cols % 2:
        raise ValueError(f"x1 has shape {tuple(shape)}; accepted for int4: an even last dimension")
    if restricted():
        checks.require(x2 is not None, "x2 is None; accepted on products: a tensor")
        unmasked = (True, call.smooth_scale1 is not None and call.smooth_scale2 is not None)
        mask = None if call.outputs == unmasked else call.outputs
        weights = dict(zip(NAMES, call.weights, strict=True))
        PROFILES.check(x1=x1, epsilon=epsilon, output_mask=mask, y_dtype=call.y_dtype, **weights)


# ---- reference ----


def reference(call: Call) -> Results:
    """(y1, y2, x, scale1, scale2) in plain PyTorch. The definition of the operator's numbers."""
    real, f32 = numerics.real, numerics.f32
    x = real(call.x1) if call.x2 is None else real(call.x1) + real(call.x2)
    mean_square = numerics.lane_sum(x * x) * f32(1.0 / max(x.shape[-1], 1))
    r = torch.ones_like(mean_square) / numerics.correctly_rounded_sqrt(mean_square + f32(call.epsilon))
    norm = (x * r.unsqueeze(-1)) * real(call.gamma)
    if call.beta is not None:
        norm = norm + real(call.beta)
    branches = []
    for wanted, smooth in zip(call.outputs, (call.smooth_scale1, call.smooth_scale2), strict=True):
        if wanted:
            value = norm if smooth is None else norm * real(smooth)
            branches.append(quantize(value, call.y_dtype, call.convention))
        else:
            branches.append((torch.empty(0, dtype=CARRIERS[call.y_dtype]), torch.empty(0, dtype=torch.float32)))
    (y1, scale1), (y2, scale2) = branches
    return y1, y2, x.to(call.x1.dtype) if call.x2 is not None else call.x1.new_empty(0), scale1, scale2


def quantize(values: Tensor, y_dtype: str, convention: str) -> tuple[Tensor, Tensor]:
    """Codes of each row, and its scale."""
    absmax = values.abs().amax(-1) if values.shape[-1] else values.new_zeros(values.shape[:-1])
    largest = torch.full_like(absmax, LARGEST[y_dtype])
    if convention == "device":
        factor = largest / absmax
        scale = torch.ones_like(factor) / factor
        quotient = values * factor.unsqueeze(-1)
    else:
        scale = absmax / largest
        quotient = values / scale.unsqueeze(-1)
    quotient = torch.where((scale == 0).unsqueeze(-1), torch.zeros(()), quotient)
    return encode(quotient, y_dtype), scale.float()


def encode(quotient: Tensor, y_dtype: str) -> Tensor:
    if y_dtype == "hifloat8":
        return encode_hifloat8(quotient.float())
    if y_dtype not in ("int8", "int4"):
        return cast_float8(quotient.float(), CARRIERS[y_dtype])
    integers = quotient.round().clamp(-LARGEST[y_dtype], LARGEST[y_dtype])
    codes = torch.where(integers.isnan(), torch.zeros(()), integers).to(torch.int8)
    return pack_int4(codes) if y_dtype == "int4" else codes


# ---- what is not plain ----


def _general(call: Call) -> Results:
    check(call)
    if use_reference():
        return reference(call)
    results: Results = _native(*memory.with_contiguous(call))
    return results


def outputs(call: Call) -> Results:
    """Results without values: those that are not produced with shape (0,)."""
    check(call)
    x1, carrier = call.x1, CARRIERS[call.y_dtype]
    lead, cols = list(x1.shape[:-1]), x1.shape[-1]
    codes = [*lead, cols // 2 if call.y_dtype == "int4" else cols]
    y1, y2 = (x1.new_empty(codes if wanted else 0, dtype=carrier) for wanted in call.outputs)
    scale1, scale2 = (x1.new_empty(lead if wanted else 0, dtype=torch.float32) for wanted in call.outputs)
    return y1, y2, x1.new_empty(0 if call.x2 is None else x1.shape), scale1, scale2


_op: Callable[..., Results]
_op, _ = define("add_rms_norm_dynamic_quant", Call, _general, outputs)
_native = torch.ops.anyfuse.add_rms_norm_dynamic_quant.default


class _WithGradient(torch.autograd.Function):
    """The call when an input requires a gradient. Apart from `_op`, so that the others do not pay for it."""

    @staticmethod
    def forward(*arguments: Any) -> Results:
        results: Results = _op(*arguments)
        return results

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        y1, y2, _, scale1, scale2 = output
        ctx.mark_non_differentiable(y1, y2, scale1, scale2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradients[2]
        return tuple(gradient if name in ("x1", "x2") else None for name in Call._fields)


register(
    OpSpec(
        name="add_rms_norm_dynamic_quant",
        function=add_rms_norm_dynamic_quant,
        document="aclnnAddRmsNormDynamicQuantV2",
        summary="residual add, RMSNorm and one or two row-wise quantizations in one pass",
        outputs=("y1", "y2", "x", "scale1", "scale2"),
        profiles=PROFILES,
    )
)
