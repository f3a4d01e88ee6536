r"""Adam for the rows of a table that a step names (LazyAdam of Rec SDK).

The gradient holds n rows, `indices` the row of the table that each belongs to. Negative ids are skipped; the rows of
one id are summed first, in fp32, in order of appearance, the sum starting from the first. Then, for each row j that was
named, with its gradient g, in fp32, every operation rounded once, in this order:

    m'   = m[j]·beta1 + g·(1 - beta1)
    v'   = |v[j]·beta2 + (g·g)·(1 - beta2)|
    var' = var[j] + (m'·(-lr)) / (sqrt(v') + epsilon)

lr is used as given: the bias correction lr·sqrt(1 - beta2^t)/(1 - beta1^t) is the caller's. Rows that were not named
are neither read nor written. Tensors of 16 bits are widened at the load and rounded once at the store.

Instead of ids there may be a mask with a bool for each row, or None for all rows; the gradient then has all rows.

What a training loop needs beyond that document, off unless asked for:

- g is multiplied by fp32(1/grad_scale), or -1/grad_scale with `maximize`, after the sum.
- `bias_correction`: with n the number of the step, of the table ("global": `step`) or of the row ("row": `row_step`,
  which counts), lr becomes lr·sqrt(c2)/c1, c1 = 1 - beta1^n, c2 = 1 - beta2^n, and epsilon stays with
  `eps_mode="inside"` (lr·correction·m/(sqrt(v) + epsilon), as torch's SparseAdam) or becomes epsilon·sqrt(c2) with
  "outside" (m/c1 over sqrt(v/c2) + epsilon, as AdamW). Computed in double, powers by repeated squaring, then rounded.
- `weight_decay`: var' = var[j]·(1 - lr·weight_decay) + …, with the lr that was given, for rows that are named.
- `decay_mode="catch_up"`: a row named at step t and last at step s (`row_step`, which is set to t; 0: never) first
  takes the t - 1 - s steps between as dense AdamW would, with a gradient of zero and the numbers of this call:

      u = s+1 … t-1:   moved = moved·w + (m·a_u)/(sqrt(v)·b_u + e_u),   from 0 on,   w = 1 - lr·weight_decay
      a_u = -lr_u·beta1^(u-s),   b_u = sqrt(beta2)^(u-s),   lr_u and e_u corrected for step u
      then             var = var·w^(t-1-s) + moved,   m = m·beta1^(t-1-s),   v = v·beta2^(t-1-s)

  Equal to dense AdamW but for rounding. A move is beta1/sqrt(beta2) of the one before; those below 2^-24 of the first
  (159 with betas .9 and .999; 65 536 at most) are left out, and what was moved only decays. A row that was never named
  has no moves. It cannot be had together with "row", as a row has one count.
- `stochastic_rounding`: var of 16 bits is rounded by chance (`ops._rounding`).

Beside its results a call needs 9 bytes for each row of the gradient (576 KiB for 65 536) and at most 16 KiB more; none
of it with `assume_unique` or a mask. Tensors that are not contiguous need a copy: of a gradient, or of a table's named
rows (of the whole table with `stochastic_rounding`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import _core
from .._opspec import OpSpec, register
from .._settings import convention_or_default, use_reference
from .._soc import Profiles, restricted
from . import _dispatch as d
from ._rounding import rounded, seeds_of

SCHEMA = (
    "lazy_adam_(Tensor[] gradient, Tensor?[] indices, Tensor(a!)[] m, Tensor(b!)[] v, Tensor(c!)[] var, "
    "Tensor(d!)[] row_step, Tensor[] lr, Tensor[] step, Tensor? grad_scale, Tensor? found_inf, float beta1, "
    "float beta2, float epsilon, bool assume_unique, str convention, str bias_correction, str eps_mode, "
    "float weight_decay, str decay_mode, bool refuse_negative, int? padding_idx, bool maximize, "
    "int[]? stochastic_rounding) -> ()"
)


class Call(NamedTuple):
    """The schema's arguments."""

    gradient: list[Tensor]
    indices: list[Tensor | None]
    m: list[Tensor]
    v: list[Tensor]
    var: list[Tensor]
    row_step: list[Tensor]
    lr: list[Tensor]
    step: list[Tensor]
    grad_scale: Tensor | None
    found_inf: Tensor | None
    beta1: float
    beta2: float
    epsilon: float
    assume_unique: bool
    convention: str
    bias_correction: str
    eps_mode: str
    weight_decay: float
    decay_mode: str
    refuse_negative: bool
    padding_idx: int | None
    maximize: bool
    stochastic_rounding: Sequence[int] | None

    @property
    def counts_rows(self) -> bool:
        return self.bias_correction == "row" or self.decay_mode == "catch_up"

    @property
    def needs_step(self) -> bool:
        return self.bias_correction == "global" or self.decay_mode == "catch_up" or bool(self.stochastic_rounding)

    def skips(self, ids: Tensor) -> Tensor:
        """Which ids are not to be stepped."""
        return ids < 0 if self.padding_idx is None else (ids < 0) | (ids == self.padding_idx)

    @property
    def updated(self) -> tuple[list[Tensor], ...]:
        return self.m, self.v, self.var, self.row_step

    @property
    def tables(self) -> list[tuple[Tensor, ...]]:
        """What is updated of each table: m, v, var and, where rows are counted, row_step."""
        return list(zip(*(self.updated if self.row_step else self.updated[:3]), strict=True))

    def check_memory(self) -> None:
        """Refuses in-place tensors that share an element with another argument."""
        given = [ids for ids in self.indices if ids is not None]
        in_place = zip(("m", "v", "var", "row_step"), self.updated, strict=True)
        d.check_memory(in_place, (("gradient", self.gradient), ("indices", given)))


