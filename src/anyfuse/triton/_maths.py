"""Device functions that several kernels share: conversions with the contract's roundings."""

from __future__ import annotations

import triton
import triton.language as tl

from ._launch import INTERPRETED

_INTERPRETED = tl.constexpr(INTERPRETED)


@triton.jit
def widen(x):
    """A value of 16 or 32 bits as float32."""
    if _INTERPRETED and x.dtype == tl.bfloat16:  # there subnormal values go astray
        result = (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        result = x.to(tl.float32)
    return result


@triton.jit
def narrow(x, DTYPE: tl.constexpr):
    """A float32 value rounded once to DTYPE, half to even."""
    if _INTERPRETED and DTYPE == tl.bfloat16:  # there it would be cut off
        u = x.to(tl.int32, bitcast=True)
        rounded = (u + 0x7FFF + ((u >> 16) & 1)) >> 16
        result = tl.where(x == x, rounded, 0x7FC0).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        result = x.to(DTYPE)
    return result


@triton.jit
def _mix(x, between):
    """The bijection of 32 bits of `ops._rounding`; x and `between` are uint32."""
    x = (x ^ (x >> 16)) * 0x7FEB352D + between
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def random_bits(seed, step, stream: tl.constexpr, index, high):
    """32 random bits for each index of a tensor, those of `ops._rounding`, as int32. The numbers are int64.

    `high` is index >> 32; where all indices have the same, one number, so that most of the hash is computed once.
    """
    key = seed.to(tl.uint32)
    if stream == 1:
        key = key + 0x9E3779B9
    key = _mix(key, 0)
    key = _mix(key ^ step.to(tl.uint32), 0)
    key = _mix(key ^ (step >> 32).to(tl.uint32), 0)
    key = _mix(key ^ high.to(tl.uint32), 0)
    return _mix(index.to(tl.uint32) ^ key, _mix(key + 0x9E3779B9, 0)).to(tl.int32, bitcast=True)


@triton.jit
def narrow_randomly(x, random, DTYPE: tl.constexpr):
    """A float32 value rounded by chance to a DTYPE of 16 bits, as `ops._rounding` does it."""
    u = x.to(tl.int32, bitcast=True)
    magnitude = u & 0x7FFFFFFF
    LARGEST: tl.constexpr = 0x7F7F if DTYPE == tl.bfloat16 else 0x7BFF  # the bits of the largest number
    if DTYPE == tl.bfloat16:
        code = (magnitude + (random & 0xFFFF)) >> 16
    else:
        dither = random & 0x1FFF
        # Below 2^-14 a half has the step 2^-24: as whole multiples of 2^-37, of which 13 bits are dropped.
        is_small = magnitude < (113 << 23)
        small = (tl.where(is_small, tl.abs(x), 0.0) * 137438953472.0).to(tl.int32)
        code = tl.where(is_small, small + dither, magnitude - (112 << 23) + dither) >> 13
    code = tl.where(magnitude < 0x7F800000, tl.minimum(code, LARGEST), LARGEST + 1)
    code = tl.where(x == x, code | ((u >> 16) & 0x8000), 0x7FC0 if DTYPE == tl.bfloat16 else 0x7E00)
    return code.to(tl.int16).to(DTYPE, bitcast=True)


@triton.jit
def stored(x, DTYPE: tl.constexpr, seed, step, stream: tl.constexpr, index, high):
    """A float32 value in DTYPE: to the nearest, or by chance where there is a seed and it has 16 bits.

    `index` counts the elements of the tensor, in row-major order; `high` is index >> 32.
    """
    if seed is None or DTYPE == tl.float32:
        result = narrow(x, DTYPE)
    else:
        result = narrow_randomly(x, random_bits(seed, step, stream, index, high), DTYPE)
    return result


@triton.jit
def magnitude_bits(x):
    """|x| as the integer of its bits, which order as the magnitudes do, with every NaN above infinity."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def integer(x, LARGEST: tl.constexpr):
    """The nearest integer, ties to even, clamped to ±LARGEST (at most 2^22), as int32."""
    x = tl.where(x < LARGEST, x, LARGEST)
    x = tl.where(x > -LARGEST, x, -LARGEST)
    return (x + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000  # the addition is the rounding


@triton.jit
def float8(x, E5M2: tl.constexpr):
    """The code of an 8-bit float, half to even, saturating, as int32 whose low byte it is; NaN is 0x7F."""
    DROPPED: tl.constexpr = 21 if E5M2 else 20
    REBIAS: tl.constexpr = (112 << 2) if E5M2 else (120 << 3)
    MIN_NORMAL: tl.constexpr = (113 << 23) if E5M2 else (121 << 23)
    MAGIC: tl.constexpr = 128.0 if E5M2 else 16384.0  # a power of two whose ulp is the subnormal step
    MAGIC_BITS: tl.constexpr = 0x43000000 if E5M2 else 0x46800000
    LARGEST: tl.constexpr = 57344.0 if E5M2 else 448.0
    magnitude = tl.abs(x)
    magnitude = tl.where(magnitude < LARGEST, magnitude, LARGEST)
    u = magnitude.to(tl.int32, bitcast=True)
    normal = ((u + ((1 << (DROPPED - 1)) - 1) + ((u >> DROPPED) & 1)) >> DROPPED) - REBIAS
    small = (magnitude + MAGIC).to(tl.int32, bitcast=True) - MAGIC_BITS
    code = tl.where(u < MIN_NORMAL, small, normal)
    sign = (x.to(tl.int32, bitcast=True) >> 31) & 0x80
    return tl.where(x == x, code | sign, 0x7F)


@triton.jit
def hifloat8(x):
    """The code of a HiFloat8 number, half away from zero, saturating, as int32 whose low byte it is; NaN is 0x80."""
    magnitude = tl.abs(x)
    u = tl.where(magnitude < 32768.0, magnitude, 32768.0).to(tl.int32, bitcast=True)
    raw = (u >> 23) - 127
    # Half of the last kept bit. From [2^-23, 2^-22) everything goes up to 2^-22, which a whole exponent step does.
    slope = tl.where(raw < 0, -raw, raw)
    half = tl.where(slope > 3, 1 << 20, 1 << 19)
    half = tl.where(slope > 7, 1 << 21, half)
    half = tl.where(raw < -15, 1 << 22, half)
    half = tl.where(raw < -22, 1 << 23, half)
    rounded = u + half
    exponent = (rounded >> 23) - 127
    negative = exponent >> 31
    size = (exponent ^ negative) - negative
    mantissa = (rounded >> 20) & 7
    code = tl.where(size == 0, mantissa | 0x08, mantissa | 0x10 | (negative & 0x08))
    wide_sign = negative & 0x10
    code = tl.where(size > 1, mantissa | 0x20 | wide_sign | ((size & 1) << 3), code)
    code = tl.where(size > 3, (mantissa >> 1) | 0x40 | wide_sign | ((size & 3) << 2), code)
    code = tl.where(size > 7, (mantissa >> 2) | 0x60 | wide_sign | ((size & 7) << 1), code)
    code = tl.where(exponent < -15, exponent + 23, code)
    code = code | ((x.to(tl.int32, bitcast=True) >> 31) & 0x80)
    code = tl.where(raw < -23, 0, code)
    return tl.where(x == x, code, 0x80)


@triton.jit
def total(lanes, ROWS: tl.constexpr):
    """The sums of rows of 64 lanes (ROWS, 64) in the contract's order: the upper half onto the lower, until one is
    left. A reduction of Triton's would take whatever order the layout suggests."""
    for i in tl.static_range(5):
        lower, upper = tl.split(tl.permute(tl.reshape(lanes, (ROWS, 2, 32 >> i)), (0, 2, 1)))
        lanes = lower + upper
    lower, upper = tl.split(tl.reshape(lanes, (ROWS, 2)))
    return lower + upper
