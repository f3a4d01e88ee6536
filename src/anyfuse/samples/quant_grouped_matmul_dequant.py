"""Calls of `quant_grouped_matmul_dequant`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..packed import pack_weight
from .draw import Draw
from .kinds import CaseSpec, Sample, Samples
from .quant_matmul_dequant import case_product, int8, product


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


SAMPLES = Samples(
    draw=draw,
    edges=edges,
    case=CaseSpec(
        inputs=case_inputs,
        sizes=(4, 16, 256, 128),
        axes=("groups", "m", "k", "n"),
        dtypes=(torch.float16, torch.bfloat16, torch.float32),
        always=("weight_scale", "group_list"),
    ),
)