IDS = (torch.int32, torch.int64)
INDICES = (*IDS, torch.bool)
CORRECTIONS = ("none", "global", "row")  # numbered as in the C API
EPS_MODES = ("inside", "outside")
DECAY_MODES = ("touched", "catch_up")
NO_PADDING = -(2**63)
PADDING_OF_EXCERPT = -1
STATE = (torch.float32,)
SMALLEST_EPSILON = d.f32(1e-8)

_MASK = torch.empty(0, dtype=torch.bool)  # stands for all rows where products are asked

PROFILES = Profiles("lazy_adam")


def lazy_adam_(
    gradient: Tensor | Sequence[Tensor],
    indices: Tensor | Sequence[Tensor | None] | None,
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
    row_step: Tensor | Sequence[Tensor] | None = None,
    step: int | Tensor | Sequence[int | Tensor] | None = None,
    bias_correction: Literal[False, "global", "row"] = False,
    eps_mode: str = "inside",
    weight_decay: float = 0.0,
    decay_mode: str = "touched",
    refuse_negative: bool = False,
    padding_idx: int | None = None,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    maximize: bool = False,
    stochastic_rounding: int | Sequence[int] | None = None,
) -> tuple[Any, Any, Any]:
    """Steps the rows of a table that `indices` names with Adam, in place; its work depends on those rows alone.

    The mathematics is in this module's docstring.

    Args:
        gradient: (n, dim); a tensor, or a list for many tables in one native call, as `var` is. float32, float16 or
            bfloat16.
        indices: the row of the table for each row of the gradient, (n,) or (n, 1), int32 or int64. Negative ones are
            skipped, equal ones summed. Or a bool mask (rows,), or None for all rows, beside a gradient (rows, dim).
        m, v: first and second moments, (rows, dim), float32; updated.
        var: the table, (rows, dim), float32, float16 or bfloat16; updated. Tables of a list may differ in shape and
            dtype.
        lr: step size, with the bias correction in it unless `bias_correction` says otherwise: a number, a one-element
            float tensor, or a list with one for each table.
        beta1, beta2: decay of the moments.
        epsilon: added to the square root of v; its magnitude is at least 1e-8. Of the other numbers any is taken, as by
            the operator on an NPU, NaN and those that no training uses too: the formula is evaluated as it stands.
            (`anyfuse.optim` refuses what makes no sense.)
        assume_unique: promises that the non-negative ids of a table are distinct and saves looking for equal ones. If
            they are not, their rows hold one of the updates, some of each, or one after the other; every other row is
            right, and no other memory is touched.
        convention: "formula" (1 - beta rounded once) or "device" (beta rounded to fp32 first, as the NPU has it);
            default `ANYFUSE_CONVENTION`.
        row_step: counts of the rows, (rows,) int32, updated: for `bias_correction="row"` and `decay_mode="catch_up"`.
        step: number of the step, 1 at the first: an int, a one-element int64 tensor, or a list with one for each table.
            Needed for `bias_correction="global"`, `decay_mode="catch_up"` and `stochastic_rounding`.
        bias_correction: False (lr as given), "global" (by `step`) or "row" (by each row's own count).
        eps_mode: whether epsilon stands "inside" or "outside" of the correction.
        weight_decay: decoupled from the gradient, for the named rows.
        decay_mode: "touched" (a row stays as it is between the steps that name it) or "catch_up" (it then takes the
            steps between first).
        refuse_negative: negative ids other than `padding_idx` are an error instead of being skipped.
        padding_idx: the id that is skipped, with `refuse_negative` (a mask has none).
        grad_scale: sums of gradients are multiplied by 1/grad_scale (a one-element tensor, as GradScaler has).
        found_inf: a one-element tensor; when it is not 0 nothing changes.
        maximize: turns the sign of the gradients.
        stochastic_rounding: None, or a seed (0 to 2^32 - 1): var of 16 bits is rounded by chance. A list has one seed a
            table; otherwise table i takes the seed + i.

    Returns:
        (m, v, var), the objects that were given.

    Raises:
        TypeError: a dtype or a kind of argument that is not accepted.
        ValueError: shapes that do not fit, an epsilon below 1e-8, in-place tensors that share memory.
        IndexError: an id that is not below the rows of its table (or refused as negative). Nothing has been written.

    Example:
        >>> import torch, anyfuse
        >>> var, m, v = torch.ones(3, 2), torch.zeros(3, 2), torch.zeros(3, 2)
        >>> _ = anyfuse.lazy_adam_(torch.full((1, 2), 0.5), torch.tensor([1]), m, v, var, lr=1e-3)
        >>> var
        tensor([[1.0000, 1.0000],
                [0.9968, 0.9968],
                [1.0000, 1.0000]])
    """
    given = {"gradient": gradient, "m": m, "v": v, "var": var}
    gradients, m_, v_, var_ = (d.as_list(name, value, var, "var") for name, value in given.items())
    _op(
        gradients,
        _indices_list(indices, var),
        m_,
        v_,
        var_,
        [] if row_step is None else d.as_list("row_step", row_step, var, "var"),
        _lr_list(lr, len(var_)),
        [] if step is None else d.step_list(step, len(var_)),
        grad_scale,
        found_inf,
        beta1,
        beta2,
        epsilon,
        assume_unique,
        convention_or_default(convention),
        _correction(bias_correction),
        eps_mode,
        weight_decay,
        decay_mode,
        refuse_negative,
        _padding(padding_idx),
        maximize,
        seeds_of(stochastic_rounding, len(var_)),
    )
    return m, v, var


