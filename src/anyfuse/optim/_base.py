"""What the optimizers share: the way of a step, its cached plan, loading of states, and the checks with one wording.

The way of a step: the gradients of all groups are looked at first, and each group makes or refreshes its plan; whatever
is refused is refused there. Then each group's plan runs: one native call for all of its parameters.

Every parameter counts its own steps (`state["step"]`, an int): one that gets its first gradient late starts at 1. The
state of a parameter is made at its first step. It is saved and loaded as it is: loading never changes a dtype.

Of a parameter that is sharded over ranks (a DTensor) a step sees this rank's part alone (`_sharding`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, is_, itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import _core
from ..ops import _dispatch as d
from . import _sharding as sharding

Group = dict[str, Any]
State = dict[str, Any]
Run = Callable[[], None]

_grad_of, _dtype_of, _layout_of = attrgetter("grad"), attrgetter("dtype"), attrgetter("layout")
_shape_of = attrgetter("shape")
_NoneType = type(None)
_CPU = torch.device("cpu")
_STRIDED = frozenset([torch.strided])


class FusedOptimizer(torch.optim.Optimizer):
    """The base of the optimizers. A subclass has

    - `_check_group(group)`: refuses a group's numbers and options (when a group is added, and when one is loaded),
    - `_prepare(number, group, params, grads, grad_scale)`: makes the parameters' state where there is none, refuses
      what the operator would refuse, and returns the function that does the step,
    - `_adapt_state(group, param, state)`: one parameter's state out of a checkpoint, in the form that `_prepare` takes,
    - `_saved_state(group, param, state)`, where a state is saved in another form than it has,
    - `_with_gradients(group)` and `_check_gradients(number, params, grads)`, where more than dense gradients are
      accepted.
    """

    #: How `state_dict` gives 8-bit moments: None, "rows" or "float32"; see docs/distributed.md. It belongs to the
    #: optimizer, not to its state: a loaded state does not set it.
    checkpoint_form: str | None = None

    # torch.amp.GradScaler leaves unscaling and skipping to `step` by the attributes grad_scale and found_inf.
    _step_supports_amp_scaling = True

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        self._plans: dict[Any, Any] = {}
        self._seen: list[State] = []
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._plans, self._seen = {}, []

    # ---- groups ----

    def add_param_group(self, param_group: Group) -> None:
        """Adds a group (see `torch.optim.Optimizer.add_param_group`); a parameter named twice in it is stepped once.

        Raises TypeError for parameters of another dtype than float32, float16 and bfloat16, and ValueError for options
        out of range and for parameters that do not lie in the memory of the CPU.
        """
        if isinstance(param_group, dict) and not isinstance(param_group["params"], (Tensor, set)):
            param_group = {**param_group, "params": _once(param_group["params"])}
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self._check_group(group)
            for param in group["params"]:
                if param.requires_grad:
                    check_param(param)
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    def _check_group(self, group: Group) -> None:
        check_number("lr", group["lr"], 0.0)
        check_betas(group["betas"])
        check_number("eps", group["eps"], 0.0)
        check_number("weight_decay", group["weight_decay"], 0.0)
        check_flag("maximize", group["maximize"])

    # ---- the step ----

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps every parameter that has a gradient.

        Args:
            closure: computes the loss anew, with gradients; called once, before the step.

        Returns:
            What the closure returned, or None.

        Raises:
            TypeError: a gradient of a dtype or layout that is not accepted.
            ValueError: parameters or states that share memory or do not fit each other. Nothing has been written then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found_inf, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if found_inf is not None and float(found_inf) != 0.0:
            return loss
        grad_scale = 1.0 if scale is None else float(scale)
        work: list[tuple[int, Group, Sequence[Tensor], Sequence[Any]]] = []
        for number, group in enumerate(self.param_groups):
            params, grads = self._with_gradients(group)
            if params:
                work.append((number, group, params, grads))
        self._forget_replaced_states()
        for number, _, params, grads in work:
            self._check_gradients(number, params, grads)
        for run in [self._prepare(*item, grad_scale) for item in work]:
            run()
        self._after_step()
        return loss

    def _after_step(self) -> None:
        """What a subclass does after a step that was not skipped."""

    def _with_gradients(self, group: Group) -> tuple[Sequence[Tensor], Sequence[Any]]:
        """The parameters to step, and what each is stepped by."""
        params, grads = group["params"], list(map(_grad_of, group["params"]))
        if _NoneType in set(map(type, grads)):
            params = [param for param, grad in zip(params, grads, strict=True) if grad is not None]
            grads = [grad for grad in grads if grad is not None]
        return params, sharding.local_gradients(params, grads)

    def _check_gradients(self, number: int, params: Sequence[Tensor], grads: Sequence[Any]) -> None:
        """Refuses gradients, unless the group's plan still holds: it takes dense ones alone."""
        if not self._plan_holds(number, params, grads):
            check_dense(grads)

    def _prepare(
        self, number: int, group: Group, params: Sequence[Tensor], grads: Sequence[Tensor], grad_scale: float
    ) -> Run:
        raise NotImplementedError

    def _plan_holds(self, key: Any, params: Sequence[Tensor], others: Sequence[Any]) -> bool:
        """Whether there is a plan that holds for the parameters and what goes with them; drops one that does not."""
        plan = self._plans.get(key)
        if plan is None or plan.holds(params, others):
            return plan is not None
        del self._plans[key]
        return False

    def _plan(self, key: Any, make: Callable[[], Any], options: tuple[Any, ...] = ()) -> Any:
        """The plan of that key, made where there is none for these options of the group (see `_plan_holds`)."""
        plan = self._plans.get(key)
        if plan is None or plan.options != options:
            plan = self._plans[key] = make()
            plan.options = options
            self._seen = list(self.state.values())
        return plan

    def _forget_replaced_states(self) -> None:
        """Drops the plans when a parameter's state is another dict than before."""
        now = list(self.state.values())
        if len(now) != len(self._seen) or not all(map(is_, now, self._seen)):
            self._plans.clear()
            self._seen = now

    # ---- saving and loading ----

    def state_dict(self) -> dict[str, Any]:
        """The state as torch.optim.Optimizer.state_dict gives it; that of sharded parameters as DTensors."""
        after = self.register_state_dict_post_hook(lambda _, packed: self._saved(packed), prepend=True)
        try:
            return super().state_dict()
        finally:
            after.remove()

    def _saved(self, packed: dict[str, Any]) -> dict[str, Any]:
        pairs = [(group, param) for group in self.param_groups for param in group["params"]]
        states = {
            key: self._saved_state(*pairs[key], state) if isinstance(key, int) and state else state
            for key, state in packed["state"].items()
        }
        return {**packed, "state": states}

    def _saved_state(self, group: Group, param: Tensor, state: State) -> State:
        return sharding.wrap_state(param, state) if sharding.is_sharded(param) else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state as it was saved: codes, scales and moments keep their dtypes, whatever the parameters have.

        The options of the saved groups replace those of this optimizer, block sizes and codebooks too, as in torch.
        The tensors are copied. A state of `torch.optim.AdamW` is taken too.

        Raises ValueError when a state does not fit its parameter or its group; the optimizer is then as before.
        """
        before = self.register_load_state_dict_pre_hook(lambda _, given: self._adapted(given))
        after = self.register_load_state_dict_post_hook(_unwrap, prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()

    def _adapted(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Completes saved groups by the options that they lack, and puts their states into the form that is stepped."""
        groups = state_dict["param_groups"]
        if [len(group["params"]) for group in groups] != [len(group["params"]) for group in self.param_groups]:
            return state_dict  # torch refuses it
        states = {key: state for key, state in state_dict["state"].items() if state}
        saved_groups = []
        for group, given in zip(self.param_groups, groups, strict=True):
            options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
            saved = {**options, **given}
            if saved.get("amsgrad"):
                raise ValueError("amsgrad is True in the saved group; accepted: False")
            saved["betas"] = tuple(saved["betas"])  # some formats make lists of tuples
            self._check_group(saved)
            for key, param in zip(saved["params"], group["params"], strict=True):
                if key in states:
                    mine = sharding.unwrap_state(param, states[key])
                    states[key] = _Kept(self._adapt_state(saved, param, mine))
            saved_groups.append(saved)
        return {**state_dict, "param_groups": saved_groups, "state": states}

    def _adapt_state(self, group: Group, param: Tensor, state: Mapping[str, Any]) -> State:
        """One parameter's state out of a checkpoint, as copies, in the form that `_prepare` takes."""
        return {key: copy_value(key, value, param) for key, value in state.items()}


