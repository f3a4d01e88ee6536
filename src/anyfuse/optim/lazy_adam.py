"""Adam for embedding tables: the rows that a step names, and dense parameters beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import _core
from .._tensors import describe
from ..ops import _arguments as arguments
from ..ops import _checks as checks
from ..ops import _memory as memory
from ..ops import lazy_adam as op
from . import _sharding as sharding
from ._base import FusedOptimizer, Run
from ._loading import copies
from ._options import check_choice, check_flag, check_whole
from ._plans import (
    STRIDED,
    Group,
    State,
    StepPlan,
    are_sound,
    check_device,
    check_gradient,
    check_param,
    check_state,
    count_steps,
    first_seed,
    layout_of,
    next_steps,
    runs_natively,
    scale_tensor,
    seeds_of,
)

_MOMENTS = ("exp_avg", "exp_avg_sq")
_ALL = d.NUMBERS[torch.bool]  # the dtype of a mask; without one, all rows


@dataclass(frozen=True)
class Update:
    """What the rows of a table are stepped by that ids or a mask name."""

    gradient: Tensor
    indices: Tensor

    @property
    def is_mask(self) -> bool:
        return self.indices.dtype == torch.bool


class Gradients(NamedTuple):
    """What a group's parameters are stepped by: the first ones by dense gradients, those after them by rows."""

    dense: Sequence[Tensor]
    rows: Sequence[Update]
    direct: int  # parameters of the plan's call; the operator steps the last ones, which copies the rows that are named

    @property
    def planned(self) -> Sequence[Tensor]:
        """The dense gradients of the plan's call."""
        return self.dense[: self.direct]

    @property
    def others(self) -> Sequence[Tensor | Update]:
        """What is not the plan's."""
        every: list[Tensor | Update] = [*self.dense, *self.rows]
        return every[self.direct :]


