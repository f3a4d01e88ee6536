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
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from .._opspec import OpSpec, register
from .._settings import convention_or_default, use_reference
from .._soc import Profiles, restricted
from . import _checks as checks
from . import _memory as memory
from . import _numerics as numerics
from ._record import Convention, Perhaps, Updated
from ._register import define
from ._rounding import rounded, seeds_of

RETURNS = "()"

Correction = Literal["none", "global", "row"]  # numbered as in the C API, as the others
EpsMode = Literal["inside", "outside"]
DecayMode = Literal["touched", "catch_up"]


class Call(NamedTuple):
    """The schema's arguments."""

    gradient: list[Tensor]
    indices: list[Tensor | None]
    m: Updated[list[Tensor]]
    v: Updated[list[Tensor]]
    var: Updated[list[Tensor]]
    row_step: Perhaps[Updated[list[Tensor]]]
    lr: float
    lr_tensor: Perhaps[list[Tensor]]
    step: Perhaps[list[Tensor]]
    grad_scale: Tensor | None
    found_inf: Tensor | None
    beta1: float
    beta2: float
    epsilon: float
    assume_unique: bool
    convention: Convention
    bias_correction: Correction
    eps_mode: EpsMode
    weight_decay: float
    decay_mode: DecayMode
    refuse_negative: bool
    padding_idx: int | None
    maximize: bool
    stochastic_rounding: list[int] | None

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
    def rates(self) -> list[Tensor]:
        """The learning rates: one for all tables, or one for each."""
        return self.lr_tensor or [torch.full((1,), self.lr, dtype=torch.float64)]

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
        memory.check_memory(in_place, (("gradient", self.gradient), ("indices", given)))


