"""An operator's implementations beside the native one, which `csrc/torch` registers with its schema.

A call goes through torch's dispatcher to the native door. What is not plain comes from there to the operator's general
implementation: it checks and says what is wrong, runs the reference, or calls the door again with plain tensors. A
Python exception does not pass the door: it is kept here meanwhile, and the door raises its text.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from .. import _core
from .._settings import use_reference
from . import _arguments as arguments_
from ._memory import write_back

_core.register_operators()
library = torch.library.Library("anyfuse", "FRAGMENT")

#: An implementation of an operator: of its record.
Implementation = Callable[[Any], Any]

#: What an overload raises where a call is refused.
REFUSALS = (RuntimeError, ValueError, IndexError, OverflowError)

_KINDS: dict[type[BaseException], int] = {ValueError: _core.VALUE_ERROR, IndexError: _core.INDEX_ERROR}


class _Thread(threading.local):
    """What a thread is in."""

    refused: BaseException | None = None  # what a general implementation refused last
    together = False  # see `run_together`


_thread = _Thread()


@dataclass(frozen=True)
class Operator:
    """An operator as torch knows it: its record, and its overloads with what makes record's arguments of theirs."""

    record: type[Any]
    overload: Any
    one: Any  # the overload for one tensor where the operator takes lists; or None
    check: Implementation  # refuses a call in words by what its arguments are, not by their values

    def run(self, call: Any) -> Any:
        """A call by its record, with the public function's errors."""
        return _public(self.overload)(*call)

    def implement(self, key: str, implementation: Implementation) -> None:
        """Registers an implementation for a dispatch key, "" for the fake one."""
        for overload, given in ((self.overload, tuple), (self.one, self._listed)):
            if overload is None:
                continue
            name = overload._schema.name.removeprefix("anyfuse::") + (".one" if overload is self.one else "")
            call = self._of_record(implementation, given)
            if key:
                library.impl(name, call, key)
            else:
                torch.library.register_fake(f"anyfuse::{name}", call, lib=library)

    def _of_record(self, implementation: Implementation, given: Callable[[Any], Any]) -> Callable[..., Any]:
        return lambda *arguments: implementation(self.record(*given(arguments)))

    def _listed(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments of the overload for one tensor, as those for lists."""
        values = []
        pairs = zip(self.overload._schema.arguments, self.one._schema.arguments, strict=True)
        for (of_lists, of_one), value in zip(pairs, arguments, strict=True):
            if str(of_lists.type) == str(of_one.type):
                values.append(value)
            else:
                values.append([] if value is None and "Optional" not in str(of_lists.type) else [value])
        return values


_operators: dict[str, Operator] = {}
_of_record: dict[type[Any], Operator] = {}


def operator_of(call: Any) -> Operator:
    """The operator of a record."""
    return _of_record[type(call)]


def run_together(calls: Iterable[Any]) -> bool:
    """Runs calls of operators over lists, all of them or none: False where one is not plain, and nothing has happened.

    Their `step` tensors hold the step before. Each call takes the next one, which the tensors hold afterwards. No
    version counter is bumped, and what is wrong is not said.
    """
    _core.together()
    _thread.together, plain = True, False
    try:
        for call in calls:
            operator_of(call).overload(*call)
        plain = True
    except (RuntimeError, TypeError, ValueError, IndexError):
        pass
    finally:
        _thread.together = False
        _core.together_end(plain)
    return plain


def implement(name: str, key: str, implementation: Implementation) -> None:
    """Registers another implementation of an operator, by its stem, for a dispatch key."""
    _operators[name].implement(key, implementation)


def define(name: str, record: type[Any], general: Implementation, fake: Implementation) -> tuple[Any, Any]:
    """Adds an operator's implementations and returns the fastest ways to call it, by position: with the arguments of
    its record and, where these are lists, with those of one tensor.

    Args:
        name: as torch knows it; "_" at its end when it updates its arguments.
        record: the NamedTuple of its arguments, from which its schema was made.
        general: of any call on the CPU.
        fake: checks a call and gives the results' shapes and dtypes.
    """
    packet = getattr(torch.ops.anyfuse, name)
    overload = packet.default
    if tuple(argument.name for argument in overload._schema.arguments) != record._fields:
        raise TypeError(f"{name}: the library was built for other arguments than {record._fields}; build it again")
    operator = Operator(record, overload, packet.one if "one" in packet.overloads() else None, fake)
    _operators[name.rstrip("_")] = _of_record[record] = operator

    def traced(call: Any) -> Any:
        arguments_.check_devices(overload, call)
        return fake(call)

    library.impl(f"_general_{name}", _guarded(operator, general), "CPU")
    operator.implement("CUDA", _on_gpu(operator, general))
    operator.implement("", traced)
    return _public(overload), _public(operator.one) if operator.one is not None else None


def _guarded(operator: Operator, general: Implementation) -> Callable[..., Any]:
    """The general implementation as the door calls it: choices by their numbers, and no exception."""
    record, results = operator.record, len(operator.overload._schema.returns)
    hints = get_type_hints(record)
    choices = {i: get_args(hints[name]) for i, name in enumerate(record._fields) if get_origin(hints[name]) is Literal}

    def on_cpu(*arguments: Any) -> Any:
        try:
            values = list(arguments)
            for i, names in choices.items():
                values[i] = names[values[i]] if values[i] >= 0 else f"another one than {', '.join(names)}"
            arguments_.check_memory_exists(arguments_.tensors(operator.overload, values))
            return general(record(*values))
        except BaseException as error:
            _thread.refused = error
            _core.refuse(_KINDS.get(type(error), _core.RUNTIME_ERROR), str(error))
            empty = tuple(torch.empty(0) for _ in range(results))
            return None if not results else empty[0] if results == 1 else empty

    return on_cpu


def _public(overload: Any) -> Callable[..., Any]:
    """An overload that raises what the general implementation raised, or a message that names the argument which the
    dispatcher refused; and that bumps the version counters of what it has updated."""

    def call(*arguments: Any) -> Any:
        try:
            return overload(*arguments)
        except REFUSALS as error:
            raise reason(overload, arguments, error) from None

    updated = [a for a in overload._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if not updated:
        return call
    changed = itemgetter(*map(overload._schema.arguments.index, updated))
    is_list = "List" in str(updated[0].type)
    perhaps = any("Optional" in str(argument.type) for argument in updated)

    def call_in_place(*arguments: Any) -> None:
        call(*arguments)
        if not torch.compiler.is_compiling():  # a compiled graph does it by itself
            tensors = changed(arguments)
            if is_list:
                tensors = tuple(chain.from_iterable(tensors))
            elif perhaps:
                tensors = tuple(tensor for tensor in tensors if tensor is not None)
            bump(tensors)

    return call_in_place


def bump(tensors: Sequence[Tensor]) -> None:
    """Bumps version counters, so that a backward over values that are gone raises instead of being wrong."""
    try:
        torch.autograd.graph.increment_version(tensors)
    except RuntimeError:  # inference tensors are refused; asking each one first would cost as much as the bump
        torch.autograd.graph.increment_version([tensor for tensor in tensors if not tensor.is_inference()])


def reason(overload: Any, arguments: Sequence[Any], error: Exception) -> BaseException:
    """What the general implementation raised, or a message that names the argument which the dispatcher refused."""
    kept, _thread.refused = _thread.refused, None
    if kept is not None and str(kept)[:1000] in str(error):  # not what an earlier call of another way has left
        return kept
    return arguments_.fault(overload, arguments) or error


def _on_gpu(operator: Operator, general: Implementation) -> Implementation:
    """The implementation for GPUs: the Triton module of the operator's name, imported when it first runs."""
    name = operator.overload._schema.name.removeprefix("anyfuse::").rstrip("_")

    def on_gpu(call: Any) -> Any:
        if _thread.together:
            raise RuntimeError("calls on a GPU are not taken together")
        if use_reference():
            return through_cpu(operator.overload, general, call)
        try:
            module = importlib.import_module(f"anyfuse.triton.{name}")
        except ModuleNotFoundError as error:
            raise RuntimeError(f"{name} on a GPU needs {error.name}; install triton") from error
        device = next(tensor.device for tensor in _tensors(call) if tensor.device.type != "cpu")
        importlib.import_module("anyfuse.triton").check_device(device)
        with torch.cuda.device(device):  # kernels run on the current device, which may be another one
            return module.run(call)

    return on_gpu


def through_cpu(overload: Any, general: Implementation, arguments: Any) -> Any:
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
    results = general(type(arguments)(*copies))
    for argument, given, worked_on in zip(overload._schema.arguments, arguments, copies, strict=True):
        if argument.alias_info is not None and argument.alias_info.is_write:
            write_back(given, worked_on)
    if isinstance(results, Tensor):
        return results.to(device)
    return results if results is None else tuple(result.to(device) for result in results)


def _tensors(values: Iterable[Any]) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
