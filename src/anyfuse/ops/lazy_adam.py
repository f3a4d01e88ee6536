r"""Adam for the rows of a table that a step names (document 004, LazyAdam of Rec SDK).

The gradient holds n rows, `indices` the row of the table that each belongs to. Negative ids are skipped; the rows of
one id are summed first, in fp32, in order of appearance, the sum starting from the first. Then, for each row j that was
named, with its gradient g, in fp32, every operation rounded once, in this order:

    m'   = m[j]·beta1 + g·(1 - beta1)
    v'   = |v[j]·beta2 + (g·g)·(1 - beta2)|
    var' = var[j] + (m'·(-lr)) / (sqrt(v') + epsilon)

lr is used as given: the bias correction lr·sqrt(1 - beta2^t)/(1 - beta1^t) is the caller's. Rows that were not named
are neither read nor written. Tensors of 16 bits are widened at the load and rounded once at the store.

Beside its results a call needs 9 bytes for each row of the gradient (576 KiB for 65 536) and at most 16 KiB more; none
of it with `assume_unique`. Tensors that are not contiguous need a copy: of a gradient, or of a table's named rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import _core
from .._opspec import BadCall, CaseSpec, OpSpec, Preset, Sample, register
from .._sampling import Draw
from .._settings import convention_or_default, use_reference
from .._soc import Limits, Profiles, restricted
from . import _dispatch as d

SCHEMA = (
    "lazy_adam_(Tensor[] gradient, Tensor[] indices, Tensor(a!)[] m, Tensor(b!)[] v, Tensor(c!)[] var, Tensor[] lr, "
    "float beta1, float beta2, float epsilon, bool assume_unique, str convention) -> ()"
)

INDICES = (torch.int32, torch.int64)
STATE = (torch.float32,)
SMALLEST_EPSILON = d.f32(1e-8)

PROFILES = Profiles(
    "lazy_adam",
    {
        ("Ascend910B", "Ascend910_93", "Ascend950"): Limits(
            dtypes={"gradient": STATE, "var": STATE, "indices": (torch.int32,)},
            multiples={"dim": 8},
        )
    },
)


def lazy_adam_(
    gradient: Tensor | Sequence[Tensor],
    indices: Tensor | Sequence[Tensor],
    m: Tensor | Sequence[Tensor],
    v: Tensor | Sequence[Tensor],
    var: Tensor | Sequence[Tensor],
    lr: float | Tensor | Sequence[float | Tensor],
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    *,
    assume_unique: bool = False,
    convention: str | None = None,
) -> tuple[Any, Any, Any]:
    """Steps the rows of a table that `indices` names with Adam, in place; its work depends on those rows alone.

    The mathematics is in this module's docstring.

    Args:
        gradient: (n, dim); a tensor, or a list for many tables in one native call, as `var` is. float32, float16 or
            bfloat16.
        indices: the row of the table for each row of the gradient, (n,) or (n, 1), int32 or int64. Negative ones are
            skipped, equal ones summed.
        m, v: first and second moments, (rows, dim), float32; updated.
        var: the table, (rows, dim), float32, float16 or bfloat16; updated. Tables of a list may differ in shape and
            dtype.
        lr: step size with the bias correction in it: a number, a one-element float tensor, or a list with one for each
            table.
        beta1, beta2: decay of the moments.
        epsilon: added to the square root of v; its magnitude is at least 1e-8.
        assume_unique: promises that the non-negative ids of a table are distinct and saves looking for equal ones. If
            they are not, their rows hold one of the updates, some of each, or one after the other; every other row is
            right, and no other memory is touched.
        convention: "formula" (1 - beta rounded once) or "device" (beta rounded to fp32 first, as the NPU has it);
            default `ANYFUSE_CONVENTION`.

    Returns:
        (m, v, var), the objects that were given.

    Raises:
        TypeError: a dtype or a kind of argument that is not accepted.
        ValueError: shapes that do not fit, an epsilon below 1e-8, in-place tensors that share memory.
        IndexError: an id that is not below the rows of its table. Nothing has been written.

    Example:
        >>> import torch, anyfuse
        >>> var, m, v = torch.ones(3, 2), torch.zeros(3, 2), torch.zeros(3, 2)
        >>> _ = anyfuse.lazy_adam_(torch.full((1, 2), 0.5), torch.tensor([1]), m, v, var, lr=1e-3)
        >>> var
        tensor([[1.0000, 1.0000],
                [0.9968, 0.9968],
                [1.0000, 1.0000]])
    """
    given = {"gradient": gradient, "indices": indices, "m": m, "v": v, "var": var}
    lists = [d.as_list(name, value, var, "var") for name, value in given.items()]
    _op(
        *lists,
        _lr_list(lr, len(lists[0])),
        beta1,
        beta2,
        epsilon,
        assume_unique,
        convention_or_default(convention),
    )
    return m, v, var


def _lr_list(lr: Any, count: int) -> list[Tensor]:
    """`lr` as one-element tensors: one for all tables, or one for each."""
    values = list(lr) if isinstance(lr, (list, tuple)) else [lr]
    if isinstance(lr, (list, tuple)) and len(values) != count:
        raise ValueError(f"lr has {len(values)} entries; accepted: one for all tables, or {count}")
    for value in values:
        if not isinstance(value, (float, int, Tensor, torch.SymFloat)):
            raise TypeError(f"lr is a {type(value).__name__}; accepted: a number, a one-element float tensor or a list")
        if isinstance(value, int) and not -(2**1023) <= value < 2**1023:
            raise ValueError("lr is beyond 1023 bits; accepted: numbers within")
    values = [float(value) if isinstance(value, int) else value for value in values]
    return [value if isinstance(value, Tensor) else torch.full((1,), value, dtype=torch.float64) for value in values]


def check(
    gradient: Sequence[Tensor],
    indices: Sequence[Tensor],
    m: Sequence[Tensor],
    v: Sequence[Tensor],
    var: Sequence[Tensor],
    lr: Sequence[Tensor],
    epsilon: float,
) -> None:
    """Refuses dtypes, shapes and attributes; looks at no value and no address."""
    d.require(abs(d.f32(epsilon)) >= SMALLEST_EPSILON, f"epsilon is {epsilon}; accepted: a magnitude of at least 1e-8")
    for name, tensors in (("gradient", gradient), ("indices", indices), ("m", m), ("v", v)):
        d.require(len(tensors) == len(var), f"{name} has {len(tensors)} tensors; accepted: {len(var)}, as many as var")
    for g, ids, m_, v_, table in zip(gradient, indices, m, v, var, strict=True):
        d.require_tensor("var", table, d.FLOATS)
        d.require(table.dim() == 2, f"var has shape {tuple(table.shape)}; accepted: (rows, dim)")
        for name, state in (("m", m_), ("v", v_)):
            d.require_tensor(name, state, STATE)
            d.require_shape(name, state, table.shape, "var")
        d.require_tensor("indices", ids, INDICES)
        flat = ids.dim() == 1 or (ids.dim() == 2 and ids.shape[1] == 1)
        d.require(flat, f"indices has shape {tuple(ids.shape)}; accepted: (n,) or (n, 1)")
        d.require_tensor("gradient", g, d.FLOATS)
        d.require_shape("gradient", g, (ids.shape[0], table.shape[1]), "indices and the rows of var")
    d.require(len(lr) in (1, len(var)), f"lr has {len(lr)} entries; accepted: one for all tables, or {len(var)}")
    for value in lr:
        d.check_scalar("lr", value)
    if restricted():
        PROFILES.check(gradient=gradient, indices=indices, var=var, dim=[table.shape[1] for table in var])


def check_ids(indices: Sequence[Tensor], var: Sequence[Tensor]) -> None:
    """Refuses ids beyond their table."""
    for ids, table in zip(indices, var, strict=True):
        largest = int(ids.max()) if ids.numel() else -1
        if largest >= len(table):
            raise IndexError(f"indices holds {largest}; accepted: ids below {len(table)}, the rows of var")


# ---- reference ----


def sum_by_id(gradient: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct ids that are not negative, ascending, and the sum of each one's gradients."""
    kept = indices >= 0
    ids, order = indices[kept].sort(stable=True)
    rows = d.real(gradient[kept][order])
    ids, counts = ids.unique_consecutive(return_counts=True)
    first = counts.cumsum(0) - counts
    total = rows[first]
    with np.errstate(all="ignore"):
        for i in (counts > 1).nonzero().flatten().tolist():
            appearances = rows[first[i] : first[i] + counts[i]].detach().numpy()
            total[i] = torch.from_numpy(np.add.accumulate(appearances, axis=0)[-1])  # one after the other by definition
    return ids, total