def _indices_list(indices: Any, var: Any) -> list[Tensor | None]:
    """`indices` as a list with one for each table; None stands for all rows."""
    if isinstance(var, Tensor):
        return [None] if indices is None else list(d.as_list("indices", indices, var, "var"))
    if not isinstance(indices, (list, tuple)):
        raise TypeError(f"indices is a {type(indices).__name__}; accepted: a list of tensors and None, as var is one")
    if len(indices) != len(var):
        raise ValueError(f"indices has {len(indices)} entries; accepted: {len(var)}, as many as var")
    for item in indices:
        if not isinstance(item, Tensor) and item is not None:
            raise TypeError(f"indices holds a {type(item).__name__}; accepted: tensors and None")
    return list(indices)


def _padding(value: Any) -> Any:
    """TypeError for what is no id; torch itself takes a dtype for one."""
    if value is not None and not isinstance(value, (int, torch.SymInt)):
        raise TypeError(f"padding_idx is a {type(value).__name__}; accepted: an id or None")
    return value


def _correction(value: Any) -> str:
    if value is not False and not (isinstance(value, str) and value in CORRECTIONS[1:]):
        raise ValueError(f"bias_correction is {value!r}; accepted: False, 'global', 'row'")
    return "none" if value is False else value


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


def check(call: Call) -> None:
    """Refuses dtypes, shapes and attributes; looks at no value and no address."""
    check_options(call, bool(call.row_step), bool(call.step))
    var, lr = call.var, call.lr
    for name in ("gradient", "indices", "m", "v"):
        count = len(getattr(call, name))
        d.require(count == len(var), f"{name} has {count} tensors; accepted: {len(var)}, as many as var")
    for g, ids, m, v, table in zip(call.gradient, call.indices, call.m, call.v, var, strict=True):
        d.require_tensor("var", table, d.FLOATS)
        d.require(table.dim() == 2, f"var has shape {tuple(table.shape)}; accepted: (rows, dim)")
        for name, state in (("m", m), ("v", v)):
            d.require_tensor(name, state, STATE)
            d.require_shape(name, state, table.shape, "var")
        d.require_tensor("gradient", g, d.FLOATS)
        d.require_shape("gradient", g, (check_indices(ids, table), table.shape[1]), "indices and the rows of var")
    for counts, table in zip(call.row_step, var, strict=bool(call.row_step)):
        d.require_tensor("row_step", counts, (torch.int32,))
        d.require_shape("row_step", counts, table.shape[:1], "the rows of var")
    d.require(len(lr) in (1, len(var)), f"lr has {len(lr)} entries; accepted: one for all tables, or {len(var)}")
    for value in lr:
        d.check_scalar("lr", value)
    if call.step:
        d.check_steps(call.step, len(var))
    d.check_scalar("grad_scale", call.grad_scale)
    d.check_scalar("found_inf", call.found_inf)
    if restricted():
        indices = [_MASK if ids is None else ids for ids in call.indices]
        dims = [table.shape[1] for table in var]
        PROFILES.check(**{**call._asdict(), "indices": indices}, dim=dims)


