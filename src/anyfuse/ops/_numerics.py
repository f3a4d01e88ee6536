"""The arithmetic that references are written in: fp32, each operation rounded once, or double for goldens."""

from __future__ import annotations

import ctypes
import math

from torch import Tensor

from .._settings import use_float64


def real(tensor: Tensor) -> Tensor:
    """A tensor in the type that references compute in: fp32 (float64 under `float64_reference`)."""
    return tensor.double() if use_float64() else tensor.float()


def f32(value: float) -> float:
    """The nearest fp32 value, infinity beyond its range (the value itself under `float64_reference`)."""
    return value if use_float64() else ctypes.c_float(value).value


def power(base: float, exponent: float) -> float:
    """base ** exponent in double by the C library, with its values instead of Python's exceptions."""
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return math.inf
    except ValueError:  # 0 to a negative power; a negative base to a fraction does not arise, steps are whole
        return math.inf


def correctly_rounded_sqrt(x: Tensor) -> Tensor:
    """The square root rounded once. `torch.sqrt` in fp32 on CPU is one ulp off for about 17 % of its inputs."""
    return x.double().sqrt().to(x.dtype)


def lane_sum(values: Tensor) -> Tensor:
    """The sum along the last dimension in the contract's order: 64 lanes, then halves onto halves."""
    chunks = -(-values.shape[-1] // 64)
    padded = values.new_zeros(*values.shape[:-1], chunks * 64)
    padded[..., : values.shape[-1]] = values
    lanes = values.new_zeros(*values.shape[:-1], 64)
    for chunk in range(chunks):
        lanes = lanes + padded[..., chunk * 64 : chunk * 64 + 64]
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes.squeeze(-1)
