"""Calls of `lazy_adam_`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..ops import _checks as checks
from ..ops.lazy_adam import EPS_MODES, IDS
from .draw import Draw
from .kinds import CaseSpec, Preset, Sample, Samples

DIMS = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 50, 63, 64, 65, 100, 128, 255, 256, 257, 300, 511, 513)


def _draw_ids(draw: Draw, n: int, rows: int, unique: bool) -> Tensor:
    """n ids below `rows`, in any order, some of them negative."""
    if unique:
        ids = draw.rng.permutation(max(rows, n))[:n]
    else:
        ids = draw.rng.integers(0, draw.choice((1, 2, max(rows // 2, 1), max(rows, 1))), n)
    ids[ids >= rows] = -1
    if draw.chance(0.4):
        ids[draw.rng.random(n) < draw.choice((0.1, 0.5, 1.0))] = draw.choice((-1, -2, -(2**31)))
    dtype = draw.choice(IDS)
    if dtype is torch.int64 and draw.chance(0.2):
        ids[ids < 0] = -(2**40) - 1
    if not unique and draw.chance(0.2):
        ids.sort()
    return torch.from_numpy(ids.astype("int64")).to(dtype)


def _draw_mask(draw: Draw, rows: int) -> Tensor | None:
    """Which of all rows are stepped."""
    return torch.from_numpy(draw.rng.random(rows) < draw.choice((0.0, 0.3, 1.0))) if draw.chance(0.5) else None


def _draw_table(draw: Draw, dtypes: tuple[torch.dtype, torch.dtype], unique: bool, plain: bool) -> dict[str, Any]:
    dim = draw.choice(DIMS) if draw.chance(0.9) else draw.integer(0, 2000)
    most = 2500 // max(dim, 1) + 1  # large ones are among the edges
    rows = draw.choice((0, 1, 2, 3, 10, 100, 1000, 1025)) if draw.chance(0.8) else draw.integer(0, 4000)
    rows = min(rows, most)
    n = min(draw.choice((0, 1, 2, 3, 8, 33, 100, 1000)) if draw.chance(0.8) else draw.integer(0, 4000), most)
    if plain or draw.chance(0.6):
        ids = _draw_ids(draw, n, rows, unique)
        indices: Tensor | None = ids.unsqueeze(1) if draw.chance(0.3) else ids
    else:
        n, indices = rows, _draw_mask(draw, rows)
    gradient_dtype, var_dtype = dtypes
    table: dict[str, Any] = {
        "gradient": draw.normal((n, dim), gradient_dtype, scale=draw.choice((1.0, 1e-3, 1e3))),
        "indices": indices,
        "m": draw.normal((rows, dim)),
        "v": draw.normal((rows, dim)),
        "var": draw.normal((rows, dim), var_dtype),
    }
    if draw.chance(0.8):
        table["v"] = table["v"].abs()
    for name in ("gradient", "m", "v", "var"):
        if draw.chance(0.15):
            draw.special(table[name])
    kept = {"gradient": False, "indices": False, "m": True, "v": True, "var": True}
    expanded = unique and n > 1  # an expanded list of ids would break the promise
    return {
        name: None if tensor is None else draw.view(tensor, writable=kept[name] or (name == "indices" and expanded))
        for name, tensor in table.items()
    }


def _draw_options(draw: Draw, tables: Sequence[dict[str, Any]], one: bool) -> dict[str, Any]:
    """What a training loop asks for; the counts of rows go into `tables`."""
    options: dict[str, Any] = {
        "bias_correction": draw.choice((False, "global", "row")),
        "eps_mode": draw.choice(EPS_MODES),
        "weight_decay": draw.choice((0.0, 0.01, 0.5)),
        "maximize": draw.chance(0.2),
        "grad_scale": torch.tensor([draw.choice((1.0, 1024.0, 3.0))]) if draw.chance(0.3) else None,
        "found_inf": torch.tensor([1.0]) if draw.chance(0.03) else None,
        "stochastic_rounding": draw.choice((None, None, 7, 2**32 - 1)),
        "decay_mode": "touched",
    }
    if options["bias_correction"] != "row" and draw.chance(0.3):
        options["decay_mode"] = "catch_up"
    if options["bias_correction"] == "row" or options["decay_mode"] == "catch_up":
        last = draw.choice(((0, 1, 2), (0, 3, 5), (1, 200, 1000), (0, 2**31 - 1, -3)))
        for table in tables:
            counts = torch.from_numpy(draw.rng.choice(last, len(table["var"]))).int()
            table["row_step"] = draw.view(counts)
    steps = [draw.choice((1, 2, 7, 1003)) for _ in tables]
    options["step"] = steps if not one and draw.chance(0.5) else steps[0]
    if draw.chance(0.3) and all(bool((table["indices"] >= 0).all()) for table in tables if _has_ids(table)):
        options["refuse_negative"] = True
        options["padding_idx"] = draw.choice((None, 0, 1, -5))
    return options


def _has_ids(table: Mapping[str, Any]) -> bool:
    return table["indices"] is not None and table["indices"].dtype != torch.bool


def draw(draw: Draw) -> Sample:
    unique = draw.chance(0.3)
    plain = draw.chance(0.5)
    count = draw.choice((1, 1, 1, 2, 5))
    dtypes = [(draw.choice(checks.FLOATS), draw.choice(checks.FLOATS)) for _ in range(count)]
    tables = [_draw_table(draw, pair, unique, plain) for pair in dtypes]
    one = count == 1 and draw.chance(0.8)
    options = {} if plain else _draw_options(draw, tables, one)
    arguments: dict[str, Any] = {"row_step": None, **options}
    arguments |= {name: tables[0][name] if one else [table[name] for table in tables] for name in tables[0]}
    lrs: list[Any] = [draw.choice((1e-3, 0.1, 1.0, 0.0, -0.5)) for _ in range(count)]
    if draw.chance(0.5):
        lrs = [torch.tensor([value], dtype=draw.choice((torch.float32, torch.float64))) for value in lrs]
    arguments |= {
        "lr": lrs if not one and draw.chance(0.5) else lrs[0],
        "beta1": draw.choice((0.9, 0.5, 0.0)),
        "beta2": draw.choice((0.999, 0.99, 0.9999)),
        "epsilon": draw.choice((1e-8, 1e-7, 1e-3, -1e-3)),
        "assume_unique": unique,
        "convention": draw.choice(("formula", "device")),
    }
    shapes = [(len(table["gradient"]), *table["var"].shape) for table in tables]
    return Sample(f"(n, rows, dim)={shapes} assume_unique={unique} {options}", arguments)


def edges() -> Iterable[Sample]:
    """Every width around a vector, in one list; then sizes that several threads sort and step."""
    source = Draw(0)

    def table(n: int, rows: int, dim: int, ids: Tensor, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        state = {"m": source.normal((rows, dim)), "v": source.normal((rows, dim)).abs()}
        return {
            "gradient": source.normal((n, dim), dtype),
            "indices": ids,
            **state,
            "var": source.normal((rows, dim), dtype),
        }

    def ids(n: int, rows: int) -> Tensor:
        return torch.from_numpy(source.rng.integers(-1, rows, n))

    for dtype in checks.FLOATS:
        tables = [table(40, 30, dim, ids(40, 30), dtype) for dim in DIMS]
        yield Sample(f"{dtype}, list", {**{name: [t[name] for t in tables] for name in tables[0]}, "lr": 0.1})
    for n in (1, 15, 16, 17, 2047, 2048, 4095, 4096, 4097):
        yield Sample(f"{n} ids in 5000 rows", {**table(n, 5000, 5, ids(n, 5000)), "lr": 0.1})
    yield Sample("7 ids, 20000 times", {**table(20_000, 100, 8, torch.arange(20_000) % 7), "lr": 0.1})
    yield Sample("one id of 2000, 64 wide", {**table(2000, 3, 64, torch.full((2000,), 1)), "lr": 0.1})
    sizes = ((9000, 5000, 16), (0, 10, 64), (20_000, 100_000, 3), (300, 70, 257), (5, 2, 0))
    mixed = [table(n, rows, dim, ids(n, rows)) for n, rows, dim in sizes]
    yield Sample("large and small tables", {**{name: [t[name] for t in mixed] for name in mixed[0]}, "lr": 0.1})
    distinct = torch.from_numpy(source.rng.permutation(40_000)[:20_000]).int()
    yield Sample(
        "distinct ids, not looked for", {**table(20_000, 40_000, 9, distinct), "lr": 0.1, "assume_unique": True}
    )
    every = {"step": 40, "bias_correction": "global", "eps_mode": "outside", "weight_decay": 0.1, "lr": 0.1}
    for dtype in checks.FLOATS:
        tables = [table(1, 1, dim, ids(1, 1), dtype) for dim in (1, 15, 257, 70_000)]
        dense: dict[str, Any] = {name: [t[name] for t in tables] for name in tables[0]}
        dense["indices"] = [None] * len(tables)
        yield Sample(f"{dtype}, all rows", {**dense, **every, "stochastic_rounding": 3})
    mask = torch.from_numpy(source.rng.random(20_000) < 0.1)
    yield Sample("a mask of 20000 rows", {**table(20_000, 20_000, 9, mask), **every})
    late = {**table(5000, 9000, 8, ids(5000, 9000)), "row_step": torch.arange(9000).int() % 3 * 11}
    yield Sample("rows that catch up", {**late, **every, "decay_mode": "catch_up"})
    yield Sample("20000 ids in 40000 rows", {**table(20_000, 40_000, 9, ids(20_000, 40_000)), "lr": 0.1})


def case_inputs(
    draw: Draw, sizes: tuple[int, ...], dtype: torch.dtype, attributes: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Distinct ids in random order while there are rows enough, else repeated ones."""
    rows, dim, n = sizes
    ids = draw.rng.permutation(rows)[:n] if n <= rows else draw.rng.integers(0, max(rows, 1), n)
    m = draw.normal((rows, dim))
    return {
        "gradient": draw.normal((n, dim), dtype),
        "indices": torch.from_numpy(ids).int().unsqueeze(1),
        "m": m,
        "v": m.square() + draw.normal((rows, dim), scale=0.1).abs(),
        "var": draw.normal((rows, dim), dtype),
        "lr": torch.tensor([0.001]),
    }


