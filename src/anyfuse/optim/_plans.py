"""What is kept from step to step, so that a step looks at a thousand small parameters in a few calls: plans, the checks
that they are made with, and whether they still hold."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import _core
from .._settings import use_reference
from .._tensors import CPU, describe
from ..ops import _arguments as arguments
from ..ops import _checks as checks
from ..ops import _memory as memory
from . import _sharding as sharding

Group = dict[str, Any]
State = dict[str, Any]

layout_of = attrgetter("layout")
STRIDED = frozenset([torch.strided])
DEVICES = ("cpu", "cuda")
_MOMENTS = {"exp_avg", "exp_avg_sq"}


def runs_natively(params: Sequence[Tensor]) -> bool:
    """Whether a step calls the native library by a plan's rows. Otherwise it calls the public operator, which knows the
    reference, and the kernels of the GPU that parameters lie on."""
    return not use_reference() and (not params or params[0].is_cpu)


def scale_tensor(grad_scale: float) -> Tensor | None:
    """The scale of gradients as the operators take it; none where it is 1, so that nothing is sent to a GPU."""
    return None if grad_scale == 1.0 else torch.tensor(grad_scale, dtype=torch.float64)


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


class StepPlan:
    """What the plans of one native call have in common: everything is checked when a plan is made, and later steps only
    compare whether it still holds. It holds for the same parameters and states (`Kept`), and for dense gradients of the
    same dtypes and sizes with memory of their own. What is not contiguous passes through buffers of the plan.

    Args:
        params, states: one of each a row; of this rank.
        keys: of the tensors in a state.
        grads: dense gradients of the first parameters.
    """

    #: The options of the group that it was made for.
    options: tuple[Any, ...] = ()

    def __init__(
        self, params: Sequence[Tensor], states: Sequence[State], keys: Collection[str], grads: Sequence[Tensor]
    ) -> None:
        self._kept = Kept(params, states, keys)
        self.params, self.states = self._kept.params, self._kept.states
        tensors = [state[key] for state in states for key in keys if key in state]
        self._memory = Memory([("a parameter", self.params), ("an optimizer state", tensors)])
        self._memory.check(grads)
        self._first = self._now = describe(list(grads))
        self._var, self._grad = Through(), Through()
        self._var.see(describe(self.params))
        self._grad.see(self._now)
        self._written = [param for param in self.params if not param.is_inference()]

    def holds(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> bool:
        if not self._kept.hold(params):
            return False
        now = described_alike(grads, self._first, self.params)
        if now is None:
            return False
        if not self._memory.is_apart_from(now):
            self._memory.check(grads)
        self._now = now
        self._grad.see(now)
        return True

    def next_steps(self) -> list[int]:
        """The numbers of the step to be taken."""
        return next_steps(self.states)

    def end(self) -> None:
        """Writes back what is not contiguous, and bumps the parameters' version counters, so that a stale backward
        raises. (No graph holds an optimizer's state, and to bump four more tensors a parameter would cost as much as
        all else here.)"""
        self._var.write(self.params)
        torch.autograd.graph.increment_version(self._written)


class Plan(StepPlan):
    """The rows of one native call for dense gradients, kept from step to step; a step gathers the gradients' addresses.

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
        params = sharding.locals_of(params)
        _check_rows(params, grads, states, fields.values())
        super().__init__(params, states, fields.values(), grads)
        self.rows = np.zeros(len(self.params), dtype=np.dtype(row))
        columns: dict[str, Sequence[Any]] = {"grad": self._grad.read(grads), "var": self._var.read(self.params)}
        columns |= {field: [state.get(key) for state in states] for field, key in fields.items()}
        self.rows["numel"] = self._first["numel"]
        for field, those in columns.items():
            self.rows[field] = [0 if tensor is None else tensor.data_ptr() for tensor in those]
        for field, of in dtypes.items():
            self.rows[field] = [0 if t is None else d.NUMBERS[t.dtype] for t in columns[of]]

    def begin(self, grads: Sequence[Tensor], steps: Sequence[int]) -> None:
        """Brings this step's numbers, and values of what is not contiguous, into the rows."""
        self._var.read(self.params)
        self.rows["grad"] = self._grad.addresses(grads, self._now)
        self.rows["step"] = steps[0] if _uniform(steps) else steps

    def address(self) -> int:
        return self.rows.ctypes.data


def resolved(grads: Sequence[Tensor]) -> Sequence[Tensor]:
    """Gradients whose memory holds their values: a lazily negated view's holds the negatives."""
    return [grad.resolve_neg() for grad in grads] if any(map(Tensor.is_neg, grads)) else grads


def described_alike(grads: Sequence[Tensor], first: np.ndarray, params: Sequence[Tensor]) -> np.ndarray | None:
    """The descriptions of gradients that are as they were `first`: of their parameters' shapes, of the same dtypes, on
    the same device, with memory of their own; None where they are not."""
    try:
        now = describe(list(grads))
    except RuntimeError:
        return None
    if len(now) != len(first) or not all((now[key] == first[key]).all() for key in ("numel", "dtype", "device")):
        return None
    if ((now["data"] == 0) & (now["numel"] > 0)).any():  # released
        return None
    # Of other strides, or of another shape with as many elements.
    moved = np.flatnonzero(now["layout"] != first["layout"]).tolist()
    return now if all(grads[i].shape == params[i].shape for i in moved) else None


