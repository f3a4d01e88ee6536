"""int8 weights in the order that the matmul kernels read.

One order serves every instruction set, so that a weight packed or saved on one machine is right, and fast, on every
other: panels of 16 output columns; in a panel, steps of 4 values of k; in a step, the 4 values of each column side by
side. A step is 64 bytes: one vector of AVX-512, two of AVX2, four of NEON.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ._checks import dtype_name, kind, one_of
from .formats.blocked import nz_to_nd

COLUMNS, DEPTH = 16, 4  # columns of a panel, values of k in a step


class PackedWeight:
    """A weight matrix W[n, k] of int8, packed once, to be given to `quant_matmul_dequant` in place of a tensor; or one
    for each of G groups, W[G, n, k], for `quant_grouped_matmul_dequant`.

    Made by `pack_weight`, or by `PackedWeight.from_state_tensors` from what `state_tensors` gave. It takes one byte a
    weight, and what rounds n up to a multiple of 16 and k to a multiple of 4.

    Attributes:
        shape: (n, k), output and input features; or (G, n, k).
        data: int8 (ceil(n/16), ceil(k/4), 16, 4): `data[i // 16, j // 4, i % 16, j % 4] = W[i, j]`, padding 0; of
            groups, one after the other, (G, ceil(n/16), ceil(k/4), 16, 4).
        scale: the weights' scales, (n,) or (G, n), float32 or int64, or None.
    """

    def __init__(self, data: Tensor, shape: tuple[int, ...], scale: Tensor | None = None) -> None:
        blocks = packed_shape(*shape)
        if not isinstance(data, Tensor) or data.dtype != torch.int8:
            raise TypeError(f"data is {kind(data)}; accepted: an int8 tensor")
        if tuple(data.shape) != blocks:
            size = " x ".join(map(str, shape))
            raise ValueError(f"data has shape {tuple(data.shape)}; accepted: {blocks}, for a weight of {size}")
        if scale is not None:
            _check_scale(scale, shape[:-1])
        self.data = data.contiguous()
        self.shape = tuple(shape)
        self.scale = scale

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights and their scales."""
        return self.data.nbytes + (0 if self.scale is None else self.scale.nbytes)

    def to_nd(self) -> Tensor:
        """The weights as they were: a contiguous int8 tensor, (n, k) or (G, n, k)."""
        *groups, n, k = self.shape
        panels, steps = self.data.shape[-4:-2]
        padded = self.data.transpose(-3, -2).reshape(*groups, panels * COLUMNS, steps * DEPTH)
        return padded[..., :n, :k].contiguous()

    def to(self, device: torch.device | str) -> PackedWeight:
        """The same weights on another device; itself when they are there already."""
        data = self.data.to(device)
        if data is self.data:
            return self
        return PackedWeight(data, self.shape, None if self.scale is None else self.scale.to(device))

    def state_tensors(self) -> dict[str, Tensor]:
        """All of it as plain tensors, for safetensors or a state dict: `data`, `shape` and `scale`, if it has one."""
        tensors = {"data": self.data, "shape": torch.tensor(self.shape, dtype=torch.int64)}
        return tensors if self.scale is None else {**tensors, "scale": self.scale}

    @classmethod
    def from_state_tensors(cls, tensors: Mapping[str, Tensor]) -> PackedWeight:
        """The weight that `state_tensors` described. TypeError or ValueError where the tensors do not fit together."""
        unknown = tensors.keys() - {"data", "shape", "scale"}
        if unknown or not {"data", "shape"} <= tensors.keys():
            raise ValueError(f"tensors are named {sorted(tensors)}; accepted: data, shape and, optionally, scale")
        shape = tensors["shape"]
        if shape.dtype != torch.int64 or tuple(shape.shape) not in ((2,), (3,)):
            got = f"{shape.dtype} of shape {tuple(shape.shape)}"
            raise ValueError(f"shape is {got}; accepted: int64 of shape (2,), or (3,) for groups")
        sizes = tuple(shape.tolist())
        if min(sizes) < 0:
            raise ValueError(f"shape is {sizes}; accepted: sizes of 0 or more")
        return cls(tensors["data"], sizes, tensors.get("scale"))

    def __repr__(self) -> str:
        *groups, n, k = self.shape
        size = f"groups={groups[0]}, n={n}, k={k}" if groups else f"n={n}, k={k}"
        scale = "no scale" if self.scale is None else f"{dtype_name(self.scale.dtype)} scale"
        return f"PackedWeight({size}, {scale}, {self.nbytes} bytes, device={str(self.data.device)!r})"


