"""quant_matmul_dequant on GPUs. The mathematics is in `ops/quant_matmul_dequant.py`.

One kernel quantizes the rows of x (int8 rows pass it by), one multiplies and scales the sums in its epilogue. Where x
has few rows, k is split between programs instead, which add their exact 32-bit sums atomically in any order, and a last
kernel scales them. Weights are read where they lie: (n, k), (k, n), both FRACTAL_NZ forms and the packed form. Tiles
are measured when a shape is first seen; all give the same bits. Results are built to equal the CPU's bit for bit on
NVIDIA. On AMD the compiler expands a division into a sequence of fused multiply-adds; that its last bit is the
correctly rounded one, on which a code may depend, is not promised. Given scales are not looked at: a negative one is
used as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..ops import _dispatch as d
from ..ops.quant_matmul_dequant import LAYOUTS, Call, check, ready_weight
from ._launch import DTYPES, Launch, Variant, fastest
from ._maths import magnitude_bits, narrow, widen

#: Columns up to which a row of x stays in registers while it is quantized; elements of a program's rows.
ONE_PASS, ELEMENTS = 8192, 4096

#: Rows of x up to which k is split.
SPLIT_ROWS = 64

#: Tiles (rows, columns, depth, warps, stages) to choose from, the first of them where nothing can be measured; and the
#: same for few rows, with the number of parts that k is split into in place of the rows.
TILES = ((128, 128, 64, 8, 3), (128, 256, 64, 8, 3), (128, 256, 128, 8, 3), (64, 128, 128, 4, 4), (64, 64, 128, 4, 4))
SPLIT_TILES = ((8, 64, 128, 4, 4), (4, 64, 256, 4, 3), (16, 64, 128, 4, 4), (2, 32, 256, 4, 4), (4, 128, 128, 4, 4))

# ---- rows of x to int8 ----


@triton.jit
def _values(x, smooth, own, start, column, mask, k):
    value = widen(tl.load(x + start + column, mask, other=0.0))
    if smooth is not None:
        value = value * widen(tl.load(smooth + own + column, column < k, other=1.0))
    return value


@triton.jit
def _seen(value, mask, ROUNDED: tl.constexpr, DTYPE: tl.constexpr):
    """What the dynamic maximum is taken of, as bits."""
    if ROUNDED:
        value = widen(narrow(value, DTYPE))
    return tl.max(tl.where(mask, magnitude_bits(value), 0), axis=1)


@triton.jit
def _row_scale(largest, x_scale, row, m, DYNAMIC: tl.constexpr, PER_TENSOR: tl.constexpr):
    """Each row's scale, and what goes on as its factor: NaN for a row that is lost."""
    if DYNAMIC:
        scale = tl.div_rn(largest.to(tl.float32, bitcast=True), 127.0)
        lost = (scale < float("inf")) == 0
    else:
        scale = widen(tl.load(x_scale + (row * 0 if PER_TENSOR else row), row < m, other=0.0))
        lost = largest > 0x7F800000
    return scale, tl.where(lost, float("nan"), scale)


