r"""Rows quantized to int8, times int8 weights, back to float, in one pass (torch_npu's `npu_quant_matmul_dequant`).

For each row x of k values and each output column j with weights W[j], in fp32, every operation rounded once, in this
order:

    v       = x·smooth_scale
    x_scale = max|v| / 127                          (dynamic: no x_scale given)
    q       = clamp(rint(v / x_scale), -128, 127)   rounded half to even, after a true division
    acc     = Σ q·W[j] + bias[j]                    exact: int32 products and sums, bias added in 64 bits
    out[j]  = (fp32(acc)·weight_scale[j])·x_scale   then rounded to the output's dtype

With int64 weight scales their low 32 bits are the fp32 product weight_scale·x_scale, and the last factor is left out.
`convention="device"`: the dynamic maximum is taken of v rounded to x's dtype, and q = rint(v·(1/x_scale)).

A row is on its own: what it holds, and how many rows there are, changes no other. A scale of 0 (a row of zeros, a
maximum so small that its 127th part underflows, or 0 given) makes q and the row's outputs +0. A NaN in v makes the row
NaN; an infinity makes it NaN when the scale is dynamic, and saturates when it is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from .._opspec import OpSpec, register
from .._settings import convention_or_default, use_reference
from .._soc import Profiles, restricted
from ..formats.blocked import nz_to_nd
from ..packed import PackedWeight, packed_shape
from . import _checks as checks
from . import _memory as memory
from . import _numerics as numerics
from ._record import Convention
from ._register import define

RETURNS = "Tensor"

QuantMode = Literal["pertoken", "pertensor"]


class Call(NamedTuple):
    """The schema's arguments."""

    x: Tensor
    weight: Tensor
    weight_scale: Tensor
    bias: Tensor | None
    x_scale: Tensor | None
    smooth_scale: Tensor | None
    quant_mode: QuantMode
    transpose_weight: bool
    packed: list[int]
    out_dtype: torch.dtype | None
    convention: Convention


PROFILES = Profiles("quant_matmul_dequant")

MODES = get_args(QuantMode)
MAX_K = 131071  # 131072·128·128 = 2^31 would not fit int32


def quant_matmul_dequant(
    x: Tensor,
    weight: Tensor | PackedWeight,
    weight_scale: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    x_scale: Tensor | None = None,
    x_offset: None = None,
    smooth_scale: Tensor | None = None,
    quant_mode: str = "pertoken",
    transpose_weight: bool = True,
    out_dtype: torch.dtype | None = None,
    convention: str | None = None,
) -> Tensor:
    """Quantizes the rows of x to int8, multiplies them with int8 weights, and scales the exact sums back to float.

    The mathematics is in this module's docstring.

    Args:
        x: (..., k), at least 2 dimensions; m is the number of its rows. float32, float16, bfloat16; or int8: rows that
            are quantized already, whose scales are in x_scale (as `add_rms_norm_dynamic_quant` gives them).
        weight: a `PackedWeight` (fastest: see `pack_weight`), or an int8 tensor: (n, k), or FRACTAL_NZ (ceil(k/32),
            ceil(n/16), 16, 32); with `transpose_weight=False` (k, n), or (ceil(n/32), ceil(k/16), 16, 32). Any n; k up
            to 131071. What pads FRACTAL_NZ blocks is not used.
        weight_scale: (n,) or (1, n), float32; or int64, holding weight_scale·x_scale (`formats.pack_scale_int64`),
            which needs a float16 x_scale and `quant_mode="pertensor"`. A PackedWeight may bring it along instead.
        bias: (n,) int32, added to the sums before they are scaled.
        x_scale: the scale of x: per token (m,), (m, 1), or x's leading dimensions; per tensor (1,) or 0-dim.
            float32, or float16 beside an int64 weight_scale. None: from each row (dynamic; per token only). With int8
            x it is required, per token, and taken as it is: a NaN makes its row NaN.
        x_offset: must be None; there is no asymmetric quantization.
        smooth_scale: (k,) factors of x's columns; float32, float16 or bfloat16; not with int8 x.
        quant_mode: "pertoken" or "pertensor": whether x_scale is one number a row, or one in all.
        transpose_weight: True when a weight tensor has its n output columns first. A PackedWeight knows by itself.
        out_dtype: float32, float16 or bfloat16; default x's dtype, required with int8 x.
        convention: "formula" (the document) or "device" (the order of the NPU's kernel); default `ANYFUSE_CONVENTION`.

    Returns:
        (..., n): x's leading dimensions, then the output columns.

        Gradients: none reaches x, as it is quantized; a layer below does not learn through the product, and torch warns
        of it in a backward.

    Raises:
        TypeError: a dtype or a kind of argument that is not accepted.
        ValueError: shapes that do not fit together, k > 131071, an unknown mode, scales that are NaN, x_offset given.

    Example:
        >>> import torch, anyfuse
        >>> x, weight = torch.tensor([[1.0, -2.0, 0.5, 0.25]]), torch.tensor([[127, -128, 3, -4]], dtype=torch.int8)
        >>> anyfuse.quant_matmul_dequant(x, weight, torch.tensor([0.5]))
        tensor([[192.2520]])
    """
    weight, weight_scale, packed = taken_apart(weight, weight_scale, x_offset)
    return product(
        x, weight, weight_scale, bias, x_scale, smooth_scale, quant_mode, transpose_weight, packed, out_dtype,
        convention_or_default(convention),
    )  # fmt: skip


