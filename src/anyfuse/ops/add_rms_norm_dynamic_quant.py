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
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _core
from .._opspec import OpSpec, register
from .._settings import convention_or_default, use_reference
from .._soc import Profiles, restricted
from ..formats.lowbits import cast_float8, encode_hifloat8, pack_int4
from . import _dispatch as d

SCHEMA = (
    "add_rms_norm_dynamic_quant(Tensor x1, Tensor x2, Tensor gamma, Tensor? smooth_scale1, Tensor? smooth_scale2, "
    "Tensor? beta, float epsilon, bool output1, bool output2, str y_dtype, str convention) "
    "-> (Tensor y1, Tensor y2, Tensor x, Tensor scale1, Tensor scale2)"
)

NAMES = ("gamma", "smooth_scale1", "smooth_scale2", "beta")


#: y1, y2, x, scale1, scale2
Results = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class Call(NamedTuple):
    """The schema's arguments."""

    x1: Tensor
    x2: Tensor
    gamma: Tensor
    smooth_scale1: Tensor | None
    smooth_scale2: Tensor | None
    beta: Tensor | None
    epsilon: float
    output1: bool
    output2: bool
    y_dtype: str
    convention: str

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
    x2: Tensor,
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
            or bfloat16. May be the same tensor.
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
    weights = (gamma, smooth_scale1, smooth_scale2, beta)
    require_kinds(x1, x2, weights, epsilon)
    output1, output2 = produced(output_mask, smooth_scale1 is not None, smooth_scale2 is not None)
    if output_mask and not torch.compiler.is_compiling() and restricted():  # a trace cannot follow context variables
        PROFILES.check(output_mask=tuple(output_mask))
    arguments = (x1, x2, *weights, epsilon, output1, output2, y_name(y_dtype), convention_or_default(convention))
    if torch.is_grad_enabled() and requires_grad(x1, x2, *weights):
        results: Results = _WithGradient.apply(*arguments)  # type: ignore[no-untyped-call]
        return results
    return _op(*arguments)


def require_kinds(x1: Any, x2: Any, weights: tuple[Any, ...], epsilon: Any) -> None:
    """Refuses what the dispatcher would refuse without telling the argument's name."""
    for name, value in (("x1", x1), ("x2", x2)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} is a {type(value).__name__}; accepted: a tensor of {d.names(d.FLOATS)}")
    for name, value in zip(NAMES, weights, strict=True):
        if not isinstance(value, Tensor) and (value is not None or name == "gamma"):
            accepted = "a tensor" if name == "gamma" else "a tensor or None"
            raise TypeError(f"{name} is a {type(value).__name__}; accepted: {accepted}")
    if not isinstance(epsilon, (float, int, torch.SymFloat, torch.SymInt)):
        raise TypeError(f"epsilon is a {type(epsilon).__name__}; accepted: a number")


def requires_grad(*tensors: Tensor | None) -> bool:
    return True in [tensor is not None and tensor.requires_grad for tensor in tensors]


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
        d.require(
            smooth1 or not smooth2, "smooth_scale2 comes without smooth_scale1; accepted: both, or an output_mask"
        )
        return True, smooth1 and smooth2
    d.require(len(output_mask) == 2, f"output_mask has {len(output_mask)} entries; accepted: 2")
    first, second = output_mask
    d.require(first or second, "output_mask is (False, False); accepted: at least one True")
    d.require(first or not smooth1, "output_mask[0] is False, and smooth_scale1 is given; accepted: one or the other")
    d.require(second or not smooth2, "output_mask[1] is False, and smooth_scale2 is given; accepted: one or the other")
    return first, second