class Memory:
    """The memory of tensors that are written, in which no gradient may lie."""

    def __init__(self, written: Sequence[tuple[str, Sequence[Tensor]]]) -> None:
        self._written = written
        rows = describe([tensor for _, tensors in written for tensor in tensors])
        rows = rows[rows["numel"] > 0]
        starts, ends = rows["data"], rows["data"] + rows["extent"].astype(np.uint64)
        order = np.lexsort((ends, starts))
        self._starts, self._ends = starts[order], ends[order]
        self._nested = bool((self._starts[1:] < self._ends[:-1]).any())  # views of one storage, in each other's gaps

    def check(self, grads: Sequence[Tensor]) -> None:
        """Refuses tensors that share memory: gradients with those that are written, and these with each other."""
        memory.check_memory(self._written, [("a gradient", grads)])

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
    alike: dict[tuple[str, ...], list[State]] = {}
    for state in states:
        alike.setdefault(tuple(filter(state.__contains__, keys)), []).append(state)
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
    try:
        return [state["step"] + 1 for state in states]
    except KeyError:
        raise ValueError("a state has no step; accepted: states as `step` makes them") from None


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
    params: Sequence[Tensor], grads: Sequence[Tensor], states: Sequence[State], keys: Collection[str]
) -> None:
    if are_sound(params, grads, states, keys):
        return
    for param, grad in zip(params, grads, strict=True):
        check_gradient(param, grad)
        check_device("a parameter", param, params[0].device, "the first one of its group")
    for param, state in zip(params, states, strict=True):
        if not state.keys() >= _MOMENTS:
            raise ValueError(f"a state has {', '.join(map(repr, state))}; accepted: states as `step` makes them")
        for key in keys:
            if key in state:
                check_state(key, state[key], _state_dtypes(key, state, keys), param.device)
                if not key.startswith("absmax"):
                    checks.require_shape(key, state[key], param.shape, "its parameter")


def are_sound(
    params: Sequence[Tensor], grads: Sequence[Tensor], states: Sequence[State], keys: Collection[str]
) -> bool:
    """Whether nothing is to be refused in parameters, dense gradients of the first ones, and the keys of their states.

    What is not sound by this may be so all the same; a check of each tensor says. A plan is made anew whenever other
    parameters have gradients, as those of a mixture's experts do, and a check of each would take most of its time.
    """
    if not all(state.keys() >= _MOMENTS for state in states):
        return False
    try:
        if not (
            _are_plain(params, checks.FLOATS) and _are_plain(grads, checks.FLOATS) and _shapes_agree(grads, params)
        ):
            return False
        for key in keys:
            alike: dict[Sequence[torch.dtype], list[int]] = {}
            for i, state in enumerate(states):
                if key in state:
                    alike.setdefault(_state_dtypes(key, state, keys), []).append(i)
            for dtypes, at in alike.items():
                tensors = [states[i][key] for i in at]
                is_shaped = key.startswith("absmax") or _shapes_agree(tensors, [params[i] for i in at])
                if not (is_shaped and _are_plain(tensors, dtypes, contiguous=True)):
                    return False
    except (RuntimeError, TypeError, AttributeError):  # no tensor, or one without memory of its own
        return False
    return True


def _are_plain(tensors: Sequence[Tensor], dtypes: Sequence[torch.dtype], contiguous: bool = False) -> bool:
    """Whether tensors are of these dtypes and lie in the CPU's memory with their values."""
    rows = describe(list(tensors))
    numbers = [d.NUMBERS[dtype] for dtype in dtypes]
    return (
        bool(np.isin(rows["dtype"], numbers).all())
        and bool((rows["device"] == CPU).all())
        and bool(((rows["data"] != 0) | (rows["numel"] == 0)).all())
        and (not contiguous or bool(rows["contiguous"].all()))
        and not any(map(Tensor.is_neg, tensors))
    )


def _shapes_agree(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(a.shape == b.shape for a, b in zip(tensors, others, strict=False))


def _state_dtypes(key: str, state: State, keys: Collection[str]) -> Sequence[torch.dtype]:
    """What a tensor of a state may be: moments are codes where the operator and the state have their scales."""
    if key == "ema":
        return checks.FLOATS
    scales = f"absmax_{key}"
    return (torch.uint8,) if scales in keys and scales in state else (torch.float32,)


def check_state(key: str, tensor: Tensor, dtypes: Sequence[torch.dtype], device: torch.device) -> None:
    checks.require_tensor(key, tensor, dtypes)
    arguments.check_memory_exists([(key, tensor)])
    check_device(key, tensor, device, "its parameter")
    checks.require(tensor.is_contiguous(), f"{key} is not contiguous; accepted: states as `step` makes them")


def check_device(name: str, tensor: Tensor, device: torch.device, of: str) -> None:
    if tensor.device != device:
        raise ValueError(f"{name} lies on {tensor.device}; accepted: {device}, as {of}")


def check_param(param: Tensor) -> None:
    checks.require_tensor("a parameter", param, checks.FLOATS)
    if param.device.type not in DEVICES:
        raise ValueError(f"a parameter lies on {param.device}; accepted: the CPU or a GPU (cuda)")
    arguments.check_memory_exists([("a parameter", param)])


def check_gradient(param: Tensor, grad: Tensor) -> None:
    """Refuses a dense gradient that does not fit its parameter."""
    check_param(param)
    arguments.check_memory_exists([("a gradient", grad)])
    checks.require_tensor("a gradient", grad, checks.FLOATS)
    checks.require_shape("a gradient", grad, param.shape, "its parameter")
    check_device("a gradient", grad, param.device, "its parameter")


def check_dense(grads: Sequence[Tensor]) -> None:
    if not STRIDED.issuperset(map(layout_of, grads)):
        raise TypeError(
            "a gradient is sparse; accepted: dense gradients (LazyAdam steps the rows of sparse ones, or use "
            "sparse=False)"
        )
