"""Adam for embedding tables: the rows that a step names, and dense parameters beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ..ops import _arguments as arguments
from ..ops import _checks as checks
from ..ops import lazy_adam as op
from . import _sharding as sharding
from ._base import FusedOptimizer
from ._loading import copies
from ._options import check_choice, check_flag, check_whole
from ._step import (
    STRIDED,
    Entry,
    Group,
    State,
    Taken,
    check_device,
    check_gradient,
    first_seed,
    layout_of,
    scale_tensor,
)

_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Update:
    """What the rows of a table are stepped by that ids or a mask name."""

    gradient: Tensor
    indices: Tensor

    @property
    def is_mask(self) -> bool:
        return self.indices.dtype == torch.bool


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

    Groups may set each of these. State of a parameter: `step` (int64, one element: of the calls that had a gradient for
    it, one that names no row too), `exp_avg` and `exp_avg_sq` (float32) and, for "row" and "catch_up", `row_step`
    (int32, (rows,): how often, or at which step last).

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
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._rows, self._visible = {}, None

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        check_choice("bias_correction", group["bias_correction"], ("global", "row", False))
        check_choice("eps_mode", group["eps_mode"], op.EPS_MODES)
        check_choice("decay_mode", group["decay_mode"], op.DECAY_MODES)
        check_flag("stochastic_rounding", group["stochastic_rounding"])
        check_whole("rounding_seed", group["rounding_seed"])
        if group["padding_idx"] is not None:
            check_whole("padding_idx", group["padding_idx"])
        op.check_options(_call_of(group), row_step=_counts_rows(group), step=True)

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
            self._check_given()
            return super().step(closure)
        finally:
            self._rows, self._visible = {}, None

    def set_step(self, step: int) -> None:
        """Sets the number of the steps taken, of every parameter and, where rows are counted, of every row."""
        checks.require(0 <= step < 2**31, f"step is {step}; accepted: 0 to 2^31 - 1")
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state[param] or self._make_state(group, param)
                self._complete(group, param, state)
                state["step"].fill_(step)
                if "row_step" in state:
                    state["row_step"].fill_(step)

    def _check_given(self) -> None:
        if not isinstance(self._rows, Mapping):
            raise TypeError(f"rows is a {type(self._rows).__name__}; accepted: a dict of table to (ids, values)")
        if self._rows:
            known = {param for group in self.param_groups for param in group["params"]}
            checks.require(self._rows.keys() <= known, "rows holds a tensor that is not a parameter of this optimizer")
        if self._visible is not None:
            checks.require_tensor("visible", self._visible, (torch.bool,))
            checks.require(self._visible.dim() == 1, f"visible has shape {tuple(self._visible.shape)}; accepted: (N,)")

    def _with_gradients(self, group: Group) -> tuple[Sequence[Tensor], Sequence[Tensor | Update]]:
        params, grads = super()._with_gradients(group)
        if not self._rows and self._visible is None and STRIDED.issuperset(map(layout_of, grads)):
            return params, grads
        params, updates = list(params), list(map(self._update_of, grads))
        for param in group["params"] if self._rows else ():
            if param in self._rows:
                params.append(param)
                updates.append(self._given_rows(param))
        return params, updates

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

    def _check_gradients(self, taken: Taken) -> None:
        for param, update in zip(taken.mine, taken.grads, strict=True):
            _check_update(param, update)

    def _calls(self, taken: Taken, grad_scale: float) -> Sequence[Any]:
        group, params, states = taken.group, list(taken.mine), taken.states
        counts = _counts_rows(group)
        for param, state in zip(taken.params, states, strict=True):
            if ("row_step" in state) != counts:
                self._complete(group, param, state)
        dense = all(isinstance(update, Tensor) for update in taken.grads)
        call = _call_of(group)._replace(
            gradient=list(taken.grads) if dense else [_gradient_of(update) for update in taken.grads],
            indices=[None] * len(params) if dense else [_indices_of(update) for update in taken.grads],
            m=taken.column("exp_avg"),
            v=taken.column("exp_avg_sq"),
            var=params,
            row_step=taken.column("row_step") if counts else [],
            step=taken.column("step"),
            grad_scale=scale_tensor(grad_scale),
            stochastic_rounding=taken.seeds(),
        )
        return [call] if call.padding_idx is None or dense else _by_padding(call, taken)

    def _read(self, grads: Sequence[Tensor | Update]) -> Iterable[Tensor]:
        named = (update.indices for update in grads if isinstance(update, Update))
        return chain(map(_gradient_of, grads), named)

    def _check_call(self, call: op.Call) -> None:
        call = _of_tables(call)
        super()._check_call(call)
        if call.var[0].is_cpu:  # of a GPU, nothing waits for values
            op.check_step_values([int(step) + 1 for step in call.step], call)
            op.check_ids(call)

    def _run(self, call: op.Call) -> None:
        tables = _of_tables(call)
        super()._run(tables)
        for param, table in zip(call.var, tables.var, strict=True):
            if table.data_ptr() != param.data_ptr():
                param.copy_(table.view(param.shape))

    # ---- state ----

    def _new_state(self, group: Group, param: Tensor) -> State:
        mine = sharding.local(param)
        return {key: torch.zeros(mine.shape, dtype=torch.float32, device=mine.device) for key in _MOMENTS}

    def _complete(self, group: Group, param: Tensor, state: State) -> None:
        """Gives a state the counts of rows that its group's options need, and no others."""
        if not _counts_rows(group):
            state.pop("row_step", None)
        elif "row_step" not in state:  # so far all rows were stepped alike, or a state of another optimizer was loaded
            sharding.require_rows(param, "a count for each row")
            mine = sharding.local(param)
            state["row_step"] = torch.full((_rows_of(mine),), int(state["step"]), dtype=torch.int32, device=mine.device)

    def _entries(self, group: Group, param: Tensor, state: State) -> dict[str, Entry]:
        mine = sharding.local(param)
        found = {key: Entry((torch.float32,), mine.shape) for key in _MOMENTS}
        if _counts_rows(group):
            found["row_step"] = Entry((torch.int32,), (_rows_of(mine),))
        return found

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
        adapted.pop("max_exp_avg_sq", None)
        return adapted


