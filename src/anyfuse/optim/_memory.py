"""Gradients that lie in memory which a step writes: asked at each step, since gradients come and go."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add, attrgetter

import numpy as np
from torch import Tensor

from ..ops import _dispatch as d

_nbytes_of = attrgetter("nbytes")


class Written:
    """The memory that a step writes. `refuse` compares all of it with a thousand gradients in the time of a few calls
    of numpy; only where the ranges of bytes meet are the strides looked at.

    Args:
        in_place: the tensors written, with the names that a message gives them.
    """

    def __init__(self, *in_place: tuple[str, Sequence[Tensor]]) -> None:
        self._in_place = in_place
        starts, ends = _ranges([tensor for _, tensors in in_place for tensor in tensors])
        order = np.argsort(starts)
        self._starts = starts[order]
        self._reach = np.maximum.accumulate(ends[order])  # of those up to here: strided ones may lie in each other

    def refuse(self, name: str, tensors: Sequence[Tensor]) -> None:
        """ValueError where one of the tensors shares an element with what is written, TypeError where one that is not
        empty has no memory."""
        starts, ends = _ranges(tensors)
        if self.meets(starts, ends) or not starts.all():
            d.check_memory(self._in_place, [(name, tensors)])

    def meets(self, starts: np.ndarray, ends: np.ndarray) -> bool:
        """Whether one of some ranges of bytes meets one that is written (of strided tensors, that of the storage)."""
        if not len(self._starts):
            return False
        before = np.searchsorted(self._starts, ends)  # how many begin below each one's end
        return bool(np.any((before > 0) & (self._reach[before - 1] > starts)))


def _ranges(tensors: Sequence[Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """The first byte of each tensor and the one after its last; of a strided one, those of all its storage."""
    starts = list(map(Tensor.data_ptr, tensors))
    ends = list(map(add, starts, map(_nbytes_of, tensors)))
    if not all(map(Tensor.is_contiguous, tensors)):
        for i, tensor in enumerate(tensors):
            if not tensor.is_contiguous():
                storage = tensor.untyped_storage()
                starts[i], ends[i] = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    return np.array(starts, np.uint64), np.array(ends, np.uint64)