class _Kept:
    """A state on its way through torch's loader, which would cast the tensors of a dict to the parameter's dtype."""

    def __init__(self, state: State) -> None:
        self.state = state


def _unwrap(optimizer: torch.optim.Optimizer) -> None:
    for param, state in optimizer.state.items():
        if isinstance(state, _Kept):
            optimizer.state[param] = state.state


def copy_value(key: str, value: Any, param: Tensor) -> Any:
    """One entry of a state: tensors copied to the parameter's device in their own dtype, the step as an int."""
    if key == "step":
        return int(value)
    if isinstance(value, Tensor):
        return value.detach().to(param.device).clone(memory_format=torch.contiguous_format)
    return value


# ---- plans ----


class Plan:
    """The rows of one native call, kept from step to step.

    Everything is checked when a plan is made. Later steps only compare whether it still holds (`holds`), and gather the
    addresses of gradients: the same parameters and state tensors at the same addresses (`tensor.data = ...` and
    `share_memory_` move a tensor that stays the same object), dense gradients of the same dtypes and sizes. Parameters
    and gradients that are not contiguous pass through buffers of the plan. A thousand small parameters are stepped in
    the time of a few hundred calls of Python for each of these questions, so that each is asked once, by a `map` over
    all of them.

    Args:
        row: the row struct of the operator.
        params, grads, states: one of each a row.
        fields: the row's field to the key in the state, for its tensors; a state without the key leaves null.
        dtypes: the row's field for the dtype to that of the tensor, where it has one ("grad", "var" and such of
            `fields`).
    """

    #: The options of the group that it was made for.
    options: tuple[Any, ...] = ()

    def __init__(
        self,
        row: type[_core.Struct],
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        states: Sequence[State],
        fields: Mapping[str, str],
        dtypes: Mapping[str, str],
    ) -> None:
        self.params, self.states = list(sharding.locals_of(params)), list(states)
        self._alike = [_Alike(*alike) for alike in _by_keys(states, fields.values())]
        tensors = [tensor for alike in self._alike for column in alike.columns for tensor in column]
        _check_rows(self.params, grads, states, fields.values())
        in_place = [("a parameter", self.params), ("an optimizer state", tensors)]
        d.check_memory(in_place, [("a gradient", grads)])
        self._addresses = list(map(Tensor.data_ptr, self.params))
        self._shapes, self._dtypes = list(map(_shape_of, self.params)), list(map(_dtype_of, self.params))
        self._grad_dtypes, self._numels = list(map(_dtype_of, grads)), list(map(Tensor.numel, grads))
        self._var, self._grad = Through(), Through()
        self._strided = self._var.see(self.params)
        self._grad.see(grads)
        self._written = [param for param in self.params if not param.is_inference()]

        self.rows = np.zeros(len(self.params), dtype=np.dtype(row))
        columns: dict[str, Sequence[Any]] = {"grad": self._grad.read(grads), "var": self._var.read(self.params)}
        columns |= {field: [state.get(key) for state in states] for field, key in fields.items()}
        self.rows["numel"] = self._numels
        for field, those in columns.items():
            self.rows[field] = [0 if tensor is None else tensor.data_ptr() for tensor in those]
        for field, of in dtypes.items():
            self.rows[field] = [0 if t is None else d.NUMBERS[t.dtype] for t in columns[of]]

    def holds(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> bool:
        params = sharding.locals_of(params)
        if len(params) != len(self.params) or not all(map(is_, params, self.params)):
            return False
        try:  # what has no memory of its own, as a sparse gradient, raises RuntimeError when it is asked for its place
            return (
                list(map(Tensor.data_ptr, params)) == self._addresses
                and list(map(_shape_of, params)) == self._shapes
                and list(map(_dtype_of, params)) == self._dtypes
                and list(map(_dtype_of, grads)) == self._grad_dtypes
                and list(map(Tensor.numel, grads)) == self._numels
                and self._var.see(params) == self._strided
                and self._grad.see(grads) is not None
                and all(alike.holds() for alike in self._alike)
            )
        except (RuntimeError, KeyError):
            return False

    def next_steps(self) -> list[int]:
        """The numbers of the step to be taken, as `holds` saw the last ones."""
        if len(self._alike) > 1:
            return next_steps(self.states)
        (alike,) = self._alike
        return [alike.steps[0] + 1] * len(self.states) if _uniform(alike.steps) else [step + 1 for step in alike.steps]

    def begin(self, grads: Sequence[Tensor], steps: Sequence[int]) -> None:
        """Brings this step's numbers, and values of what is not contiguous, into the rows."""
        self._var.read(self.params)
        self.rows["grad"] = list(map(Tensor.data_ptr, self._grad.read(grads)))
        self.rows["step"] = steps[0] if _uniform(steps) else steps

    def end(self) -> None:
        """Writes back what is not contiguous, and bumps the parameters' version counters, so that a stale backward
        raises. (No graph holds an optimizer's state, and to bump four more tensors a parameter would cost as much as
        all else here.)"""
        self._var.write(self.params)
        torch.autograd.graph.increment_version(self._written)

    def address(self) -> int:
        return self.rows.ctypes.data


class _Alike:
    """States with the same keys, looked at column by column."""

    def __init__(self, keys: Sequence[str], states: Sequence[State]) -> None:
        self._states, self._of = states, itemgetter("step", *keys)
        self.steps, *self.columns = zip(*map(self._of, states), strict=True)
        self._addresses = self._places(self.columns)

    def holds(self) -> bool:
        """Whether the states hold the same tensors as at first, where they were; sees their steps."""
        self.steps, *columns = zip(*map(self._of, self._states), strict=True)
        same = all(all(map(is_, now, then)) for now, then in zip(columns, self.columns, strict=True))
        return same and self._places(columns) == self._addresses

    @staticmethod
    def _places(columns: Sequence[Sequence[Tensor]]) -> list[list[int]]:
        return [list(map(Tensor.data_ptr, column)) for column in columns]


def _by_keys(states: Sequence[State], keys: Iterable[str]) -> list[tuple[tuple[str, ...], list[State]]]:
    """The states that have the same ones of some keys, together."""
    alike: dict[tuple[str, ...], list[State]] = {}
    for state in states:
        alike.setdefault(tuple(key for key in keys if key in state), []).append(state)
    return list(alike.items())


def _uniform(steps: Sequence[int]) -> bool:
    return steps.count(steps[0]) == len(steps)


class Through:
    """Tensors, with buffers for those that are not contiguous, kept from step to step."""

    def __init__(self) -> None:
        self._strided: list[int] = []
        self._buffers: dict[int, Tensor] = {}

    def see(self, tensors: Sequence[Tensor]) -> list[int]:
        """Looks which of the tensors are not contiguous, for `read` and `write`."""
        contiguous = map(Tensor.is_contiguous, tensors)
        self._strided = [] if all(contiguous) else [i for i, t in enumerate(tensors) if not t.is_contiguous()]
        return self._strided

    def read(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Contiguous tensors of the same values; valid until the next read."""
        if not self._strided:
            return tensors
        worked_on = list(tensors)
        for i in self._strided:
            worked_on[i] = self._buffer(i, tensors[i]).copy_(tensors[i])
        return worked_on

    def write(self, tensors: Sequence[Tensor]) -> None:
        for i in self._strided:
            tensors[i].copy_(self._buffers[i])

    def _buffer(self, i: int, like: Tensor) -> Tensor:
        buffer = self._buffers.get(i)
        if buffer is None or buffer.dtype != like.dtype or buffer.shape != like.shape:
            buffer = self._buffers[i] = torch.empty_like(like, memory_format=torch.contiguous_format)
        return buffer


def next_steps(states: Sequence[State]) -> list[int]:
    """The numbers of the step to be taken."""
    return [state["step"] + 1 for state in states]


def count_steps(states: Sequence[State], steps: Sequence[int]) -> None:
    if _uniform(steps):
        step = steps[0]
        for state in states:
            state["step"] = step
        return
    for state, step in zip(states, steps, strict=True):
        state["step"] = step


def first_seed() -> int:
    """The seed of stochastic rounding for an optimizer that is being made: torch's. Among several ranks it is 0, for
    theirs often differ, and copies of one parameter must be rounded alike."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return 0
    return torch.initial_seed() & 0xFFFFFFFF


def seeds_of(group: Group, number: int, params: Sequence[Tensor]) -> list[int]:
    """A seed for each parameter, by its place in its group, the group's among the groups, and this rank's part."""
    place = {id(param): i for i, param in enumerate(group["params"])}
    first = group["rounding_seed"] + 0x01000193 * number
    return [(first + place[id(p)] + 0x9E3779B1 * sharding.first_element(p)) & 0xFFFFFFFF for p in params]


# ---- checks ----


def _check_rows(
    params: Sequence[Tensor], grads: Sequence[Tensor], states: Sequence[State], keys: Iterable[str]
) -> None:
    for param, grad in zip(params, grads, strict=True):
        check_param(param)
        d.require_tensor("a gradient", grad, d.FLOATS)
        d.require_shape("a gradient", grad, param.shape, "its parameter")
        if grad.device != _CPU:
            raise ValueError(f"a gradient lies on {grad.device}; accepted: the CPU, as its parameter")
    for param, state in zip(params, states, strict=True):
        for key in keys:
            if key in state:
                check_state(key, state[key], _state_dtypes(key, state, keys))
                if not key.startswith("absmax"):
                    d.require_shape(key, state[key], param.shape, "its parameter")


def _state_dtypes(key: str, state: State, keys: Iterable[str]) -> Sequence[torch.dtype]:
    """What a tensor of a state may be: moments are codes where the operator and the state have their scales."""
    if key == "ema":
        return d.FLOATS
    scales = f"absmax_{key}"
    return (torch.uint8,) if scales in keys and scales in state else (torch.float32,)


def check_state(key: str, tensor: Tensor, dtypes: Sequence[torch.dtype]) -> None:
    d.require_tensor(key, tensor, dtypes)
    if tensor.device != _CPU or not tensor.is_contiguous():
        raise ValueError("an optimizer state is not contiguous on the CPU; accepted: states as `step` makes them")


def check_param(param: Tensor) -> None:
    d.require_tensor("a parameter", param, d.FLOATS)
    if param.device != _CPU:
        raise ValueError(f"a parameter lies on {param.device}; accepted: the CPU")


def check_dense(grads: Sequence[Tensor]) -> None:
    if not _STRIDED.issuperset(map(_layout_of, grads)):
        raise TypeError(
            "a gradient is sparse; accepted: dense gradients (LazyAdam steps the rows of sparse ones, or use "
            "sparse=False)"
        )


def check_number(name: str, value: Any, low: float, below: float = math.inf) -> None:
    """A number or a one-element tensor in [low, below)."""
    if isinstance(value, Tensor):
        d.require(value.numel() == 1, f"{name} has shape {tuple(value.shape)}; accepted: one element")
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a {type(value).__name__}; accepted: a number")
    accepted = f"{low} and above" if below == math.inf else f"{low} up to, but less than, {below}"
    d.require(low <= value < below, f"{name} is {value}; accepted: {accepted}")


def check_betas(betas: Any) -> None:
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise ValueError(f"betas is {betas!r}; accepted: two numbers")
    for i, beta in enumerate(betas):
        check_number(f"betas[{i}]", beta, 0.0, 1.0)


def check_flag(name: str, value: Any) -> None:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is a {type(value).__name__}; accepted: True or False")


def check_choice(name: str, value: Any, accepted: Sequence[Any]) -> None:
    """One of the values accepted; 1 is not taken for True."""
    if not any(value == choice and type(value) is type(choice) for choice in accepted):
        raise ValueError(f"{name} is {value!r}; accepted: {', '.join(map(repr, accepted))}")


def _once(params: Any) -> list[Any]:
    """The parameters, or pairs of name and parameter, without those that came before."""
    seen: set[int] = set()
    kept = []
    for item in params:
        key = id(item[1] if isinstance(item, tuple) else item)
        if key not in seen:
            seen.add(key)
            kept.append(item)
    return kept
