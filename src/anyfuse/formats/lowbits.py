"""Codes of 4 and 8 bits: packed int4, the two 8-bit floats, and HiFloat8.

Everything here works on integers and exact comparisons, so that the codes are the same on every torch version (torch's
own casts to 8-bit floats differ between versions in what they do beyond the largest value and with NaN).
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from .._checks import dtype_name, kind, names

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


# ---- int4 ----


def pack_int4(values: Tensor, carrier: torch.dtype = torch.uint8) -> Tensor:
    """Packs int4 values in two's complement, the first one in the lowest bits.

    Args:
        values: integers from -8 to 7, any integer dtype, shape (..., n).
        carrier: torch.uint8 (two to an element, n even) or torch.int32 (eight to an element, n a multiple of 8). On a
            little-endian machine the two are the same bytes.

    Returns:
        Shape (..., n / 2) or (..., n / 8), dtype `carrier`.

    Raises:
        TypeError: values of another kind, another carrier.
        ValueError: n that does not fill whole elements; values out of range (looked at on the CPU only, where it costs
            no synchronization).

    Example:
        >>> import torch
        >>> from anyfuse.formats import pack_int4
        >>> pack_int4(torch.tensor([1, -2, 3, -4, 5, -6, 7, -8]), torch.int32)
        tensor([-2019179551], dtype=torch.int32)
    """
    if not isinstance(values, Tensor) or values.dtype not in INTEGERS:
        raise TypeError(f"values is {kind(values)}; accepted: a tensor of {names(INTEGERS)}")
    count = _nibbles("carrier", carrier)
    if values.dim() == 0 or values.shape[-1] % count:
        raise ValueError(f"values has shape {tuple(values.shape)}; accepted: a multiple of {count} as last dimension")
    if values.device.type == "cpu" and values.numel() and not bool(((values >= -8) & (values <= 7)).all()):
        raise ValueError(f"values lie from {values.min()} to {values.max()}; accepted: -8 to 7")
    nibbles = (values.to(torch.int64) & 0xF).unflatten(-1, (values.shape[-1] // count, count))
    word: Tensor = (nibbles << (4 * torch.arange(count, device=values.device))).sum(-1)
    return (word - ((word >> 31) << 32) if carrier == torch.int32 else word).to(carrier)


def unpack_int4(packed: Tensor) -> Tensor:
    """The int8 values of `pack_int4`, from either carrier: shape (..., 2·k) of uint8, (..., 8·k) of int32 elements.

    Raises TypeError for another dtype, ValueError for a tensor without dimensions.
    """
    count = _nibbles("packed", packed.dtype)
    if packed.dim() == 0:
        raise ValueError("packed has shape (); accepted: at least one dimension")
    nibbles = packed.to(torch.int32).unsqueeze(-1) >> (4 * torch.arange(count, dtype=torch.int32, device=packed.device))
    return (((nibbles & 0xF) ^ 8) - 8).to(torch.int8).flatten(-2)


def _nibbles(name: str, carrier: torch.dtype) -> int:
    if carrier not in (torch.uint8, torch.int32):
        raise TypeError(f"{name} has dtype {dtype_name(carrier)}; accepted: uint8, int32")
    return 2 if carrier == torch.uint8 else 8


# ---- 8-bit floats ----


def cast_float8(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Casts to torch.float8_e4m3fn or torch.float8_e5m2: round half to even, saturating at ±448 and ±57344.

    Infinities saturate too; every NaN becomes 0x7F. The same on every torch version.

    Args:
        x: float32, float16 or bfloat16, any shape.

    Raises TypeError for another dtype of either.
    """
    _require_float("x", x)
    if dtype not in FLOAT8:
        raise TypeError(f"dtype is {dtype_name(dtype)}; accepted: {names(FLOAT8)}")
    magnitude = x.float().abs().contiguous()
    midpoints = torch.tensor(_float8_midpoints(dtype), dtype=torch.float32, device=x.device)
    # Codes of positive values count upwards: a value's code is the number of midpoints below it, or at it.
    below, at_or_below = (torch.bucketize(magnitude, midpoints, right=right) for right in (False, True))
    code = torch.where(below % 2 == 0, below, at_or_below)  # they differ at a tie only
    code = code | (torch.signbit(x.float()).to(torch.int64) << 7)
    return torch.where(magnitude.isnan(), 0x7F, code).to(torch.uint8).view(dtype)


