"""Running an operator's samples in tests: on fresh copies, with everything that must not change under watch."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from anyfuse._bits import clone_with_storage, same_bits, storage_bytes
from anyfuse._opspec import OpSpec


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors of an argument or a result, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_of(item)]
    return []


def run(spec: OpSpec, arguments: dict[str, Any]) -> tuple[list[Tensor], dict[str, Any]]:
    """All tensors that a call gave or changed, and the arguments it was called with."""
    given = clone_with_storage(arguments)
    return with_changed(spec, spec.function(**given), given), given


def with_changed(spec: OpSpec, results: Any, given: dict[str, Any]) -> list[Tensor]:
    """The tensors of a call's results, and those that it changed and does not return."""
    changed = [name for name in spec.in_place if name not in spec.outputs]
    return tensors_of([results, *(given.get(name) for name in changed)])


def raw_bytes(tensors: list[Tensor]) -> list[bytes]:
    """The bytes of contiguous tensors, read without an operator of torch."""
    return [ctypes.string_at(tensor.data_ptr(), tensor.nbytes) for tensor in tensors if tensor.numel()]


def difference(expected: list[Tensor], got: list[Tensor]) -> str | None:
    if len(expected) != len(got):
        return f"{len(got)} results, expected {len(expected)}"
    for i, (a, b) in enumerate(zip(expected, got, strict=True)):
        if not same_bits(a, b):
            return f"result {i}: {b.dtype} {tuple(b.shape)}\nexpected {a}\ngot      {b}"
    return None


def memory_outside_views_changed(spec: OpSpec, before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """The name of an argument of which a byte changed that the call may not write."""
    for name, value in before.items():
        for old, new in zip(tensors_of(value), tensors_of(after[name]), strict=True):
            old = clone_with_storage(old)
            if name in spec.in_place:
                old.copy_(new)
            if not torch.equal(storage_bytes(old), storage_bytes(new)):
                return name
    return None


class Recorder(TorchDispatchMode):
    """Notes the calls of anyfuse's operators in the form of their schemas."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "anyfuse":
            self.calls.append((func, *clone_with_storage((args, kwargs or {}))))
        return func(*args, **(kwargs or {}))
