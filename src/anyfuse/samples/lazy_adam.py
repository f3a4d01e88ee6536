"""Calls of `lazy_adam_`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .._opspec import BadCall, CaseSpec, Preset, Sample, Samples
from .._sampling import Draw
from ..ops import _checks as checks
from ..ops.lazy_adam import EPS_MODES, IDS

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


def bad_calls() -> Iterable[BadCall]:
    def call(**changes: Any) -> dict[str, Any]:
        tensors = {name: torch.ones(3, 4) for name in "m v var".split()}
        return {"gradient": torch.ones(2, 4), "indices": torch.tensor([2, 0]), **tensors, "lr": 0.1, **changes}

    for name in ("m", "v", "var"):
        for dtype in (torch.float64, torch.int8):
            yield BadCall(f"{name} of dtype {dtype}", call(**{name: torch.ones(3, 4, dtype=dtype)}), TypeError, name)
        yield BadCall(f"{name} of one dimension", call(**{name: torch.ones(12)}), ValueError, name)
        yield BadCall(f"{name} expanded", call(**{name: torch.ones(1, 4).expand(3, 4)}), ValueError, name)
    for name in ("m", "v"):
        yield BadCall(f"{name} of dtype float16", call(**{name: torch.ones(3, 4).half()}), TypeError, name)
        yield BadCall(f"{name} of another shape", call(**{name: torch.ones(4, 3)}), ValueError, name)
    for name in ("gradient", "indices", "m", "v"):
        yield BadCall(f"{name} not a tensor", call(**{name: 1.0}), TypeError, name)
        yield BadCall(f"{name} a list", call(**{name: [torch.ones(3, 4)]}), TypeError, name)
    yield BadCall("gradient of dtype float64", call(gradient=torch.ones(2, 4).double()), TypeError, "gradient")
    yield BadCall("gradient of more rows than ids", call(gradient=torch.ones(3, 4)), ValueError, "gradient")
    yield BadCall("gradient of another width", call(gradient=torch.ones(2, 5)), ValueError, "gradient")
    yield BadCall("gradient of three dimensions", call(gradient=torch.ones(2, 4, 1)), ValueError, "gradient")
    for dtype in (torch.uint8, torch.int16, torch.float32):
        yield BadCall(f"ids of dtype {dtype}", call(indices=torch.tensor([1, 0]).to(dtype)), TypeError, "indices")
    yield BadCall("ids of shape (1, n)", call(indices=torch.tensor([[2, 0]])), ValueError, "indices")
    yield BadCall("ids of no dimension", call(indices=torch.tensor(2)), ValueError, "indices")
    for dtype in IDS:
        for assume_unique in (False, True):
            ids = torch.tensor([0, 3], dtype=dtype)
            label = f"an id of 3 in 3 rows, {dtype}, assume_unique={assume_unique}"
            yield BadCall(label, call(indices=ids, assume_unique=assume_unique), IndexError, "indices")
    yield BadCall("an id of 2^40", call(indices=torch.tensor([0, 2**40])), IndexError, "indices")
    wide = torch.ones(3, 8)
    yield BadCall(
        "an id beyond a strided table", call(indices=torch.tensor([0, 3]), var=wide[:, ::2]), IndexError, "indices"
    )
    two = {name: [value, value.clone()] for name, value in call().items() if isinstance(value, Tensor)}
    second = {**two, "indices": [torch.tensor([0, 1]), torch.tensor([0, 3])]}
    yield BadCall("an id beyond the second table", {**second, "lr": 0.1}, IndexError, "indices")
    yield BadCall("lists of different lengths", {**two, "v": two["v"][:1], "lr": 0.1}, ValueError, "v")
    yield BadCall("a list and a tensor", {**two, "v": torch.ones(3, 4), "lr": 0.1}, TypeError, "v")
    yield BadCall("an lr too many", {**two, "lr": [0.1, 0.1, 0.1]}, ValueError, "lr")
    yield BadCall("lr of two elements", call(lr=torch.ones(2)), ValueError, "lr")
    yield BadCall("lr of an integer dtype", call(lr=torch.tensor([1])), TypeError, "lr")
    yield BadCall("lr a string", call(lr="0.1"), TypeError, "lr")
    for epsilon in (0.0, 9.9e-9, -9.9e-9, float("nan")):
        yield BadCall(f"epsilon {epsilon}", call(epsilon=epsilon), ValueError, "epsilon")
    yield BadCall("a mask of too few rows", call(indices=torch.tensor([True, False])), ValueError, "indices")
    yield BadCall("all rows, of some a gradient", call(indices=None), ValueError, "gradient")
    yield BadCall("a list that holds a number", {**two, "indices": [None, 1], "lr": 0.1}, TypeError, "indices")
    yield BadCall("no list of indices", {**two, "indices": None, "lr": 0.1}, TypeError, "indices")
    for correction in (True, "none", "local", 1):
        bad = call(bias_correction=correction, step=1)
        yield BadCall(f"bias_correction {correction}", bad, ValueError, "bias_correction")
    counts = torch.zeros(3, dtype=torch.int32)
    caught_up = {"decay_mode": "catch_up", "row_step": counts}
    yield BadCall("unknown eps_mode", call(eps_mode="both"), ValueError, "eps_mode")
    yield BadCall("unknown decay_mode", call(decay_mode="lazy"), ValueError, "decay_mode")
    yield BadCall("no counts of rows", call(bias_correction="row"), ValueError, "row_step")
    yield BadCall("counts that nothing needs", call(row_step=counts), ValueError, "row_step")
    yield BadCall("counts of another dtype", call(bias_correction="row", row_step=counts.long()), TypeError, "row_step")
    yield BadCall("counts of other rows", call(bias_correction="row", row_step=counts[:2]), ValueError, "row_step")
    yield BadCall(
        "two kinds of counts", call(bias_correction="row", step=1, **caught_up), ValueError, "bias_correction"
    )
    yield BadCall("no step", call(bias_correction="global"), ValueError, "step")
    yield BadCall("step 0", call(bias_correction="global", step=0), ValueError, "step")
    yield BadCall("step 2^31", call(step=2**31, **caught_up), ValueError, "step")
    yield BadCall("padding without its rule", call(padding_idx=0), ValueError, "padding_idx")
    for padding in (None, -1):
        given = call(indices=torch.tensor([0, -2]), refuse_negative=True, padding_idx=padding)
        yield BadCall(f"an id of -2, padding {padding}", given, IndexError, "indices")
    yield BadCall("a seed of 33 bits", call(step=1, stochastic_rounding=2**32), ValueError, "stochastic_rounding")
    yield BadCall("grad_scale of two elements", call(grad_scale=torch.ones(2)), ValueError, "grad_scale")
    yield BadCall("unknown convention", call(convention="kernel"), ValueError, "convention")
    same = torch.ones(3, 4)
    yield BadCall("m is v", call(m=same, v=same), ValueError, "shares memory")
    yield BadCall("overlapping views", call(var=wide[:, :4], m=wide[:, 3:7]), ValueError, "shares memory")
    yield BadCall("gradient is part of var", call(gradient=same[:2], var=same), ValueError, "shares memory")


SAMPLES = Samples(
    draw=draw,
    edges=edges,
    bad_calls=bad_calls,
    case=CaseSpec(
        inputs=case_inputs,
        sizes=(1000, 32, 100),
        dtypes=checks.FLOATS,
        axes=("rows", "dim", "n"),
        presets={"official": OFFICIAL},
    ),
)
