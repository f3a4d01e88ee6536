"""Adam for embedding tables: the rows that a step names, and dense parameters beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, is_, itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import _core
from .._settings import use_reference
from ..ops import _arguments as arguments
from ..ops import _dispatch as d
from ..ops import lazy_adam as op
from . import _sharding as sharding
from ._base import (
    FusedOptimizer,
    Group,
    Run,
    State,
    Through,
    check_choice,
    check_flag,
    check_param,
    check_state,
    count_steps,
    first_seed,
    next_steps,
    seeds_of,
)
from ._loading import copies
from ._memory import Written
from ._options import check_whole

_ALL = d.NUMBERS[torch.bool]  # the dtype of a mask; without one, all rows


@dataclass(frozen=True)
class Update:
    """What a table is stepped by: a gradient for the rows that are named by ids, by a mask, or (None) for all rows."""

    gradient: Tensor
    indices: Tensor | None = None

    @property
    def is_dense(self) -> bool:
        return self.indices is None or self.indices.dtype == torch.bool


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
            CPU. The first dimension is that of the rows. Tables of a group may differ in everything.
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
        d.require(0 <= step < 2**31, f"step is {step}; accepted: 0 to 2^31 - 1")
        for group in self.param_groups:
            for param in group["params"]:
                state = self._state_of(group, param)
                state["step"] = step
                if "row_step" in state:
                    state["row_step"].fill_(step)

    def _check_call(self) -> None:
        if not isinstance(self._rows, Mapping):
            raise TypeError(f"rows is a {type(self._rows).__name__}; accepted: a dict of table to (ids, values)")
        known = {param for group in self.param_groups for param in group["params"]}
        d.require(self._rows.keys() <= known, "rows holds a tensor that is not a parameter of this optimizer")
        if self._visible is not None:
            d.require_tensor("visible", self._visible, (torch.bool,))
            d.require(self._visible.dim() == 1, f"visible has shape {tuple(self._visible.shape)}; accepted: (N,)")

    def _with_gradients(self, group: Group) -> tuple[Sequence[Tensor], Sequence[Any]]:
        params = [param for param in group["params"] if param.grad is not None or param in self._rows]
        return params, [self._update_of(param) for param in params]

    def _update_of(self, param: Tensor) -> Update:
        if param in self._rows:
            d.require(
                param.grad is None, "rows holds a parameter that has a gradient of its own; accepted: one of them"
            )
            pair = self._rows[param]
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise TypeError(f"rows holds a {type(pair).__name__}; accepted: pairs of ids and values")
            ids, values = pair
            d.require_tensor("ids of rows", ids, op.IDS)
            d.require_tensor("values of rows", values, d.FLOATS)
            ids, values = ids.resolve_neg(), values.resolve_neg()
            arguments.check_memory_exists([("ids of rows", ids), ("values of rows", values)])
            return Update(values, ids.reshape(-1))
        assert param.grad is not None
        (grad,) = sharding.local_gradients([param], [param.grad])
        if grad.layout is torch.strided:
            return Update(grad.resolve_neg(), self._visible)
        if grad.layout is not torch.sparse_coo:
            raise TypeError(f"a gradient has layout {grad.layout}; accepted: strided or sparse_coo")
        d.require(
            grad.sparse_dim() == 1, f"a gradient has {grad.sparse_dim()} sparse dimensions; accepted: 1, the rows"
        )
        return Update(grad._values().resolve_neg(), grad._indices()[0])

    def _check_gradients(self, number: int, params: Sequence[Tensor], grads: Sequence[Any]) -> None:
        for param, update in zip(params, grads, strict=True):
            _check_update(sharding.local(param), update)

    def _prepare(
        self, number: int, group: Group, params: Sequence[Tensor], grads: Sequence[Any], grad_scale: float
    ) -> Run:
        choices = _choices(group)
        if self._checked.get(number) != choices:  # they may change between two steps
            self._check_choices(group)
            self._checked[number] = choices
        call = _call(group)
        states = [self._state_of(group, param) for param in params]
        seeds = seeds_of(group, number, params)
        paddings = [_padding_of(param, call.padding_idx) for param in params]
        params = sharding.locals_of(params)
        steps = next_steps(states)
        op.check_step_values(steps, call)
        lr = float(group["lr"])
        # Ids of a table that is not contiguous name few rows of it: those alone are copied, by the operator.
        direct = [i for i, p in enumerate(params) if p.is_contiguous() or grads[i].is_dense]
        direct = [] if use_reference() else direct
        others = [i for i in range(len(params)) if i not in direct] if len(direct) < len(params) else []
        if len(self.param_groups) > 1 or others:
            # More than one native call: the ids of all of them are looked at before the first.
            op.check_ids(call._replace(indices=[update.indices for update in grads], var=list(params)))
        for i in others:
            _check_tensors(params[i], states[i])
            _written(params[i : i + 1], states[i : i + 1]).refuse("a gradient", [grads[i].gradient])
        tables, kept = [params[i] for i in direct], [states[i] for i in direct]
        self._plan_holds(number, tables, kept)
        plan = self._plan(number, lambda: TablePlan(tables, kept))
        plan.written.refuse("a gradient", [grads[i].gradient for i in direct])

        def run() -> None:
            if direct:
                plan.run(
                    [grads[i] for i in direct], [steps[i] for i in direct], [seeds[i] for i in direct],
                    [paddings[i] for i in direct], lr, grad_scale, call,
                )  # fmt: skip
            for i in others:
                own = call._replace(padding_idx=paddings[i])
                _run_operator(params[i], grads[i], states[i], steps[i], seeds[i], lr, grad_scale, own)
            count_steps(states, steps)

        return run

    # ---- state ----

    def _state_of(self, group: Group, param: Tensor) -> State:
        """The state of a parameter, made or completed where it lacks something."""
        state: State = self.state[param]
        mine = sharding.local(param)
        if not state:
            state["step"] = 0
            for key in ("exp_avg", "exp_avg_sq"):
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
                d.require_tensor("row_step of a saved state", value, (torch.int32,))
            else:
                d.require_tensor(f"{key} of a saved state", value, d.FLOATS)
                adapted[key] = value.float()
        adapted.setdefault("step", 0)
        adapted.pop("max_exp_avg_sq", None)
        return adapted


class TablePlan:
    """The rows of one native call, kept from step to step: what stays is written once, and each step adds its own."""

    options: tuple[object, ...] = ()

    def __init__(self, params: list[Tensor], states: list[State]) -> None:
        self.params, self.states = params, states
        self.shapes = [param.shape for param in params]
        for param, state in zip(params, states, strict=True):
            _check_tensors(param, state)
        self.tensors = _tensors_of(states)
        d.check_memory([("a parameter", params), ("an optimizer state", self.tensors)], [])
        self.addresses = list(map(Tensor.data_ptr, (*params, *self.tensors)))
        self.dtypes = list(map(_dtype_of, params))
        self.state_shapes = list(map(_shape_of, self.tensors))
        self.written = _written(params, states)
        self._bumped = [tensor for tensor in (*params, *self.tensors) if not tensor.is_inference()]
        self._gradients, self._params = Through(), Through()
        self.rows = np.zeros(len(params), dtype=np.dtype(op.Row))
        self.rows["rows"] = list(map(_rows_of, params))
        self.rows["dim"] = list(map(_dim_of, params))
        self.rows["var_dtype"] = list(d.dtype_numbers(params))
        for field, key in (("m", "exp_avg"), ("v", "exp_avg_sq"), ("row_step", "row_step")):
            self.rows[field] = [state[key].data_ptr() if key in state else 0 for state in states]

    def holds(self, params: list[Tensor], states: list[State]) -> bool:
        tensors = _tensors_of(states)
        return (
            len(params) == len(self.params)
            and all(map(is_, params, self.params))
            and len(tensors) == len(self.tensors)
            and all(map(is_, tensors, self.tensors))
            and list(map(Tensor.data_ptr, (*params, *tensors))) == self.addresses
            and [param.shape for param in params] == self.shapes
            and list(map(_dtype_of, params)) == self.dtypes
            and list(map(_shape_of, tensors)) == self.state_shapes
        )

    def run(
        self,
        updates: Sequence[Update],
        steps: Sequence[int],
        seeds: Sequence[int],
        paddings: Sequence[int | None],
        lr: float,
        grad_scale: float,
        call: op.Call,
    ) -> None:
        # What is dense and not contiguous passes through buffers that stay; values of rows come with their ids.
        gradients = [u.gradient if u.is_dense else u.gradient.contiguous() for u in updates]
        self._gradients.see(gradients)
        self._params.see(self.params)
        gradients = list(self._gradients.read(gradients))
        indices = [None if update.indices is None else update.indices.contiguous() for update in updates]
        rows = self.rows
        rows["n"] = [n if ids is None else ids.shape[0] for n, ids in zip(rows["rows"], indices, strict=True)]
        rows["var"] = list(map(Tensor.data_ptr, self._params.read(self.params)))
        rows["gradient"] = list(map(Tensor.data_ptr, gradients))
        rows["gradient_dtype"] = list(d.dtype_numbers(gradients))
        rows["indices"] = [0 if ids is None else ids.data_ptr() for ids in indices]
        rows["indices_dtype"] = [_ALL if ids is None else d.NUMBERS[ids.dtype] for ids in indices]
        rows["lr"], rows["step"], rows["seed"] = lr, steps, seeds
        rows["padding_idx"] = [op.NO_PADDING if padding is None else padding for padding in paddings]
        try:
            _native(op.params(call, rows.ctypes.data, len(rows), grad_scale))
        except IndexError:
            op.check_ids(call._replace(indices=indices, var=self.params))  # says which
            raise
        self._params.write(self.params)
        torch.autograd.graph.increment_version(self._bumped)


_native = _core.function("lazy_adam", op.Params)
_choices = itemgetter(
    "bias_correction", "eps_mode", "decay_mode", "padding_idx", "stochastic_rounding", "rounding_seed", "eps"
)
_moments = itemgetter("exp_avg", "exp_avg_sq")
_dtype_of, _shape_of = attrgetter("dtype"), attrgetter("shape")


def _tensors_of(states: Sequence[State]) -> list[Tensor]:
    moments = [tensor for state in states for tensor in _moments(state)]
    return moments + [state["row_step"] for state in states if "row_step" in state]


def _written(params: Sequence[Tensor], states: Sequence[State]) -> Written:
    return Written(("a parameter", params), ("an optimizer state", _tensors_of(states)))


def _check_tensors(param: Tensor, state: State) -> None:
    arguments.check_memory_exists([("a parameter", param)])
    for key in ("exp_avg", "exp_avg_sq"):
        check_state(key, state[key], (torch.float32,))
        d.require_shape(key, state[key], param.shape, "its parameter")
    if "row_step" in state:
        check_state("row_step", state["row_step"], (torch.int32,))
        d.require_shape("row_step", state["row_step"], (_rows_of(param),), "the rows of its parameter")


def _rows_of(param: Tensor) -> int:
    return param.shape[0] if param.dim() else 1


def _padding_of(param: Tensor, padding: int | None) -> int | None:
    """The padding of a table as its rank's part counts rows; None where the row is another rank's."""
    if padding is None or padding < 0 or not sharding.is_sharded(param):
        return padding
    part = sharding.rows_held(param)
    return padding - part.first if part.first <= padding < part.first + part.count else None


def _dim_of(param: Tensor) -> int:
    return int(np.prod(param.shape[1:], dtype=np.int64))


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
    check_param(param)
    d.require_tensor("a gradient", update.gradient, d.FLOATS)
    if update.gradient.device != param.device:
        raise ValueError(f"a gradient lies on {update.gradient.device}; accepted: {param.device}, as its parameter")
    if update.indices is not None and update.indices.device != param.device:
        raise ValueError(f"ids or a mask lie on {update.indices.device}; accepted: {param.device}, as their parameter")
    if update.indices is None:
        return d.require_shape("a gradient", update.gradient, param.shape, "its parameter")
    if update.indices.dtype == torch.bool:
        d.require_shape("visible", update.indices, (_rows_of(param),), "the rows of a parameter")
        return d.require_shape("a gradient", update.gradient, param.shape, "its parameter")
    d.require(param.dim() > 0, "a parameter of no dimension has rows named; accepted: a table")
    shape = (update.indices.shape[0], *param.shape[1:])
    d.require_shape("a gradient's values", update.gradient, shape, "the ids and the rows of the parameter")
    if update.gradient.numel():
        d.check_memory([("a parameter", [param])], [("a gradient's values", [update.gradient])])


def _run_operator(
    param: Tensor,
    update: Update,
    state: State,
    step: int,
    seed: int,
    lr: float,
    grad_scale: float,
    call: op.Call,
) -> None:
    """The same for one table by the public operator, which takes strided tables, and whose backend may be the
    reference."""
    rows, dim = _rows_of(param), _dim_of(param)
    table = param.detach() if param.dim() == 2 else param.detach().contiguous().view(rows, dim)
    row_step = state.get("row_step")
    op.lazy_adam_(
        update.gradient.reshape(-1, dim) if dim else update.gradient.reshape(len(update.gradient), 0),
        update.indices, state["exp_avg"].view(rows, dim), state["exp_avg_sq"].view(rows, dim), table, lr,
        call.beta1, call.beta2, call.epsilon, convention="formula", row_step=row_step, step=step,
        bias_correction=False if call.bias_correction == "none" else call.bias_correction,  # type: ignore[arg-type]
        eps_mode=call.eps_mode, weight_decay=call.weight_decay, decay_mode=call.decay_mode, refuse_negative=True,
        padding_idx=call.padding_idx, grad_scale=torch.tensor(grad_scale, dtype=torch.float64), maximize=call.maximize,
        stochastic_rounding=seed if call.stochastic_rounding else None,
    )  # fmt: skip
    if table.data_ptr() != param.data_ptr():
        param.copy_(table.view(param.shape))
