"""Bits of tensors: copies that keep all that lies around them, and the equality of the contract."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def clone_with_storage(value: Any, copied: dict[int, torch.UntypedStorage] | None = None) -> Any:
    """A copy of a tensor that keeps its strides and offset, and all that lies around it in its storage.

    Lists, tuples and dicts are copied through; tensors that share a storage share one in the copy too.
    """
    copied = {} if copied is None else copied
    if isinstance(value, dict):
        return {name: clone_with_storage(item, copied) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(clone_with_storage(item, copied) for item in value)
    if not isinstance(value, Tensor):
        return value
    storage = value.untyped_storage()
    if storage.data_ptr() not in copied:
        copied[storage.data_ptr()] = storage.clone()
    copy = torch.empty(0, dtype=value.dtype, device=value.device)
    return copy.set_(copied[storage.data_ptr()], value.storage_offset(), value.shape, value.stride())


def storage_bytes(tensor: Tensor) -> Tensor:
    """All bytes of a tensor's storage, those outside its view too."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def same_bits(a: Tensor, b: Tensor) -> bool:
    """The equality of the contract: same dtype, shape and bits, where all NaNs count as one value and +0 is not -0."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return not bool(different_bits(a, b).any())


def different_bits(a: Tensor, b: Tensor) -> Tensor:
    """Which elements of two tensors of one dtype and shape are unequal in that sense."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    a, b = a.detach().contiguous(), b.detach().contiguous()
    equal = a.view(whole) == b.view(whole)
    if a.dtype.is_floating_point:
        equal |= a.float().isnan() & b.float().isnan()
    return ~equal
