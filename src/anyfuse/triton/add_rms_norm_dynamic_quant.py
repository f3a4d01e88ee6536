"""add_rms_norm_dynamic_quant on GPUs. The mathematics is in `ops/add_rms_norm_dynamic_quant.py`.

A program takes whole rows: up to 16384 columns they stay in registers from the load to the codes; longer ones are read
again for each pass. The sum of squares has the contract's order of 64 lanes, for which the rows are read once more,
then from the cache. Results are built to equal the CPU's bit for bit on NVIDIA. On AMD the compiler expands a division
into a sequence of fused multiply-adds; that its last bit is the correctly rounded one, on which a code may depend, is
not promised.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..ops import _memory as memory
from ..ops import _numerics as numerics
from ..ops._record import Convention
from ..ops.add_rms_norm_dynamic_quant import LARGEST, Call, Results, YDtype, outputs
from ._launch import EVERYWHERE, Launch, Variant, ones
from ._maths import float8, hifloat8, integer, magnitude_bits, narrow, total, widen

#: Columns up to which a row stays in registers; the length of the pieces of longer ones; elements of a program's rows.
ONE_PASS, PIECE, ELEMENTS = 16384, 8192, 4096

CODES = {"int8": 0, "int4": 1, "float8_e4m3fn": 2, "float8_e5m2": 3, "hifloat8": 4}


@triton.jit
def _add(x1, x2, at, mask):
    value = widen(tl.load(x1 + at, mask, other=0.0))
    if x2 is not None:
        value += widen(tl.load(x2 + at, mask, other=0.0))
    return value


@triton.jit
def _add_squares(lanes, x1, x2, start, inside, begin, end, EVEN: tl.constexpr):
    """Adds the squares of the columns from begin (a multiple of 64) to end, each lane in order. The padding adds +0.
    EVEN: end is a multiple of 64. This loop is a good part of all instructions: where it needs no mask, it has none."""
    lane = tl.arange(0, 64)[None, :]
    for k in tl.range(begin, end, 64, loop_unroll_factor=8):
        if EVEN:
            mask = inside
        else:
            mask = inside & (k + lane < end)
        value = _add(x1, x2, start + k + lane, mask)
        lanes = lanes + value * value
    return lanes


@triton.jit
def _weigh(value, r, gamma, beta, column, mask):
    value = (value * r[:, None]) * widen(tl.load(gamma + column, mask, other=0.0))
    if beta is not None:
        value = value + widen(tl.load(beta + column, mask, other=0.0))
    return value


@triton.jit
def _smooth(value, smooth, column, mask):
    if smooth is not None:
        value = value * widen(tl.load(smooth + column, mask, other=0.0))
    return value


@triton.jit
def _largest(value, mask):
    return tl.max(tl.where(mask, magnitude_bits(value), 0), axis=1)


@triton.jit
def _scale_and_factor(largest, Q: tl.constexpr, DEVICE: tl.constexpr):
    absmax = largest.to(tl.float32, bitcast=True)
    factor = tl.div_rn(Q, absmax)
    if DEVICE:
        scale = tl.div_rn(1.0, factor)
    else:
        scale = tl.div_rn(absmax, Q)
    return scale, factor


@triton.jit
def _encode(value, scale, factor, Q: tl.constexpr, CODE: tl.constexpr, DEVICE: tl.constexpr):
    if DEVICE:
        quotient = value * factor[:, None]
    else:
        quotient = tl.div_rn(value, scale[:, None])
    if CODE <= 1:
        code = tl.where((scale < float("inf"))[:, None], integer(quotient, Q), 0)
    elif CODE == 4:
        code = hifloat8(quotient)
    else:
        code = float8(quotient, CODE == 3)
    return tl.where((scale == 0)[:, None], 0, code)


@triton.jit
def _store_codes(
    y, code, row, rows, cols, begin, CODE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    if CODE == 1:
        low, high = tl.split(tl.reshape(code, (ROWS, BLOCK // 2, 2)))
        code = (low & 0xF) | ((high & 0xF) << 4)
        column = begin // 2 + tl.arange(0, BLOCK // 2)[None, :]
        cols = cols // 2
    else:
        column = begin + tl.arange(0, BLOCK)[None, :]
    mask = (row < rows)[:, None] & (column < cols)
    tl.store(y + (row * cols)[:, None] + column, code.to(tl.int8), mask)


@triton.jit(do_not_specialize=["rows"])
def kernel(
    x1, x2, gamma, beta, smooth1, smooth2, x, y1, y2, scale1, scale2, rows, cols, inverse, eps,
    Q: tl.constexpr, CODE: tl.constexpr, DEVICE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    ONE: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    if ROWS == 1:  # one program for each row: without a mask
        inside = tl.full((1, 1), True, tl.int1)
    else:
        inside = (row < rows)[:, None]
    start = (row * cols)[:, None]
    block = tl.arange(0, BLOCK)[None, :]
    lanes = tl.zeros((ROWS, 64), tl.float32)
    if ONE:
        mask = inside & (block < cols)
        value = _add(x1, x2, start + block, mask)
        if x is not None:
            tl.store(x + start + block, narrow(value, x.dtype.element_ty), mask)
        lanes = _add_squares(lanes, x1, x2, start, inside, 0, cols, EVEN)
        r = tl.div_rn(1.0, tl.sqrt_rn(total(lanes, ROWS) * inverse + eps))
        value = _weigh(value, r, gamma, beta, block, block < cols)
        if y1 is not None:
            branch = _smooth(value, smooth1, block, block < cols)
            scale, factor = _scale_and_factor(_largest(branch, mask), Q, DEVICE)
            tl.store(scale1 + row, scale, row < rows)
            _store_codes(y1, _encode(branch, scale, factor, Q, CODE, DEVICE), row, rows, cols, 0, CODE, ROWS, BLOCK)
        if y2 is not None:
            branch = _smooth(value, smooth2, block, block < cols)
            scale, factor = _scale_and_factor(_largest(branch, mask), Q, DEVICE)
            tl.store(scale2 + row, scale, row < rows)
            _store_codes(y2, _encode(branch, scale, factor, Q, CODE, DEVICE), row, rows, cols, 0, CODE, ROWS, BLOCK)
    else:
        for begin in range(0, cols, BLOCK):
            column = begin + block
            mask = inside & (column < cols)
            if x is not None:
                tl.store(x + start + column, narrow(_add(x1, x2, start + column, mask), x.dtype.element_ty), mask)
            lanes = _add_squares(lanes, x1, x2, start, inside, begin, tl.minimum(begin + BLOCK, cols), EVEN)
        r = tl.div_rn(1.0, tl.sqrt_rn(total(lanes, ROWS) * inverse + eps))
        largest1 = tl.zeros((ROWS,), tl.int32)
        largest2 = tl.zeros((ROWS,), tl.int32)
        for begin in range(0, cols, BLOCK):
            column = begin + block
            mask = inside & (column < cols)
            value = _weigh(_add(x1, x2, start + column, mask), r, gamma, beta, column, column < cols)
            if y1 is not None:
                largest1 = tl.maximum(largest1, _largest(_smooth(value, smooth1, column, column < cols), mask))
            if y2 is not None:
                largest2 = tl.maximum(largest2, _largest(_smooth(value, smooth2, column, column < cols), mask))
        first, factor1 = _scale_and_factor(largest1, Q, DEVICE)
        second, factor2 = _scale_and_factor(largest2, Q, DEVICE)
        if y1 is not None:
            tl.store(scale1 + row, first, row < rows)
        if y2 is not None:
            tl.store(scale2 + row, second, row < rows)
        for begin in range(0, cols, BLOCK):
            column = begin + block
            mask = inside & (column < cols)
            value = _weigh(_add(x1, x2, start + column, mask), r, gamma, beta, column, column < cols)
            if y1 is not None:
                code = _encode(_smooth(value, smooth1, column, column < cols), first, factor1, Q, CODE, DEVICE)
                _store_codes(y1, code, row, rows, cols, begin, CODE, ROWS, BLOCK)
            if y2 is not None:
                code = _encode(_smooth(value, smooth2, column, column < cols), second, factor2, Q, CODE, DEVICE)
                _store_codes(y2, code, row, rows, cols, begin, CODE, ROWS, BLOCK)


def launches(call: Call, results: Results) -> list[Launch]:
    """The launches of one call; the tensors are contiguous, results of shape (0,) are not produced."""
    y1, y2, x, scale1, scale2 = results
    cols = call.x1.shape[-1]
    rows = call.x1.numel() // cols
    one = cols <= ONE_PASS
    block = max(triton.next_power_of_2(cols), 64) if one else PIECE
    rows_each = max(1, min(ELEMENTS // block, 4))
    arguments: dict[str, Any] = {
        "x1": call.x1,
        "x2": call.x2,
        "gamma": call.gamma,
        "beta": call.beta,
        "smooth1": call.smooth_scale1,
        "smooth2": call.smooth_scale2,
        "x": None if call.x2 is None else x,
        "y1": _produced(y1),
        "y2": _produced(y2),
        "scale1": _produced(scale1),
        "scale2": _produced(scale2),
        "rows": rows,
        "cols": cols,
        "inverse": numerics.f32(1.0 / cols),
        "eps": numerics.f32(call.epsilon),
        "Q": LARGEST[call.y_dtype],
        "CODE": CODES[call.y_dtype],
        "DEVICE": call.convention == "device",
        "ROWS": rows_each,
        "BLOCK": block,
        "ONE": one,
        "EVEN": cols % 64 == 0,
    }
    warps = max(1, min(rows_each * block // 1024, 16))
    return [Launch(kernel, (-(-rows // rows_each),), arguments, num_warps=warps)]


def _produced(result: Tensor) -> Tensor | None:
    if result.numel() == 0:
        return None
    return result if result.dtype == torch.float32 else result.view(torch.int8)


def run(call: Call) -> Results:
    results = outputs(call)
    if call.x1.numel() == 0:  # the maximum of nothing is 0
        results[3].zero_()
        results[4].zero_()
        return results
    for launch in launches(memory.with_contiguous(call), results):
        launch.run()
    return results


def variants() -> Iterator[Variant]:
    """What is compiled ahead of time."""

    def launch(cols: int, dtype: torch.dtype, y_dtype: YDtype, two: bool, convention: Convention = "formula") -> Launch:
        x, weight = ones(8, cols, dtype=dtype), ones(cols, dtype=dtype)
        smooth = weight if two else None
        call = Call(
            x, x, weight, smooth, smooth, beta=weight, epsilon=1e-6, output1=True, output2=two, y_dtype=y_dtype,
            convention=convention,
        )  # fmt: skip
        return launches(call, outputs(call))[0]

    name = "add_rms_norm_dynamic_quant"
    yield Variant(name, "bf16, 4096 columns, two int8", launch(4096, torch.bfloat16, "int8", True), EVERYWHERE)
    yield Variant(name, "fp16, 1000 columns, int4, device", launch(1000, torch.float16, "int4", False, "device"))
    yield Variant(name, "fp32, 16384 columns, hifloat8", launch(16384, torch.float32, "hifloat8", False))
    yield Variant(name, "fp32, one element, device", launch(1, torch.float32, "float8_e5m2", False, "device"))
    yield Variant(name, "bf16, 40000 columns, float8", launch(40000, torch.bfloat16, "float8_e4m3fn", False))