@triton.jit
def _code(value, scale, DEVICE: tl.constexpr):
    divisor = tl.where(scale == 0, float("inf"), scale)
    if DEVICE:
        quotient = value * tl.div_rn(1.0, divisor)[:, None]
    else:
        quotient = tl.div_rn(value, divisor[:, None])
    quotient = tl.where(quotient == quotient, quotient, 0.0)
    quotient = tl.where(quotient < 127.0, quotient, 127.0)
    quotient = tl.where(quotient > -128.0, quotient, -128.0)
    return ((quotient + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000).to(tl.int8)


@triton.jit
def quantize_kernel(
    x, smooth, group, x_scale, q, factor, m, k, pitch,
    DYNAMIC: tl.constexpr, PER_TENSOR: tl.constexpr, DEVICE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    ONE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = (row < m)[:, None]
    start = (row * k)[:, None]
    to = (row * pitch)[:, None]
    own = start * 0  # where a row's factors begin
    if group is not None:
        own = (tl.load(group + row, row < m, other=0) * k)[:, None]
    block = tl.arange(0, BLOCK)[None, :]
    if ONE:
        mask = inside & (block < k)
        value = _values(x, smooth, own, start, block, mask, k)
        largest = _seen(value, mask, DEVICE and DYNAMIC, x.dtype.element_ty)
        scale, kept = _row_scale(largest, x_scale, row, m, DYNAMIC, PER_TENSOR)
        tl.store(q + to + block, _code(value, scale, DEVICE), mask)
        tl.store(factor + row, kept, row < m)
    else:
        largest = tl.zeros((ROWS,), tl.int32)
        for begin in range(0, k, BLOCK):
            mask = inside & (begin + block < k)
            value = _values(x, smooth, own, start, begin + block, mask, k)
            largest = tl.maximum(largest, _seen(value, mask, DEVICE and DYNAMIC, x.dtype.element_ty))
        scale, kept = _row_scale(largest, x_scale, row, m, DYNAMIC, PER_TENSOR)
        for begin in range(0, k, BLOCK):
            mask = inside & (begin + block < k)
            value = _values(x, smooth, own, start, begin + block, mask, k)
            tl.store(q + to + begin + block, _code(value, scale, DEVICE), mask)
        tl.store(factor + row, kept, row < m)


# ---- product ----


@triton.jit
def _weight_offset(column, depth, n, k, LAYOUT: tl.constexpr):
    """Where W[column, depth] lies; numbers as in `ops.quant_matmul_dequant.LAYOUTS`."""
    if LAYOUT == 0:
        at = column * k + depth
    elif LAYOUT == 1:
        at = depth * n + column
    elif LAYOUT == 2:
        at = ((depth // 32 * ((n + 15) // 16) + column // 16) * 16 + column % 16) * 32 + depth % 32
    elif LAYOUT == 3:
        at = ((column // 32 * ((k + 15) // 16) + depth // 16) * 16 + depth % 16) * 32 + column % 32
    else:
        at = ((column // 16 * ((k + 3) // 4) + depth // 4) * 16 + column % 16) * 4 + depth % 4
    return at


@triton.jit
def _advance(start, n, k, LAYOUT: tl.constexpr):
    """What `_weight_offset` grows by when depth does by start, a multiple of 32: addresses are computed once."""
    start = tl.full((), 0, tl.int64) + start
    if LAYOUT == 0:
        by = start
    elif LAYOUT == 1:
        by = start * n
    elif LAYOUT == 2:
        by = start * ((n + 15) // 16 * 16)
    elif LAYOUT == 3:
        by = start * 32
    else:
        by = start * 16
    return by


@triton.jit
def sums_of_tile(
    q, weight, row, column, m, n, k, pitch, begin, end,
    LAYOUT: tl.constexpr, EVEN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Exact sums over [begin, end) of a tile. EVEN: the tile's columns and depth lie inside the weight."""
    acc = tl.zeros((BM, BN), tl.int32)
    depth = tl.arange(0, BK)
    at_a = q + (row * pitch)[:, None] + depth[None, :]
    at_b = weight + _weight_offset(column.to(tl.int64)[None, :], depth[:, None], n, k, LAYOUT)
    for start in range(begin, end, BK):
        by = _advance(start, n, k, LAYOUT)
        if EVEN:
            a = tl.load(at_a + start, (row < m)[:, None], other=0)
            b = tl.load(at_b + by)
        else:
            a = tl.load(at_a + start, (row < m)[:, None] & (start + depth < k)[None, :], other=0)
            b = tl.load(at_b + by, (column < n)[None, :] & (start + depth < k)[:, None], other=0)
        acc = tl.dot(a, b, acc, out_dtype=tl.int32)
    return acc


@triton.jit
def scaled(acc, bias, weight_scale, factor, row, column, m, n):
    """(fp32(acc + bias)·weight_scale)·factor."""
    if bias is not None:
        sums = (acc.to(tl.int64) + tl.load(bias + column, column < n, other=0).to(tl.int64)[None, :]).to(tl.float32)
    else:
        sums = acc.to(tl.float32)
    scale = tl.load(weight_scale + column, column < n, other=0)
    by = tl.load(factor + row, row < m, other=0.0)
    if weight_scale.dtype.element_ty == tl.int64:  # the bits of the product of both scales
        scale = scale.to(tl.int32).to(tl.float32, bitcast=True)
        last = tl.where((by == 0) | (by != by), by, 1.0)
    else:
        last = by
    out = (sums * scale[None, :]) * last[:, None]
    return tl.where((by == 0)[:, None], 0.0, out)


@triton.jit
def store_tile(out, value, row, column, m, n, DTYPE: tl.constexpr):
    at = (row * n)[:, None] + column[None, :]
    tl.store(out + at, narrow(value, DTYPE), (row < m)[:, None] & (column < n)[None, :])


@triton.jit
def matmul_kernel(
    q, weight, weight_scale, bias, factor, out, m, n, k, pitch,
    LAYOUT: tl.constexpr, EVEN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    # Neighbouring programs share rows and columns, so that the L2 cache serves most of what they read.
    across = tl.cdiv(n, BN)
    down = tl.cdiv(m, BM)
    program = tl.program_id(0)
    group = program // (GROUP * across)
    height = tl.minimum(down - group * GROUP, GROUP)
    tile_row = group * GROUP + program % (GROUP * across) % height
    tile_column = program % (GROUP * across) // height
    row = tile_row.to(tl.int64) * BM + tl.arange(0, BM)
    column = tile_column * BN + tl.arange(0, BN)
    acc = sums_of_tile(q, weight, row, column, m, n, k, pitch, 0, k, LAYOUT, EVEN, BM, BN, BK)
    store_tile(out, scaled(acc, bias, weight_scale, factor, row, column, m, n), row, column, m, n, DTYPE)


@triton.jit
def split_kernel(
    q, weight, sums, m, n, k, pitch, part,
    LAYOUT: tl.constexpr, EVEN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, BM).to(tl.int64)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    begin = tl.program_id(1) * part
    end = tl.minimum(begin + part, k)
    acc = sums_of_tile(q, weight, row, column, m, n, k, pitch, begin, end, LAYOUT, EVEN, BM, BN, BK)
    at = (row * n)[:, None] + column[None, :]
    tl.atomic_add(sums + at, acc, (row < m)[:, None] & (column < n)[None, :], sem="relaxed")


@triton.jit
def scale_kernel(
    sums, weight_scale, bias, factor, out, m, n, BM: tl.constexpr, BN: tl.constexpr, DTYPE: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    at = (row * n)[:, None] + column[None, :]
    acc = tl.load(sums + at, (row < m)[:, None] & (column < n)[None, :], other=0)
    store_tile(out, scaled(acc, bias, weight_scale, factor, row, column, m, n), row, column, m, n, DTYPE)


# ---- launches ----


@dataclass(frozen=True)
class Product:
    """int8 rows with their factors, the weight, and what the sums are scaled with."""

    q: Tensor
    factor: Tensor
    weight: Tensor
    layout: int
    weight_scale: Tensor
    bias: Tensor | None
    out: Tensor
    m: int
    n: int
    k: int

    def _sizes(self) -> dict[str, Any]:
        sizes = {"m": self.m, "n": self.n, "k": self.k, "pitch": self.q.stride(0)}
        return {"q": self.q, "weight": self.weight, **sizes, "LAYOUT": self.layout}

    def _scaling(self) -> dict[str, Any]:
        scales = {"weight_scale": self.weight_scale, "bias": self.bias, "factor": self.factor}
        return {**scales, "out": self.out, "DTYPE": DTYPES[self.out.dtype]}

    def tiled(self) -> list[Launch]:
        """The candidates for many rows."""
        result = []
        for bm, bn, bk, warps, stages in TILES:
            arguments = {"EVEN": self.n % bn == 0 and self.k % bk == 0, "BM": bm, "BN": bn, "BK": bk, "GROUP": 8}
            grid = (triton.cdiv(self.m, bm) * triton.cdiv(self.n, bn),)
            result.append(Launch(matmul_kernel, grid, {**self._sizes(), **self._scaling(), **arguments}, warps, stages))
        return result

    def split(self, sums: Tensor) -> list[Launch]:
        """The candidates for few rows: sums are added to `sums` (m, n) int32."""
        bm = max(16, triton.next_power_of_2(self.m))
        result = []
        for parts, bn, bk, warps, stages in SPLIT_TILES:
            part = max(triton.cdiv(self.k, parts * bk), 1) * bk
            even = self.n % bn == 0 and self.k % bk == 0
            arguments = {"sums": sums, "part": part, "EVEN": even, "BM": bm, "BN": bn, "BK": bk}
            grid = (triton.cdiv(self.n, bn), triton.cdiv(self.k, part))
            result.append(Launch(split_kernel, grid, {**self._sizes(), **arguments}, warps, stages))
        return result

    def scale(self, sums: Tensor) -> Launch:
        """Scales the sums of a split product."""
        arguments = {"sums": sums, **self._scaling(), "m": self.m, "n": self.n, "BM": 4, "BN": 256}
        return Launch(scale_kernel, (triton.cdiv(self.m, 4), triton.cdiv(self.n, 256)), arguments)

    def run(self) -> None:
        key = (triton.next_power_of_2(self.m), self.n, self.k, self.layout, self.out.dtype, self.q.device)
        if self.m > SPLIT_ROWS:
            fastest(key, self.tiled()).run()
            return
        sums = torch.zeros(self.m, self.n, dtype=torch.int32, device=self.q.device)
        chosen = fastest(key, self.split(sums))
        sums.zero_()  # what measuring left there
        chosen.run()
        self.scale(sums).run()


def quantized(call: Any, m: int, k: int, group: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The codes (m, at least k) and factors (m,) of a call whose tensors are contiguous, `Call` or the grouped one."""
    rows, x_scale = call.x.view(m, k), call.x_scale
    if rows.dtype == torch.int8:
        return rows, x_scale.view(m)
    pitch = max(-(-k // 16) * 16, 16)  # rows of q begin at multiples of 16 bytes
    q = torch.empty(m, pitch, dtype=torch.int8, device=rows.device)
    factor = torch.empty(m, dtype=torch.float32, device=rows.device)
    quantize_launch(rows, call.smooth_scale, x_scale, q, factor, call.quant_mode, call.convention, group).run()
    return q, factor


def quantize_launch(
    x: Tensor,
    smooth_scale: Tensor | None,
    x_scale: Tensor | None,
    q: Tensor,
    factor: Tensor,
    quant_mode: str,
    convention: str,
    group: Tensor | None = None,
) -> Launch:
    """Quantizes the rows of x (m, k) into q and factor; all contiguous, but for the pitch of q's rows. `group`: which
    row of smooth_scale (groups, k) belongs to each row of x, int64 (m,)."""
    m, k = x.shape
    one = k <= ONE_PASS
    block = max(triton.next_power_of_2(k), 16) if one else 4096
    rows = max(1, min(ELEMENTS // block, 4))
    arguments = {
        "x": x,
        "smooth": smooth_scale,
        "group": group,
        "x_scale": x_scale,
        "q": q,
        "factor": factor,
        "m": m,
        "k": k,
        "pitch": q.stride(0),
        "DYNAMIC": x_scale is None,
        "PER_TENSOR": quant_mode == "pertensor",
        "DEVICE": convention == "device",
        "ROWS": rows,
        "BLOCK": block,
        "ONE": one,
    }
    return Launch(quantize_kernel, (triton.cdiv(m, rows),), arguments, num_warps=max(1, min(rows * block // 512, 8)))


def run(call: Call) -> Tensor:
    m, n, k, dtype = check(call)
    x = call.x
    out = torch.empty((*x.shape[:-1], n), dtype=dtype, device=x.device)
    if m == 0 or n == 0:
        return out
    weight, layout = ready_weight(call.weight, call.transpose_weight, call.packed)
    ready = d.with_contiguous(call._replace(weight=weight))
    q, factor = quantized(ready, m, k)
    Product(q, factor, weight, layout, ready.weight_scale.view(n), ready.bias, out.view(m, n), m, n, k).run()
    return out


def variants() -> Iterator[Variant]:
    """What is compiled ahead of time."""

    def product(m: int, n: int, k: int, layout: str, bias: Tensor | None) -> Product:
        q, weight = (torch.ones(*shape, dtype=torch.int8) for shape in ((m, k), (n, k)))
        out = torch.ones(m, n, dtype=torch.bfloat16)
        return Product(q, torch.ones(m), weight, LAYOUTS[layout], torch.ones(n), bias, out, m, n, k)

    name = "quant_matmul_dequant"
    x, q, smooth = torch.ones(8, 4096, dtype=torch.bfloat16), torch.ones(8, 4096, dtype=torch.int8), torch.ones(4096)
    rows = quantize_launch(x, smooth, None, q, torch.ones(8), "pertoken", "formula")
    yield Variant(name, "bf16 rows, dynamic", rows, True)
    x, q = torch.ones(8, 9000, dtype=torch.float16), torch.ones(8, 9008, dtype=torch.int8)
    rows = quantize_launch(x, None, torch.ones(8), q, torch.ones(8), "pertoken", "device")
    yield Variant(name, "fp16 rows of 9000, device", rows)
    for launch in product(256, 1024, 1024, "nk", None).tiled()[:3]:
        tile = "×".join(str(launch.arguments[side]) for side in ("BM", "BN", "BK"))
        yield Variant(name, f"(n, k), tile {tile}", launch, tile == "128×128×64")
    uneven = product(100, 130, 300, "nz_nk", torch.ones(130, dtype=torch.int32))
    yield Variant(name, "FRACTAL_NZ, uneven, bias", uneven.tiled()[0])
    sums = torch.ones(1, 1024, dtype=torch.int32)
    yield Variant(name, "one row, k split", product(1, 1024, 4096, "nk", None).split(sums)[0], True)
    yield Variant(name, "one row, packed", product(1, 1024, 4096, "packed", None).split(sums)[0])
    yield Variant(name, "one of one, (k, n)", product(1, 1, 1, "kn", None).split(sums)[0])
    yield Variant(name, "scaling of split sums", product(1, 1024, 4096, "nk", None).scale(sums))


assert tuple(LAYOUTS.values()) == (0, 1, 2, 3, 4)  # the numbers that `_weight_offset` knows
