"""Calls of `quant_grouped_matmul_dequant`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .._opspec import BadCall, CaseSpec, Sample, Samples
from .._sampling import Draw
from ..packed import pack_weight
from .quant_matmul_dequant import bad_products, case_product, int8, product


def draw(draw: Draw) -> Sample:
    groups = draw.choice((1, 1, 2, 3, 4, 7))
    m = draw.choice((0, 1, 2, 3, 5, 6, 7, 13, 24, 37, 100))
    n = draw.choice((0, 1, 2, 15, 16, 17, 33, 64, 65, 130))
    k = draw.choice((0, 1, 3, 4, 5, 16, 31, 33, 65, 255, 256, 257, 300))
    label, arguments = product(draw, (groups,), m, n, k)
    ends = _ends(draw, groups, m)
    arguments["group_list"] = draw.view(ends, writable=False)
    return Sample(f"ends={ends.tolist()} m={m} n={n} k={k} {label}", arguments)


def _ends(draw: Draw, groups: int, m: int) -> Tensor:
    """Ends of groups, some of which are empty; the last one is m, or leaves rows that are no group's."""
    ends = torch.from_numpy(draw.rng.integers(0, m + 1, groups)).sort().values
    if draw.chance(0.5):
        ends[-1] = m
    return ends


def case_inputs(
    draw: Draw, sizes: tuple[int, ...], dtype: torch.dtype, attributes: Mapping[str, Any]
) -> dict[str, Tensor]:
    groups, m, k, n = sizes
    given = case_product(draw, (groups,), (m, k, n), dtype, attributes)
    return {**given, "group_list": torch.arange(1, groups + 1) * m // max(groups, 1)}


def edges() -> Iterable[Sample]:
    """Every number of rows in a tile, empty groups, rows that are no group's, no groups; many groups for several
    threads, and one that is cut into blocks of rows between others."""
    source = Draw(0)
    ends: Sequence[int]
    cases: list[tuple[Sequence[int], int, int, int]] = [
        ((1, 3, 6, 10, 15, 21, 28), 28, 71, 39),
        ((0, 0, 5, 5, 5), 9, 17, 33),
        ((0, 0), 3, 5, 8),
        ((), 3, 5, 8),
        ((3, 3), 3, 65, 257),
        ((2, 300, 301), 301, 70, 64),
        (tuple(range(1, 41)), 41, 130, 300),
        ((16, 32, 48, 64), 70, 300, 700),
    ]
    for ends, m, n, k in cases:
        groups = len(ends)
        arguments: dict[str, Any] = {
            "x": source.normal((m, k)),
            "weight_scale": source.normal((groups, n), scale=0.02),
            "group_list": torch.tensor(ends, dtype=torch.int64),
            "smooth_scale": source.normal((groups, k)).abs(),
        }
        weight = int8(source, (groups, n, k))
        label = f"{groups} groups, m={m} n={n} k={k}"
        yield Sample(f"nd, {label}", {**arguments, "weight": weight})
        yield Sample(f"packed, {label}", {**arguments, "weight": pack_weight(weight)})


def bad_calls() -> Iterable[BadCall]:
    groups, m, n, k = 2, 3, 5, 8
    ends = torch.tensor([1, 3])
    yield from bad_products((groups,), {"group_list": ends})

    def call(**changes: Any) -> dict[str, Any]:
        return {
            "x": torch.ones(m, k),
            "weight": torch.ones(groups, n, k, dtype=torch.int8),
            "weight_scale": torch.ones(groups, n),
            "group_list": ends,
            **changes,
        }

    lists: list[list[int]] = [[2, 1], [1, 4], [-1, 3], [4, 3], [0, 2**62]]
    for wrong in lists:
        yield BadCall(f"ends {wrong}", call(group_list=torch.tensor(wrong)), ValueError, "group_list")
    for shape in ((1, 2), (2, 1), ()):
        wrong_shape = torch.full(shape, 3, dtype=torch.int64)
        yield BadCall(f"group_list of {shape}", call(group_list=wrong_shape), ValueError, "group_list")
    for dtype in (torch.int32, torch.float32, torch.bool):
        yield BadCall(f"group_list of {dtype}", call(group_list=ends.to(dtype)), TypeError, "group_list")
    for kind in ([1, 3], None):
        yield BadCall(f"group_list a {type(kind).__name__}", call(group_list=kind), TypeError, "group_list")
    yield BadCall("more ends than weights", call(group_list=torch.tensor([1, 2, 3])), ValueError, "weight_scale")
    three = torch.ones(3, n, k, dtype=torch.int8)
    yield BadCall("more weights than ends", call(weight=three), ValueError, "weight")
    yield BadCall("packed, more groups", call(weight=pack_weight(three)), ValueError, "weight")
    yield BadCall("packed, no groups", call(weight=pack_weight(three[0])), ValueError, "weight")
    yield BadCall("weight_scale of one group", call(weight_scale=torch.ones(n)), ValueError, "weight_scale")
    yield BadCall("bias of one group", call(bias=torch.ones(n, dtype=torch.int32)), ValueError, "bias")
    yield BadCall("smooth_scale of a group more", call(smooth_scale=torch.ones(3, k)), ValueError, "smooth_scale")


SAMPLES = Samples(
    draw=draw,
    edges=edges,
    bad_calls=bad_calls,
    case=CaseSpec(
        inputs=case_inputs,
        sizes=(4, 16, 256, 128),
        axes=("groups", "m", "k", "n"),
        dtypes=(torch.float16, torch.bfloat16, torch.float32),
        always=("weight_scale", "group_list"),
    ),
)
