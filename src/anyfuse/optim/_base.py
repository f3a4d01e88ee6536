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
from .._tensors import describe
from ..ops import _dispatch as d
from . import _sharding as sharding

Group = dict[str, Any]
State = dict[str, Any]
Run = Callable[[], None]

_grad_of, layout_of = attrgetter("grad"), attrgetter("layout")
_NoneType = type(None)
_CPU = torch.device("cpu")
STRIDED = frozenset([torch.strided])
_MOMENTS = {"exp_avg", "exp_avg_sq"}


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
        return params, resolved(sharding.local_gradients(params, grads))

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


class Kept:
    """Parameters and the tensors of their states, as they were checked once; a step asks whether they still are those.

    The same objects at the same addresses, of the same shapes and strides: `tensor.data = ...` and `share_memory_` move
    a tensor that stays the same object. A thousand small parameters are stepped in the time of a few hundred calls of
    Python for each of these questions, so that all are asked in one native call (`_tensors`).

    Args:
        params, states: one of each a row.
        keys: of the tensors in a state, which need not be in each.
    """

    def __init__(self, params: Sequence[Tensor], states: Sequence[State], keys: Iterable[str]) -> None:
        self.params, self.states = list(sharding.locals_of(params)), list(states)
        self._columns = [(of, itemgetter(*keys)) for keys, of in _by_keys(states, keys)]
        self._seen = self._description(self.params)

    def _tensors(self) -> list[Tensor]:
        return list(chain.from_iterable(chain.from_iterable(map(getter, of)) for of, getter in self._columns))

    def _description(self, params: Iterable[Tensor]) -> bytes:
        return describe([*params, *self._tensors()]).tobytes()

    def hold(self, params: Sequence[Tensor]) -> bool:
        params = sharding.locals_of(params)
        try:
            return len(params) == len(self.params) and self._description(params) == self._seen
        except (RuntimeError, TypeError, KeyError):  # no tensor, or one without memory of its own
            return False

    def next_steps(self) -> list[int]:
        """The numbers of the step to be taken."""
        return next_steps(self.states)


class Plan:
    """The rows of one native call, kept from step to step.

    Everything is checked when a plan is made. Later steps only compare whether it still holds, and gather the addresses
    of gradients: the same parameters and states (`Kept`), dense gradients of the same dtypes and sizes with memory of
    their own. Parameters and gradients that are not contiguous pass through buffers of the plan.

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
        _check_rows(self.params, grads, states, fields.values())
        self._kept = Kept(params, states, fields.values())
        tensors = [state[key] for state in states for key in fields.values() if key in state]
        self._memory = Memory([("a parameter", self.params), ("an optimizer state", tensors)])
        self._memory.check(grads)
        self._first = self._now = describe(list(grads))
        self._var, self._grad = Through(), Through()
        self._var.see(describe(self.params))
        self._grad.see(self._now)
        self._written = [param for param in self.params if not param.is_inference()]

        self.rows = np.zeros(len(self.params), dtype=np.dtype(row))
        columns: dict[str, Sequence[Any]] = {"grad": self._grad.read(grads), "var": self._var.read(self.params)}
        columns |= {field: [state.get(key) for state in states] for field, key in fields.items()}
        self.rows["numel"] = self._first["numel"]
        for field, those in columns.items():
            self.rows[field] = [0 if tensor is None else tensor.data_ptr() for tensor in those]
        for field, of in dtypes.items():
            self.rows[field] = [0 if t is None else d.NUMBERS[t.dtype] for t in columns[of]]

    def holds(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> bool:
        if not self._kept.hold(params):
            return False
        now = described_alike(grads, self._first)
        if now is None:
            return False
        if not self._memory.is_apart_from(now):
            self._memory.check(grads)
        self._now = now
        self._grad.see(now)
        return True

    def next_steps(self) -> list[int]:
        return self._kept.next_steps()

    def begin(self, grads: Sequence[Tensor], steps: Sequence[int]) -> None:
        """Brings this step's numbers, and values of what is not contiguous, into the rows."""
        self._var.read(self.params)
        self.rows["grad"] = self._grad.addresses(grads, self._now)
        self.rows["step"] = steps[0] if _uniform(steps) else steps

    def end(self) -> None:
        """Writes back what is not contiguous, and bumps the parameters' version counters, so that a stale backward
        raises. (No graph holds an optimizer's state, and to bump four more tensors a parameter would cost as much as
        all else here.)"""
        self._var.write(self.params)
        torch.autograd.graph.increment_version(self._written)

    def address(self) -> int:
        return self.rows.ctypes.data


def resolved(grads: Sequence[Tensor]) -> Sequence[Tensor]:
    """Gradients whose memory holds their values: a lazily negated view's holds the negatives."""
    return [grad.resolve_neg() for grad in grads] if any(map(Tensor.is_neg, grads)) else grads


def described_alike(grads: Sequence[Tensor], first: np.ndarray) -> np.ndarray | None:
    """The descriptions of gradients that are as they were `first`: as many elements of the same dtypes on the CPU, with
    memory of their own; None where they are not."""
    try:
        now = describe(list(grads))
    except RuntimeError:
        return None
    same = len(now) == len(first) and all((now[key] == first[key]).all() for key in ("numel", "dtype", "device"))
    return now if same else None


class Memory:
    """The memory of tensors that are written, in which no gradient may lie."""

    def __init__(self, written: Sequence[tuple[str, Sequence[Tensor]]]) -> None:
        self._written = written
        extents = [d.extent(tensor) for _, tensors in written for tensor in tensors if tensor.numel()]
        self._starts, self._ends = np.array(sorted(extents), dtype=np.uint64).reshape(-1, 2).T.copy()
        self._nested = bool((self._starts[1:] < self._ends[:-1]).any())  # views of one storage, in each other's gaps

    def check(self, grads: Sequence[Tensor]) -> None:
        """Refuses tensors that share memory: gradients with those that are written, and these with each other."""
        d.check_memory(self._written, [("a gradient", grads)])

    def is_apart_from(self, rows: np.ndarray) -> bool:
        """Whether described gradients lie outside; False where their first and last elements do not tell."""
        if self._nested:
            return False
        # The first written tensor that ends behind the start of a gradient must not begin before its end.
        at = np.searchsorted(self._ends, rows["data"], side="right")
        inside = at < len(self._ends)
        ends = rows["data"] + rows["extent"].astype(np.uint64)
        return bool((self._starts[at[inside]] >= ends[inside]).all())


def _by_keys(states: Sequence[State], keys: Iterable[str]) -> list[tuple[tuple[str, ...], list[State]]]:
    """The states that have the same ones of some keys, together."""
    keys, alike = tuple(keys), {}
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

    def see(self, rows: np.ndarray) -> None:
        """Looks which of the tensors that are described are not contiguous."""
        self._strided = np.flatnonzero(rows["contiguous"] == 0).tolist()

    def addresses(self, tensors: Sequence[Tensor], rows: np.ndarray) -> Any:
        """Where contiguous tensors of the same values lie, valid until the next read."""
        return list(map(Tensor.data_ptr, self.read(tensors))) if self._strided else rows["data"]

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
        if not state.keys() >= _MOMENTS:
            raise ValueError(f"a state has {', '.join(map(repr, state))}; accepted: states as `step` makes them")
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
    if not STRIDED.issuperset(map(layout_of, grads)):
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
