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

from ..ops.quant_matmul_dequant import Call, check, result, with_plain_weight
from ._launch import DTYPES, EVERYWHERE, Launch, Plan, Variant, architecture, fastest
from ._maths import magnitude_bits, narrow, widen

#: Columns up to which a row of x stays in registers while it is quantized; elements of a program's rows.
ONE_PASS, ELEMENTS = 8192, 4096

#: Rows of x up to which k is split.
SPLIT_ROWS = 64

#: Tiles (rows, columns, depth, warps, stages) to choose from, the first of them where nothing can be measured. None
#: spills registers, whatever the weight's layout.
TILES = {
    "sm_80": (
        (128, 128, 128, 8, 3),
        (128, 128, 64, 8, 4),
        (64, 256, 64, 8, 3),
        (64, 128, 64, 4, 4),
        (64, 64, 128, 4, 4),
    ),
    "sm_90": ((128, 128, 128, 8, 4), (128, 128, 64, 8, 4), (64, 128, 128, 4, 4), (64, 64, 128, 4, 4)),
    "gfx942": (
        (128, 128, 64, 8, 2),
        (128, 256, 64, 8, 2),
        (128, 128, 128, 8, 2),
        (64, 128, 128, 4, 2),
        (64, 64, 128, 4, 2),
    ),
}

#: More of them without a bias, where columns and depth fill them: masks and a bias take registers that are not left.
PLAIN_TILES = {"sm_90": ((128, 256, 128, 8, 4), (128, 256, 64, 8, 4))}

#: The same (columns, depth, warps, stages) for few rows.
SPLIT_TILES = {
    "sm_80": ((64, 128, 4, 4), (64, 256, 4, 3), (32, 256, 4, 4), (128, 128, 4, 4)),
    "sm_90": ((64, 128, 4, 4), (32, 256, 4, 4)),
    "gfx942": ((64, 128, 4, 2), (64, 256, 4, 2), (32, 256, 4, 2), (128, 128, 4, 2)),
}

#: The same for `ragged` weights.
RAGGED_TILES, RAGGED_SPLIT_TILES = ((64, 64, 64, 4, 3), (64, 64, 32, 4, 3)), ((64, 64, 4, 3), (32, 128, 4, 3))

#: Programs that a product of few rows is cut into, about four for each processor of a large GPU, and the most parts.
PROGRAMS, MOST_PARTS = 512, 16

#: How many rows there are says nothing about addresses: no variant of its own for a multiple of 16.
ANY_ROWS = {"do_not_specialize": ["m"]}

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


@triton.jit(**ANY_ROWS)
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
        tl.store(q + to + block, _code(value, scale, DEVICE), inside & (block < pitch))
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
            tl.store(q + to + begin + block, _code(value, scale, DEVICE), inside & (begin + block < pitch))
        tl.store(factor + row, kept, row < m)


# ---- product ----


