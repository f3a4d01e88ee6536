"""What an operator checks of its arguments, with one wording: "NAME is X; accepted: Y"."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from .._checks import names as names
from .._checks import require as require
from .._checks import require_tensor as require_tensor

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def require_shape(name: str, tensor: Tensor, shape: Sequence[int], of: str) -> None:
    if tensor.shape != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; accepted: {tuple(shape)}, the shape of {of}")


def lists_like(var: Any, /, *, may_hold_none: Sequence[str] = (), **given: Any) -> list[list[Any]]:
    """The arguments of a call for a list of tensors; TypeError for one that is none, ValueError for another length."""
    if not isinstance(var, (list, tuple)):
        raise TypeError(f"var is a {type(var).__name__}; accepted: a tensor or a list of tensors")
    for name, value in given.items():
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{name} is a {type(value).__name__}; accepted: a list of tensors, as var is one")
        require(len(value) == len(var), f"{name} has {len(value)} tensors; accepted: {len(var)}, as many as var")
        none = name in may_hold_none
        for item in value:
            if not isinstance(item, Tensor) and not (none and item is None):
                accepted = "tensors and None" if none else "tensors"
                raise TypeError(f"{name} holds a {type(item).__name__}; accepted: {accepted}")
    return [list(value) for value in given.values()]


def one_step(step: Any) -> Tensor:
    """`step` of a call for one tensor."""
    return step if isinstance(step, Tensor) else step_list(step, 1)[0]


def step_list(step: Any, count: int) -> list[Tensor]:
    """`step` as one-element int64 tensors: one for all tensors, or one for each."""
    values = list(step) if isinstance(step, (list, tuple)) else [step]
    if isinstance(step, (list, tuple)) and len(values) != count:
        raise ValueError(f"step has {len(values)} entries; accepted: one for all tensors, or {count}")
    if not values:
        values = [1]  # of no tensors: the dispatcher finds the device by a tensor
    for value in values:
        if not isinstance(value, (int, Tensor, torch.SymInt)):
            raise TypeError(f"step is a {type(value).__name__}; accepted: an int, a one-element int64 tensor or a list")
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise ValueError("step is beyond 63 bits; accepted: whole numbers within")
    return [value if isinstance(value, Tensor) else torch.full((1,), value, dtype=torch.int64) for value in values]


def check_tensor_lists(lists: dict[str, Sequence[Tensor]], dtypes: Sequence[torch.dtype]) -> None:
    """Equal lengths, and in each position equal shapes and accepted dtypes. The first list is compared with."""
    first, leader = next(iter(lists.items()))
    shapes = shapes_of(leader)
    for name, tensors in lists.items():
        check_tensor_list(name, tensors, dtypes, shapes, first)


def check_tensor_list(
    name: str, tensors: Sequence[Tensor], dtypes: Sequence[torch.dtype], shapes: Sequence[Sequence[int]], of: str
) -> None:
    """As many tensors as shapes, each of its shape and of an accepted dtype. `of` says whose shapes they are."""
    require(len(tensors) == len(shapes), f"{name} has {len(tensors)} tensors; accepted: {len(shapes)}, as many as {of}")
    if shapes_of(tensors) == shapes and frozenset(dtypes).issuperset(map(_dtype_of, tensors)):
        return
    for tensor, shape in zip(tensors, shapes, strict=True):
        require_tensor(name, tensor, dtypes)
        require_shape(name, tensor, shape, of)


# Lists may hold thousands of tensors, of which a few lines of Python each would cost as much as the kernel.
_shape_of, _dtype_of = attrgetter("shape"), attrgetter("dtype")


def shapes_of(tensors: Sequence[Tensor]) -> list[Sequence[int]]:
    return list(map(_shape_of, tensors))


def check_steps(step: Sequence[Tensor], count: int) -> None:
    if len(step) not in (1, count):
        raise ValueError(f"step has {len(step)} entries; accepted: one for all tensors, or {count}")
    for value in step:
        require_tensor("step", value, (torch.int64,))
        if value.numel() != 1:
            raise ValueError(f"step has shape {tuple(value.shape)}; accepted: one element")


def entry(values: Sequence[Tensor], i: int) -> Tensor:
    """What tensor i has of a list with one for all tensors, or one for each."""
    return values[0 if len(values) == 1 else i]


def step_values(step: Sequence[Tensor], count: int) -> list[int]:
    """The steps of `count` tensors as numbers."""
    values = [int(value) for value in step]
    return values * count if len(values) == 1 else values


def check_scalar(name: str, value: Tensor | None) -> None:
    """An optional one-element tensor (grad_scale, found_inf, a learning rate on the device)."""
    if value is None:
        return
    require_tensor(name, value, (torch.float32, torch.float64))
    require(value.numel() == 1, f"{name} has shape {tuple(value.shape)}; accepted: one element")


def is_skipped(call: Any) -> bool:
    """Whether `found_inf` says that the step is not to be taken."""
    return call.found_inf is not None and float(call.found_inf) != 0.0


def require_grad_scale(call: Any) -> None:
    zero = call.grad_scale is not None and float(call.grad_scale) == 0.0
    require(not zero, "grad_scale holds 0; accepted: another number, as gradients are divided by it")


def with_numbers(call: Any) -> Any:
    """The call with its learning rate as a number; ValueError for a grad_scale of 0."""
    require_grad_scale(call)
    return call if call.lr_tensor is None else call._replace(lr=float(call.lr_tensor), lr_tensor=None)


def grad_factor(call: Any) -> float:
    """What gradients are multiplied by."""
    return (-1.0 if call.maximize else 1.0) / (1.0 if call.grad_scale is None else float(call.grad_scale))