def check(call: Call) -> None:
    """Refuses dtypes, shapes and attributes; looks at no value and no address."""
    x1, x2, epsilon = call.x1, call.x2, call.epsilon
    dtype, shape = x1.dtype, x1.shape
    d.require_tensor("x1", x1, d.FLOATS)
    if x2.dtype != dtype:
        d.require_tensor("x2", x2, (dtype,))
    d.require(len(shape) > 0, "x1 has shape (); accepted: at least one dimension")
    d.require_shape("x2", x2, shape, "x1")
    cols = shape[-1]
    for name, weight in zip(NAMES, call.weights, strict=True):
        if weight is None:
            continue
        if weight.dtype != dtype and weight.dtype != torch.float32:
            d.require_tensor(name, weight, [dtype] if dtype == torch.float32 else [dtype, torch.float32])
        if weight.dim() != 1 or weight.shape[0] != cols:
            raise ValueError(f"{name} has shape {tuple(weight.shape)}; accepted: ({cols},), x1's last dimension")
    if not epsilon >= 0:
        raise ValueError(f"epsilon is {epsilon}; accepted: 0 or more")
    if call.y_dtype == "int4" and cols % 2:
        raise ValueError(f"x1 has shape {tuple(shape)}; accepted for int4: an even last dimension")
    if restricted():
        unmasked = (True, call.smooth_scale1 is not None and call.smooth_scale2 is not None)
        mask = None if call.outputs == unmasked else call.outputs
        weights = dict(zip(NAMES, call.weights, strict=True))
        PROFILES.check(x1=x1, epsilon=epsilon, output_mask=mask, y_dtype=call.y_dtype, **weights)


# ---- reference ----


def reference(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    *,
    smooth_scale1: Tensor | None,
    smooth_scale2: Tensor | None,
    beta: Tensor | None,
    epsilon: float,
    outputs: tuple[bool, bool],
    y_dtype: str,
    convention: str,
) -> Results:
    """(y1, y2, x, scale1, scale2) in plain PyTorch. The definition of the operator's numbers."""
    x = d.real(x1) + d.real(x2)
    mean_square = lane_sum(x * x) * d.f32(1.0 / max(x.shape[-1], 1))
    r = torch.ones_like(mean_square) / d.correctly_rounded_sqrt(mean_square + d.f32(epsilon))
    norm = (x * r.unsqueeze(-1)) * d.real(gamma)
    if beta is not None:
        norm = norm + d.real(beta)
    branches = []
    for wanted, smooth in zip(outputs, (smooth_scale1, smooth_scale2), strict=True):
        if wanted:
            value = norm if smooth is None else norm * d.real(smooth)
            branches.append(quantize(value, y_dtype, convention))
        else:
            branches.append((torch.empty(0, dtype=CARRIERS[y_dtype]), torch.empty(0, dtype=torch.float32)))
    (y1, scale1), (y2, scale2) = branches
    return y1, y2, x.to(x1.dtype), scale1, scale2