@lru_cache
def _float8_midpoints(dtype: torch.dtype) -> list[float]:
    mantissa_bits, bias, last = (3, 7, 0x7E) if dtype == torch.float8_e4m3fn else (2, 15, 0x7B)
    values = []
    for code in range(last + 1):
        exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
        significand = mantissa + ((1 << mantissa_bits) if exponent else 0)
        values.append(math.ldexp(significand, max(exponent, 1) - bias - mantissa_bits))
    return _midpoints(values)


def _midpoints(values: list[float]) -> list[float]:
    """The means of neighbours: exact in fp32, for they have one bit more than the values."""
    return [(a + b) / 2 for a, b in pairwise(values)]


# ---- HiFloat8 ----


def encode_hifloat8(x: Tensor) -> Tensor:
    """HiFloat8 codes: round to nearest, half away from zero, saturating at ±32768 (infinities too); NaN is 0x80.

    There is no negative zero; magnitudes below 2^-23 become 0.

    Args:
        x: float32, float16 or bfloat16, any shape.

    Returns:
        uint8 codes of x's shape.

    Raises TypeError for another dtype.

    Example:
        >>> import torch
        >>> from anyfuse.formats import decode_hifloat8, encode_hifloat8
        >>> decode_hifloat8(encode_hifloat8(torch.tensor([1.0, 18.0, -1e9])))
        tensor([ 1.0000e+00,  2.0000e+01, -3.2768e+04])
    """
    _require_float("x", x)
    order, means = _hifloat8_order()
    codes = torch.tensor(order, device=x.device)
    midpoints = torch.tensor(means, dtype=torch.float32, device=x.device)
    magnitude = x.float().abs().contiguous()
    rank = torch.bucketize(magnitude, midpoints, right=True)
    code = codes[rank] | ((torch.signbit(x.float()) & (rank > 0)).to(torch.int64) << 7)
    return torch.where(magnitude.isnan(), 0x80, code).to(torch.uint8)


def decode_hifloat8(codes: Tensor) -> Tensor:
    """The float32 values of HiFloat8 codes (uint8): 0x80 is NaN, 0x6F and 0xEF are ±inf.

    Raises TypeError for another dtype.
    """
    if not isinstance(codes, Tensor) or codes.dtype != torch.uint8:
        raise TypeError(f"codes is {kind(codes)}; accepted: a tensor of uint8")
    return torch.tensor(_hifloat8_values(), dtype=torch.float32, device=codes.device)[codes.long()]


def _hifloat8_magnitude(code: int) -> float:
    """The value of a code without its sign bit.

    A prefix tells how many bits the exponent has; the mantissa has the rest. The exponent is sign and magnitude, the
    magnitude's leading 1 implied.
    """
    if code < 0x08:  # prefix 0000
        return 2.0 ** (code - 23) if code else 0.0
    if code < 0x10:  # prefix 0001: exponent 0
        return 1 + (code & 7) / 8
    # the sign's place, and the bits of the exponent's magnitude below its leading one
    sign, low = (3, 0) if code < 0x20 else (4, 1) if code < 0x40 else (4, 2) if code < 0x60 else (4, 3)
    mantissa_bits = sign - low
    size = (1 << low) | (code >> mantissa_bits) & ((1 << low) - 1)
    exponent = -size if code >> sign & 1 else size
    return 2.0**exponent * (1 + (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits))


@lru_cache
def _hifloat8_values() -> list[float]:
    half = [_hifloat8_magnitude(code) for code in range(0x80)]
    half[0x6F] = math.inf
    return half + [math.nan] + [-value for value in half[1:]]


@lru_cache
def _hifloat8_order() -> tuple[list[int], list[float]]:
    """The finite codes from 0 to the largest in the order of their values, and the midpoints between neighbours."""
    values = _hifloat8_values()
    codes = sorted((code for code in range(0x80) if code != 0x6F), key=lambda code: values[code])
    return codes, _midpoints([values[code] for code in codes])


def _require_float(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor) or x.dtype not in FLOATS:
        raise TypeError(f"{name} is {kind(x)}; accepted: a tensor of {names(FLOATS)}")
