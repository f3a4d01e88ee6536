"""Blocked weights (FRACTAL_NZ) and scales packed into int64, as Ascend operators take them."""

from __future__ import annotations

import torch
from torch import Tensor

from .._checks import dtype_name, kind

ROWS = 16  # rows of an NZ block; its columns fill 32 bytes


def nd_to_nz(matrix: Tensor) -> Tensor:
    """A matrix (rows, columns) as FRACTAL_NZ: (ceil(columns/c0), ceil(rows/16), 16, c0), c0 = 32 bytes of elements.

    `out[j // c0, i // 16, i % 16, j % c0] = matrix[i, j]`, and 0 where that lies outside the matrix. Both orientations
    of a weight are this one layout: (n, k) becomes (k1, n1, 16, 32), for `transpose_weight=True`; (k, n) becomes
    (n1, k1, 16, 32), for `transpose_weight=False`.

    Args:
        matrix: (rows, columns), any dtype of 1, 2 or 4 bytes, any strides.

    Returns:
        A contiguous tensor of matrix's dtype.

    Raises:
        TypeError: not a tensor, or a dtype of another size.
        ValueError: not of 2 dimensions (a matrix that is NZ already has 4).

    Source: the Ascend formats (FRACTAL_NZ, format 29).
    """
    c0 = _block_columns(matrix, "matrix")
    if matrix.dim() != 2:
        raise ValueError(f"matrix has shape {tuple(matrix.shape)}; accepted: 2 dimensions (rows, columns)")
    rows, columns = matrix.shape
    row_blocks, column_blocks = -(-rows // ROWS), -(-columns // c0)
    padded = matrix.new_zeros(row_blocks * ROWS, column_blocks * c0)
    padded[:rows, :columns] = matrix
    return padded.view(row_blocks, ROWS, column_blocks, c0).permute(2, 0, 1, 3).contiguous()


def nz_to_nd(blocked: Tensor, shape: tuple[int, int]) -> Tensor:
    """The matrix of `shape` (rows, columns) out of its FRACTAL_NZ form; padding is dropped. The inverse of `nd_to_nz`.

    Args:
        blocked: (ceil(columns/c0), ceil(rows/16), 16, c0), c0 = 32 bytes of elements.
        shape: rows and columns of the matrix; (n, k) for `transpose_weight=True`, (k, n) for False.

    Returns:
        A contiguous tensor (rows, columns) of blocked's dtype.

    Raises:
        TypeError: not a tensor, or a dtype that is not 1, 2 or 4 bytes long.
        ValueError: a shape that does not belong to the blocks.
    """
    c0 = _block_columns(blocked, "blocked")
    rows, columns = shape
    expected = (-(-columns // c0), -(-rows // ROWS), ROWS, c0)
    if tuple(blocked.shape) != expected:
        raise ValueError(
            f"blocked has shape {tuple(blocked.shape)}; accepted: {expected}, the blocks of a {rows} x {columns} matrix"
        )
    padded = blocked.permute(1, 2, 0, 3).reshape(expected[1] * ROWS, expected[0] * c0)
    return padded[:rows, :columns].contiguous()


def pack_scale_int64(weight_scale: Tensor, x_scale: Tensor | float = 1.0) -> Tensor:
    """The int64 scales of `quant_matmul_dequant`: the bits of the fp32 product weight_scale·x_scale, sign extended.

    Args:
        weight_scale: (n,) float32.
        x_scale: the scale of the whole activation: a number, or a tensor of one element.

    Returns:
        (n,) int64. A scale of 0.25 is 1048576000, one of -0.25 is -1098907648.

    Raises:
        TypeError: weight_scale is not a float32 tensor.
    """
    if not isinstance(weight_scale, Tensor) or weight_scale.dtype != torch.float32:
        raise TypeError(f"weight_scale is {kind(weight_scale)}; accepted: a float32 tensor")
    factor = torch.as_tensor(x_scale, dtype=torch.float32, device=weight_scale.device).reshape(())
    return (weight_scale * factor).contiguous().view(torch.int32).to(torch.int64)


def unpack_scale_int64(packed: Tensor) -> Tensor:
    """The float32 scales in the low 32 bits of int64 ones. The inverse of `pack_scale_int64`.

    Raises TypeError when packed is not an int64 tensor.
    """
    if not isinstance(packed, Tensor) or packed.dtype != torch.int64:
        raise TypeError(f"packed is {kind(packed)}; accepted: an int64 tensor")
    return packed.to(torch.int32).view(torch.float32)


def _block_columns(tensor: Tensor, name: str) -> int:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is {kind(tensor)}; accepted: a tensor")
    if tensor.element_size() not in (1, 2, 4):
        raise TypeError(f"{name} has dtype {dtype_name(tensor.dtype)}; accepted: dtypes of 1, 2 or 4 bytes")
    return 32 // tensor.element_size()