def lane_sum(values: Tensor) -> Tensor:
    """The sum along the last dimension in the contract's order: 64 lanes, then halves onto halves."""
    chunks = -(-values.shape[-1] // 64)
    padded = values.new_zeros(*values.shape[:-1], chunks * 64)
    padded[..., : values.shape[-1]] = values
    lanes = values.new_zeros(*values.shape[:-1], 64)
    for chunk in range(chunks):
        lanes = lanes + padded[..., chunk * 64 : chunk * 64 + 64]
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes.squeeze(-1)


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


# ---- CPU ----


class Params(_core.Struct, c_name="anyfuse_add_rms_norm_dynamic_quant_params"):
    _fields_ = [
        ("size", _core.size),
        ("rows", _core.i64),
        ("cols", _core.i64),
        ("x1", _core.pointer),
        ("x2", _core.pointer),
        ("gamma", _core.pointer),
        ("smooth_scale1", _core.pointer),
        ("smooth_scale2", _core.pointer),
        ("beta", _core.pointer),
        ("y1", _core.pointer),
        ("y2", _core.pointer),
        ("x", _core.pointer),
        ("scale1", _core.pointer),
        ("scale2", _core.pointer),
        ("epsilon", _core.f64),
        ("x_dtype", _core.i32),
        ("gamma_dtype", _core.i32),
        ("smooth_scale1_dtype", _core.i32),
        ("smooth_scale2_dtype", _core.i32),
        ("beta_dtype", _core.i32),
        ("y_dtype", _core.i32),
        ("convention", _core.i32),
        ("threads", _core.i32),
    ]


_native = _core.function("add_rms_norm_dynamic_quant", Params)
number = d.NUMBERS


def _outputs(call: Call) -> Results:
    """Uninitialized results, those that are not produced with shape (0,).

    Where a tensor of the same shape is at hand, `empty_like` takes half the time of a shape.
    """
    x1, y_dtype, output1 = call.x1, call.y_dtype, call.output1
    carrier = CARRIERS[y_dtype]
    lead = list(x1.shape[:-1])
    x = torch.empty_like(x1, memory_format=torch.contiguous_format)
    if y_dtype == "int4":
        y = x1.new_empty([*lead, x1.shape[-1] // 2], dtype=carrier)
    else:
        y = torch.empty_like(x, dtype=carrier)
    scale = x1.new_empty(lead, dtype=torch.float32)
    if output1 and call.output2:
        return y, torch.empty_like(y), x, scale, torch.empty_like(scale)
    no_y, no_scale = x1.new_empty(0, dtype=carrier), x1.new_empty(0, dtype=torch.float32)
    return (y, no_y, x, scale, no_scale) if output1 else (no_y, y, x, no_scale, scale)


def _cpu(call: Call) -> Results:
    check(call)
    x1, x2, gamma, smooth_scale1, smooth_scale2, beta, epsilon, output1, output2, y_dtype, convention = call
    if use_reference():
        return reference(
            x1, x2, gamma, smooth_scale1=smooth_scale1, smooth_scale2=smooth_scale2, beta=beta, epsilon=epsilon,
            outputs=call.outputs, y_dtype=y_dtype, convention=convention,
        )  # fmt: skip
    results = _outputs(call)
    # Copies are kept by these names until the call is over.
    x1, x2, gamma = x1.contiguous(), x2.contiguous(), gamma.contiguous()
    smooth_scale1, smooth_scale2, beta = _contiguous(smooth_scale1), _contiguous(smooth_scale2), _contiguous(beta)
    y1, y2, x, scale1, scale2 = results
    branches = (y1 if output1 else None, y2 if output2 else None, scale1, scale2)
    run_native(x1, x2, gamma, smooth_scale1, smooth_scale2, beta, epsilon, branches, x, y_dtype, convention)
    return results


def run_native(
    x1: Tensor, x2: Tensor | None, gamma: Tensor, smooth_scale1: Tensor | None, smooth_scale2: Tensor | None,
    beta: Tensor | None, epsilon: float, branches: tuple[Tensor | None, Tensor | None, Tensor, Tensor],
    x: Tensor | None, y_dtype: str, convention: str,
) -> None:  # fmt: skip
    """The native call on contiguous tensors that are checked already. `branches` are y1, y2 (None where it is not
    produced) and their scales. Without x2 nothing is added; without x the sum is not stored."""
    y1, y2, scale1, scale2 = branches
    cols = x1.shape[-1]
    _native(
        Params(
            _core.sizeof(Params), x1.numel() // cols if cols else x1.shape[:-1].numel(), cols,
            x1.data_ptr(), _at(x2), gamma.data_ptr(), _at(smooth_scale1), _at(smooth_scale2), _at(beta),
            _at(y1), _at(y2), _at(x),
            scale1.data_ptr() if y1 is not None else None, scale2.data_ptr() if y2 is not None else None, epsilon,
            number[x1.dtype], number[gamma.dtype], _number(smooth_scale1), _number(smooth_scale2), _number(beta),
            _core.DTYPES[y_dtype], _core.CONVENTIONS[convention], torch.get_num_threads(),
        )
    )  # fmt: skip


def _contiguous(weight: Tensor | None) -> Tensor | None:
    return None if weight is None else weight.contiguous()


def _at(weight: Tensor | None) -> int | None:
    return None if weight is None else weight.data_ptr()


def _number(weight: Tensor | None) -> int:
    return 0 if weight is None else number[weight.dtype]


def _fake(call: Call) -> Results:
    check(call)
    return _outputs(call)


_op: Callable[..., Results] = d.define(SCHEMA, Call, _cpu, _fake)


class _WithGradient(torch.autograd.Function):
    """The call when an input requires a gradient. Apart from `_op`, so that the others do not pay for it."""

    @staticmethod
    def forward(*arguments: Any) -> Results:
        return _op(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        y1, y2, _, scale1, scale2 = output
        ctx.mark_non_differentiable(y1, y2, scale1, scale2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradients[2]
        return gradient, gradient, *(None,) * 9


register(
    OpSpec(
        name="add_rms_norm_dynamic_quant",
        function=add_rms_norm_dynamic_quant,
        schema=SCHEMA,
        document="aclnnAddRmsNormDynamicQuantV2",
        summary="residual add, RMSNorm and one or two row-wise quantizations in one pass",
        outputs=("y1", "y2", "x", "scale1", "scale2"),
        profiles=PROFILES,
    )
)