class LazyAdam(FusedOptimizer):
    """Adam that steps the rows of a table that have a gradient, and those alone: its work does not grow with the table.
    Dense gradients in the same optimizer are steps of AdamW, by the same rule and in the same native call.

    The mathematics is that of `anyfuse.lazy_adam_` (LazyAdam of Rec SDK) with its bias correction. Rows
    are named by

    - sparse gradients (COO, coalesced or not), as `nn.Embedding(sparse=True)` and `nn.EmbeddingBag(sparse=True)` make
      them; equal ids are summed first;
    - `step(rows={table: (ids, values)})`, for plain tables without autograd;
    - `step(visible=mask)`, for parameters (N, ...) with dense gradients, of which the rows are stepped where the mask
      (N,) is true, as gsplat's SelectiveAdam does.

    A parameter may have a sparse gradient at one step and a dense one at the next. Of a parameter that is sharded over
    ranks by rows (a DTensor) each rank steps its own: the ids of `rows` and the mask count from the rank's first row,
    `padding_idx` is that of the whole table (docs/distributed.md).

    Args:
        params: parameters, pairs of name and parameter, or groups; float32, float16 or bfloat16 of any shape, on the
            CPU or, by the kernels of `anyfuse[triton]`, on one GPU a group. The first dimension is that of the rows.
            Tables of a group may differ in everything.
        lr, betas, maximize: as in torch.optim.Adam; read anew at each step, as are all numbers of a group.
        eps: at least 1e-8.
        weight_decay: decoupled, as in AdamW.
        bias_correction: "global" (by the number of the parameter's steps), "row" (by how often the row was stepped: one
            that is first seen late moves by lr, not by several times as much) or False.
        eps_mode: "outside" of the correction, m/c1 / (sqrt(v/c2) + eps) as in AdamW, or "inside" as in torch's
            SparseAdam and TensorFlow, where eps is divided by sqrt(c2) as well.
        decay_mode: "touched": a row stays as it is until a step names it; its weights decay then by one step's decay.
            "catch_up": it first takes the steps that did not name it, with a gradient of zero and the lr of now, and is
            then where dense AdamW would have it. Not with `bias_correction="row"`.
        padding_idx: the id that is never stepped (any int, -1 too). Other negative ids, and ids beyond the table, are
            an IndexError. Dense gradients and masks have no padding.
        stochastic_rounding: parameters of 16 bits are rounded up or down by chance (see AdamW8bit).

    Groups may set each of these. State of a parameter: `step` (int: of the calls that had a gradient for it, one that
    names no row too), `exp_avg` and `exp_avg_sq` (float32) and, for "row" and "catch_up", `row_step` (int32, (rows,):
    how often, or at which step last).

    Raises:
        TypeError: a parameter, a gradient or an option of another kind.
        ValueError: an option out of range, or options that do not go together; shapes and states that do not fit.
        IndexError: an id that is not in its table. Nothing has been written then.

    Example:
        >>> import torch, anyfuse
        >>> table = torch.nn.Embedding(4, 2, sparse=True, _weight=torch.ones(4, 2))
        >>> optimizer = anyfuse.optim.LazyAdam(table.parameters(), lr=0.1)
        >>> table(torch.tensor([1, 1])).sum().backward()
        >>> optimizer.step()
        >>> table.weight.data[:2]
        tensor([[1.0000, 1.0000],
                [0.9000, 0.9000]])
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        bias_correction: bool | str = "global",
        eps_mode: str = "outside",
        decay_mode: str = "touched",
        padding_idx: int | None = None,
        stochastic_rounding: bool = False,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "eps_mode": eps_mode,
            "decay_mode": decay_mode,
            "padding_idx": padding_idx,
            "stochastic_rounding": stochastic_rounding,
            "rounding_seed": first_seed(),
            "maximize": maximize,
        }
        self._rows: Mapping[Tensor, tuple[Tensor, Tensor]] = {}
        self._visible: Tensor | None = None
        self._checked: dict[int, tuple[Any, ...]] = {}
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._rows, self._visible, self._checked = {}, None, {}

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        self._check_choices(group)

    def _check_choices(self, group: Group) -> None:
        check_choice("bias_correction", group["bias_correction"], ("global", "row", False))
        check_choice("eps_mode", group["eps_mode"], op.EPS_MODES)
        check_choice("decay_mode", group["decay_mode"], op.DECAY_MODES)
        check_flag("stochastic_rounding", group["stochastic_rounding"])
        check_whole("rounding_seed", group["rounding_seed"])
        if group["padding_idx"] is not None:
            check_whole("padding_idx", group["padding_idx"])
        op.check_options(_call(group), row_step=_counts_rows(group), step=True)

    # ---- the step ----

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        rows: Mapping[Tensor, tuple[Tensor, Tensor]] | None = None,
        visible: Tensor | None = None,
    ) -> Any:
        """Steps every parameter that has a gradient.

        Args:
            closure: computes the loss anew, with gradients; called once, before the step.
            rows: for tables without a gradient of their own, ids (n,), int32 or int64, and the gradient of each row,
                (n, ...). `grad_scale` of a GradScaler holds for them, its look for infinities does not.
            visible: a bool mask (N,): of dense gradients, the rows that count.

        Returns:
            What the closure returned, or None.

        Raises:
            TypeError: a gradient, ids or a mask of a dtype or layout that is not accepted.
            ValueError: shapes that do not fit; tensors that share memory.
            IndexError: an id that is not in its table. Nothing has been written in all these cases.
        """
        self._rows, self._visible = rows or {}, visible
        try:
            self._check_call()
            return super().step(closure)
        finally:
            self._rows, self._visible = {}, None

    def set_step(self, step: int) -> None:
        """Sets the number of the steps taken, of every parameter and, where rows are counted, of every row."""
        checks.require(0 <= step < 2**31, f"step is {step}; accepted: 0 to 2^31 - 1")
        for group in self.param_groups:
            for param in group["params"]:
                state = self._state_of(group, param)
                state["step"] = step
                if "row_step" in state:
                    state["row_step"].fill_(step)

    def _check_call(self) -> None:
        if not isinstance(self._rows, Mapping):
            raise TypeError(f"rows is a {type(self._rows).__name__}; accepted: a dict of table to (ids, values)")
        if self._rows:
            known = {param for group in self.param_groups for param in group["params"]}
            checks.require(self._rows.keys() <= known, "rows holds a tensor that is not a parameter of this optimizer")
        if self._visible is not None:
            checks.require_tensor("visible", self._visible, (torch.bool,))
            checks.require(self._visible.dim() == 1, f"visible has shape {tuple(self._visible.shape)}; accepted: (N,)")

    def _with_gradients(self, group: Group) -> tuple[Sequence[Tensor], Gradients]:
        params, grads = super()._with_gradients(group)
        if not self._rows and self._visible is None and STRIDED.issuperset(map(layout_of, grads)):
            return params, Gradients(grads, [], len(params) if runs_natively(params) else 0)
        pairs = [(param, self._update_of(grad)) for param, grad in zip(params, grads, strict=True)]
        pairs += [(param, self._given_rows(param)) for param in group["params"] if self._rows and param in self._rows]
        pairs.sort(key=_turn)
        dense = [update for _, update in pairs if isinstance(update, Tensor)]
        rows = [update for _, update in pairs if isinstance(update, Update)]
        params = [param for param, _ in pairs]
        direct = sum(_turn(pair) < 2 for pair in pairs) if runs_natively(params) else 0
        return params, Gradients(dense, rows, direct)

    def _update_of(self, grad: Tensor) -> Tensor | Update:
        if grad.layout is torch.strided:
            return grad if self._visible is None else Update(grad, self._visible)
        if grad.layout is not torch.sparse_coo:
            raise TypeError(f"a gradient has layout {grad.layout}; accepted: strided or sparse_coo")
        checks.require(
            grad.sparse_dim() == 1, f"a gradient has {grad.sparse_dim()} sparse dimensions; accepted: 1, the rows"
        )
        return Update(grad._values().resolve_neg(), grad._indices()[0])

    def _given_rows(self, param: Tensor) -> Update:
        checks.require(
            param.grad is None, "rows holds a parameter that has a gradient of its own; accepted: one of them"
        )
        pair = self._rows[param]
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"rows holds a {type(pair).__name__}; accepted: pairs of ids and values")
        ids, values = pair
        checks.require_tensor("ids of rows", ids, op.IDS)
        checks.require_tensor("values of rows", values, checks.FLOATS)
        ids, values = ids.resolve_neg(), values.resolve_neg()
        arguments.check_memory_exists([("ids of rows", ids), ("values of rows", values)])
        check_device("ids of rows", ids, param.device, "their parameter")
        return Update(values, ids.reshape(-1))

    def _check_gradients(self, number: int, params: Sequence[Tensor], grads: Gradients) -> None:
        params = sharding.locals_of(params)
        seen = len(grads.planned) if self._plan_holds(number, params[: grads.direct], grads.planned) else 0
        unseen = params[seen : len(grads.dense)], grads.dense[seen:]
        if not are_sound(*unseen, (), ()):
            for param, gradient in zip(*unseen, strict=True):
                check_gradient(param, gradient)
        for param, update in zip(params[len(grads.dense) :], grads.rows, strict=True):
            _check_update(param, update)

    def _prepare(self, number: int, group: Group, params: Sequence[Tensor], grads: Gradients, grad_scale: float) -> Run:
        choices = _choices(group)
        if self._checked.get(number) != choices:  # they may change between two steps
            self._check_choices(group)
            self._checked[number] = choices
        call, lr = _call(group), float(group["lr"])
        direct, dense = params[: grads.direct], len(grads.dense)
        made_for = _counts_rows(group), group["rounding_seed"]
        plan = self._plan(number, lambda: self._new_plan(number, group, direct, grads), made_for)
        steps = plan.next_steps()
        op.check_step_values(list({*steps}), call)
        others = self._other_calls(number, group, params[grads.direct :], grads.others, grad_scale, call)
        if len(self.param_groups) + bool(direct) + len(others) > 2:  # ids of all calls are looked at before the first
            tables = list(sharding.locals_of(params[dense:]))
            op.check_ids(call._replace(indices=[update.indices for update in grads.rows], var=tables))
        paddings = [_padding_of(param, call.padding_idx) for param in direct[dense:]]

        def run() -> None:
            if direct:
                plan.run(grads, paddings, steps, lr, grad_scale, call)
                count_steps(plan.states, steps)
            for run_other in others:
                run_other()

        return run

    def _new_plan(self, number: int, group: Group, params: Sequence[Tensor], grads: Gradients) -> TablePlan:
        states = [self._state_of(group, param) for param in params]
        return TablePlan(params, states, grads.planned, seeds_of(group, number, params))

    def _other_calls(
        self,
        number: int,
        group: Group,
        params: Sequence[Tensor],
        updates: Sequence[Tensor | Update],
        grad_scale: float,
        call: op.Call,
    ) -> list[Run]:
        """The steps that the public operator does: a call for the tables of each padding."""
        places: dict[int | None, list[int]] = {}
        for i, (param, update) in enumerate(zip(params, updates, strict=True)):
            padding = _padding_of(param, call.padding_idx) if isinstance(update, Update) else call.padding_idx
            places.setdefault(padding, []).append(i)
        runs = []
        for padding, those in places.items():
            some = [params[i] for i in those]
            work = OperatorCall(
                sharding.locals_of(some), [updates[i] for i in those], [self._state_of(group, param) for param in some],
                seeds_of(group, number, some), float(group["lr"]), grad_scale, call._replace(padding_idx=padding),
            )  # fmt: skip
            work.check()
            runs.append(work.run)
        return runs

    # ---- state ----

    def _state_of(self, group: Group, param: Tensor) -> State:
        """The state of a parameter, made or completed where it lacks something."""
        state: State = self.state[param]
        mine = sharding.local(param)
        if not state:
            state["step"] = 0
            for key in _MOMENTS:
                state[key] = torch.zeros(mine.shape, dtype=torch.float32, device=mine.device)
        if not _counts_rows(group):
            state.pop("row_step", None)
        elif "row_step" not in state:  # so far all rows were stepped alike, or a state of another optimizer was loaded
            sharding.require_rows(param, "a count for each row")
            state["row_step"] = torch.full((_rows_of(mine),), state["step"], dtype=torch.int32, device=mine.device)
        return state

    def _adapt_state(self, group: Group, param: Tensor, state: Mapping[str, Any]) -> State:
        adapted = copies(state, param)
        mine = sharding.local(param)
        shapes = {"exp_avg": tuple(mine.shape), "exp_avg_sq": tuple(mine.shape), "row_step": (_rows_of(mine),)}
        for key, shape in shapes.items():
            value = adapted.get(key)
            if value is None and key == "row_step":
                continue
            if not isinstance(value, Tensor) or tuple(value.shape) != shape:
                got = f"has shape {tuple(value.shape)}" if isinstance(value, Tensor) else "is missing"
                raise ValueError(f"{key} of a saved state {got}; accepted: {shape}, as the parameter's is")
            if key == "row_step":
                checks.require_tensor("row_step of a saved state", value, (torch.int32,))
            else:
                checks.require_tensor(f"{key} of a saved state", value, checks.FLOATS)
                adapted[key] = value.float()
        adapted.setdefault("step", 0)
        adapted.pop("max_exp_avg_sq", None)
        return adapted


class TablePlan(StepPlan):
    """The rows of one native call, kept from step to step: what stays is written once, and each step adds its own.
    Those of dense gradients come first, and are renewed all at once."""

    def __init__(
        self, params: Sequence[Tensor], states: Sequence[State], dense: Sequence[Tensor], seeds: Sequence[int]
    ) -> None:
        params = sharding.locals_of(params)
        are_known = are_sound(params, (), states, _MOMENTS)
        for param, state in zip(params, states, strict=True):
            if not are_known:
                check_device("a parameter", param, params[0].device, "the first one of its group")
                _check_moments(param, state)
            _check_row_step(param, state)
        super().__init__(params, states, (*_MOMENTS, "row_step"), dense)
        self.rows = rows = np.zeros(len(params), dtype=np.dtype(op.Row))
        rows["rows"] = rows["n"] = list(map(_rows_of, params))
        rows["dim"] = list(map(_dim_of, params))
        rows["var"] = self._var.addresses(params, describe(self.params))
        rows["var_dtype"] = list(d.dtype_numbers(params))
        rows["seed"] = seeds
        rows["indices_dtype"], rows["padding_idx"] = _ALL, op.NO_PADDING
        rows["gradient_dtype"][: len(dense)] = self._first["dtype"]
        for field, key in (("m", "exp_avg"), ("v", "exp_avg_sq"), ("row_step", "row_step")):
            rows[field] = [state[key].data_ptr() if key in state else 0 for state in states]

    def run(
        self,
        grads: Gradients,
        paddings: Sequence[int | None],
        steps: Sequence[int],
        lr: float,
        grad_scale: float,
        call: op.Call,
    ) -> None:
        rows = self.rows
        self._var.read(self.params)
        dense, named = np.split(rows, [len(grads.planned)])
        dense["gradient"] = self._grad.addresses(grads.planned, self._now)
        updates = grads.rows[: len(named)]
        # Values of rows come with their ids, in another number at each step: nothing of them is kept.
        gradients = [update.gradient.contiguous() for update in updates]
        indices = [update.indices.contiguous() for update in updates]
        named["n"] = [len(ids) for ids in indices]
        named["gradient"] = [gradient.data_ptr() for gradient in gradients]
        named["gradient_dtype"] = list(d.dtype_numbers(gradients))
        named["indices"] = [ids.data_ptr() for ids in indices]
        named["indices_dtype"] = list(d.dtype_numbers(indices))
        named["padding_idx"] = [op.NO_PADDING if padding is None else padding for padding in paddings]
        rows["lr"], rows["step"] = lr, steps
        try:
            _native(op.params(call, rows.ctypes.data, len(rows), grad_scale))
        except IndexError:
            op.check_ids(call._replace(indices=list(indices), var=self.params[len(dense) :]))  # says which
            raise
        self.end()


_native = _core.function("lazy_adam", op.Params)
_choices = itemgetter(
    "bias_correction", "eps_mode", "decay_mode", "padding_idx", "stochastic_rounding", "rounding_seed", "eps"
)


def _turn(pair: tuple[Tensor, Tensor | Update]) -> int:
    """The order of a group's parameters in `Gradients`."""
    param, update = pair
    if isinstance(update, Tensor):
        return 0
    return 1 if update.is_mask or sharding.local(param).is_contiguous() else 2