def reference(
    gradient: Tensor,
    indices: Tensor,
    m: Tensor,
    v: Tensor,
    var: Tensor,
    lr: float,
    *,
    beta1: float,
    beta2: float,
    epsilon: float,
    convention: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """One table's step, as new tensors (m, v, var). The definition of the operator's numbers."""
    rest1, rest2 = (d.f32(1.0 - (d.f32(x) if convention == "device" else x)) for x in (beta1, beta2))
    ids, g = sum_by_id(gradient, indices.flatten())
    m_new = d.real(m[ids]) * d.f32(beta1) + g * rest1
    v_new = (d.real(v[ids]) * d.f32(beta2) + (g * g) * rest2).abs()
    step = (m_new * -d.f32(lr)) / (d.correctly_rounded_sqrt(v_new) + d.f32(epsilon))
    var_new = d.real(var[ids]) + step
    results = m.clone(), v.clone(), var.clone()
    for result, rows in zip(results, (m_new, v_new, var_new), strict=True):
        result[ids] = rows.to(result.dtype)
    return results


# ---- CPU ----


class Row(_core.Struct, c_name="anyfuse_lazy_adam_row"):
    _fields_ = [
        ("n", _core.i64),
        ("rows", _core.i64),
        ("dim", _core.i64),
        ("gradient", _core.pointer),
        ("indices", _core.pointer),
        ("m", _core.pointer),
        ("v", _core.pointer),
        ("var", _core.pointer),
        ("lr", _core.f64),
        ("gradient_dtype", _core.i32),
        ("indices_dtype", _core.i32),
        ("var_dtype", _core.i32),
        ("reserved", _core.i32),
    ]


class Params(_core.Struct, c_name="anyfuse_lazy_adam_params"):
    _fields_ = [
        ("size", _core.size),
        ("row_size", _core.size),
        ("rows", _core.pointer),
        ("count", _core.i64),
        ("beta1", _core.f64),
        ("beta2", _core.f64),
        ("epsilon", _core.f64),
        ("assume_unique", _core.i32),
        ("convention", _core.i32),
        ("threads", _core.i32),
        ("reserved", _core.i32),
    ]


_native = _core.function("lazy_adam", Params)
number = d.NUMBERS


class _Excerpt:
    """The named rows of a table whose tensors are not all contiguous, as contiguous tensors: a copy of the whole table
    would be work that grows with its size."""

    def __init__(self, indices: Tensor, *tensors: Tensor) -> None:
        flat = indices.flatten()
        self.ids = flat[flat >= 0].unique().long()
        self.indices = torch.where(flat < 0, -1, torch.searchsorted(self.ids, flat.long()))
        self.tensors = tensors
        self.rows = [tensor[self.ids] for tensor in tensors]

    def write_back(self) -> None:
        with torch.no_grad():
            for tensor, rows in zip(self.tensors, self.rows, strict=True):
                tensor[self.ids] = rows


def _cpu(
    gradient: list[Tensor],
    indices: list[Tensor],
    m: list[Tensor],
    v: list[Tensor],
    var: list[Tensor],
    lr: list[Tensor],
    beta1: float,
    beta2: float,
    epsilon: float,
    assume_unique: bool,
    convention: str,
) -> None:
    check(gradient, indices, m, v, var, lr, epsilon)
    d.check_memory((("m", m), ("v", v), ("var", var)), (("gradient", gradient), ("indices", indices)))
    lrs = [float(value) for value in lr] * (len(var) if len(lr) == 1 else 1)
    if use_reference():
        check_ids(indices, var)
        for i, lr_ in enumerate(lrs):
            results = reference(
                gradient[i], indices[i], m[i], v[i], var[i], lr_,
                beta1=beta1, beta2=beta2, epsilon=epsilon, convention=convention,
            )  # fmt: skip
            d.assign((m[i], v[i], var[i]), results)
    else:
        _run(gradient, indices, m, v, var, lrs, beta1, beta2, epsilon, assume_unique, convention)
    d.write_back((m, m), (v, v), (var, var))


def _run(
    gradient: list[Tensor],
    indices: list[Tensor],
    m: list[Tensor],
    v: list[Tensor],
    var: list[Tensor],
    lr: list[float],
    beta1: float,
    beta2: float,
    epsilon: float,
    assume_unique: bool,
    convention: str,
) -> None:
    gradient_, indices_ = d.contiguous(gradient), d.contiguous(indices)  # kept until the call is over
    tables: list[Sequence[Tensor]] = list(zip(m, v, var, strict=True))
    excerpts = []
    for i, table in enumerate(tables):
        if not all(tensor.is_contiguous() for tensor in table):
            check_ids(indices, var)
            excerpt = _Excerpt(indices_[i], *table)
            excerpts.append(excerpt)
            indices_[i], tables[i] = excerpt.indices, excerpt.rows
    rows = _core.array(
        Row,
        [
            (
                ids.shape[0], p.shape[0], p.shape[1],
                g.data_ptr(), ids.data_ptr(), a.data_ptr(), b.data_ptr(), p.data_ptr(), lr_,
                number[g.dtype], number[ids.dtype], number[p.dtype], 0,
            )
            for g, ids, (a, b, p), lr_ in zip(gradient_, indices_, tables, lr, strict=True)
        ],
    )  # fmt: skip
    try:
        _native(
            Params(
                _core.sizeof(Params), _core.sizeof(Row), _core.addressof(rows), len(tables), beta1, beta2, epsilon,
                assume_unique, _core.CONVENTIONS[convention], torch.get_num_threads(), 0,
            )
        )  # fmt: skip
    except IndexError:
        check_ids(indices, var)  # says which
        raise
    for excerpt in excerpts:
        excerpt.write_back()


def _fake(
    gradient: list[Tensor],
    indices: list[Tensor],
    m: list[Tensor],
    v: list[Tensor],
    var: list[Tensor],
    lr: list[Tensor],
    beta1: float,
    beta2: float,
    epsilon: float,
    assume_unique: bool,
    convention: str,
) -> None:
    check(gradient, indices, m, v, var, lr, epsilon)


_op = d.define(SCHEMA, _cpu, _fake)


# ---- samples ----

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
    dtype = draw.choice(INDICES)
    if dtype is torch.int64 and draw.chance(0.2):
        ids[ids < 0] = -(2**40) - 1
    if not unique and draw.chance(0.2):
        ids.sort()
    return torch.from_numpy(ids.astype("int64")).to(dtype)


def _draw_table(draw: Draw, dtypes: tuple[torch.dtype, torch.dtype], unique: bool) -> dict[str, Tensor]:
    dim = draw.choice(DIMS) if draw.chance(0.9) else draw.integer(0, 2000)
    most = 2500 // max(dim, 1) + 1  # large ones are among the edges
    rows = draw.choice((0, 1, 2, 3, 10, 100, 1000, 1025)) if draw.chance(0.8) else draw.integer(0, 4000)
    rows = min(rows, most)
    n = min(draw.choice((0, 1, 2, 3, 8, 33, 100, 1000)) if draw.chance(0.8) else draw.integer(0, 4000), most)
    ids = _draw_ids(draw, n, rows, unique)
    gradient_dtype, var_dtype = dtypes
    table = {
        "gradient": draw.normal((n, dim), gradient_dtype, scale=draw.choice((1.0, 1e-3, 1e3))),
        "indices": ids.unsqueeze(1) if draw.chance(0.3) else ids,
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
        name: draw.view(tensor, writable=kept[name] or (name == "indices" and expanded))
        for name, tensor in table.items()
    }


def draw(draw: Draw) -> Sample:
    unique = draw.chance(0.3)
    count = draw.choice((1, 1, 1, 2, 5))
    tables = [_draw_table(draw, (draw.choice(d.FLOATS), draw.choice(d.FLOATS)), unique) for _ in range(count)]
    one = count == 1 and draw.chance(0.8)
    arguments: dict[str, Any] = {
        name: tables[0][name] if one else [table[name] for table in tables] for name in tables[0]
    }
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
    shapes = [(len(table["indices"]), *table["var"].shape) for table in tables]
    return Sample(f"(n, rows, dim)={shapes} assume_unique={unique}", arguments)


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

    for dtype in d.FLOATS:
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
    for dtype in (torch.uint8, torch.int16, torch.float32, torch.bool):
        yield BadCall(f"ids of dtype {dtype}", call(indices=torch.tensor([1, 0]).to(dtype)), TypeError, "indices")
    yield BadCall("ids of shape (1, n)", call(indices=torch.tensor([[2, 0]])), ValueError, "indices")
    yield BadCall("ids of no dimension", call(indices=torch.tensor(2)), ValueError, "indices")
    for dtype in INDICES:
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
    yield BadCall("unknown convention", call(convention="kernel"), ValueError, "convention")
    same = torch.ones(3, 4)
    yield BadCall("m is v", call(m=same, v=same), ValueError, "shares memory")
    yield BadCall("overlapping views", call(var=wide[:, :4], m=wide[:, 3:7]), ValueError, "shares memory")
    yield BadCall("gradient is part of var", call(gradient=same[:2], var=same), ValueError, "shares memory")


register(
    OpSpec(
        name="lazy_adam",
        function=lazy_adam_,
        schema=SCHEMA,
        document="004",
        summary="Adam for the rows of a table that a step names",
        in_place=("m", "v", "var"),
        outputs=("m", "v", "var"),
        draw=draw,
        edges=edges,
        bad_calls=bad_calls,
        case=CaseSpec(
            inputs=case_inputs,
            sizes=(1000, 32, 100),
            dtypes=d.FLOATS,
            axes=("rows", "dim", "n"),
            presets={"official": OFFICIAL},
        ),
        profiles=PROFILES,
    )
)
