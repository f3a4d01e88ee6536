"""Random inputs that look for trouble: sizes around every edge, strided views, special values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")

SIZES = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 255, 256, 257, 300, 511, 513, 1000)
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Draw:
    """A seeded source of shapes, tensors and options. The same seed gives the same draws on every machine."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def choice(self, options: Sequence[T]) -> T:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def integer(self, low: int, high: int) -> int:
        """low ≤ result < high."""
        return int(self.rng.integers(low, high))

    def size(self) -> int:
        return self.choice(SIZES) if self.chance(0.8) else self.integer(0, 2000)

    def shape(self, numel: int | None = None, max_dims: int = 8) -> tuple[int, ...]:
        """A shape of 1 to `max_dims` dimensions with `numel` elements (default: a size worth trying)."""
        left = self.size() if numel is None else numel
        shape = []
        for _ in range(self.integer(0, max_dims)):
            divisors = [d for d in (1, 2, 3, 4, 5, 7, 8, 16) if left % d == 0]
            shape.append(self.choice(divisors))
            left //= max(shape[-1], 1)
        order = self.rng.permutation(len(shape) + 1)
        return tuple((*shape, left)[i] for i in order)

    def normal(self, shape: Sequence[int], dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
        return torch.from_numpy(self.rng.standard_normal(tuple(shape), dtype=np.float32) * np.float32(scale)).to(dtype)

    def special(self, tensor: Tensor, finite: bool = False) -> Tensor:
        """Overwrites a few elements with ±0, subnormals, the largest values and, unless `finite`, inf and NaN."""
        info = torch.finfo(tensor.dtype)
        values = [0.0, -0.0, info.tiny / 2, -info.tiny / 4, info.tiny, info.max, info.min, 1.0, -1.0, info.eps]
        values += [] if finite else [float("inf"), float("-inf"), float("nan")]
        flat = tensor.view(-1)
        for _ in range(self.integer(1, 5) if flat.numel() else 0):
            flat[self.integer(0, flat.numel())] = self.choice(values)
        return tensor

    def view(self, tensor: Tensor, writable: bool = True) -> Tensor:
        """The same values under another layout: transposed, stepped, with an offset, and, for inputs, expanded."""
        kinds = ["contiguous", "contiguous", "transposed", "stepped", "offset", *([] if writable else ["expanded"])]
        kind = self.choice(kinds)
        if kind == "transposed" and tensor.dim() > 1:
            order = list(range(tensor.dim()))
            order[0], order[-1] = order[-1], order[0]
            return tensor.permute(order).contiguous().permute(order)
        if kind == "stepped" and tensor.dim() > 0:
            wide = self._padding((*tensor.shape[:-1], tensor.shape[-1] * 2 + 1), tensor)
            view = wide[..., 1::2]
            return view.copy_(tensor)
        if kind == "offset":
            wide = self._padding((tensor.numel() + 5,), tensor)
            view = wide[3 : 3 + tensor.numel()].view(tensor.shape)
            return view.copy_(tensor)
        if kind == "expanded" and tensor.dim() > 0 and tensor.shape[0] > 0:
            return tensor[:1].expand(tensor.shape)
        return tensor

    def _padding(self, shape: Sequence[int], like: Tensor) -> Tensor:
        return torch.full(tuple(shape), 77, dtype=like.dtype)
