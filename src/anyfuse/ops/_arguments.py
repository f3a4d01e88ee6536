"""Arguments that never reach an operator's check: the dispatcher refuses them, or takes the call elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

_NUMBER = (int, float, torch.SymInt, torch.SymFloat)

#: What a schema's type takes and how a message calls it.
_KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "Tensor": (Tensor, "a tensor"),
    "List[Tensor]": ((list, tuple), "a list of tensors"),
    "float": (_NUMBER, "a number"),
    "int": ((int, torch.SymInt), "a whole number"),
    "bool": ((bool, torch.SymBool), "True or False"),
    "str": (str, "a string"),
    "ScalarType": (torch.dtype, "a dtype"),
}

#: Classes whose tensors are not made of others.
_WITH_MEMORY = (Tensor, torch.nn.Parameter)

#: Arguments whose name in a schema is not the public function's.
_PUBLIC = {"adam_mode": "mode", "lr_tensor": "lr"}


def named(overload: Any, arguments: Sequence[Any]) -> Iterable[tuple[str, str, Any]]:
    """Each argument's public name, its type in the schema ("Optional" left out where it is None) and its value."""
    for argument, value in zip(overload._schema.arguments, arguments, strict=False):
        kind = str(argument.real_type)
        if kind.startswith("Optional["):
            kind = "" if value is None else kind[len("Optional[") : -1]
        yield _PUBLIC.get(argument.name, argument.name), kind, value


def tensors(overload: Any, arguments: Sequence[Any]) -> Iterable[tuple[str, Tensor]]:
    for name, _, value in named(overload, arguments):
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(item, Tensor):
                yield name, item


def check_devices(overload: Any, arguments: Sequence[Any]) -> None:
    """Refuses tensors of several devices, one of which may be "meta": there the call would compute nothing and say
    nothing. One-element tensors that are only read (steps, scales) may lie on another device, as torch has it, but on
    "meta", where they have no value, only beside tensors that have none either."""
    first, leader = next(iter(tensors(overload, arguments)), ("", None))
    written = written_names(overload)
    for name, tensor in tensors(overload, arguments):
        if leader is None or tensor.device == leader.device:
            continue
        if tensor.numel() != 1 or name in written or tensor.is_meta:
            raise ValueError(f"{name} lies on {tensor.device}; accepted: {leader.device}, where {first} is")


def written_names(overload: Any) -> set[str]:
    """The arguments that an operator updates."""
    infos = ((argument.name, argument.alias_info) for argument in overload._schema.arguments)
    return {name for name, info in infos if info is not None and info.is_write}


def check_memory_exists(tensors: Iterable[tuple[str, Tensor]]) -> None:
    for name, tensor in tensors:
        problem = tensor_problem(tensor)
        if problem is not None:
            raise TypeError(f"{name} is {problem}; accepted: a dense tensor with memory of its own")


def fault(overload: Any, arguments: Sequence[Any]) -> Exception | None:
    """What is wrong with the arguments of a call that failed, by kind; None where each is of its kind."""
    for name, kind, value in named(overload, arguments):
        accepted, words = _KINDS.get(kind, (object, ""))
        is_number = accepted is not object and kind in ("float", "int", "bool")
        if is_number and isinstance(value, Tensor) and value.numel() == 1:
            continue  # torch reads the number
        if not isinstance(value, accepted):
            return TypeError(f"{name} is a {type(value).__name__}; accepted: {words}")
        bits = 1023 if kind == "float" else 63
        if is_number and type(value) is int and not -(2**bits) <= value < 2**bits:
            return ValueError(f"{name} is beyond {bits} bits; accepted: {words} within")
    try:
        check_memory_exists(tensors(overload, arguments))
        check_devices(overload, arguments)
    except (TypeError, ValueError) as error:
        return error
    return None


def tensor_problem(tensor: Tensor) -> str | None:
    """Why a kernel cannot read or write a tensor's memory as it lies."""
    if torch._C._functorch.is_batchedtensor(tensor):
        return "a tensor that torch.func.vmap goes over"
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout != torch.strided:
        return f"a tensor of layout {str(tensor.layout).removeprefix('torch.')}"
    if tensor.is_quantized:
        return f"a quantized tensor ({str(tensor.dtype).removeprefix('torch.')})"
    if tensor.is_neg() or tensor.is_conj():
        return "a lazily negated or conjugated view (see torch.resolve_neg, torch.resolve_conj)"
    if tensor.device.type == "cpu" and tensor.numel():
        if tensor.untyped_storage().nbytes() == 0:
            return "a tensor whose memory has been released"
        if type(tensor) not in _WITH_MEMORY and tensor.data_ptr() == 0:
            return f"a {type(tensor).__name__}, which has no memory of its own"
    return None