def check_indices(ids: Tensor | None, table: Tensor) -> int:
    """Refuses ids and masks of a wrong kind; returns how many rows the gradient has."""
    if ids is None:
        return table.shape[0]
    d.require_tensor("indices", ids, INDICES)
    if ids.dtype == torch.bool:
        d.require_shape("indices (a mask)", ids, table.shape[:1], "the rows of var")
    flat = ids.dim() == 1 or (ids.dim() == 2 and ids.shape[1] == 1)
    d.require(flat, f"indices has shape {tuple(ids.shape)}; accepted: (n,) or (n, 1)")
    return ids.shape[0]


def check_options(call: Call, row_step: bool, step: bool) -> None:
    """Refuses numbers and choices, and what they need and is not given (`row_step`, `step`: whether they are)."""
    accepted = "a magnitude of at least 1e-8"
    d.require(abs(d.f32(call.epsilon)) >= SMALLEST_EPSILON, f"epsilon is {call.epsilon}; accepted: {accepted}")
    for name, value, choices in (("eps_mode", call.eps_mode, EPS_MODES), ("decay_mode", call.decay_mode, DECAY_MODES)):
        d.require(value in choices, f"{name} is {value!r}; accepted: {', '.join(map(repr, choices))}")
    both = call.bias_correction == "row" and call.decay_mode == "catch_up"
    one = "accepted: one of them, a row has one count"
    d.require(not both, f"bias_correction is 'row' beside decay_mode 'catch_up'; {one}")
    padding = call.padding_idx
    needs = "bias_correction='row' or decay_mode='catch_up'"
    d.require(row_step or not call.counts_rows, f"row_step is None; accepted: a count for each row with {needs}")
    d.require(call.counts_rows or not row_step, f"row_step is given; accepted: None without {needs}")
    d.require(step or not call.needs_step, "step is None; accepted: the number of the step, as the options need it")
    d.require(
        call.refuse_negative or padding is None, f"padding_idx is {padding}; accepted: None without refuse_negative"
    )


