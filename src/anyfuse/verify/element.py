"""One element of a result, with what stood at its place in the inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Element:
    """`given` are the values at the same place of every tensor argument that has the output's shape."""

    index: tuple[int, ...]
    given: dict[str, str]
    expected: str
    got: str
    ulp: int | None


def element(
    arguments: Mapping[str, Any], shape: tuple[int, ...], place: int, got: Tensor, expected: Tensor, ulp: int | None
) -> Element:
    """The element at a place, in row-major order, of an output of a shape; `got` and `expected` are flat."""
    index = tuple(map(int, np.unravel_index(place, shape))) if shape else ()
    given = {name: number(tensor[index]) for name, tensor in tensors(arguments) if tuple(tensor.shape) == shape}
    return Element(index, given, number(expected[place]), number(got[place]), ulp)


def number(value: Tensor) -> str:
    """One value in the fewest digits that give it back in its dtype; beside a float its bits."""
    if value.dtype == torch.bool or not value.dtype.is_floating_point:
        return str(value.item())
    size = value.element_size()
    bits = value.reshape(1).view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]).item()
    digits = str(np.float64(value.item()) if size == 8 else np.float32(value.item()))
    return f"{digits} (0x{int(bits) & ((1 << 8 * size) - 1):0{2 * size}x})"


def tensors(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a call by name; those of a list as name[0], name[1], …"""
    for name, value in arguments.items():
        items = value if isinstance(value, (list, tuple)) else [value]
        for i, item in enumerate(items):
            if isinstance(item, Tensor):
                yield (name if len(items) == 1 else f"{name}[{i}]"), item
