"""Memory of in-place arguments: whether it is apart, contiguous copies to work on, and the way back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import is_, itemgetter
from typing import Any

import torch
from torch import Tensor

from .. import _core


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


def assign(updated: Iterable[Sequence[Tensor]], results: Sequence[Sequence[Tensor]]) -> None:
    """Puts what a reference returned for each tensor of a list into the arguments that the operator updates."""
    columns = [tensors for tensors in updated if tensors]
    with torch.no_grad():
        for i, values in enumerate(results):
            for tensors, value in zip(columns, values, strict=True):
                tensors[i].copy_(value)


def write_back(arguments: Sequence[Tensor], worked_on: Sequence[Tensor]) -> None:
    """Returns the values of copies through the views that were given."""
    if all(map(is_, arguments, worked_on)):
        return
    with torch.no_grad():
        for argument, copy in zip(arguments, worked_on, strict=True):
            if argument is not copy:
                argument.copy_(copy)


def write_back_all(arguments: Iterable[Sequence[Tensor]], worked_on: Iterable[Sequence[Tensor]]) -> None:
    """`write_back` of several lists."""
    for given, copies in zip(arguments, worked_on, strict=True):
        write_back(given, copies)