def check_ids(call: Call) -> None:
    """Refuses ids beyond their table, and negative ones where they are an error."""
    for ids, table in zip(call.indices, call.var, strict=True):
        if ids is None or ids.dtype == torch.bool or ids.numel() == 0:
            continue
        largest = int(ids.max())
        if largest >= len(table):
            raise IndexError(f"indices holds {largest}; accepted: ids below {len(table)}, the rows of var")
        negative, padding = ids[ids < 0] if call.refuse_negative else ids[:0], call.padding_idx
        refused = negative if padding is None else negative[negative != padding]
        if refused.numel():
            accepted = "ids from 0 on" if padding is None else f"ids from 0 on and the padding {padding}"
            raise IndexError(f"indices holds {int(refused[0])}; accepted: {accepted}")


def check_step_values(steps: Sequence[int], call: Call) -> None:
    """Refuses numbers that no step has."""
    highest = 2**31 - 1 if call.decay_mode == "catch_up" else 2**63 - 1
    for step in steps if call.needs_step else ():
        d.require(1 <= step <= highest, f"step is {step}; accepted: 1 to {highest}")


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


def power(base: float, n: int) -> float:
    """base^n by repeated squaring, in double."""
    result = 1.0
    while n > 0:
        if n & 1:
            result *= base
        n >>= 1
        base *= base
    return result


@dataclass(frozen=True)
class _Exact:
    """The numbers of a step in double."""

    lr: float
    call: Call

    def corrected(self, power1: float, power2: float) -> tuple[float, float]:
        """lr and epsilon after beta1^n and beta2^n, n the number of the step."""
        epsilon = self.call.epsilon
        if self.call.bias_correction == "none":
            return self.lr, epsilon
        with np.errstate(all="ignore"):  # C's values, not Python's exceptions
            root = np.sqrt(np.float64(1.0 - power2))
            lr = self.lr * root / np.float64(1.0 - power1)
            return lr, epsilon * root if self.call.eps_mode == "outside" else epsilon

    def at(self, n: int) -> tuple[float, float]:
        lr, epsilon = self.corrected(power(self.call.beta1, n), power(self.call.beta2, n))
        return -d.f32(lr), d.f32(epsilon)

    @property
    def decay(self) -> float:
        return 1.0 - self.lr * self.call.weight_decay


def moves_that_count(beta1: float, beta2: float) -> int:
    """After how many steps without a gradient a row no longer moves."""
    with np.errstate(all="ignore"):
        ratio = np.float64(beta1) / np.sqrt(np.float64(beta2))
        size, moves = np.float64(1.0), 0
        while size >= 2**-24 and moves < 2**16:
            size *= ratio
            moves += 1
    return moves


def _caught_up(m: Tensor, v: Tensor, var: Tensor, last: int, step: int, exact: _Exact) -> tuple[Tensor, Tensor, Tensor]:
    """Rows that were last named at step `last`, after the steps up to `step` - 1."""
    call = exact.call
    skipped = max(step - 1 - last, 0)
    if skipped == 0:
        return m, v, var
    moves = min(skipped, moves_that_count(call.beta1, call.beta2)) if last > 0 else 0
    power1, power2, decay1, root_decay = power(call.beta1, last), power(call.beta2, last), 1.0, 1.0
    root, decay, moved = d.correctly_rounded_sqrt(v.abs()), d.f32(exact.decay), torch.zeros_like(var)
    for _ in range(moves):
        power1, power2, decay1 = power1 * call.beta1, power2 * call.beta2, decay1 * call.beta1
        root_decay *= np.sqrt(np.float64(call.beta2))
        lr, epsilon = exact.corrected(power1, power2)
        moved = moved * decay + (m * -d.f32(lr * decay1)) / (root * d.f32(root_decay) + d.f32(epsilon))
    var = var * d.f32(power(exact.decay, skipped)) + moved * d.f32(power(exact.decay, skipped - moves))
    return m * d.f32(power(call.beta1, skipped)), v * d.f32(power(call.beta2, skipped)), var


def _for_each_count(counts: Tensor, use: Callable[[int, Tensor], None]) -> None:
    """Calls use(count, which rows have it)."""
    for count in counts.unique().tolist():
        use(count, counts == count)


def _named(gradient: Tensor, indices: Tensor | None, call: Call) -> tuple[Tensor, Tensor]:
    """The rows to step, ascending, and the gradient of each."""
    if indices is None:
        return torch.arange(len(gradient)), d.real(gradient)
    if indices.dtype == torch.bool:
        ids = indices.flatten().nonzero().flatten()
        return ids, d.real(gradient[ids])
    flat = indices.flatten().long()
    return sum_by_id(gradient, torch.where(call.skips(flat), -1, flat))