@triton.jit
def _first_column(column, n, k, LAYOUT: tl.constexpr):
    """Where the columns from `column` on, a multiple of 32, begin in the weight; numbers of layouts as in
    `ops.quant_matmul_dequant.LAYOUTS`."""
    column = column.to(tl.int64)
    if LAYOUT == 0:
        at = column * k
    elif LAYOUT == 1:
        at = column
    elif LAYOUT == 2:
        at = column * 32
    elif LAYOUT == 3:
        at = column * ((k + 15) // 16 * 16)
    else:
        at = column * ((k + 3) // 4 * 4)
    return at


@triton.jit
def _depth(depth, n, k, LAYOUT: tl.constexpr):
    """Where what is at depth `depth`, a multiple of 32, lies after the beginning of its columns."""
    depth = tl.full((), 0, tl.int64) + depth
    if LAYOUT == 0:
        at = depth
    elif LAYOUT == 1:
        at = depth * n
    elif LAYOUT == 2:
        at = depth * ((n + 15) // 16 * 16)
    elif LAYOUT == 3:
        at = depth * 32
    else:
        at = depth * 16
    return at


@triton.jit
def _weight_tile(
    weight, column, start, n, k,
    LAYOUT: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """(BK, BN) of the weight, `weight` the address of its corner; columns begin at `column`, depth at `start`.

    What lies beyond n or k but inside the weight's memory may be read: rows of q end with zeros, and no column beyond n
    is stored. So only what may lie outside is masked, whole blocks at a time, and loads stay wide.
    """
    depth = tl.arange(0, BK)[:, None]
    if WIDE:
        depth = depth.to(tl.int64)
    across = tl.arange(0, BN)[None, :]
    inside = None
    if LAYOUT == 4:  # whole runs of memory: 16 columns by 4 deep after each other; sorted in registers
        run = tl.arange(0, BN // 16)[:, None]
        byte = tl.arange(0, BK * 16)[None, :]
        deep = (k + 3) // 4
        if not EVEN:
            inside = (column + run * 16 < n) & (start // 4 + byte // 64 < deep)
        tile = tl.load(weight + run * (deep * 64) + byte, inside, other=None if EVEN else 0)
        tile = tl.permute(tl.reshape(tile, (BN // 16, BK // 4, 16, 4)), (1, 3, 0, 2))
        tile = tl.reshape(tile, (BK, BN))
    else:
        if LAYOUT == 0:
            at = across * k + depth
            if not EVEN:
                inside = (column + across < n) & (start + depth < k)
        elif LAYOUT == 1:
            at = depth * n + across
            if not EVEN:
                inside = (column + across < n) & (start + depth < k)
        elif LAYOUT == 2:
            at = depth // 32 * ((n + 15) // 16 * 512) + across * 32 + depth % 32
            if not EVEN:
                inside = ((column + across) // 16 < (n + 15) // 16) & ((start + depth) // 32 < (k + 31) // 32)
        else:
            at = across // 32 * ((k + 15) // 16 * 512) + depth * 32 + across % 32
            if not EVEN:
                inside = ((column + across) // 32 < (n + 31) // 32) & ((start + depth) // 16 < (k + 15) // 16)
        tile = tl.load(weight + at, inside, other=None if EVEN else 0)
    return tile


@triton.jit
def sums_of_tile(
    q, weight, first, column, rows, n, k, pitch, begin, end,
    LAYOUT: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Exact sums over [begin, end) of the rows from `first` (int64) and the columns from `column` on; q has `rows`.

    EVEN: columns and depth lie inside the weight. WIDE: its offsets in a tile need 64 bits. Addresses are one of 64
    bits for a tile, and offsets of 32 for its elements, which halves the registers that they take.
    """
    acc = tl.zeros((BM, BN), tl.int32)
    row = tl.arange(0, BM)[:, None]
    depth = tl.arange(0, BK)[None, :]
    at = row * pitch + depth
    inside = first + row < rows
    q += first * pitch
    weight += _first_column(column, n, k, LAYOUT)
    for start in range(begin, end, BK):
        if EVEN:
            a = tl.load(q + start + at, inside, other=0)
        else:
            a = tl.load(q + start + at, inside & (start + depth < pitch), other=0)
        b = _weight_tile(weight + _depth(start, n, k, LAYOUT), column, start, n, k, LAYOUT, EVEN, WIDE, BN, BK)
        acc = tl.dot(a, b, acc, out_dtype=tl.int32)
    return acc


@triton.jit
def scaled(acc, bias, weight_scale, factor, row, column, rows, n):
    """(fp32(acc + bias)·weight_scale)·factor."""
    if bias is not None:  # 33 bits, rounded once: the addition of two exact halves. Sums of 64 bits take registers
        more = tl.load(bias + column, column < n, other=0)[None, :]
        upper = ((acc >> 16) + (more >> 16)).to(tl.float32) * 65536.0
        sums = upper + ((acc & 0xFFFF) + (more & 0xFFFF)).to(tl.float32)
    else:
        sums = acc.to(tl.float32)
    scale = tl.load(weight_scale + column, column < n, other=0)
    by = tl.load(factor + row, row < rows, other=0.0)
    if weight_scale.dtype.element_ty == tl.int64:  # the bits of the product of both scales
        scale = scale.to(tl.int32).to(tl.float32, bitcast=True)
        last = tl.where((by == 0) | (by != by), by, 1.0)
    else:
        last = by
    out = (sums * scale[None, :]) * last[:, None]
    return tl.where((by == 0)[:, None], 0.0, out)


@triton.jit
def store_tile(out, acc, weight_scale, bias, factor, first, column, rows, n, DTYPE: tl.constexpr):
    """Scales the sums of a tile whose corner is row `first` (int64) and column `column`, and stores them."""
    row = first + tl.arange(0, acc.shape[0])
    columns = column + tl.arange(0, acc.shape[1])
    value = scaled(acc, bias, weight_scale, factor, row, columns, rows, n)
    at = (row * n)[:, None] + columns[None, :]
    tl.store(out + at, narrow(value, DTYPE), (row < rows)[:, None] & (columns < n)[None, :])


@triton.jit(**ANY_ROWS)
def matmul_kernel(
    q, weight, weight_scale, bias, factor, out, m, n, k, pitch,
    LAYOUT: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, GROUP: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    # Neighbouring programs share rows and columns, so that the L2 cache serves most of what they read.
    across = tl.cdiv(n, BN)
    down = tl.cdiv(m, BM)
    program = tl.program_id(0)
    group = program // (GROUP * across)
    height = tl.minimum(down - group * GROUP, GROUP)
    tile_row = group * GROUP + program % (GROUP * across) % height
    column = program % (GROUP * across) // height * BN
    first = tile_row.to(tl.int64) * BM
    acc = sums_of_tile(q, weight, first, column, m, n, k, pitch, 0, k, LAYOUT, EVEN, WIDE, BM, BN, BK)
    store_tile(out, acc, weight_scale, bias, factor, first, column, m, n, DTYPE)


@triton.jit(**ANY_ROWS)
def split_kernel(
    q, weight, sums, m, n, k, pitch, part,
    LAYOUT: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """sums[p] = the sums (m, n) over the p-th part of k. No program adds to what another one wrote."""
    across = tl.cdiv(n, BN)
    column = tl.program_id(0) % across * BN
    index = tl.program_id(0) // across
    begin = index * part
    end = tl.minimum(begin + part, k)
    first = tl.full((), 0, tl.int64)
    acc = sums_of_tile(q, weight, first, column, m, n, k, pitch, begin, end, LAYOUT, EVEN, WIDE, BM, BN, BK)
    row = tl.arange(0, BM)
    columns = column + tl.arange(0, BN)
    at = ((index * m + row).to(tl.int64) * n)[:, None] + columns[None, :]
    tl.store(sums + at, acc, (row < m)[:, None] & (columns < n)[None, :])


@triton.jit(**ANY_ROWS)
def scale_kernel(
    sums, parts, weight_scale, bias, factor, out, m, n, BM: tl.constexpr, BN: tl.constexpr, DTYPE: tl.constexpr
):  # fmt: skip
    """Adds the parts of a split product in their order (any would do: the sums are exact) and scales them."""
    across = tl.cdiv(n, BN)
    first = (tl.program_id(0) // across).to(tl.int64) * BM
    column = tl.program_id(0) % across * BN
    row = first + tl.arange(0, BM)
    columns = column + tl.arange(0, BN)
    at = (row * n)[:, None] + columns[None, :]
    inside = (row < m)[:, None] & (columns < n)[None, :]
    acc = tl.zeros((BM, BN), tl.int32)
    for _ in range(parts):
        acc += tl.load(sums + at, inside, other=0)
        sums += m.to(tl.int64) * n
    store_tile(out, acc, weight_scale, bias, factor, first, column, m, n, DTYPE)


# ---- launches ----


def ragged(weight: Tensor, layout: int, n: int, k: int) -> bool:
    """Whether rows of a plain weight begin anywhere, so that their bytes are loaded one by one; of other layouts,
    whether the results' rows do, which takes the registers of a large tile, too."""
    row = k if layout == LAYOUTS["nk"] else n
    return row % 16 != 0 or weight.data_ptr() % 16 != 0


def fills(bn: int, bk: int, n: int, k: int) -> bool:
    """Whether tiles of bn columns and depth bk lie inside the weight."""
    return n % bn == 0 and k % bk == 0


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

    def _sizes(self, bn: int, bk: int) -> dict[str, Any]:
        return {
            "q": self.q,
            "weight": self.weight,
            "m": self.m,
            "n": self.n,
            "k": self.k,
            "pitch": self.q.stride(0),
            "LAYOUT": self.layout,
            "EVEN": fills(bn, bk, self.n, self.k),
            "WIDE": self.n * bk >= 2**31,
            "BN": bn,
            "BK": bk,
        }

    def _scaling(self) -> dict[str, Any]:
        scales = {"weight_scale": self.weight_scale, "bias": self.bias, "factor": self.factor}
        return {**scales, "out": self.out, "DTYPE": DTYPES[self.out.dtype]}

    def tiled(self, bm: int, bn: int, bk: int, warps: int, stages: int) -> Plan:
        """The product in tiles, each scaled where it was summed."""
        arguments = {**self._sizes(bn, bk), **self._scaling(), "BM": bm, "GROUP": 8}
        grid = (triton.cdiv(self.m, bm) * triton.cdiv(self.n, bn),)
        return (Launch(matmul_kernel, grid, arguments, warps, stages),)

    def parts(self, bn: int, bk: int) -> tuple[int, int]:
        """How many parts k is split into, so that there are about PROGRAMS programs, and the length of a part."""
        most = min(triton.cdiv(PROGRAMS, triton.cdiv(self.n, bn)), MOST_PARTS)
        deep = max(triton.cdiv(self.k, bk), 1)
        part = triton.cdiv(deep, min(most, deep)) * bk
        return max(triton.cdiv(self.k, part), 1), part

    def split(self, sums: Tensor, bn: int, bk: int, warps: int, stages: int) -> Plan:
        """The product of few rows: sums of parts of k, (at least their number, m, n) int32, and their scaling."""
        bm = max(16, triton.next_power_of_2(self.m))
        parts, part = self.parts(bn, bk)
        if parts == 1:
            return self.tiled(bm, bn, bk, warps, stages)
        arguments = {**self._sizes(bn, bk), "sums": sums, "part": part, "BM": bm}
        grid = (triton.cdiv(self.n, bn) * parts,)
        return Launch(split_kernel, grid, arguments, warps, stages), self.scale(sums, parts)

    def scale(self, sums: Tensor, parts: int) -> Launch:
        """Scales the sums of a split product."""
        arguments = {"sums": sums, "parts": parts, **self._scaling(), "m": self.m, "n": self.n, "BM": 4, "BN": 256}
        return Launch(scale_kernel, (triton.cdiv(self.m, 4) * triton.cdiv(self.n, 256),), arguments)

    def plans(self, architecture: str) -> list[Plan]:
        """The candidates for an architecture."""
        uneven = ragged(self.weight, self.layout, self.n, self.k)
        if self.m > SPLIT_ROWS:
            tiles = RAGGED_TILES if uneven else TILES[architecture]
            if self.bias is None and not uneven:
                plain = PLAIN_TILES.get(architecture, ())
                tiles = (*tiles, *(tile for tile in plain if fills(tile[1], tile[2], self.n, self.k)))
            return [self.tiled(*tile) for tile in tiles]
        few = RAGGED_SPLIT_TILES if uneven else SPLIT_TILES[architecture]
        most = max(self.parts(bn, bk)[0] for bn, bk, *_ in few)
        sums = torch.empty(most, self.m, self.n, dtype=torch.int32, device=self.q.device)
        return [self.split(sums, *tile) for tile in few]

    def run(self) -> None:
        key = (triton.next_power_of_2(self.m), self.n, self.k, self.layout, self.out.dtype, self.q.device)
        for launch in fastest(key, self.plans(architecture(self.q.device))):
            launch.run()


def quantized(call: Any, m: int, k: int, group: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The codes and factors (m,) of a call whose tensors are contiguous, `Call` or the grouped one. Rows of codes begin
    at multiples of 16 bytes and end with zeros, so that they are loaded 16 bytes at a time, whatever k is."""
    rows, x_scale = call.x.view(m, k), call.x_scale
    pitch = max(-(-k // 16) * 16, 16)
    if rows.dtype == torch.int8:
        if pitch != k or rows.data_ptr() % 16 != 0:
            rows = torch.nn.functional.pad(rows, (0, pitch - k)) if pitch != k else rows.clone()
        return rows, x_scale.view(m)
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


#: How weights of a logical matrix (n, k) lie, numbered as in the C API.
LAYOUTS = {"nk": 0, "kn": 1, "nz_nk": 2, "nz_kn": 3, "packed": 4}


def layout_of(call: Any, plain: int) -> int:
    """The number of a weight's layout; a plain one has `plain` dimensions."""
    if call.packed:
        return LAYOUTS["packed"]
    order = "nk" if call.transpose_weight else "kn"
    return LAYOUTS[order if call.weight.dim() == plain else f"nz_{order}"]


def run(call: Call) -> Tensor:
    out = result(call, check(call))
    m, n, k = call.x.shape[:-1].numel(), out.shape[-1], call.x.shape[-1]
    if out.numel() == 0:
        return out
    ready = with_plain_weight(call)
    q, factor = quantized(ready, m, k)
    scale = ready.weight_scale.view(n)
    Product(q, factor, ready.weight, layout_of(ready, 2), scale, ready.bias, out.view(m, n), m, n, k).run()
    return out


def variants() -> Iterator[Variant]:
    """What is compiled ahead of time."""
    name = "quant_matmul_dequant"
    x, q, smooth = torch.ones(8, 4096, dtype=torch.bfloat16), torch.ones(8, 4096, dtype=torch.int8), torch.ones(4096)
    rows = quantize_launch(x, smooth, None, q, torch.ones(8), "pertoken", "formula")
    yield Variant(name, "bf16 rows, dynamic", rows, EVERYWHERE)
    x, q = torch.ones(8, 9000, dtype=torch.float16), torch.ones(8, 9008, dtype=torch.int8)
    rows = quantize_launch(x, None, torch.ones(8), q, torch.ones(8), "pertoken", "device")
    yield Variant(name, "fp16 rows of 9000, device", rows)
    bias = torch.ones(1024, dtype=torch.int32)
    for target in EVERYWHERE:
        for plan in product(256, 1024, 1024, "nk", bias).plans(target):
            yield Variant(name, f"(n, k), bias, tile {shape(plan)}", plan[0], (target,))
        for plan in product(256, 1024, 1024, "nk", None).plans(target)[len(TILES[target]) :]:
            yield Variant(name, f"(n, k), tile {shape(plan)}", plan[0], (target,))
        plan = product(1, 1024, 4096, "nk", None).plans(target)[0]
        yield Variant(name, f"(n, k), one row, k split, tile {shape(plan)}", plan[0], (target,))
    for layout, target in (("kn", "sm_80"), ("nz_nk", "sm_90"), ("nz_kn", "sm_90"), ("packed", "gfx942")):
        plan = product(200, 1040, 1072, layout, torch.ones(1040, dtype=torch.int32)).plans(target)[0]
        yield Variant(name, f"{layout}, partly filled, bias, tile {shape(plan)}", plan[0], (target,))
    yield Variant(name, "packed, one row, k split", product(1, 1024, 4096, "packed", None).plans("sm_90")[0][0])
    uneven = product(200, 1000, 1002, "kn", torch.ones(1000, dtype=torch.int32)).plans("sm_80")[0][0]
    yield Variant(name, "(k, n) of 1000 columns, bias", uneven, ("sm_80",))
    yield Variant(name, "one of one, (k, n)", product(1, 1, 1, "kn", None).plans("sm_90")[0][0])
    yield Variant(name, "scaling of split sums", product(1, 1024, 4096, "nk", bias).plans("sm_90")[0][1], EVERYWHERE)


#: n and k of weights that tiles fill, that they fill partly, and whose rows begin anywhere.
SIZES = {"filled": (1024, 1024), "partly filled": (1040, 1072), "ragged": (1000, 1002)}


def offered() -> Iterator[Variant]:
    """Every tile for every layout, filled and not: what `variants` represents."""
    for target in EVERYWHERE:
        for layout in LAYOUTS:
            for case, (n, k) in SIZES.items():
                for m, with_bias in ((1, True), (32, True), (64, True), (256, True), (256, False)):
                    bias = torch.ones(n, dtype=torch.int32) if with_bias else None
                    for plan in product(m, n, k, layout, bias).plans(target):
                        label = f"{layout}, {case}, m = {m}, {'bias, ' if with_bias else ''}tile {shape(plan)}"
                        yield Variant("quant_matmul_dequant", label, plan[0], (target,))


def product(m: int, n: int, k: int, layout: str, bias: Tensor | None) -> Product:
    """Something to compile."""
    q = torch.ones(m, -(-k // 16) * 16, dtype=torch.int8)
    weight = torch.ones((-(-n // 32) * 32) * (-(-k // 32) * 32), dtype=torch.int8)
    out = torch.ones(m, n, dtype=torch.bfloat16)
    return Product(q, torch.ones(m), weight, LAYOUTS[layout], torch.ones(n), bias, out, m, n, k)


def shape(plan: Plan) -> str:
    """The tile of a plan, as text."""
    return "×".join(str(plan[0].arguments[side]) for side in ("BM", "BN", "BK"))


assert tuple(LAYOUTS.values()) == (0, 1, 2, 3, 4)  # the numbers that `_weight_offset` knows
