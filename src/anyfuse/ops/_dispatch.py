"""What every operator file needs: registration with torch, checks with one wording, and in-place arguments done right.

The way of a call: the public function only brings its arguments into the form of the schema; the CPU implementation and
the fake kernel both call the operator's `check` (dtypes, shapes, attributes), so that errors are the same in eager mode
and under `torch.compile`; what depends on memory or on values is checked on the CPU alone. Nothing is written before.
"""

from __future__ import annotations

import ctypes
import importlib
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import add, attrgetter, is_, itemgetter, le
from typing import Any

import torch
from torch import Tensor

from .. import _core
from .._settings import use_float64, use_reference
from .._tensors import NUMBERS as NUMBERS
from . import _arguments as arguments_

library = torch.library.Library("anyfuse", "DEF")

FLOATS = (torch.float32, torch.float16, torch.bfloat16)

#: An implementation of an operator: of its record, see `define`.
Implementation = Callable[[Any], Any]


def define(schema: str, record: type[Any], cpu: Implementation, fake: Implementation) -> Any:
    """Registers an operator (`"name(Tensor x, ...) -> ..."`) and returns the fastest way to call it, by position.

    `record` is a NamedTuple of the schema's arguments; every implementation of the operator gets one.
    """
    name = schema.partition("(")[0]
    library.define(schema)
    overload = getattr(torch.ops.anyfuse, name).default
    if tuple(argument.name for argument in overload._schema.arguments) != record._fields:
        raise TypeError(f"{name}: {record.__qualname__} has the fields {record._fields}; accepted: those of the schema")
    plain = [i for i, argument in enumerate(overload._schema.arguments) if "Tensor" in str(argument.type)]
    plain = [i for i in plain if "List" not in str(overload._schema.arguments[i].type)]

    def on_cpu(*arguments: Any) -> Any:
        # The C API takes a null pointer for an argument that is absent; references would read from it.
        for i in plain:
            tensor = arguments[i]
            if tensor is not None and not tensor.data_ptr():
                arguments_.check_memory_exists(arguments_.tensors(overload, arguments))
        if use_reference():
            arguments_.check_memory_exists(arguments_.tensors(overload, arguments))
        return cpu(record(*arguments))

    library.impl(name, on_cpu, "CPU")
    library.impl(name, _on_gpu(name, record, cpu), "CUDA")

    def traced(*arguments: Any, **named: Any) -> Any:
        arguments_.check_devices(overload, arguments)
        return fake(record(*arguments, **named))

    torch.library.register_fake(f"anyfuse::{name}", traced, lib=library)

    def call(*arguments: Any) -> Any:
        try:
            return overload(*arguments)
        except (RuntimeError, OverflowError, ValueError) as error:
            fault = arguments_.fault(overload, arguments)
            if fault is None:
                raise
            raise fault from error

    return call


def _on_gpu(name: str, record: type[Any], cpu: Implementation) -> Callable[..., Any]:
    """The implementation for GPUs: the Triton module of the operator's name, imported when it first runs."""
    overload = getattr(torch.ops.anyfuse, name).default

    def call(*arguments: Any) -> Any:
        call = record(*arguments)
        if use_reference():
            return through_cpu(overload, cpu, call)
        try:
            module = importlib.import_module(f"anyfuse.triton.{name.rstrip('_')}")
        except ModuleNotFoundError as error:
            raise RuntimeError(f"{name} on a GPU needs {error.name}; install anyfuse[triton]") from error
        device = next(tensor.device for tensor in _tensors(call) if tensor.device.type != "cpu")
        importlib.import_module("anyfuse.triton").check_device(device)
        with torch.cuda.device(device):  # kernels run on the current device, which may be another one
            return module.run(call)

    return call