def reference(
    gradient: Tensor,
    indices: Tensor | None,
    m: Tensor,
    v: Tensor,
    var: Tensor,
    row_step: Tensor | None,
    lr: float,
    step: int,
    grad_factor: float,
    seed: int | None,
    call: Call,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """One table's step, as new tensors (m, v, var, row_step). The definition of the operator's numbers."""
    exact = _Exact(lr, call)
    rest1, rest2 = (d.f32(1.0 - (d.f32(x) if call.convention == "device" else x)) for x in (call.beta1, call.beta2))
    ids, g = _named(gradient, indices, call)
    if var.shape[1] == 0:
        ids, g = ids[:0], g[:0]  # nothing to step, nothing to count
    g = g * d.f32(grad_factor)
    m_old, v_old, var_old = (d.real(tensor[ids]) for tensor in (m, v, var))
    minus_lr, epsilon = (torch.full((len(ids), 1), value, dtype=g.dtype) for value in exact.at(step))
    counts = None if row_step is None else row_step[ids].clamp(min=0)
    if counts is not None and call.decay_mode == "catch_up":

        def catch_up(last: int, rows: Tensor) -> None:
            m_old[rows], v_old[rows], var_old[rows] = _caught_up(
                m_old[rows], v_old[rows], var_old[rows], last, step, exact
            )

        _for_each_count(counts, catch_up)
        counts = torch.full_like(counts, step)
    elif counts is not None:
        counts = counts.clamp(max=2**31 - 2) + 1

        def correct(count: int, rows: Tensor) -> None:
            minus_lr[rows], epsilon[rows] = (torch.tensor(value, dtype=g.dtype) for value in exact.at(count))

        _for_each_count(counts, correct)
    m_new = m_old * d.f32(call.beta1) + g * rest1
    v_new = (v_old * d.f32(call.beta2) + (g * g) * rest2).abs()
    update = (m_new * minus_lr) / (d.correctly_rounded_sqrt(v_new) + epsilon)
    var_new = d.real(var)
    var_new = var_new.index_copy(0, ids, var_old * d.f32(exact.decay) + update)
    results = m.clone(), v.clone(), var.clone()
    for result, rows in zip(results, (m_new, v_new), strict=False):
        result[ids] = rows.to(result.dtype)
    results[2][ids] = rounded(var_new, var.dtype, seed, step, 0)[ids]
    return *results, None if row_step is None else row_step.index_copy(0, ids, counts)  # type: ignore[arg-type]


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
        ("step", _core.i64),
        ("row_step", _core.pointer),
        ("padding_idx", _core.i64),
        ("seed", _core.u32),
        ("reserved2", _core.i32),
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
        ("weight_decay", _core.f64),
        ("grad_scale", _core.f64),
        ("bias_correction", _core.i32),
        ("eps_outside", _core.i32),
        ("catch_up", _core.i32),
        ("refuse_negative", _core.i32),
        ("maximize", _core.i32),
        ("stochastic_rounding", _core.i32),
    ]


_native = _core.function("lazy_adam", Params)
number = d.NUMBERS


class _Excerpt:
    """The named rows of a table whose tensors are not all contiguous, as contiguous tensors: a copy of the whole table
    would be work that grows with its size."""

    def __init__(self, gradient: Tensor, indices: Tensor | None, tensors: Sequence[Tensor], call: Call) -> None:
        self.tensors = tensors
        if indices is None or indices.dtype == torch.bool:
            self.ids = torch.arange(len(gradient)) if indices is None else indices.flatten().nonzero().flatten()
            self.gradient, self.indices = gradient[self.ids], None
        else:
            flat = indices.flatten().long()
            skipped = call.skips(flat)
            self.ids = flat[~skipped].unique()
            self.gradient = gradient
            self.indices = torch.where(skipped, PADDING_OF_EXCERPT, torch.searchsorted(self.ids, flat))
        self.rows = [tensor[self.ids] for tensor in tensors]

    def write_back(self) -> None:
        with torch.no_grad():
            for tensor, rows in zip(self.tensors, self.rows, strict=True):
                tensor[self.ids] = rows


