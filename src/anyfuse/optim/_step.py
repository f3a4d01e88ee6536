"""A step of all groups: by operators' calls that are taken together, or one after the other when each has been checked.

The first is the way of what is plain (dense, contiguous, apart, on the CPU): the native library checks every call
before the first one runs. For whatever it does not take, each parameter, gradient and state is looked at in Python,
which has words for what is wrong, and the operators are called one by one, which have copies for what is not plain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..ops import _arguments as arguments
from ..ops import _checks as checks
from . import _sharding as sharding

Group = dict[str, Any]
State = dict[str, Any]

STRIDED = frozenset([torch.strided])
layout_of = attrgetter("layout")
_DEVICES = ("cpu", "cuda")


class Entry(NamedTuple):
    """What a tensor of a parameter's state may be."""

    dtypes: Sequence[torch.dtype]
    shape: Sequence[int]


class Taken(NamedTuple):
    """What a step takes of a group: the parameters that have a gradient, their parts that are this rank's, the
    gradients and the states."""

    number: int
    group: Group
    params: Sequence[Tensor]
    mine: Sequence[Tensor]
    grads: Sequence[Any]
    states: Sequence[State]

    def column(self, key: str) -> list[Any]:
        """An entry of each state."""
        return list(map(itemgetter(key), self.states))

    def seeds(self) -> list[int] | None:
        """A seed of stochastic rounding for each parameter, by its place in its group, the group's among the groups,
        and this rank's part; None where the group rounds to the nearest."""
        if not self.group["stochastic_rounding"]:
            return None
        place = {id(param): i for i, param in enumerate(self.group["params"])}
        first = self.group["rounding_seed"] + 0x01000193 * self.number
        return [(first + place[id(p)] + 0x9E3779B1 * sharding.first_element(p)) & 0xFFFFFFFF for p in self.params]


def first_seed() -> int:
    """The seed of stochastic rounding for an optimizer that is being made: torch's. Among several ranks it is 0, for
    theirs often differ, and copies of one parameter must be rounded alike."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return 0
    return torch.initial_seed() & 0xFFFFFFFF


def scale_tensor(grad_scale: float) -> Tensor | None:
    """The scale of gradients as the operators take it; none where it is 1, so that nothing is sent to a GPU."""
    return None if grad_scale == 1.0 else torch.tensor(grad_scale, dtype=torch.float64)


def resolved(grads: Sequence[Tensor]) -> Sequence[Tensor]:
    """Gradients whose memory holds their values: a lazily negated view's holds the negatives."""
    return [grad.resolve_neg() for grad in grads] if any(map(Tensor.is_neg, grads)) else grads


# ---- checks ----


def check_device(name: str, tensor: Tensor, device: torch.device, of: str) -> None:
    if tensor.device != device:
        raise ValueError(f"{name} lies on {tensor.device}; accepted: {device}, as {of}")


def check_param(param: Tensor) -> None:
    checks.require_tensor("a parameter", param, checks.FLOATS)
    if param.device.type not in _DEVICES:
        raise ValueError(f"a parameter lies on {param.device}; accepted: the CPU or a GPU (cuda)")
    arguments.check_memory_exists([("a parameter", param)])


def check_gradient(param: Tensor, grad: Tensor) -> None:
    """Refuses a dense gradient that does not fit its parameter."""
    arguments.check_memory_exists([("a gradient", grad)])
    checks.require_tensor("a gradient", grad, checks.FLOATS)
    checks.require_shape("a gradient", grad, param.shape, "its parameter")
    check_device("a gradient", grad, param.device, "its parameter")


def check_dense(grads: Iterable[Tensor]) -> None:
    if not STRIDED.issuperset(map(layout_of, grads)):
        raise TypeError(
            "a gradient is sparse; accepted: dense gradients (LazyAdam steps the rows of sparse ones, or use "
            "sparse=False)"
        )


def check_state(param: Tensor, state: State, entries: Mapping[str, Entry]) -> None:
    """Refuses a state that is not as `step` makes it. `param` is this rank's part."""
    missing = [key for key in ("step", *entries) if key not in state]
    if missing:
        raise ValueError(f"a state has no {missing[0]}; accepted: states as `step` makes them")
    checks.require_tensor("step of a state", state["step"], (torch.int64,))
    checks.require(state["step"].numel() == 1, f"step of a state has shape {tuple(state['step'].shape)}; accepted: ()")
    for key, entry in entries.items():
        tensor = state[key]
        checks.require_tensor(key, tensor, entry.dtypes)
        arguments.check_memory_exists([(key, tensor)])
        check_device(key, tensor, param.device, "its parameter")
        checks.require(tensor.is_contiguous(), f"{key} is not contiguous; accepted: states as `step` makes them")
        checks.require_shape(key, tensor, entry.shape, "its parameter")
