"""What tensors are and where they lie, for a whole list of them at once.

A few questions to each of a thousand small parameters cost as much as their step. A newer torch has a table of C
functions for this (DLPack's exchange API), by which the native library asks all of them about each tensor in the time
of one `data_ptr()`; an older one is asked in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import _core

#: A description: object (its id), data (its address), numel, extent (bytes from its first element to the end of its
#: last), layout (a number of shape and strides: equal ones have equal numbers, others have others but for one in
#: 2^64), dtype (that of the C API, or -1), device (1 for the CPU), contiguous, dimensions.
ROW = np.dtype(_core.struct("anyfuse_description"))

#: The C API's number of a torch dtype.
NUMBERS = {getattr(torch, name): number for name, number in _core.DTYPES.items() if hasattr(torch, name)}

CPU = 1


def describe(tensors: list[Tensor]) -> np.ndarray:
    """One row of `ROW` a tensor.

    Raises RuntimeError for a tensor without memory of its own (sparse, nested, on the device "meta"). That a view is
    lazily negated is not seen here.
    """
    rows = np.empty(len(tensors), ROW)
    _describe(tensors, rows.ctypes.data) if _describe is not None else _describe_in_python(tensors, rows)
    return rows


def _describe_in_python(tensors: list[Tensor], rows: np.ndarray) -> None:
    for i, tensor in enumerate(tensors):
        if tensor.device.type == "meta":
            raise RuntimeError("a tensor on the device meta has no memory")
        shape, stride = tensor.shape, tensor.stride()
        last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        rows[i] = (
            id(tensor), tensor.data_ptr(), tensor.numel(), (last + 1) * tensor.element_size() if tensor.numel() else 0,
            hash((shape, stride)) & (2**64 - 1),
            NUMBERS.get(tensor.dtype, -1), CPU if tensor.is_cpu else 0, tensor.is_contiguous(), tensor.dim(),
        )  # fmt: skip


def _native() -> Callable[[list[Any], int], None] | None:
    exchange_api = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    return None if exchange_api is None else _core.describer(exchange_api)


_describe = _native()