OFFICIAL = Preset(
    summary="the single-operator case of Rec SDK: 564 096 of 2 000 000 rows of 32",
    sizes=(2_000_000, 32, 564_096),
    attributes={"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-7, "convention": "device"},
    inputs={
        "gradient": "gradient", "indices": "indices", "m": "inputM", "v": "inputV", "var": "inputVar",
        "lr": "learningRate",
    },
    outputs={"m": "outputM", "v": "outputV", "var": "outputVar"},
    goldens={"m": "goldenOutputM", "v": "goldenOutputV", "var": "goldenOutputVar"},
)  # fmt: skip


def unfused(call: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """One plain step of distinct rows by PyTorch's own operators, in fp32 between the tables: (m, v, var)."""
    ids, g = call["indices"].flatten().long(), call["gradient"].float()
    m, v, var = call["m"], call["v"], call["var"]
    m[ids] = m_new = m[ids].lerp(g, 1 - call["beta1"])
    v[ids] = v_new = v[ids].mul(call["beta2"]).addcmul(g, g, value=1 - call["beta2"])
    moved = var[ids].float().addcdiv(m_new, v_new.sqrt().add(call["epsilon"]), value=-float(call["lr"]))
    var[ids] = moved.to(var.dtype)
    return m, v, var


SAMPLES = Samples(
    draw=draw,
    edges=edges,
    unfused=unfused,
    case=CaseSpec(
        inputs=case_inputs,
        sizes=(1000, 32, 100),
        dtypes=checks.FLOATS,
        axes=("rows", "dim", "n"),
        presets={"official": OFFICIAL},
    ),
)