# ---- checks: dtypes, shapes and attributes; no value and no address. The grouped operator shares them ----


def taken_apart(weight: Any, weight_scale: Any, x_offset: Any) -> tuple[Any, Any, tuple[int, ...]]:
    """The weight as a tensor, its scale, and a PackedWeight's shape (of a plain weight none)."""
    checks.require(x_offset is None, f"x_offset is a {type(x_offset).__name__}; accepted: None")
    if not isinstance(weight, PackedWeight):
        return weight, weight_scale, ()
    return weight.data, weight.scale if weight_scale is None else weight_scale, weight.shape


def check(call: Call) -> torch.dtype:
    """Refuses what the docstring does not list. Returns the output's dtype."""
    return check_product(call, (), PROFILES)


def check_product(call: Any, groups: tuple[int, ...], profiles: Profiles) -> torch.dtype:
    """`check` of a record that has the arguments of `Call`. `groups`: what weight, weight_scale and bias have in front
    of their dimensions here, nothing or the number of groups."""
    x, weight, weight_scale, x_scale, smooth_scale = (
        call.x,
        call.weight,
        call.weight_scale,
        call.x_scale,
        call.smooth_scale,
    )
    quant_mode, out_dtype = call.quant_mode, call.out_dtype
    if quant_mode not in MODES:
        raise ValueError(f"quant_mode is {quant_mode!r}; accepted: 'pertoken', 'pertensor'")
    checks.require_tensor("x", x, (*checks.FLOATS, torch.int8))
    checks.require_tensor("weight", weight, (torch.int8,))
    checks.require_tensor("weight_scale", weight_scale, (torch.float32, torch.int64))
    if x.dim() < 2:
        raise ValueError(f"x has shape {tuple(x.shape)}; accepted: 2 dimensions or more")
    k = x.shape[-1]
    if k > MAX_K:
        raise ValueError(f"x has {k} columns; accepted: at most {MAX_K}, so that every sum fits 32 bits")
    if weight_scale.dim() == 0 or tuple(weight_scale.shape[:-1]) not in ((groups,) if groups else ((), (1,))):
        accepted = (
            f"({groups[0]}, n), one for an output column of each group" if groups else "(n,), one for an output column"
        )
        raise ValueError(f"weight_scale has shape {tuple(weight_scale.shape)}; accepted: {accepted}")
    n = weight_scale.shape[-1]
    _check_weight(weight, n, k, groups, call.transpose_weight, call.packed)
    m = math.prod(x.shape[:-1])
    if call.bias is not None:
        checks.require_tensor("bias", call.bias, (torch.int32,))
        checks.require_shape("bias", call.bias, (*groups, n), "one entry for an output column")
    if smooth_scale is not None:
        checks.require_tensor("smooth_scale", smooth_scale, checks.FLOATS)
        shape = (*groups, k) if smooth_scale.dim() > 1 else (k,)
        checks.require_shape("smooth_scale", smooth_scale, shape, "one factor for a column of x")
    _check_x_scale(x, x_scale, weight_scale, m, quant_mode)
    if x.dtype == torch.int8:
        checks.require(
            smooth_scale is None, "smooth_scale is given with int8 x; accepted: None, as x is quantized already"
        )
        checks.require(out_dtype is not None, "out_dtype is None with int8 x; accepted: float32, float16, bfloat16")
    dtype: torch.dtype = x.dtype if out_dtype is None else out_dtype
    if dtype not in checks.FLOATS:
        raise TypeError(f"out_dtype is {checks.names([dtype])}; accepted: {checks.names(checks.FLOATS)}")
    if restricted():
        profiles.check(**{**call._asdict(), "out_dtype": dtype}, n=n, k=k)
    return dtype


