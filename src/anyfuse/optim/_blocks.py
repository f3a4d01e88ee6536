"""The blocks of 8-bit moments when a parameter is sharded, and their scales in a checkpoint.

Block k holds the elements [k·block_size, (k + 1)·block_size) of the *whole* parameter, in row-major order. A rank holds
whole rows, so that its first and last block may be cut by the border to its neighbour: each of the two then has the
piece of its own elements, with a scale of its own. A rank's scales are those of its pieces, in order.

In a checkpoint the scales are a table by rows, entry [r, j] that of the j-th block which row r takes part in. It can be
cut and put together at any row. A block that a new border cuts keeps its codes, and both pieces the scale. Pieces of
different scales that come together take the largest; codes of the other pieces are looked up anew, with an error of at
most half the codebook's widest gap times that scale. All other blocks stay as they are, bit for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..formats import codebook as books
from ._sharding import first_element, local, rows_held


def count(param: Tensor, block_size: int) -> int:
    """The number of this rank's blocks."""
    numel = local(param).numel()
    return -(-(first_element(param) % block_size + numel) // block_size) if numel else 0


def head(param: Tensor, block_size: int) -> int:
    """The elements before the first block that begins in this rank's part; 0 when the part begins with a block."""
    return min(-first_element(param) % block_size, local(param).numel())


def to_rows(param: Tensor, absmax: Tensor, block_size: int) -> Tensor:
    """The table by rows of this rank's scales, (rows, slots)."""
    index, valid = _blocks_by_row(param, block_size)
    if not absmax.numel():
        return absmax.new_zeros(index.shape)
    return torch.where(valid, absmax[index.clamp(max=absmax.numel() - 1)], 0.0)


def from_rows(
    param: Tensor, codes: Tensor, table: Tensor, qmap: Tensor, block_size: int, nonzero: bool
) -> tuple[Tensor, Tensor]:
    """Codes and scales of this rank's blocks. Codes are copied where some change.

    Raises ValueError for a table of another shape.
    """
    index, valid = _blocks_by_row(param, block_size)
    if table.shape != index.shape:
        raise ValueError(
            f"scales by rows of a saved state have shape {tuple(table.shape)}; accepted: {tuple(index.shape)} for the "
            f"group's block_size of {block_size} (give the saved block_size in its group)"
        )
    bits = (
        table.float().contiguous().view(torch.int32)[valid]
    )  # of numbers above 0, and NaN, in the order of the values
    index = index[valid]
    blocks = count(param, block_size)
    none = bits.new_zeros(blocks)
    largest = none.scatter_reduce(0, index, bits, "amax", include_self=False)
    smallest = none.scatter_reduce(0, index, bits, "amin", include_self=False)
    absmax = largest.view(torch.float32)
    joined = (largest != smallest).nonzero().view(-1).tolist()
    if joined:
        codes = codes.clone(memory_format=torch.contiguous_format)
    for block in joined:
        _join(param, codes, table, block, absmax[block], qmap, block_size, nonzero)
    return codes, absmax


def decode(param: Tensor, codes: Tensor, absmax: Tensor, qmap: Tensor, block_size: int) -> Tensor:
    """The values of this rank's codes, float32."""
    start = first_element(param) % block_size
    scales = absmax.repeat_interleave(block_size)[start : start + codes.numel()]
    return qmap[codes.long()] * scales.view(codes.shape)


def _join(
    param: Tensor, codes: Tensor, table: Tensor, block: int, scale: Tensor, qmap: Tensor, block_size: int, nonzero: bool
) -> None:
    """Looks the codes of one block up anew where their scale was another one."""
    first, length = first_element(param), local(param)[:1].numel()
    begin = first // block_size * block_size + block * block_size - first
    places = torch.arange(max(begin, 0), min(begin + block_size, codes.numel()), device=codes.device)
    rows = places // length
    slots = (first + places) // block_size - (first + rows * length) // block_size
    old = table[rows, slots]
    flat = codes.view(-1)
    values = qmap[flat[places].long()] * old
    new = books.encode(values / scale, qmap, keep_sign=True)
    if nonzero:
        new = books.avoid_zero(new, values, qmap)
    flat[places] = torch.where(old == scale, flat[places], new.to(torch.uint8))


def _blocks_by_row(param: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """For each row of this rank and each slot: which of the rank's blocks it is, and whether there is one."""
    part, length = rows_held(param), param.shape[1:].numel()
    device = local(param).device
    begin = (part.first + torch.arange(part.count, device=device)) * length
    low, high = begin // block_size, (begin + length - 1) // block_size
    index = low[:, None] + torch.arange(_slots(length, block_size), device=device)
    return index - first_element(param) // block_size, index <= high[:, None]


def _slots(length: int, block_size: int) -> int:
    """The most blocks that a row can take part in."""
    if length % block_size == 0:
        return length // block_size
    if block_size % length == 0:
        return 1
    return (length + block_size - 2) // block_size + 1
