"""How far a result is from its golden, and whether that is near enough.

The rule for floats is that of the official LazyAdam test. With a = |out - golden| and
r = a / (max(|out|, |golden|) + 1e-9), an output of N elements fails only if

    not every a is ≤ loss,  and  not every r is ≤ loss,  and  both counts beyond the loss exceed N·count_loss.

NaN is within only against NaN, an infinity only against the same one. Codes (integers, packed int4, 8-bit floats) must
be equal, or at most `lsb` steps apart. Another size or dtype always fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from .._checks import dtype_name

CHUNK = 1 << 20  # elements at a time: the float64 intermediates stay small beside the tensors

COUNT_LOSS = 1e-6
LOSS = {torch.float64: 1e-6, torch.float32: 1e-6, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}

_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass
class Comparison:
    """One output against its golden. `beyond_*` count elements outside the loss, `different` those whose bits differ
    (all NaNs count as one value, +0 is not -0), `max_ulp` is the largest distance in representable values (codes: in
    steps) among elements that are both numbers."""

    name: str
    dtype: str
    elements: int
    passed: bool = False
    reason: str = ""
    bit_equal: bool = False
    different: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    beyond_abs: int = 0
    beyond_rel: int = 0
    max_ulp: int = 0
    nan_mismatches: int = 0
    loss: float | None = None
    count_loss: float | None = None
    lsb: int | None = None


def compare(
    name: str,
    out: Tensor,
    golden: Tensor,
    *,
    loss: float | None = None,
    count_loss: float = COUNT_LOSS,
    lsb: int = 0,
    encoding: str | None = None,
) -> Comparison:
    """Judges one output. `loss` None takes the default of the dtype; `encoding` is "int4" (two per byte or eight per
    int32, low nibble first) or "hifloat8" for codes in another dtype."""
    result = Comparison(name, encoding or dtype_name(golden.dtype), golden.numel())
    if out.dtype != golden.dtype:
        result.reason = f"dtype {dtype_name(out.dtype)}, golden {dtype_name(golden.dtype)}"
        return result
    if out.shape != golden.shape:
        result.reason = f"shape {tuple(out.shape)}, golden {tuple(golden.shape)}"
        return result
    codes = encoding is not None or golden.dtype not in LOSS
    if codes:
        result.lsb = lsb
    else:
        result.loss = LOSS[golden.dtype] if loss is None else loss
        result.count_loss = count_loss
    out, golden = out.detach().reshape(-1), golden.detach().reshape(-1)
    chunks = zip(out.split(CHUNK), golden.split(CHUNK), strict=True)
    result.elements = sum(_add_chunk(result, a, b, encoding) for a, b in chunks)
    result.bit_equal = result.different == 0
    _judge_codes(result) if codes else _judge_floats(result)
    return result


@dataclass(frozen=True)
class Distances:
    """Element by element: errors, and how many representable values (of codes: steps) lie between.

    `numbers` marks the elements where neither side is NaN (`ulp` says something there alone), `one_nan` those where
    one is: their errors are infinite.
    """

    absolute: Tensor
    relative: Tensor
    ulp: Tensor
    numbers: Tensor
    one_nan: Tensor


def distances(out: Tensor, golden: Tensor, encoding: str | None = None) -> Distances:
    """The distances between two tensors of one dtype and shape, whose values are `unpacked`."""
    x, y = _values(out, encoding), _values(golden, encoding)
    nan_x, nan_y = x.isnan(), y.isnan()
    one_nan = nan_x ^ nan_y
    a = torch.where((x == y) | (nan_x & nan_y), 0.0, (x - y).abs())
    a = torch.where(one_nan, torch.inf, a)
    r = torch.where(a == torch.inf, torch.inf, a / (torch.maximum(x.abs(), y.abs()) + 1e-9))
    r = torch.where(a == 0, 0.0, r)
    ulp = (_steps(out, encoding) - _steps(golden, encoding)).abs()
    return Distances(a, r, ulp, ~(nan_x | nan_y), one_nan)


def _add_chunk(result: Comparison, out: Tensor, golden: Tensor, encoding: str | None) -> int:
    """Adds a chunk's statistics and returns its number of values (packed codes hold several in an element)."""
    out, golden = unpacked(out, encoding), unpacked(golden, encoding)
    elements = out.numel()
    bits_out, bits_golden = _bits(out), _bits(golden)
    differ = bits_out != bits_golden
    if not differ.any():
        return elements
    # Elements of equal bits add nothing, and are nearly all of them as a rule.
    apart = distances(bits_out[differ].view(out.dtype), bits_golden[differ].view(golden.dtype), encoding)
    a, r, ulp = apart.absolute, apart.relative, apart.ulp[apart.numbers]

    one_nan = int(apart.one_nan.sum())
    result.nan_mismatches += one_nan
    result.different += int((apart.numbers | apart.one_nan).sum())
    result.max_abs = max(result.max_abs, float(a.max()))
    result.max_rel = max(result.max_rel, float(r.max()))
    result.max_ulp = max(result.max_ulp, int(ulp.max()) if ulp.numel() else 0)
    if result.loss is not None:
        result.beyond_abs += int((a > result.loss).sum())
        result.beyond_rel += int((r > result.loss).sum())
    else:
        result.beyond_abs += int((ulp > (result.lsb or 0)).sum()) + one_nan
    return elements