def pack_weight(
    weight: Tensor,
    weight_scale: Tensor | None = None,
    *,
    layout: str = "nd",
    transpose_weight: bool = True,
    shape: tuple[int, int] | None = None,
) -> PackedWeight:
    """Packs int8 weights for `quant_matmul_dequant` or `quant_grouped_matmul_dequant`, once for all calls.

    Args:
        weight: int8, any strides. Layout "nd": (n, k), or (k, n) with `transpose_weight=False`. Layout "nz":
            (ceil(k/32), ceil(n/16), 16, 32), or (ceil(n/32), ceil(k/16), 16, 32). One dimension more in front: the
            weights of G groups.
        weight_scale: (n,), or (G, n) for groups, float32 or int64, kept with the weights.
        layout: "nd" or "nz" (FRACTAL_NZ).
        transpose_weight: how the weight lies, as in `quant_matmul_dequant`.
        shape: (n, k), of each group. Needed with layout "nz" where the blocks are padded; without it n is the length of
            weight_scale and k what the blocks hold.

    Returns:
        A `PackedWeight`; the tensors given may be freed.

    Raises:
        TypeError: dtypes or kinds of arguments that are not accepted.
        ValueError: shapes that do not fit together, an unknown layout.

    Example:
        >>> import torch, anyfuse
        >>> anyfuse.pack_weight(torch.ones(32, 64, dtype=torch.int8), torch.ones(32))
        PackedWeight(n=32, k=64, float32 scale, 2176 bytes, device='cpu')
        >>> anyfuse.pack_weight(torch.ones(8, 32, 64, dtype=torch.int8))
        PackedWeight(groups=8, n=32, k=64, no scale, 16384 bytes, device='cpu')
    """
    if not isinstance(weight, Tensor) or weight.dtype != torch.int8:
        raise TypeError(f"weight is {kind(weight)}; accepted: an int8 tensor")
    one_of("layout", layout, ("nd", "nz"))
    if weight_scale is not None:
        _check_scale(weight_scale, None)
    dims, accepted = (2, "2 dimensions") if layout == "nd" else (4, "(_, _, 16, 32), the blocks of layout 'nz'")
    if weight.dim() not in (dims, dims + 1) or (layout == "nz" and tuple(weight.shape[-2:]) != (16, 32)):
        raise ValueError(f"weight has shape {tuple(weight.shape)}; accepted: {accepted}; for groups one more in front")
    n, k = _size(weight, weight_scale, layout, transpose_weight, shape)
    sizes = (*weight.shape[:-dims], n, k)
    if weight_scale is not None:
        _check_scale(weight_scale, sizes[:-1])
    data = torch.empty(packed_shape(*sizes), dtype=torch.int8, device=weight.device)
    each = zip(weight, data, strict=True) if len(sizes) == 3 else [(weight, data)]
    for one, packed in each:
        matrix = nz_to_nd(one, (n, k) if transpose_weight else (k, n)) if layout == "nz" else one
        _pack(matrix if transpose_weight else matrix.t(), packed)
    return PackedWeight(data, sizes, weight_scale)


def packed_shape(*shape: int) -> tuple[int, ...]:
    """The shape of the packed form of a weight of (n, k), or of (G, n, k)."""
    *groups, n, k = shape
    return (*groups, -(-n // COLUMNS), -(-k // DEPTH), COLUMNS, DEPTH)


def _pack(matrix: Tensor, packed: Tensor) -> None:
    n, k = matrix.shape
    panels, steps = packed.shape[:2]
    words = torch.zeros(panels * COLUMNS, steps, dtype=torch.int32, device=matrix.device)
    words.view(torch.int8)[:n, :k] = matrix
    columns = words.view(panels, COLUMNS, steps)  # a step of one column moves as one word
    packed.view(torch.int32).squeeze(-1).copy_(columns.transpose(1, 2))


def _size(
    weight: Tensor, weight_scale: Tensor | None, layout: str, transpose_weight: bool, shape: tuple[int, int] | None
) -> tuple[int, int]:
    """n and k of a weight, or of each group's."""
    nz = layout == "nz"
    rows, columns = (weight.shape[-3] * 16, weight.shape[-4] * 32) if nz else weight.shape[-2:]
    n, k = (rows, columns) if transpose_weight else (columns, rows)
    if nz:
        return (n if weight_scale is None else weight_scale.shape[-1], k) if shape is None else shape
    if shape is not None and tuple(shape) != (n, k):
        raise ValueError(f"shape is {tuple(shape)}; accepted: {(n, k)}, what weight holds")
    return n, k


def _check_scale(scale: Tensor, shape: tuple[int, ...] | None) -> None:
    if not isinstance(scale, Tensor) or scale.dtype not in (torch.float32, torch.int64):
        raise TypeError(f"weight_scale is {kind(scale)}; accepted: a tensor of float32 or int64")
    if scale.dim() == 0 or (shape is not None and tuple(scale.shape) != shape):
        expected = "one dimension" if shape is None else f"{shape}, one scale for each output column"
        raise ValueError(f"weight_scale has shape {tuple(scale.shape)}; accepted: {expected}")
