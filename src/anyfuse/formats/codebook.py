"""8-bit codebooks, as `aclnnApplyAdamWQuant` takes: ascending maps of 256 values, and tensors quantized with them.

Block b of a tensor, flattened in row-major order, holds the elements [b·block_size, (b + 1)·block_size); the last one
may be shorter. With `absmax` the largest magnitude of the block, an element x is stored as the code of x/absmax, and
read back as codebook[code]·absmax. A block of zeros has absmax 0; a NaN or an infinity makes absmax one, and the block
is lost.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._checks import one_of, require_tensor

BLOCK_SIZES = (64, 128, 256, 512, 1024, 2048)

KINDS = ("dynamic", "linear")


def create_codebook(kind: str = "dynamic", signed: bool = True) -> Tensor:
    """A map of 256 ascending values, float32.

    "linear": equal steps from -1 (unsigned: 0) to 1. "dynamic": seven decades below 1, the lower the coarser; decade i,
    from 10^(i-7) to 10^(i-6), is cut into 2^i (unsigned: 2^(i+1)) equal intervals whose midpoints are the values, with
    both signs (unsigned: the positive); with 0 and 1 they are 256. It is the map that 8-bit optimizers use: a second
    moment spans many decades.

    Raises:
        ValueError: another kind.
    """
    one_of("kind", kind, KINDS)
    if kind == "linear":
        return torch.linspace(-1.0 if signed else 0.0, 1.0, 256, dtype=torch.float32)
    positive = []
    for decade in range(7):
        edges = torch.linspace(0.1, 1.0, 2 ** (decade if signed else decade + 1) + 1, dtype=torch.float32)
        positive.append((edges[:-1] + edges[1:]) / 2.0 * 10.0 ** (decade - 6))
    values = torch.cat(positive)
    mirrored = [-values] if signed else []
    return torch.cat([*mirrored, values, values.new_tensor([0.0, 1.0])]).sort().values


def encode(values: Tensor, codebook: Tensor, *, keep_sign: bool = False) -> Tensor:
    """The codes (int64) of values in [-1, 1]: the nearest entry, the lower one in a tie.

    As the operator's kernel finds them, eight halvings and a comparison, which also says what happens for equal entries
    (the highest of those below, the lowest of those above the value) and for NaN (code 0). With `keep_sign` a value
    other than 0 that would get an entry of the other sign gets the next one on its own side, where the map has one.
    """
    lower, upper = torch.zeros_like(values, dtype=torch.int64), torch.full_like(values, 255, dtype=torch.int64)
    for _ in range(8):
        pivot = (lower + upper) >> 1
        above = values > codebook[pivot]
        lower, upper = torch.where(above, pivot, lower), torch.where(above, upper, pivot)
    code = torch.where((values - codebook[lower]).abs() <= (values - codebook[upper]).abs(), lower, upper)
    if keep_sign:
        entry = codebook[code]
        code = code + ((values > 0) & (entry < 0)).long() - ((values < 0) & (entry > 0)).long()
    return code.clamp(0, 255)


def avoid_zero(codes: Tensor, values: Tensor, codebook: Tensor) -> Tensor:
    """Codes where a value above 0 that got an entry equal to 0 has the smallest positive entry, if there is one."""
    positive = (codebook > 0).nonzero()
    if not len(positive):
        return codes
    return torch.where((values > 0) & (codebook[codes] == 0), positive[0], codes)


def blocks_of(tensor: Tensor, block_size: int) -> Tensor:
    """A tensor's elements as (blocks, block_size); the end of the last block is 0."""
    flat = tensor.reshape(-1)
    return torch.nn.functional.pad(flat, (0, -flat.numel() % block_size)).view(-1, block_size)


def quantize_blockwise(
    tensor: Tensor, codebook: Tensor, block_size: int = 256, *, keep_sign: bool = True, nonzero: bool = False
) -> tuple[Tensor, Tensor]:
    """Codes and absmax of a tensor, by the rule of `apply_adam_w_quant`.

    Args:
        tensor: any shape, float32, float16 or bfloat16.
        codebook: (256,) float32, finite and ascending.
        block_size: 64, 128, 256, 512, 1024 or 2048.
        keep_sign: no element gets an entry of the other sign (the operator's rule for the first moment; without
            negative entries or elements it changes nothing).
        nonzero: no element above 0 gets an entry equal to 0 (its option `nonzero_v`).

    Returns:
        codes: uint8, the tensor's shape.
        absmax: float32, (ceil(numel/block_size),).

    Raises:
        TypeError: a dtype that is not accepted.
        ValueError: a codebook or a block size that is not accepted.
    """
    require_tensor("tensor", tensor, (torch.float32, torch.float16, torch.bfloat16))
    _check_codebook(codebook)
    check_block_size(block_size)
    rows = blocks_of(tensor.float(), block_size)
    absmax = rows.abs().amax(dim=1, keepdim=True)
    codes = encode(rows / torch.where(absmax == 0, 1.0, absmax), codebook, keep_sign=keep_sign)
    if nonzero:
        codes = avoid_zero(codes, rows, codebook)
    return codes.to(torch.uint8).view(-1)[: tensor.numel()].view(tensor.shape), absmax.view(-1)


def dequantize_blockwise(
    codes: Tensor, absmax: Tensor, codebook: Tensor, block_size: int = 256, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The values of codes: codebook[code]·absmax of its block in float32, rounded once to `dtype`.

    Args:
        codes: any shape, uint8.
        absmax: (ceil(numel/block_size),) float32.
        codebook: (256,) float32, finite and ascending.
        block_size: 64, 128, 256, 512, 1024 or 2048.

    Raises:
        TypeError: a dtype that is not accepted.
        ValueError: a codebook, a block size or a shape that is not accepted.
    """
    require_tensor("codes", codes, (torch.uint8,))
    require_tensor("absmax", absmax, (torch.float32,))
    _check_codebook(codebook)
    check_block_size(block_size)
    blocks = -(-codes.numel() // block_size)
    if absmax.shape != (blocks,):
        raise ValueError(f"absmax has shape {tuple(absmax.shape)}; accepted: ({blocks},), one for each block")
    rows = codebook[blocks_of(codes, block_size).long()] * absmax[:, None]
    return rows.view(-1)[: codes.numel()].view(codes.shape).to(dtype)


def check_block_size(block_size: int) -> None:
    one_of("block_size", block_size, BLOCK_SIZES)


def is_codebook(values: Tensor) -> bool:
    """True when the values of a float32 tensor are finite and ascending; equal ones may follow each other."""
    return bool(values.isfinite().all() and (values[1:] >= values[:-1]).all())


def _check_codebook(codebook: Tensor) -> None:
    require_tensor("codebook", codebook, (torch.float32,))
    if codebook.shape != (256,):
        raise ValueError(f"codebook has shape {tuple(codebook.shape)}; accepted: (256,)")
    if not is_codebook(codebook):
        raise ValueError(
            "codebook has entries that fall or are not finite; accepted: 256 finite values in ascending order"
        )