def through_cpu(overload: Any, cpu: Implementation, arguments: Any) -> Any:
    """Runs a CPU implementation on copies of a GPU's tensors, and copies what it wrote and what it returns back."""
    devices = (tensor.device for tensor in _tensors(arguments))
    device = next((device for device in devices if device.type != "cpu"), torch.device("cpu"))
    storages: dict[int, torch.UntypedStorage] = {}

    def copy(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [copy(item) for item in value]
        if not isinstance(value, Tensor):
            return value
        storage = value.untyped_storage()  # whole, so that tensors which share memory still do
        key = storage.data_ptr()
        if key not in storages:
            storages[key] = storage.clone() if storage.device.type == "cpu" else storage.cpu()
        empty = torch.empty(0, dtype=value.dtype)
        return empty.set_(storages[key], value.storage_offset(), value.shape, value.stride())

    copies = [copy(value) for value in arguments]
    results = cpu(type(arguments)(*copies))
    for argument, given, worked_on in zip(overload._schema.arguments, arguments, copies, strict=True):
        if argument.alias_info is not None and argument.alias_info.is_write:
            write_back((given, worked_on))
    if isinstance(results, Tensor):
        return results.to(device)
    return results if results is None else tuple(result.to(device) for result in results)


def _tensors(values: Iterable[Any]) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


# ---- checks ----


def names(dtypes: Iterable[torch.dtype]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def require(condition: bool, message: str) -> None:
    """ValueError, for shapes and attributes."""
    if not condition:
        raise ValueError(message)


def require_tensor(name: str, value: Any, dtypes: Sequence[torch.dtype]) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; accepted: a tensor of {names(dtypes)}")
    if value.dtype not in dtypes:
        raise TypeError(f"{name} has dtype {names([value.dtype])}; accepted: {names(dtypes)}")


def require_shape(name: str, tensor: Tensor, shape: Sequence[int], of: str) -> None:
    if tensor.shape != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; accepted: {tuple(shape)}, the shape of {of}")


def as_list(name: str, value: Any, like: Any, of: str) -> list[Tensor]:
    """A list of tensors from a tensor or a list, whichever the argument `of` is."""
    if isinstance(like, Tensor):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} is a {type(value).__name__}; accepted: a tensor, as {of} is one")
        return [value]
    if not isinstance(like, (list, tuple)):
        raise TypeError(f"{of} is a {type(like).__name__}; accepted: a tensor or a list of tensors")
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{name} is a {type(value).__name__}; accepted: a list of tensors, as {of} is one")
    if len(value) != len(like):
        raise ValueError(f"{name} has {len(value)} tensors; accepted: {len(like)}, as many as {of}")
    for item in value:
        if not isinstance(item, Tensor):
            raise TypeError(f"{name} holds a {type(item).__name__}; accepted: tensors")
    return list(value)


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
_shape_of, _dtype_of, _nbytes_of = attrgetter("shape"), attrgetter("dtype"), attrgetter("nbytes")


def shapes_of(tensors: Sequence[Tensor]) -> list[Sequence[int]]:
    return list(map(_shape_of, tensors))


def dtype_numbers(tensors: Sequence[Tensor]) -> Iterable[int]:
    """The C API's numbers of the tensors' dtypes."""
    return map(NUMBERS.__getitem__, map(_dtype_of, tensors))


def check_steps(step: Sequence[Tensor], count: int) -> None:
    if len(step) not in (1, count):
        raise ValueError(f"step has {len(step)} entries; accepted: one for all tensors, or {count}")
    for value in step:
        require_tensor("step", value, (torch.int64,))
        if value.numel() != 1:
            raise ValueError(f"step has shape {tuple(value.shape)}; accepted: one element")


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


def grad_scale_value(grad_scale: Tensor | None) -> float:
    """What gradients are divided by."""
    value = 1.0 if grad_scale is None else float(grad_scale)
    require(value != 0.0, "grad_scale holds 0; accepted: another number, as gradients are divided by it")
    return value


# ---- numbers ----


def real(tensor: Tensor) -> Tensor:
    """A tensor in the type that references compute in: fp32 (float64 under `float64_reference`)."""
    return tensor.double() if use_float64() else tensor.float()


def f32(value: float) -> float:
    """The nearest fp32 value, infinity beyond its range (the value itself under `float64_reference`)."""
    return value if use_float64() else ctypes.c_float(value).value


def power(base: float, exponent: float) -> float:
    """base ** exponent in double by the C library, with its values instead of Python's exceptions."""
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return math.inf
    except ValueError:  # 0 to a negative power; a negative base to a fraction does not arise, steps are whole
        return math.inf


def correctly_rounded_sqrt(x: Tensor) -> Tensor:
    """The square root rounded once. `torch.sqrt` in fp32 on CPU is one ulp off for about 17 % of its inputs."""
    return x.double().sqrt().to(x.dtype)


# ---- memory ----


def extent(tensor: Tensor) -> tuple[int, int]:
    """The first byte of a tensor and the one after its last."""
    if tensor.numel() == 0:
        return tensor.data_ptr(), tensor.data_ptr()
    span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (span + 1) * tensor.element_size()


def _layout(tensor: Tensor) -> _core.Layout:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.element_size()


Named = Iterable[tuple[str, Sequence[Tensor]]]


def check_memory(in_place: Named, inputs: Named) -> None:
    """Refuses in-place tensors that share an element with themselves, with each other or with an input.

    Byte ranges are compared first (a sort, so that long lists stay cheap); only where two meet are the strides looked
    at. Disjoint views of one storage pass.
    """
    in_place, inputs = list(in_place), list(inputs)
    every = list(chain.from_iterable(tensors for _, tensors in (*in_place, *inputs)))
    starts = list(map(Tensor.data_ptr, every))
    if 0 in starts:
        arguments_.check_memory_exists((name, tensor) for name, tensors in (*in_place, *inputs) for tensor in tensors)
    if _lie_apart(every, starts):
        return
    ranges = []
    for written, groups in ((True, in_place), (False, inputs)):
        for name, tensors in groups:
            for tensor in tensors:
                if not tensor.is_contiguous():
                    if written and (found := _core.overlap(_layout(tensor))):
                        share = "share" if found == _core.OVERLAP else "may share"
                        raise ValueError(
                            f"{name} has elements that {share} memory (shape {tuple(tensor.shape)}, strides "
                            f"{tensor.stride()}); accepted: in-place tensors whose elements are distinct"
                        )
                    ranges.append((*extent(tensor), written, name, tensor))
                elif tensor.numel():
                    start = tensor.data_ptr()
                    ranges.append((start, start + tensor.nbytes, written, name, tensor))
    ranges.sort(key=itemgetter(0))
    reach: list[tuple[int, int, bool, str, Tensor]] = []  # ranges that may still meet the next one
    for entry in ranges:
        reach = [other for other in reach if other[1] > entry[0]]
        for other in reach:
            if (entry[2] or other[2]) and (found := _core.overlap(_layout(entry[4]), _layout(other[4]))):
                shares = "shares" if found == _core.OVERLAP else "may share"
                raise ValueError(
                    f"{entry[3]} {shares} memory with {other[3]}; accepted: in-place tensors with memory of their own"
                )
        reach.append(entry)


def _lie_apart(tensors: Sequence[Tensor], starts: list[int]) -> bool:
    """True when all are contiguous and no two share a byte; sorts the starts. (Ranges are disjoint just when,
    starts and ends sorted each by itself, every end comes before the next start.)"""
    if not all(map(Tensor.is_contiguous, tensors)):
        return False
    ends = sorted(map(add, starts, map(_nbytes_of, tensors)))
    starts.sort()
    return all(map(le, ends, starts[1:]))


def contiguous(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Contiguous tensors to work on: those given, or copies, whose values `write_back` returns after the work."""
    if all(map(Tensor.is_contiguous, tensors)):
        return list(tensors)
    return [tensor if tensor.is_contiguous() else tensor.contiguous() for tensor in tensors]


def with_contiguous(call: Any) -> Any:
    """The call with contiguous tensors: those given, or copies."""
    return type(call)(*map(_contiguous, call))


def _contiguous(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.contiguous()
    return list(map(_contiguous, value)) if isinstance(value, list) else value


def assign(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Puts a reference's results into the tensors that it steps."""
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


def write_back(*pairs: tuple[Sequence[Tensor], Sequence[Tensor]]) -> None:
    """Ends an in-place call. `pairs` are (arguments, what was worked on): copies go back through the arguments' views,
    and every version counter is bumped, so that a backward over values that are gone raises instead of being wrong."""
    changed: list[Tensor] = []
    for arguments, worked_on in pairs:
        if not all(map(is_, arguments, worked_on)):
            with torch.no_grad():
                for argument, copy in zip(arguments, worked_on, strict=True):
                    if argument is not copy:
                        argument.copy_(copy)
        changed += arguments
    try:
        torch.autograd.graph.increment_version(changed)
    except RuntimeError:  # a torch that refuses inference tensors; asking each one first would cost as much as the bump
        torch.autograd.graph.increment_version([tensor for tensor in changed if not tensor.is_inference()])
