"""Parameters that are sharded over ranks (DTensors, as FSDP2 makes them): the part of this rank, and its state.

A rank steps the elements that it holds, and its state is made of plain tensors for these. Only a saved state has
DTensors, so that torch.distributed.checkpoint can distribute it anew. Nothing but `on_rank_0` communicates.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..ops import _checks as checks


@dataclass(frozen=True)
class Part:
    """The rows of the first dimension that this rank holds, of how many; a tensor that is not sharded has all."""

    first: int
    count: int
    of: int

    def cut(self, tensor: Tensor) -> Tensor:
        return tensor.narrow(0, self.first, self.count)


def is_sharded(tensor: Any) -> bool:
    """True for a DTensor. Where its module was never imported there is none; the import would cost half a second."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Any) -> Tensor:
    """The part of this rank, the same object at each call (`to_local` makes a new view of a parameter)."""
    part: Tensor = tensor._local_tensor if is_sharded(tensor) else tensor
    return part


def any_sharded(tensors: Sequence[Tensor]) -> bool:
    """Asks each class once: with a thousand small parameters a question to each tensor would be seen in a step."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(issubclass(kind, module.DTensor) for kind in set(map(type, tensors)))


def locals_of(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    return list(map(local, tensors)) if any_sharded(tensors) else tensors


def local_gradients(params: Sequence[Tensor], grads: Sequence[Any]) -> Sequence[Any]:
    """The parts of this rank, of gradients that are sharded as their parameters are."""
    if not any_sharded(params) and not any_sharded(grads):
        return grads
    for param, grad in zip(params, grads, strict=True):
        _check_alike("a gradient", grad, param)
    return locals_of(grads)


def rows_held(param: Tensor) -> Part:
    """The rows of a parameter that this rank holds, for routing ids to their ranks, and rows to where they belong.

    Raises ValueError for a parameter that is sharded by another dimension than the first.
    """
    rows = param.shape[0] if param.dim() else 1
    if not is_sharded(param):
        return Part(0, rows, rows)
    if not is_split_by_rows(param):
        raise ValueError(f"a parameter has placements {param.placements}; accepted: Shard(0) and Replicate()")  # type: ignore[attr-defined]
    sizes, offsets = _place(param)
    return Part(offsets[0], sizes[0], rows) if sizes else Part(0, 1, 1)


def is_split_by_rows(param: Any) -> bool:
    from torch.distributed.tensor import Replicate, Shard

    return all(isinstance(p, Replicate) or (type(p) is Shard and p.dim == 0) for p in param.placements)


def first_element(param: Tensor) -> int:
    """The place of this rank's first element in the whole parameter, in row-major order."""
    if not is_sharded(param):
        return 0
    _, offsets = _place(param)
    return sum(offset * param.shape[i + 1 :].numel() for i, offset in enumerate(offsets))


def _place(param: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sizes, offsets = compute_local_shape_and_global_offset(param.shape, param.device_mesh, param.placements)
    return tuple(sizes), tuple(offsets)


# ---- saved states ----


def on_rank_0(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Whole tensors in place of DTensors, on rank 0; nothing on the others. All ranks call it (it communicates)."""
    import torch.distributed as dist

    keep = not dist.is_initialized() or dist.get_rank() == 0
    whole = {}
    for name, value in tensors.items():
        value = value.full_tensor() if is_sharded(value) else value
        if keep:
            whole[name] = value
    return whole


def wrap(param: Any, value: Tensor) -> Tensor:
    """A state tensor as a DTensor that is sharded as its parameter: one of its shape, or one with an entry a row."""
    if not is_sharded(param):
        return value
    from torch.distributed.tensor import DTensor

    shape = param.shape
    if value.shape != local(param).shape:
        shape = torch.Size([rows_held(param).of, *value.shape[1:]])
    stride = tuple(shape[i + 1 :].numel() for i in range(len(shape)))
    return DTensor.from_local(value, param.device_mesh, param.placements, run_check=False, shape=shape, stride=stride)


def wrap_state(param: Tensor, state: Mapping[str, Any]) -> dict[str, Any]:
    """A state as it is saved: its `step`, which all ranks have, stays a plain tensor, as in torch."""
    return {
        key: wrap(param, value) if isinstance(value, Tensor) and key != "step" else value
        for key, value in state.items()
    }


def unwrap_state(param: Tensor, state: Mapping[str, Any]) -> dict[str, Any]:
    """A saved state with the part of this rank in place of DTensors and of plain tensors for the whole parameter.

    Raises ValueError for a DTensor that is not sharded as the parameter, TypeError for a state that is no dict.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"a saved state is a {type(state).__name__}; accepted: a dict")
    return {key: _unwrap(key, value, param) if isinstance(value, Tensor) else value for key, value in state.items()}


def _unwrap(key: str, value: Tensor, param: Tensor) -> Tensor:
    if is_sharded(value):
        _check_alike(f"{key} of a saved state", value, param)
        return local(value)
    if not is_sharded(param) or value.shape == local(param).shape:
        return value
    if value.shape == param.shape:
        for i, (size, offset) in enumerate(zip(*_place(param), strict=True)):
            value = value.narrow(i, offset, size)
    elif value.dim() and is_split_by_rows(param) and value.shape[0] == param.shape[0]:
        value = rows_held(param).cut(value)
    return value


def _check_alike(name: str, value: Any, param: Any) -> None:
    sharded = is_sharded(param)
    if sharded != is_sharded(value):
        got, accepted = ("a plain tensor", "a DTensor") if sharded else ("a DTensor", "a plain tensor")
        raise ValueError(f"{name} is {got}; accepted: {accepted}, as its parameter is one")
    if sharded and (value.placements != param.placements or value.device_mesh != param.device_mesh):
        raise ValueError(
            f"{name} has placements {value.placements} on {value.device_mesh}; accepted: {param.placements} on "
            f"{param.device_mesh}, those of its parameter"
        )


def require_rows(param: Tensor, what: str) -> None:
    """Refuses what goes by rows or blocks for a parameter whose part is not a run of whole rows."""
    if is_sharded(param):
        checks.require(
            is_split_by_rows(param),
            f"a parameter has placements {param.placements}; accepted with {what}: Shard(0) and Replicate()",  # type: ignore[attr-defined]
        )