IDS = (torch.int32, torch.int64)
INDICES = (*IDS, torch.bool)
CORRECTIONS, EPS_MODES, DECAY_MODES = (get_args(kind) for kind in (Correction, EpsMode, DecayMode))
PADDING_OF_EXCERPT = -1
STATE = (torch.float32,)
SMALLEST_EPSILON = numerics.f32(1e-8)

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
        convention: "device" (1 - beta from beta in fp32, as the document's own test flow and the NPU have it) or
            "formula" (1 - beta rounded once); default `ANYFUSE_CONVENTION`, and "device" where it is not set.
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
    if not isinstance(var, Tensor):
        lists = {"gradient": gradient, "indices": indices, "m": m, "v": v, "var": var}
        *others, tables = checks.lists_like(var, may_hold_none=("indices",), **lists)
    lr_number, lr_tensors = _rates(lr, 1 if isinstance(var, Tensor) else len(tables))
    options = (
        grad_scale, found_inf, beta1, beta2, epsilon, assume_unique, convention_or_default(convention, "device"),
        _correction(bias_correction), eps_mode, weight_decay, decay_mode, refuse_negative, _padding(padding_idx),
        maximize,
    )  # fmt: skip
    if isinstance(var, Tensor):
        rate, number = lr_tensors[0] if lr_tensors else None, None if step is None else checks.one_step(step)
        _one(
            gradient, indices, m, v, var, row_step, lr_number, rate, number, *options,
            seeds_of(stochastic_rounding, 1),
        )  # fmt: skip
    else:
        _list(
            *others, tables, [] if row_step is None else checks.lists_like(var, row_step=row_step)[0], lr_number,
            lr_tensors, [] if step is None else checks.step_list(step, len(tables)), *options,
            seeds_of(stochastic_rounding, len(tables)),
        )  # fmt: skip
    return m, v, var


def _padding(value: Any) -> Any:
    """TypeError for what is no id; torch itself takes a dtype for one."""
    if value is not None and not isinstance(value, (int, torch.SymInt)):
        raise TypeError(f"padding_idx is a {type(value).__name__}; accepted: an id or None")
    return value


def _correction(value: Any) -> str:
    if value is not False and not (isinstance(value, str) and value in CORRECTIONS[1:]):
        raise ValueError(f"bias_correction is {value!r}; accepted: False, 'global', 'row'")
    return "none" if value is False else value


def _rates(lr: Any, count: int) -> tuple[float, list[Tensor]]:
    """`lr` as one number for all tables, or as one-element tensors: one for all, or one for each."""
    if isinstance(lr, (list, tuple)):
        checks.require(len(lr) == count, f"lr has {len(lr)} entries; accepted: one for all tables, or {count}")
        return 0.0, [x if isinstance(x, Tensor) else torch.full((1,), _rate(x), dtype=torch.float64) for x in lr]
    if isinstance(lr, Tensor):
        return 0.0, [lr]
    rate = _rate(lr)
    # Of no tables: the dispatcher finds the device by a tensor.
    return rate, [] if count else [torch.full((1,), rate, dtype=torch.float64)]


def _rate(lr: Any) -> float:
    if not isinstance(lr, (float, int, torch.SymFloat)):
        raise TypeError(f"lr is a {type(lr).__name__}; accepted: a number, a one-element float tensor or a list")
    if isinstance(lr, int) and not -(2**1023) <= lr < 2**1023:
        raise ValueError("lr is beyond 1023 bits; accepted: numbers within")
    return lr if isinstance(lr, torch.SymFloat) else float(lr)  # type: ignore[return-value]


def check(call: Call) -> None:
    """Refuses dtypes, shapes and attributes; looks at no value and no address."""
    check_options(call, bool(call.row_step), bool(call.step))
    var, lr = call.var, call.lr_tensor
    for name in ("gradient", "indices", "m", "v"):
        count = len(getattr(call, name))
        checks.require(count == len(var), f"{name} has {count} tensors; accepted: {len(var)}, as many as var")
    for g, ids, m, v, table in zip(call.gradient, call.indices, call.m, call.v, var, strict=True):
        checks.require_tensor("var", table, checks.FLOATS)
        checks.require(table.dim() == 2, f"var has shape {tuple(table.shape)}; accepted: (rows, dim)")
        for name, state in (("m", m), ("v", v)):
            checks.require_tensor(name, state, STATE)
            checks.require_shape(name, state, table.shape, "var")
        checks.require_tensor("gradient", g, checks.FLOATS)
        checks.require_shape("gradient", g, (check_indices(ids, table), table.shape[1]), "indices and the rows of var")
    for counts, table in zip(call.row_step, var, strict=bool(call.row_step)):
        checks.require_tensor("row_step", counts, (torch.int32,))
        checks.require_shape("row_step", counts, table.shape[:1], "the rows of var")
    checks.require(
        len(lr) in (0, 1, len(var)), f"lr has {len(lr)} entries; accepted: one for all tables, or {len(var)}"
    )
    for value in lr:
        checks.check_scalar("lr", value)
    if call.step:
        checks.check_steps(call.step, len(var))
    checks.check_scalar("grad_scale", call.grad_scale)
    checks.check_scalar("found_inf", call.found_inf)
    if restricted():
        indices = [_MASK if ids is None else ids for ids in call.indices]
        dims = [table.shape[1] for table in var]
        PROFILES.check(**{**call._asdict(), "indices": indices}, dim=dims)


def check_indices(ids: Tensor | None, table: Tensor) -> int:
    """Refuses ids and masks of a wrong kind; returns how many rows the gradient has."""
    if ids is None:
        return table.shape[0]
    checks.require_tensor("indices", ids, INDICES)
    if ids.dtype == torch.bool:
        checks.require_shape("indices (a mask)", ids, table.shape[:1], "the rows of var")
    flat = ids.dim() == 1 or (ids.dim() == 2 and ids.shape[1] == 1)
    checks.require(flat, f"indices has shape {tuple(ids.shape)}; accepted: (n,) or (n, 1)")
    return ids.shape[0]


def check_options(call: Call, row_step: bool, step: bool) -> None:
    """Refuses numbers and choices, and what they need and is not given (`row_step`, `step`: whether they are)."""
    accepted = "a magnitude of at least 1e-8"
    checks.require(
        abs(numerics.f32(call.epsilon)) >= SMALLEST_EPSILON, f"epsilon is {call.epsilon}; accepted: {accepted}"
    )
    for name, value, choices in (("eps_mode", call.eps_mode, EPS_MODES), ("decay_mode", call.decay_mode, DECAY_MODES)):
        checks.require(value in choices, f"{name} is {value!r}; accepted: {', '.join(map(repr, choices))}")
    both = call.bias_correction == "row" and call.decay_mode == "catch_up"
    one = "accepted: one of them, a row has one count"
    checks.require(not both, f"bias_correction is 'row' beside decay_mode 'catch_up'; {one}")
    padding = call.padding_idx
    needs = "bias_correction='row' or decay_mode='catch_up'"
    checks.require(row_step or not call.counts_rows, f"row_step is None; accepted: a count for each row with {needs}")
    checks.require(call.counts_rows or not row_step, f"row_step is given; accepted: None without {needs}")
    checks.require(
        step or not call.needs_step, "step is None; accepted: the number of the step, as the options need it"
    )
    checks.require(
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
        checks.require(1 <= step <= highest, f"step is {step}; accepted: 1 to {highest}")


# ---- reference ----


def sum_by_id(gradient: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct ids that are not negative, ascending, and the sum of each one's gradients."""
    kept = indices >= 0
    ids, order = indices[kept].sort(stable=True)
    rows = numerics.real(gradient[kept][order])
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
class Exact:
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
        return -numerics.f32(lr), numerics.f32(epsilon)

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


def _caught_up(m: Tensor, v: Tensor, var: Tensor, last: int, step: int, exact: Exact) -> tuple[Tensor, Tensor, Tensor]:
    """Rows that were last named at step `last`, after the steps up to `step` - 1."""
    call = exact.call
    skipped = max(step - 1 - last, 0)
    if skipped == 0:
        return m, v, var
    moves = min(skipped, moves_that_count(call.beta1, call.beta2)) if last > 0 else 0
    power1, power2, decay1, root_decay = power(call.beta1, last), power(call.beta2, last), 1.0, 1.0
    root, decay, moved = numerics.correctly_rounded_sqrt(v.abs()), numerics.f32(exact.decay), torch.zeros_like(var)
    for _ in range(moves):
        power1, power2, decay1 = power1 * call.beta1, power2 * call.beta2, decay1 * call.beta1
        root_decay *= np.sqrt(np.float64(call.beta2))
        lr, epsilon = exact.corrected(power1, power2)
        moved = moved * decay + (m * -numerics.f32(lr * decay1)) / (
            root * numerics.f32(root_decay) + numerics.f32(epsilon)
        )
    var = var * numerics.f32(power(exact.decay, skipped)) + moved * numerics.f32(power(exact.decay, skipped - moves))
    return m * numerics.f32(power(call.beta1, skipped)), v * numerics.f32(power(call.beta2, skipped)), var


def _for_each_count(counts: Tensor, use: Callable[[int, Tensor], None]) -> None:
    """Calls use(count, which rows have it)."""
    for count in counts.unique().tolist():
        use(count, counts == count)


def _named(gradient: Tensor, indices: Tensor | None, call: Call) -> tuple[Tensor, Tensor]:
    """The rows to step, ascending, and the gradient of each."""
    if indices is None:
        return torch.arange(len(gradient)), numerics.real(gradient)
    if indices.dtype == torch.bool:
        ids = indices.flatten().nonzero().flatten()
        return ids, numerics.real(gradient[ids])
    flat = indices.flatten().long()
    return sum_by_id(gradient, torch.where(call.skips(flat), -1, flat))


def reference(call: Call, i: int) -> tuple[Tensor, ...]:
    """The step of table i, as new tensors (m, v, var and, where rows are counted, row_step). The definition of the
    operator's numbers."""
    gradient, indices, m, v, var = call.gradient[i], call.indices[i], call.m[i], call.v[i], call.var[i]
    row_step, step = call.row_step[i] if call.row_step else None, int(checks.entry(call.step, i)) if call.step else 0
    exact = Exact(float(checks.entry(call.rates, i)), call)
    rest1, rest2 = (
        numerics.f32(1.0 - (numerics.f32(x) if call.convention == "device" else x)) for x in (call.beta1, call.beta2)
    )
    ids, g = _named(gradient, indices, call)
    if var.shape[1] == 0:
        ids, g = ids[:0], g[:0]  # nothing to step, nothing to count
    g = g * numerics.f32(checks.grad_factor(call))
    m_old, v_old, var_old = (numerics.real(tensor[ids]) for tensor in (m, v, var))
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
    m_new = m_old * numerics.f32(call.beta1) + g * rest1
    v_new = (v_old * numerics.f32(call.beta2) + (g * g) * rest2).abs()
    update = (m_new * minus_lr) / (numerics.correctly_rounded_sqrt(v_new) + epsilon)
    var_new = numerics.real(var)
    var_new = var_new.index_copy(0, ids, var_old * numerics.f32(exact.decay) + update)
    results = m.clone(), v.clone(), var.clone()
    for result, rows in zip(results, (m_new, v_new), strict=False):
        result[ids] = rows.to(result.dtype)
    results[2][ids] = rounded(var_new, var.dtype, call.stochastic_rounding, i, step, 0)[ids]
    return results if row_step is None else (*results, row_step.index_copy(0, ids, counts))  # type: ignore[arg-type]


# ---- what is not plain ----


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
            self.indices = torch.where(skipped, PADDING_OF_EXCERPT, torch.searchsorted(self.ids, flat.contiguous()))
        self.rows = [tensor[self.ids] for tensor in tensors]

    def write_back(self) -> None:
        with torch.no_grad():
            for tensor, rows in zip(self.tensors, self.rows, strict=True):
                tensor[self.ids] = rows


def _general(call: Call) -> None:
    check(call)
    call.check_memory()
    if checks.is_skipped(call):
        return
    check_step_values(list(map(int, call.step)), call)
    checks.require_grad_scale(call)
    check_ids(call)
    if use_reference():
        memory.assign(call.updated, [reference(call, i) for i in range(len(call.var))])
    elif all(tensor.is_contiguous() for tables in call.updated for tensor in tables):
        _native(*memory.with_contiguous(call))
    elif call.stochastic_rounding:  # the chance of an element depends on its place in the table
        worked_on = memory.with_contiguous(call)
        _native(*worked_on)
        memory.write_back_all(call.updated, worked_on.updated)
    else:
        _run_excerpts(call)


def _run_excerpts(call: Call) -> None:
    excerpts = [_Excerpt(g, ids, t, call) for g, ids, t in zip(call.gradient, call.indices, call.tables, strict=True)]
    columns = [list(column) for column in zip(*(excerpt.rows for excerpt in excerpts), strict=True)]
    m, v, var = columns[:3]
    worked_on = call._replace(
        gradient=[excerpt.gradient for excerpt in excerpts],
        indices=[excerpt.indices for excerpt in excerpts],
        m=m, v=v, var=var, row_step=columns[3] if call.row_step else [],
        refuse_negative=False, padding_idx=None,
    )  # fmt: skip
    _native(*memory.with_contiguous(worked_on))
    for excerpt in excerpts:
        excerpt.write_back()


_list, _one = define("lazy_adam_", Call, _general, check)
_native = torch.ops.anyfuse.lazy_adam_.default


register(
    OpSpec(
        name="lazy_adam",
        function=lazy_adam_,
        document="LazyAdam",
        summary="Adam for the rows of a table that a step names",
        in_place=("m", "v", "var", "row_step"),
        outputs=("m", "v", "var"),
        profiles=PROFILES,
        convention="device",
    )
)