def _check_moments(param: Tensor, state: State) -> None:
    arguments.check_memory_exists([("a parameter", param)])
    for key in _MOMENTS:
        check_state(key, state[key], (torch.float32,), param.device)
        checks.require_shape(key, state[key], param.shape, "its parameter")


def _check_row_step(param: Tensor, state: State) -> None:
    if "row_step" in state:
        check_state("row_step", state["row_step"], (torch.int32,), param.device)
        checks.require_shape("row_step", state["row_step"], (_rows_of(param),), "the rows of its parameter")


def _rows_of(param: Tensor) -> int:
    return param.shape[0] if param.dim() else 1


def _padding_of(param: Tensor, padding: int | None) -> int | None:
    """The padding of a table as its rank's part counts rows; None where the row is another rank's."""
    if padding is None or padding < 0 or not sharding.is_sharded(param):
        return padding
    part = sharding.rows_held(param)
    return padding - part.first if part.first <= padding < part.first + part.count else None


def _dim_of(param: Tensor) -> int:
    return math.prod(param.shape[1:])


def _counts_rows(group: Group) -> bool:
    return bool(group["bias_correction"] == "row" or group["decay_mode"] == "catch_up")


def _call(group: Group) -> op.Call:
    """A group's numbers and choices, of no tables yet."""
    return op.Call(
        gradient=[],
        indices=[],
        m=[],
        v=[],
        var=[],
        row_step=[],
        lr=[],
        step=[],
        grad_scale=None,
        found_inf=None,
        beta1=float(group["betas"][0]),
        beta2=float(group["betas"][1]),
        epsilon=float(group["eps"]),
        assume_unique=False,
        convention="formula",
        bias_correction=group["bias_correction"] or "none",
        eps_mode=group["eps_mode"],
        weight_decay=float(group["weight_decay"]),
        decay_mode=group["decay_mode"],
        refuse_negative=True,
        padding_idx=group["padding_idx"],
        maximize=bool(group["maximize"]),
        stochastic_rounding=[0] if group["stochastic_rounding"] else None,
    )


