"""Memory of in-place arguments: whether it is apart, contiguous copies to work on, and the way back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import add, attrgetter, is_, itemgetter, le
from typing import Any

import torch
from torch import Tensor

_nbytes_of = attrgetter("nbytes")


def extent(tensor: Tensor) -> tuple[int, int]:
    """The first byte of a tensor and the one after its last."""
    if tensor.numel() == 0:
        return tensor.data_ptr(), tensor.data_ptr()
    span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (span + 1) * tensor.element_size()


def _cells(tensor: Tensor) -> Tensor:
    """The byte address of every element, sorted."""
    address = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        address = address.unsqueeze(-1) + torch.arange(size) * (stride * tensor.element_size())
    return (address + tensor.data_ptr()).flatten().sort().values


def _share_an_element(a: Tensor, b: Tensor) -> bool:
    if a.is_contiguous() and b.is_contiguous():
        return True  # their ranges meet
    if a.element_size() == b.element_size() and (a.data_ptr() - b.data_ptr()) % a.element_size() == 0:
        return bool(torch.isin(_cells(a), _cells(b), assume_unique=True).any())
    return True  # different grids over the same bytes


Named = Iterable[tuple[str, Sequence[Tensor]]]


def check_memory(in_place: Named, inputs: Named) -> None:
    """Refuses in-place tensors that share an element with themselves, with each other or with an input.

    Byte ranges are compared first (a sort, so that long lists stay cheap); only where two meet are the strides looked
    at. Disjoint views of one storage pass.
    """
    in_place, inputs = list(in_place), list(inputs)
    every = list(chain.from_iterable(tensors for _, tensors in (*in_place, *inputs)))
    starts = list(map(Tensor.data_ptr, every))
    if _lie_apart(every, starts):
        return
    ranges = []
    for written, groups in ((True, in_place), (False, inputs)):
        for name, tensors in groups:
            for tensor in tensors:
                if not tensor.is_contiguous():
                    if written and _repeats_itself(tensor):
                        raise ValueError(
                            f"{name} has elements that share memory (shape {tuple(tensor.shape)}, strides "
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
            if (entry[2] or other[2]) and _share_an_element(entry[4], other[4]):
                raise ValueError(
                    f"{entry[3]} shares memory with {other[3]}; accepted: in-place tensors with memory of their own"
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


def _repeats_itself(tensor: Tensor) -> bool:
    """True when two indices of a tensor lead to one element (a stride of 0, or strides that interleave)."""
    dims = sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)
    span = 0
    for stride, size in dims:
        if stride <= span:  # may repeat; strides that only interleave are decided by counting
            return bool((_cells(tensor).diff() == 0).any())
        span += (size - 1) * stride
    return False


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
