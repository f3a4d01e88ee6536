"""Adam for the rows of a table that a step names, beside SparseAdam and a dense AdamW over the whole table."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._bits import clone_with_storage
from .._settings import backend
from ..ops.lazy_adam import lazy_adam_
from .case import READ, UPDATE, Array, Case, Goal, Peer, Runner, Traffic, Work
from .overhead import many, tiny

DIM, ROWS = 64, 65_536
LR, BETAS, EPSILON = 1e-3, (0.9, 0.999), 1e-8
SPARSE, DENSE = "SparseAdam, uncoalesced", "dense AdamW(fused)"


def unique_ids(rows: int, n: int) -> Tensor:
    return torch.randperm(rows, generator=torch.Generator().manual_seed(3))[:n]


def zipf_ids(rows: int, n: int, s: float = 1.1) -> Tensor:
    """Ids whose frequency falls with their rank to the power s, spread over the table."""
    generator = torch.Generator().manual_seed(3)
    weights = torch.arange(1, rows + 1, dtype=torch.float64).pow(-s)
    chosen = torch.searchsorted(
        weights.cumsum(0) / weights.sum(), torch.rand(n, generator=generator, dtype=torch.float64)
    )
    return torch.randperm(rows, generator=generator)[chosen.clamp_(max=rows - 1)]


IDS = {"unique": unique_ids, "Zipf": zipf_ids}


def call(rows: int, n: int, kind: str = "unique", dim: int = DIM) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    return {
        "gradient": torch.randn(n, dim, generator=generator) * 1e-2,
        "indices": IDS[kind](rows, n),
        "m": torch.zeros(rows, dim),
        "v": torch.zeros(rows, dim),
        "var": torch.ones(rows, dim),
        "lr": LR,
        "beta1": BETAS[0],
        "beta2": BETAS[1],
        "epsilon": EPSILON,
    }


def lists(sizes: list[int]) -> dict[str, Any]:
    """Tables of 2·size elements of which every other row is named: `size` elements are stepped."""
    each = [call(2 * size // DIM, size // DIM) for size in sizes]
    tensors = {name: [one[name] for one in each] for name in ("gradient", "indices", "m", "v", "var")}
    return {**each[0], **tensors}


# ---- peers ----


def sparse(rows: int, n: int, kind: str) -> Runner:
    given = call(rows, n, kind)
    table = torch.nn.Embedding(rows, DIM, sparse=True, _weight=given["var"])
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=LR, betas=BETAS, eps=EPSILON)

    def fresh() -> None:  # a backward makes a new, uncoalesced gradient every time
        ids, values = given["indices"].unsqueeze(0), given["gradient"]
        table.weight.grad = torch.sparse_coo_tensor(ids, values, (rows, DIM), check_invariants=False)

    fresh()
    return Runner(optimizer.step, prepare=fresh)


def dense(rows: int, n: int, kind: str) -> Runner:
    given = call(rows, n, kind)
    weight = torch.nn.Parameter(given["var"])
    weight.grad = torch.zeros(rows, DIM).index_add_(0, given["indices"], given["gradient"])
    return Runner(torch.optim.AdamW([weight], lr=LR, betas=BETAS, eps=EPSILON, weight_decay=0.0, fused=True).step)


def accuracy() -> dict[str, Any]:
    """One SparseAdam step from zero state against our reference with the learning rate corrected for step 1."""
    rows, n = 1000, 500
    given = call(rows, n, "Zipf")
    table = torch.nn.Parameter(given["var"].clone())
    table.grad = torch.sparse_coo_tensor(given["indices"].unsqueeze(0), given["gradient"], (rows, DIM))
    torch.optim.SparseAdam([table], lr=LR, betas=BETAS, eps=EPSILON).step()
    corrected = LR * (1 - BETAS[1]) ** 0.5 / (1 - BETAS[0])
    with backend("reference"):
        _, _, var = lazy_adam_(**{**clone_with_storage(given), "lr": corrected})
    return {"max error of var": float((table.detach() - var).abs().max())}


# ---- cases ----


def update(rows: int, kind: str, quick: bool) -> Work:
    rows, n = (rows // 100, 512) if quick else (rows, ROWS)
    given = call(rows, n, kind)
    distinct = given["indices"].unique()
    shuffled = distinct[torch.randperm(distinct.numel(), generator=torch.Generator().manual_seed(4))]
    table = Array(DIM * 4, UPDATE, rows=True)
    # What has to move: the distinct rows of three tables, and the gradient, here as so many rows (to the nearest whole
    # number) for each of them.
    gradient = Array(DIM * 4 * round(n / distinct.numel()), READ)
    peers = [Peer(SPARSE, partial(sparse, rows, n, kind), accuracy=accuracy)]
    if kind == "unique":
        peers.append(Peer(DENSE, partial(dense, rows, n, kind)))
    return Work(
        ours=Runner(partial(lazy_adam_, **given)),
        units=n,
        unit="row",
        sample=call(3000, 2000, kind),
        traffic=Traffic((table, table, table, gradient), distinct.numel(), shuffled, rows),
        peers=tuple(peers),
    )


def table_sizes(quick: bool) -> Work:
    """The same rows of a small and of a large table: the work depends on the rows alone, but for caches and pages."""
    small, large, n = (1000, 100_000, 512) if quick else (100_000, 10_000_000, ROWS)
    ids = unique_ids(small, n)

    def in_table(rows: int) -> Runner:
        given = call(rows, n)
        return Runner(partial(lazy_adam_, **{**given, "indices": ids * (rows // small)}))

    return Work(
        ours=in_table(small),
        units=n,
        unit="row",
        sample=call(3000, 2000),
        peers=(Peer("anyfuse, V = 10 M", lambda: in_table(large), package="anyfuse"),),
    )


TEN = (Goal(f"ratio {SPARSE}", least=10, aim=17),)
CASES = (
    Case(
        "V = 1 M, D = 64, 65 536 unique rows",
        partial(update, 1_000_000, "unique"),
        goals=(*TEN, Goal("transient KiB", most=1024)),
        memory=True,
    ),
    Case("V = 1 M, D = 64, 65 536 rows by Zipf (s = 1.1)", partial(update, 1_000_000, "Zipf"), goals=TEN, memory=True),
    Case("V = 100 k against 10 M, same rows", table_sizes, goals=(Goal("ratio anyfuse, V = 10 M", most=1.5),)),
    tiny(lazy_adam_, partial(call, 16, 4, "unique", 8), None, "4 rows of 8"),
    many(lazy_adam_, lists),
)