def _gradient_of(update: Tensor | Update) -> Tensor:
    return update if isinstance(update, Tensor) else update.gradient


def _indices_of(update: Tensor | Update) -> Tensor | None:
    return None if isinstance(update, Tensor) else update.indices


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


def _by_padding(call: op.Call, taken: Taken) -> list[op.Call]:
    """A call for the tables of each padding, which is one row of a whole table."""
    places: dict[int | None, list[int]] = {}
    for i, param in enumerate(taken.params):
        places.setdefault(_padding_of(param, call.padding_idx), []).append(i)
    if len(places) == 1:
        return [call._replace(padding_idx=next(iter(places)))]

    def of(values: Any, those: Sequence[int]) -> Any:
        return [values[i] for i in those] if values else values

    return [
        call._replace(
            gradient=of(call.gradient, those),
            indices=of(call.indices, those),
            m=of(call.m, those),
            v=of(call.v, those),
            var=of(call.var, those),
            row_step=of(call.row_step, those),
            step=of(call.step, those),
            padding_idx=padding,
            stochastic_rounding=of(call.stochastic_rounding, those),
        )
        for padding, those in places.items()
    ]


def _call_of(group: Group) -> op.Call:
    """A group's numbers and choices, of no tables yet."""
    return op.Call(
        gradient=[],
        indices=[],
        m=[],
        v=[],
        var=[],
        row_step=[],
        lr=float(group["lr"]),
        lr_tensor=[],
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


def _check_update(param: Tensor, update: Tensor | Update) -> None:
    """Refuses what does not fit the parameter; looks at no ids."""
    if isinstance(update, Tensor):
        return check_gradient(param, update)
    if update.is_mask:
        checks.require_shape("visible", update.indices, (_rows_of(param),), "the rows of a parameter")
        return check_gradient(param, update.gradient)
    checks.require_tensor("a gradient", update.gradient, checks.FLOATS)
    check_device("a gradient", update.gradient, param.device, "its parameter")
    checks.require(param.dim() > 0, "a parameter of no dimension has rows named; accepted: a table")
    shape = (update.indices.shape[0], *param.shape[1:])
    checks.require_shape("a gradient's values", update.gradient, shape, "the ids and the rows of the parameter")


def _of_tables(call: op.Call) -> op.Call:
    """The call with tensors of two dimensions, as the operator takes them: views where these are possible."""
    gradient, m, v, var = (list(map(_as_table, tensors)) for tensors in (call.gradient, call.m, call.v, call.var))
    return call._replace(gradient=gradient, m=m, v=v, var=var)


def _as_table(tensor: Tensor) -> Tensor:
    return tensor if tensor.dim() == 2 else tensor.detach().contiguous().view(_rows_of(tensor), _dim_of(tensor))