def _check_weight(
    weight: Tensor, n: int, k: int, groups: tuple[int, ...], transpose_weight: bool, packed: list[int]
) -> None:
    if packed:
        size = (*groups, n, k)
        if tuple(packed) != size or tuple(weight.shape) != packed_shape(*size):
            names = "(groups, n, k)" if groups else "(n, k)"
            raise ValueError(
                f"weight is packed for {tuple(packed)} in blocks {tuple(weight.shape)}; accepted: {names} = {size} in "
                f"{packed_shape(*size)}, as weight_scale and x are"
            )
        return
    expected: tuple[int, ...]
    if weight.dim() == len(groups) + 4:
        expected = (-(-k // 32), -(-n // 16), 16, 32) if transpose_weight else (-(-n // 32), -(-k // 16), 16, 32)
    else:
        expected = (n, k) if transpose_weight else (k, n)
    expected = (*groups, *expected)
    if tuple(weight.shape) != expected:
        raise ValueError(
            f"weight has shape {tuple(weight.shape)}; accepted: {expected}, as weight_scale has {n} columns and x {k}, "
            f"with transpose_weight={transpose_weight}"
        )


def _check_x_scale(x: Tensor, x_scale: Tensor | None, weight_scale: Tensor, m: int, quant_mode: str) -> None:
    quantized, int64 = x.dtype == torch.int8, weight_scale.dtype == torch.int64
    if int64 and (quantized or x_scale is None or quant_mode != "pertensor"):
        raise ValueError(
            "weight_scale is int64; accepted: only with a float16 x_scale, quant_mode='pertensor' and float x"
        )
    if quantized and (x_scale is None or quant_mode != "pertoken"):
        raise ValueError("x_scale or quant_mode does not fit int8 x; accepted: an x_scale for each row, 'pertoken'")
    if x_scale is None:
        checks.require(quant_mode == "pertoken", "x_scale is None; accepted: a scale, as quant_mode is 'pertensor'")
        return
    expected = torch.float16 if int64 else torch.float32
    if x_scale.dtype != expected:
        raise TypeError(
            f"x_scale has dtype {checks.names([x_scale.dtype])}; accepted: {checks.names([expected])} beside a "
            f"weight_scale of {checks.names([weight_scale.dtype])}"
        )
    shape = tuple(x_scale.shape)
    if quant_mode == "pertensor":
        checks.require(
            shape in ((), (1,)), f"x_scale has shape {shape}; accepted: () or (1,), as quant_mode is 'pertensor'"
        )
    elif shape != (m,) and shape != (m, 1) and shape != tuple(x.shape[:-1]):
        raise ValueError(f"x_scale has shape {shape}; accepted: {(m,)} or {(m, 1)}, one scale for a row of x")


def check_values(x: Tensor, x_scale: Tensor | None) -> None:
    """Refuses given scales that are NaN; those of int8 rows are results, and pass."""
    if x_scale is not None and x.dtype != torch.int8:
        checks.require(not bool(x_scale.isnan().any()), "x_scale holds NaN; accepted: numbers")


# ---- reference ----


def reference(call: Call) -> Tensor:
    """In plain PyTorch. The definition of the operator's numbers."""
    k, n, weight_scale = call.x.shape[-1], call.weight_scale.shape[-1], call.weight_scale
    x, x_scale = call.x.reshape(call.x.shape[:-1].numel(), k), call.x_scale
    dtype = call.x.dtype if call.out_dtype is None else call.out_dtype
    weight = plain_weight(call.weight, n, k, call.transpose_weight, bool(call.packed))
    if x.dtype == torch.int8:
        assert x_scale is not None
        q, factor = x, x_scale.reshape(-1, 1)
    else:
        q, factor = quantize_rows(x, x_scale, call.smooth_scale, call.convention)
    acc = (q.double() @ weight.double().T).to(torch.int64)  # integers below 2^53: exact in any order
    if call.bias is not None:
        acc = acc + call.bias
    if weight_scale.dtype == torch.int64:
        scale = weight_scale.to(torch.int32).view(torch.float32)
        factor = torch.where((factor == 0) | factor.isnan(), factor, torch.ones(()))
    else:
        scale = weight_scale
    out = numerics.real(acc) * scale.reshape(1, -1) * factor
    out = torch.where(factor == 0, torch.zeros(()), out).to(dtype)
    return out.reshape(*call.x.shape[:-1], n)


def quantize_rows(
    x: Tensor, x_scale: Tensor | None, smooth_scale: Tensor | None, convention: str
) -> tuple[Tensor, Tensor]:
    """The codes (m, k), as floats, and each row's scale (m, 1), NaN where the row is."""
    device = convention == "device"
    v = numerics.real(x) if smooth_scale is None else numerics.real(x) * numerics.real(smooth_scale)
    if x_scale is None:
        seen = (numerics.real(v.to(x.dtype)) if device else v).abs()
        largest = seen.amax(1, keepdim=True) if x.shape[1] else v.new_zeros(x.shape[0], 1)
        scale = largest / torch.tensor(127.0)
        nan = ~scale.isfinite()
    else:
        scale = numerics.real(x_scale).reshape(-1, 1).expand(x.shape[0], 1)
        nan = torch.zeros(x.shape[0], 1, dtype=torch.bool)
    nan = nan | v.isnan().any(1, keepdim=True)
    divisor = torch.where(scale == 0, torch.tensor(math.inf), scale)
    q = v * (torch.ones(()) / divisor) if device else v / divisor
    q = q.clamp(-128, 127).round()
    return torch.where(q.isnan(), torch.zeros(()), q), torch.where(nan, torch.tensor(math.nan), scale)


# ---- what is not plain ----


def _general(call: Call) -> Tensor:
    check(call)
    check_values(call.x, call.x_scale)
    return reference(call) if use_reference() else _native(*with_plain_weight(call))


def with_plain_weight(call: Any) -> Any:
    """The call with contiguous tensors. A transposed view of a weight is the other orientation, and is not copied."""
    weight, transpose = call.weight, call.transpose_weight
    if not call.packed and weight.dim() < 4 and not weight.is_contiguous() and weight.mT.is_contiguous():
        call = call._replace(weight=weight.mT, transpose_weight=not transpose)
    return memory.with_contiguous(call)


def plain_weight(weight: Tensor, n: int, k: int, transpose_weight: bool, packed: bool) -> Tensor:
    """A weight as the matrix (n, k)."""
    if packed:
        return PackedWeight(weight, (n, k)).to_nd()
    shape = (n, k) if transpose_weight else (k, n)
    matrix = nz_to_nd(weight, shape) if weight.dim() == 4 else weight
    return matrix if transpose_weight else matrix.t()


def result(call: Any, dtype: torch.dtype) -> Tensor:
    """The output without values."""
    out: Tensor = call.x.new_empty((*call.x.shape[:-1], call.weight_scale.shape[-1]), dtype=dtype)
    return out


#: The operator by position, as its record has it.
product: Callable[..., Tensor]
product, _ = define("quant_matmul_dequant", Call, _general, lambda call: result(call, check(call)))
_native = torch.ops.anyfuse.quant_matmul_dequant.default


register(
    OpSpec(
        name="quant_matmul_dequant",
        function=quant_matmul_dequant,
        document="npu_quant_matmul_dequant",
        summary="rows quantized to int8, times int8 weights, back to float",
        outputs=("out",),
        profiles=PROFILES,
    )
)
