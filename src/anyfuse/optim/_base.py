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
from itertools import chain
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

_dtype_of, _layout_of, _device_of = attrgetter("dtype"), attrgetter("layout"), attrgetter("device")
_CPU = torch.device("cpu")
_STRIDED = frozenset([torch.strided])


class FusedOptimizer(torch.optim.Optimizer):
    """The base of the optimizers. A subclass has

    - `_check_group(group)`: refuses a group's numbers and options (when a group is added, and when one is loaded),
    - `_prepare(number, group, params, grads, grad_scale)`: makes the parameters' state where there is none, refuses
      what the operator would refuse, and returns the function that does the step,
    - `_adapt_state(group, param, state)`: one parameter's state out of a checkpoint, in the form that `_prepare` takes,
    - `_saved_state(group, param, state)`, where a state is saved in another form than it has,
    - `_with_gradients(group)` and `_check_gradients(params, grads)`, where more than dense gradients are accepted.
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
        work: list[tuple[int, Group, list[Tensor], list[Any]]] = []
        for number, group in enumerate(self.param_groups):
            params, grads = self._with_gradients(group)
            self._check_gradients(params, grads)
            work.append((number, group, params, grads))
        self._forget_replaced_states()
        for run in [self._prepare(*item, grad_scale) for item in work if item[2]]:
            run()
        return loss

    def _with_gradients(self, group: Group) -> tuple[list[Tensor], list[Any]]:
        """The parameters to step, and what each is stepped by."""
        params = [param for param in group["params"] if param.grad is not None]
        return params, sharding.local_gradients(params, [param.grad for param in params])

    def _check_gradients(self, params: Sequence[Tensor], grads: Sequence[Any]) -> None:
        check_dense(grads)

    def _prepare(self, number: int, group: Group, params: list[Tensor], grads: list[Tensor], grad_scale: float) -> Run:
        raise NotImplementedError

    def _plan(self, key: Any, params: Sequence[Tensor], others: Sequence[Any], make: Callable[[], Any]) -> Any:
        """The cached plan of that key while it holds for the parameters and what goes with them, else a new one."""
        plan = self._plans.get(key)
        if plan is None or not plan.holds(params, others):
            plan = self._plans[key] = make()
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
            key: self._saved_state(*pairs[key], state) if isinstance(key, int) else state
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

    Everything is checked when a plan is made. Later steps only gather the addresses of parameters and gradients and
    compare whether it still holds (`holds`): the same parameters at the same addresses, the same state tensors, dense
    gradients of the same dtypes. Parameters and gradients that are not contiguous pass through buffers of the plan.

    Args:
        row: the row struct of the operator.
        params, grads, states: one of each a row.
        fields: the row's field to the key in the state, for its tensors; a state without the key leaves null.
        dtypes: the row's field for the dtype to that of the tensor, where it has one ("grad", "var" and such of
            `fields`).
    """

    def __init__(
        self,
        row: type[_core.Struct],
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        states: Sequence[State],
        fields: Mapping[str, str],
        dtypes: Mapping[str, str],
    ) -> None:
        self.params, self.states = sharding.locals_of(params), list(states)
        keys = [tuple(key for key in fields.values() if key in state) for state in states]
        getters = {some: _getter(some) for some in keys}
        self._tensors_of = next(iter(getters.values())) if len(getters) == 1 else [getters[some] for some in keys]
        self._tensors = self._state_tensors()
        _check_rows(self.params, grads, self._tensors)
        in_place = [("a parameter", self.params), ("an optimizer state", self._tensors)]
        d.check_memory(in_place, [("a gradient", grads)])
        self._addresses = list(map(Tensor.data_ptr, self.params))
        self._grad_dtypes = list(map(_dtype_of, grads))
        self._var, self._grad = Through(), Through()
        self._written = [param for param in self.params if not param.is_inference()]

        self.rows = np.zeros(len(self.params), dtype=np.dtype(row))
        columns: dict[str, list[Any]] = {"grad": self._grad.read(grads), "var": self._var.read(self.params)}
        columns |= {field: [state.get(key) for state in states] for field, key in fields.items()}
        self.rows["numel"] = [param.numel() for param in self.params]
        for field, tensors in columns.items():
            self.rows[field] = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        for field, of in dtypes.items():
            self.rows[field] = [0 if t is None else d.NUMBERS[t.dtype] for t in columns[of]]

    def holds(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> bool:
        params = sharding.locals_of(params)
        return (
            len(params) == len(self.params)
            and all(map(is_, params, self.params))
            and list(map(Tensor.data_ptr, params)) == self._addresses
            and list(map(_dtype_of, grads)) == self._grad_dtypes
            and all(map(is_, self._state_tensors(), self._tensors))
        )

    def begin(self, grads: Sequence[Tensor], steps: Sequence[int] | int) -> None:
        """Brings this step's numbers, and values of what is not contiguous, into the rows."""
        self._var.read(self.params)
        worked_on = self._grad.read(grads)
        self.rows["grad"] = list(map(Tensor.data_ptr, worked_on))
        self.rows["step"] = steps

    def end(self) -> None:
        """Writes back what is not contiguous, and bumps the parameters' version counters, so that a stale backward
        raises. (No graph holds an optimizer's state, and to bump four more tensors a parameter would cost as much as
        all else here.)"""
        self._var.write(self.params)
        torch.autograd.graph.increment_version(self._written)

    def address(self) -> int:
        return self.rows.ctypes.data

    def _state_tensors(self) -> list[Tensor]:
        if callable(self._tensors_of):  # all states have the same keys: no line of Python a parameter
            return list(chain.from_iterable(map(self._tensors_of, self.states)))
        pairs = zip(self._tensors_of, self.states, strict=True)
        return list(chain.from_iterable([tensors_of(state) for tensors_of, state in pairs]))


class Through:
    """Tensors, with buffers for those that are not contiguous, kept from step to step."""

    def __init__(self) -> None:
        self._buffers: dict[int, Tensor] = {}

    def read(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Contiguous tensors of the same values; valid until the next read."""
        if all(map(Tensor.is_contiguous, tensors)):
            return list(tensors)
        return [t if t.is_contiguous() else self._buffer(i, t).copy_(t) for i, t in enumerate(tensors)]

    def write(self, tensors: Sequence[Tensor]) -> None:
        for i, buffer in self._buffers.items():
            if not tensors[i].is_contiguous():
                tensors[i].copy_(buffer)

    def _buffer(self, i: int, like: Tensor) -> Tensor:
        buffer = self._buffers.get(i)
        if buffer is None or buffer.dtype != like.dtype:
            buffer = self._buffers[i] = torch.empty_like(like, memory_format=torch.contiguous_format)
        return buffer


def _getter(keys: Sequence[str]) -> Callable[[State], Iterable[Tensor]]:
    """The entries of a state under some keys, as a tuple."""
    if len(keys) > 1:
        return itemgetter(*keys)
    return lambda state: [state[key] for key in keys]


def next_steps(states: Sequence[State]) -> list[int]:
    """The numbers of the step to be taken."""
    return [state["step"] + 1 for state in states]


def count_steps(states: Sequence[State], steps: Sequence[int]) -> None:
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


def _check_rows(params: Sequence[Tensor], grads: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    for param, grad in zip(params, grads, strict=True):
        check_param(param)
        d.require_tensor("a gradient", grad, d.FLOATS)
        d.require_shape("a gradient", grad, param.shape, "its parameter")
        if grad.device != _CPU:
            raise ValueError(f"a gradient lies on {grad.device}; accepted: the CPU, as its parameter")
    for tensor in tensors:
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