def _check_update(param: Tensor, update: Update) -> None:
    """Refuses what does not fit the parameter; looks at no ids."""
    if update.is_mask:
        checks.require_shape("visible", update.indices, (_rows_of(param),), "the rows of a parameter")
        return check_gradient(param, update.gradient)
    check_param(param)
    checks.require_tensor("a gradient", update.gradient, checks.FLOATS)
    check_device("a gradient", update.gradient, param.device, "its parameter")
    checks.require(param.dim() > 0, "a parameter of no dimension has rows named; accepted: a table")
    shape = (update.indices.shape[0], *param.shape[1:])
    checks.require_shape("a gradient's values", update.gradient, shape, "the ids and the rows of the parameter")
    if update.gradient.numel():
        memory.check_memory([("a parameter", [param])], [("a gradient's values", [update.gradient])])


@dataclass(frozen=True)
class OperatorCall:
    """A step of some tables by the public operator, which takes strided ones and those of a GPU, and whose backend may
    be the reference."""

    params: Sequence[Tensor]
    updates: Sequence[Tensor | Update]
    states: list[State]
    seeds: list[int]
    lr: float
    grad_scale: float
    call: op.Call

    def check(self) -> None:
        op.check_step_values(next_steps(self.states), self.call)
        for param, state in zip(self.params, self.states, strict=True):
            check_device("a parameter", param, self.params[0].device, "the first one of its group")
            _check_moments(param, state)
            _check_row_step(param, state)

    def run(self) -> None:
        call, steps = self.call, next_steps(self.states)
        tables = [_as_table(param.detach()) for param in self.params]
        m, v = ([_as_table(state[key]) for state in self.states] for key in ("exp_avg", "exp_avg_sq"))
        op.lazy_adam_(
            [_as_table(u if isinstance(u, Tensor) else u.gradient) for u in self.updates],
            [None if isinstance(u, Tensor) else u.indices for u in self.updates], m, v, tables, self.lr,
            call.beta1, call.beta2, call.epsilon, convention="formula", step=steps,
            row_step=[state["row_step"] for state in self.states] if "row_step" in self.states[0] else None,
            bias_correction=False if call.bias_correction == "none" else call.bias_correction,  # type: ignore[arg-type]
            eps_mode=call.eps_mode, weight_decay=call.weight_decay, decay_mode=call.decay_mode, refuse_negative=True,
            padding_idx=call.padding_idx, grad_scale=scale_tensor(self.grad_scale), maximize=call.maximize,
            stochastic_rounding=self.seeds if call.stochastic_rounding else None,
        )  # fmt: skip
        for param, table in zip(self.params, tables, strict=True):
            if table.data_ptr() != param.data_ptr():
                param.copy_(table.view(param.shape))
        count_steps(self.states, steps)


def _as_table(tensor: Tensor) -> Tensor:
    """Two dimensions, by a view where one is possible."""
    return tensor if tensor.dim() == 2 else tensor.contiguous().view(_rows_of(tensor), _dim_of(tensor))
