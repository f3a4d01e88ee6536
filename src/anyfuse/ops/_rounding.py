"""Stochastic rounding to 16 bits: an element goes to one of its two neighbours, the nearer the likelier.

The bits of an fp32 value that a store to bfloat16 (16) or float16 (13) drops are added to by as many random bits, and
what remains is cut off: in the mean over many roundings nothing is lost, and an update smaller than half a step of the
format still counts. The random bits are a hash of the tensor's seed, the number of the step and the element's index in
row-major order, so that a step repeats itself bit for bit. A finite value never becomes an infinity; zeros, infinities
and NaN stay what they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import _checks as checks

_MASK = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9


def seeds_of(stochastic_rounding: int | Sequence[int] | None, count: int) -> list[int] | None:
    """A seed for each of `count` tensors out of the argument of an operator: None, one for all, or a list."""
    if stochastic_rounding is None:
        return None
    if isinstance(stochastic_rounding, (list, tuple)):
        seeds = list(stochastic_rounding)
        checks.require(
            len(seeds) == count, f"stochastic_rounding has {len(seeds)} seeds; accepted: one for all, or {count}"
        )
        return [_seed(value) for value in seeds]
    first = _seed(stochastic_rounding)
    return [(first + i) & _MASK for i in range(count)]


def _seed(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        raise TypeError(f"stochastic_rounding is {value!r}; accepted: None, a seed or a list of seeds")
    if not 0 <= value <= _MASK:  # (a compiler cannot trace a message that it need not make)
        raise ValueError(f"stochastic_rounding is {value}; accepted: 0 to 2^32 - 1")
    return value  # type: ignore[return-value]


def rounded(values: Tensor, dtype: torch.dtype, seeds: Sequence[int] | None, i: int, step: int, stream: int) -> Tensor:
    """Values in the dtype of tensor i: stochastically where there are seeds and it has 16 bits, else to the nearest.

    `stream` keeps the tensors of one call apart that share a seed: 0 for the parameters, 1 for their EMA.
    """
    if seeds is None or dtype == torch.float32:
        return values.to(dtype)
    seed = seeds[i]
    values = values.float()
    bits = values.contiguous().view(torch.int32).long()
    magnitude, sign = bits & 0x7FFFFFFF, (bits >> 16) & 0x8000
    random = _random_bits(values.numel(), seed, step, stream).view(values.shape)
    if dtype == torch.bfloat16:
        up, largest = (magnitude + (random & 0xFFFF)) >> 16, 0x7F7F
    else:
        dither = random & 0x1FFF
        normal = (magnitude - (112 << 23) + dither) >> 13
        # Below 2^-14 a half has the step 2^-24: as whole multiples of 2^-37, of which 13 bits are dropped.
        is_small = magnitude < (113 << 23)
        small = (torch.where(is_small, values.abs() * 2.0**37, 0.0).long() + dither) >> 13
        up, largest = torch.where(is_small, small, normal), 0x7BFF
    code = torch.where(values.isfinite(), up.clamp(max=largest), largest + 1) | sign
    code = torch.where(values.isnan(), 0x7FC0 if dtype == torch.bfloat16 else 0x7E00, code)
    return (code - ((code & 0x8000) << 1)).to(torch.int16).view(dtype)


def _mix(x: Tensor, between: Tensor | int = 0) -> Tensor:
    """A bijection of 32 bits in which every bit of x changes about half of the result's (x in int64)."""
    x = (_times(x ^ (x >> 16), 0x7FEB352D) + between) & _MASK
    x = _times(x ^ (x >> 15), 0x846CA68B)
    return x ^ (x >> 16)


def _times(x: Tensor, factor: int) -> Tensor:
    """The lower 32 bits of a product; in two parts, as the whole one would not fit 63 bits."""
    return (x * (factor & 0xFFFF) + (((x * (factor >> 16)) & 0xFFFF) << 16)) & _MASK


def _random_bits(count: int, seed: int, step: int, stream: int) -> Tensor:
    """32 random bits for each of the elements 0 ... count - 1."""
    index = torch.arange(count)
    key = _mix(torch.tensor((seed + _GOLDEN * stream) & _MASK))
    key = _mix(key ^ (step & _MASK))
    key = _mix(key ^ ((step >> 32) & _MASK))
    key = _mix(key ^ (index >> 32))
    between = _mix((key + _GOLDEN) & _MASK)
    return _mix((index & _MASK) ^ key, between)