def _cpu(call: Call) -> None:
    check(call)
    call.check_memory()
    if call.found_inf is not None and float(call.found_inf) != 0.0:
        return
    count = len(call.var)
    lrs = [float(value) for value in call.lr] * (count if len(call.lr) == 1 else 1)
    steps = d.step_values(call.step, count) if call.step else [0] * count
    check_step_values(steps, call)
    scale = d.grad_scale_value(call.grad_scale)
    if use_reference():
        check_ids(call)
        factor, seeds = (-1.0 if call.maximize else 1.0) / scale, call.stochastic_rounding
        for i, table in enumerate(call.tables):
            counts, seed = call.row_step[i] if call.row_step else None, seeds[i] if seeds else None
            m, v, var = table[:3]
            results = reference(
                call.gradient[i], call.indices[i], m, v, var, counts, lrs[i], steps[i], factor, seed, call
            )
            d.assign(table, [result for result in results if result is not None])
    else:
        _run(call, lrs, steps, scale)
    d.write_back(*zip(call.updated, call.updated, strict=True))


def params(call: Call, rows: int, count: int, grad_scale: float) -> Params:
    """The C API's struct of a call whose rows lie at an address."""
    return Params(
        _core.sizeof(Params), _core.sizeof(Row), rows, count,
        call.beta1, call.beta2, call.epsilon, call.assume_unique, _core.CONVENTIONS[call.convention],
        torch.get_num_threads(), 0, call.weight_decay, grad_scale, CORRECTIONS.index(call.bias_correction),
        call.eps_mode == "outside", call.decay_mode == "catch_up", call.refuse_negative, call.maximize,
        bool(call.stochastic_rounding),
    )  # fmt: skip


def _run(call: Call, lr: list[float], step: list[int], grad_scale: float) -> None:
    gradient = d.contiguous(call.gradient)  # these are kept until the call is over
    indices = [None if ids is None else ids.contiguous() for ids in call.indices]
    given = call.tables
    tables: list[Sequence[Tensor]] = list(given)
    excerpts = []
    seeds = call.stochastic_rounding or [0] * len(tables)
    padding = [NO_PADDING if call.padding_idx is None else call.padding_idx] * len(tables)
    for i, table in enumerate(given):
        if all(tensor.is_contiguous() for tensor in table):
            continue
        check_ids(call)
        if call.stochastic_rounding:  # the chance of an element depends on its place in the table
            tables[i] = d.contiguous(table)
        else:
            excerpt = _Excerpt(gradient[i], indices[i], table, call)
            excerpts.append(excerpt)
            gradient[i], indices[i], tables[i] = excerpt.gradient, excerpt.indices, excerpt.rows
            padding[i] = PADDING_OF_EXCERPT
    rows = _core.array(
        Row,
        [
            (
                g.shape[0], table[2].shape[0], table[2].shape[1],
                g.data_ptr(), 0 if ids is None else ids.data_ptr(), *(tensor.data_ptr() for tensor in table[:3]), lr_,
                number[g.dtype], number[torch.bool if ids is None else ids.dtype], number[table[2].dtype], 0,
                now, table[3].data_ptr() if len(table) > 3 else 0, pad, seed, 0,
            )
            for g, ids, table, lr_, now, pad, seed in zip(
                gradient, indices, tables, lr, step, padding, seeds, strict=True
            )
        ],
    )  # fmt: skip
    try:
        _native(params(call, _core.addressof(rows), len(tables), grad_scale))
    except IndexError:
        check_ids(call)  # says which
        raise
    for excerpt in excerpts:
        excerpt.write_back()
    if call.stochastic_rounding:
        for table, worked_on in zip(given, tables, strict=True):
            d.write_back((table, worked_on))


_op = d.define(SCHEMA, Call, _cpu, check)


register(
    OpSpec(
        name="lazy_adam",
        function=lazy_adam_,
        schema=SCHEMA,
        document="LazyAdam",
        summary="Adam for the rows of a table that a step names",
        in_place=("m", "v", "var", "row_step"),
        outputs=("m", "v", "var"),
        profiles=PROFILES,
    )
)
