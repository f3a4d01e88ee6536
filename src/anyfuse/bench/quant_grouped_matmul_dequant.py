"""Mixtures of experts: one call for all groups of rows, beside a loop over the plain operator and float products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..ops.quant_grouped_matmul_dequant import quant_grouped_matmul_dequant
from ..ops.quant_matmul_dequant import quant_matmul_dequant
from ..packed import PackedWeight, pack_weight
from ..samples.draw import Draw
from .case import Case, Goal, Peer, Runner, Work
from .overhead import tiny

LOOP, LINEARS, BMM = "anyfuse, a loop over the groups", "a loop of F.linear fp32", "torch.bmm fp32, groups of one size"


def tensors(ends: Sequence[int], k: int, n: int) -> dict[str, Any]:
    groups, m = len(ends), ends[-1]
    generator = torch.Generator().manual_seed(1)
    return {
        "x": torch.randn(m, k, generator=generator),
        "weight": torch.randint(-127, 128, (groups, n, k), generator=generator, dtype=torch.int8),
        "weight_scale": torch.rand(groups, n, generator=generator) * 1e-3 + 1e-4,
        "group_list": torch.tensor(ends),
    }


def packed(given: dict[str, Any]) -> dict[str, Any]:
    return {**given, "weight": pack_weight(given["weight"], given["weight_scale"]), "weight_scale": None}


def even(m: int, groups: int) -> list[int]:
    return [(i + 1) * m // groups for i in range(groups)]


def zipf(m: int, groups: int) -> list[int]:
    """Rows by Zipf's law (s = 1) over the groups, in an order of chance."""
    shares = torch.arange(1, groups + 1).double().reciprocal()
    order = torch.from_numpy(Draw(1).rng.permutation(groups))
    ends = (shares / shares.sum() * m)[order].cumsum(0).round()
    return [*map(int, ends[:-1]), m]


def loop(given: dict[str, Any]) -> Runner:
    """What one could write with the plain operator: each group's packed weight, one call each, into one output."""
    x, ends = given["x"], given["group_list"].tolist()
    shape = given["weight"].shape[1:]
    each = [
        PackedWeight(data, shape, scale)
        for data, scale in zip(given["weight"].data, given["weight"].scale, strict=True)
    ]

    def run() -> Tensor:
        out: Tensor = x.new_empty(x.shape[0], shape[0])
        for weight, begin, end in zip(each, [0, *ends], ends, strict=False):
            if end > begin:
                out[begin:end] = quant_matmul_dequant(x[begin:end], weight)
        return out

    return Runner(run)


def dequantized(given: dict[str, Any]) -> Tensor:
    weight: Tensor = given["weight"].to_nd().float() * given["weight"].scale.unsqueeze(-1)
    return weight


def linears(given: dict[str, Any]) -> Runner:
    x, ends, weight = given["x"], given["group_list"].tolist(), dequantized(given)

    def run() -> object:
        pieces = [functional.linear(x[a:b], one) for one, a, b in zip(weight, [0, *ends], ends, strict=False) if b > a]
        return torch.cat(pieces)

    return Runner(torch.inference_mode()(run))


def bmm(given: dict[str, Any]) -> Runner:
    x, weight = given["x"].view(len(given["group_list"]), -1, given["x"].shape[1]), dequantized(given).mT
    return Runner(torch.inference_mode()(lambda: torch.bmm(x, weight)))


def experts(split: Callable[[int, int], list[int]], m: int, groups: int, size: int, quick: bool) -> Work:
    m, k, n = (64, size // 16, size // 16) if quick else (m, size, size)
    given = packed(tensors(split(m, groups), k, n))
    peers = [Peer(LOOP, partial(loop, given), package="anyfuse"), Peer(LINEARS, partial(linears, given))]
    if split is even:
        peers.append(Peer(BMM, partial(bmm, given)))
    return Work(
        ours=Runner(partial(quant_grouped_matmul_dequant, **given)),
        units=m * k * n,
        unit="multiply-add",
        sample=packed(tensors(split(37, groups), 131, 67)),
        peers=tuple(peers),
    )


SPLITS: tuple[tuple[str, Callable[[int, int], list[int]]], ...] = (("evenly", even), ("by Zipf", zipf))
CASES = (
    *(
        Case(
            f"m = {m} {how} over {groups} experts of {size} x {size}",
            partial(experts, split, m, groups, size),
            goals=(Goal(f"ratio {LOOP}", least=0.95, aim=1.0), Goal(f"ratio {LINEARS}", least=1.6, aim=3.0)),
        )
        for size, groups in ((2048, 8), (1024, 64))
        for m in (64, 1024)
        for how, split in SPLITS
    ),
    tiny(quant_grouped_matmul_dequant, lambda: packed(tensors(even(8, 8), 16, 16)), None, "8 groups of 1 x 16 x 16"),
)