def _judge_floats(result: Comparison) -> None:
    allowed = result.elements * (result.count_loss or 0.0)
    if result.bit_equal:
        result.passed, result.reason = True, "bit-equal"
    elif result.beyond_abs == 0:
        result.passed, result.reason = True, "every absolute error is within the loss"
    elif result.beyond_rel == 0:
        result.passed, result.reason = True, "every relative error is within the loss"
    elif min(result.beyond_abs, result.beyond_rel) <= allowed:
        result.passed, result.reason = True, f"no more than {allowed:g} elements are beyond the loss"
    else:
        counts = f"{result.beyond_abs:,} absolute and {result.beyond_rel:,} relative errors"
        result.reason = f"{counts} are beyond the loss of {result.loss:g}; {allowed:g} of each allowed"


def _judge_codes(result: Comparison) -> None:
    result.passed = result.beyond_abs == 0
    if result.bit_equal:
        result.reason = "bit-equal"
    elif result.passed:
        result.reason = f"every code is within {result.lsb}"
    else:
        result.reason = f"{result.beyond_abs} codes differ by more than {result.lsb}"


# ---- values, bits and the order of codes ----


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(_WHOLE[tensor.element_size()])


def _values(tensor: Tensor, encoding: str | None) -> Tensor:
    if encoding == "hifloat8":
        return _hifloat8_table()[tensor.long()]
    return tensor.to(torch.float64)


def _steps(tensor: Tensor, encoding: str | None) -> Tensor:
    """Integers whose difference counts the representable values between two elements; -0 and +0 are one."""
    if encoding == "hifloat8":
        return torch.searchsorted(_hifloat8_order(), _hifloat8_table()[tensor.long()])
    if not tensor.dtype.is_floating_point:
        return tensor.to(torch.int64)
    bits = _bits(tensor).to(torch.int64)
    magnitude = bits & ((1 << (8 * tensor.element_size() - 1)) - 1)
    return torch.where(bits < 0, -magnitude, magnitude)


def unpacked(tensor: Tensor, encoding: str | None) -> Tensor:
    """One value to an element: of int4 the signed nibbles of packed bytes or words, low nibble first."""
    if encoding != "int4":
        return tensor
    nibbles = torch.stack((_bytes(tensor) & 15, _bytes(tensor) >> 4), dim=-1).flatten()
    return (nibbles ^ 8).to(torch.int8) - 8


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


@lru_cache(maxsize=1)
def _hifloat8_table() -> Tensor:
    from .. import formats

    return formats.decode_hifloat8(torch.arange(256, dtype=torch.uint8)).double()


@lru_cache(maxsize=1)
def _hifloat8_order() -> Tensor:
    table = _hifloat8_table()
    return table[~table.isnan()].sort().values
