"""quant_grouped_matmul_dequant on GPUs. The mathematics is in `ops/quant_grouped_matmul_dequant.py`.

Rows are quantized, tiles multiplied and sums scaled by the device functions of `quant_matmul_dequant`. A program of
the grouped kernel finds its group in `group_list` on the device, so that nothing waits for it: there are as many
programs as the rows may need at most, and those that are left over end at once. Ends are not looked at on the host; a
group is held to the rows that there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..ops.quant_grouped_matmul_dequant import Call, check
from ..ops.quant_matmul_dequant import result, with_plain_weight
from ._launch import DTYPES, EVERYWHERE, Launch, Plan, Variant, architecture, fastest
from .quant_matmul_dequant import (
    LAYOUTS,
    SIZES,
    fills,
    layout_of,
    quantize_launch,
    quantized,
    ragged,
    shape,
    store_tile,
    sums_of_tile,
)

#: Tiles (rows, columns, depth, warps, stages) to choose from, the first of them where nothing can be measured: groups
#: may have few rows or many. None spills registers, whatever the weight's layout.
TILES = {
    "sm_80": (
        (16, 128, 128, 4, 4),
        (32, 128, 128, 4, 3),
        (64, 128, 64, 4, 4),
        (128, 128, 64, 8, 3),
        (16, 64, 256, 4, 3),
    ),
    "sm_90": (
        (16, 128, 128, 4, 4),
        (32, 128, 128, 4, 4),
        (64, 128, 128, 4, 4),
        (128, 128, 128, 8, 4),
        (16, 64, 256, 4, 3),
    ),
    "gfx942": (
        (16, 128, 128, 4, 2),
        (32, 128, 128, 4, 2),
        (64, 128, 128, 4, 2),
        (128, 128, 64, 8, 2),
        (16, 64, 256, 4, 2),
    ),
}

#: The same for `ragged` weights.
RAGGED_TILES = ((16, 64, 64, 4, 3), (64, 64, 64, 4, 3))


@triton.jit
def _rows_of(group_list, tile, m, groups, BM: tl.constexpr, GROUPS: tl.constexpr):
    """The group that a tile of rows belongs to (`groups` for none), and its first row and the group's end."""
    index = tl.arange(0, GROUPS)
    end = tl.load(group_list + index, index < groups, other=0)
    begin = tl.load(group_list + index - 1, (index > 0) & (index < groups), other=0)
    begin = tl.minimum(tl.maximum(begin, 0), m)
    end = tl.minimum(tl.maximum(end, begin), m)
    tiles = ((end - begin + (BM - 1)) // BM).to(tl.int32)
    before = tl.cumsum(tiles, 0) - tiles
    group = tl.sum((before + tiles <= tile).to(tl.int32), 0)
    mine = index == group
    first = tl.sum(tl.where(mine, begin + (tile - before) * BM, 0), 0)
    return group, first, tl.sum(tl.where(mine, end, 0), 0)


@triton.jit(do_not_specialize=["m"])
def grouped_kernel(
    q, weight, weight_scale, bias, factor, group_list, out, m, n, k, pitch, groups, weight_size,
    LAYOUT: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr, GROUPS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    # The columns' programs come first, so that neighbours read the same rows; all groups' weights pass once.
    across = tl.cdiv(n, BN)
    group, first, end = _rows_of(group_list, tl.program_id(0) // across, m, groups, BM, GROUPS)
    if group >= groups:
        return
    column = tl.program_id(0) % across * BN
    of_group = group.to(tl.int64)
    acc = sums_of_tile(
        q, weight + of_group * weight_size, first, column, end, n, k, pitch, 0, k, LAYOUT, EVEN, WIDE, BM, BN, BK
    )
    if bias is not None:
        bias += of_group * n
    store_tile(out, acc, weight_scale + of_group * n, bias, factor, first, column, end, n, DTYPE)


def plans(
    call: Call,
    q: Tensor,
    factor: Tensor,
    weight: Tensor,
    layout: int,
    out: Tensor,
    sizes: tuple[int, int, int],
    architecture: str,
) -> list[Plan]:
    """The candidates; the call's tensors are contiguous, and m and the number of groups are not 0."""
    groups, (m, n, k) = call.group_list.shape[0], sizes
    result: list[Plan] = []
    for bm, bn, bk, warps, stages in RAGGED_TILES if ragged(weight, layout, n, k) else TILES[architecture]:
        arguments: dict[str, Any] = {
            "q": q,
            "weight": weight,
            "weight_scale": call.weight_scale,
            "bias": call.bias,
            "factor": factor,
            "group_list": call.group_list,
            "out": out,
            "m": m,
            "n": n,
            "k": k,
            "pitch": q.stride(0),
            "groups": groups,
            "weight_size": weight.numel() // groups,
            "LAYOUT": layout,
            "EVEN": fills(bn, bk, n, k),
            "WIDE": n * bk >= 2**31,
            "GROUPS": triton.next_power_of_2(groups),
            "BM": bm,
            "BN": bn,
            "BK": bk,
            "DTYPE": DTYPES[out.dtype],
        }
        tiles = triton.cdiv(m, bm) + groups - 1  # each group may leave one tile unfilled
        result.append((Launch(grouped_kernel, (triton.cdiv(n, bn) * tiles,), arguments, warps, stages),))
    return result


def run(call: Call) -> Tensor:
    out = result(call, check(call)).zero_()  # rows of no group stay 0
    m, n, k = call.x.shape[:-1].numel(), out.shape[-1], call.x.shape[-1]
    groups = call.group_list.shape[0]
    if out.numel() == 0 or groups == 0:
        return out
    ready = with_plain_weight(call)
    layout = layout_of(ready, 3)
    group = None
    if call.smooth_scale is not None and call.smooth_scale.dim() == 2:
        rows = torch.arange(m, device=out.device)
        group = torch.searchsorted(ready.group_list, rows, right=True).clamp_(max=groups - 1)
    q, factor = quantized(ready, m, k, group)
    candidates = plans(ready, q, factor, ready.weight, layout, out, (m, n, k), architecture(out.device))
    key = (triton.next_power_of_2(m), n, k, groups, layout, out.dtype, out.device)
    for launch in fastest(key, candidates):
        launch.run()
    return out


def variants() -> Iterator[Variant]:
    """What is compiled ahead of time."""
    name = "quant_grouped_matmul_dequant"
    bias = torch.ones(5, 1040, dtype=torch.int32)
    for target in ("sm_80", "sm_90"):
        for plan in grouped(100, 5, 1040, 1072, "nk", bias, target):
            yield Variant(name, f"(n, k), partly filled, bias, tile {shape(plan)}", plan[0], (target,))
    for target in EVERYWHERE:
        plan = grouped(64, 8, 1024, 1024, "packed", None, target)[0]
        yield Variant(name, f"packed, tile {shape(plan)}", plan[0], (target,))
    uneven = grouped(100, 5, 1000, 1002, "kn", torch.ones(5, 1000, dtype=torch.int32), "sm_80")[0][0]
    yield Variant(name, "(k, n) of 1000 columns, bias", uneven, ("sm_80",))
    yield Variant(name, "one of one, (k, n)", grouped(1, 1, 1, 1, "kn", None, "sm_90")[0][0])
    x, smooth = torch.ones(8, 4096, dtype=torch.bfloat16), torch.ones(3, 4096)
    q, group = torch.ones(8, 4096, dtype=torch.int8), torch.zeros(8, dtype=torch.int64)
    rows = quantize_launch(x, smooth, None, q, torch.ones(8), "pertoken", "formula", group)
    yield Variant(name, "bf16 rows, smooth scales of each group", rows)


def offered() -> Iterator[Variant]:
    """Every tile for every layout, filled and not, with a bias: what `variants` represents."""
    for target in EVERYWHERE:
        for layout in LAYOUTS:
            for case, (n, k) in SIZES.items():
                for plan in grouped(100, 5, n, k, layout, torch.ones(5, n, dtype=torch.int32), target):
                    label = f"{layout}, {case}, tile {shape(plan)}"
                    yield Variant("quant_grouped_matmul_dequant", label, plan[0], (target,))


def grouped(m: int, groups: int, n: int, k: int, layout: str, bias: Tensor | None, target: str) -> list[Plan]:
    """Something to compile."""
    x, weight = torch.ones(m, k), torch.ones(groups, (-(-n // 32) * 32) * (-(-k // 32) * 32), dtype=torch.int8)
    scale, ends = torch.ones(groups, n), torch.full((groups,), m)
    call = Call(x, weight, scale, ends, bias, None, None, "pertoken", True, [], None, "formula")
    q, out = torch.ones(m, -(-k // 16) * 16, dtype=torch.int8), torch.ones(m, n, dtype=torch.bfloat16)
    return plans(call, q, torch.ones(m), weight, LAYOUTS[layout], out, (m, n, k), target)
