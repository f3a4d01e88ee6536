"""Calls of the inference operators past the dispatcher.

At one row the dispatcher and the checks take 12 to 15 µs, more than most products of a small model. A module whose
weights have been through a checked call may leave both out: it asks `possible` for its activations, and gives
contiguous CPU tensors whose shapes and dtypes fit. The numbers are those of the operator; the kernel is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from .._settings import use_reference
from .._soc import restricted
from . import add_rms_norm_dynamic_quant as norm_quant
from . import quant_matmul_dequant as matmul

PACKED = matmul.LAYOUTS["packed"]


def _watchers() -> list[Callable[[], Any]] | None:
    """What tells, by a value that is true, that something sees or transforms the operators that run; None where this
    torch does not have it all."""
    try:
        from torch._C import _get_tracing_state, _len_torch_dispatch_stack, _len_torch_function_stack
        from torch._C._autograd import _profiler_enabled
        from torch._C._functorch import peek_interpreter_stack
    except ImportError:
        return None
    return [
        _len_torch_function_stack,
        _len_torch_dispatch_stack,
        peek_interpreter_stack,
        _get_tracing_state,
        _profiler_enabled,
        use_reference,
    ]


_WATCHERS = _watchers()


class Vetted:
    """A module's buffers that an operator's checks accepted with a kind of call, while they are those, stay where they
    are and keep their size. (`load_state_dict` writes into them, which changes nothing here.)"""

    __slots__ = ("_buffers", "_call", "_places")

    def __init__(self, buffers: tuple[Tensor | None, ...], call: tuple[Any, ...]) -> None:
        self._buffers, self._call, self._places = buffers, call, _places(buffers)

    @classmethod
    def of(cls, buffers: tuple[Tensor | None, ...], call: tuple[Any, ...]) -> Vetted | None:
        """None where the kernel could not read a buffer as it lies."""
        return cls(buffers, call) if possible(*(t for t in buffers if t is not None)) else None

    def holds(self, buffers: tuple[Tensor | None, ...], call: tuple[Any, ...]) -> bool:
        return all(map(is_, buffers, self._buffers)) and call == self._call and _places(buffers) == self._places


class Vetting(nn.Module):
    """A module that remembers which of its calls may leave the dispatcher out."""

    _vetted: Vetted | None = None

    def _apply(self, *arguments: Any, **named: Any) -> Any:
        """What `to`, `half` and others do; then there is nothing vetted, which would keep the old buffers' memory."""
        self._vetted = None
        apply: Callable[..., Any] = super()._apply
        return apply(*arguments, **named)


def _places(buffers: tuple[Tensor | None, ...]) -> list[tuple[int, int] | None]:
    return [None if tensor is None else (tensor.data_ptr(), tensor.nbytes) for tensor in buffers]


def possible(*rows: Tensor) -> bool:
    """Whether a call on these activations may leave the dispatcher out: they are plain, contiguous, in the CPU's
    memory and without gradients, and no mode, transform, trace or profiler waits for operators."""
    if torch.compiler.is_compiling() or _WATCHERS is None:
        return False
    for watcher in _WATCHERS:
        if watcher():
            return False
    for tensor in rows:
        if type(tensor) is not Tensor or not tensor.is_cpu or tensor.requires_grad:
            return False
        if tensor.layout is not torch.strided or tensor.is_nested or not tensor.is_contiguous():
            return False
        if tensor.is_neg() or not tensor.data_ptr():  # its memory holds the negatives of its values, or is released
            return False
    return not restricted()


def multiply(
    x: Tensor, x_scale: Tensor | None, smooth_scale: Tensor | None, weight: Tensor, weight_scale: Tensor,
    shape: tuple[int, int], dtype: torch.dtype, convention: str, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`quant_matmul_dequant` of x (..., k) with the packed weight of (n, k), a scale for each row given or dynamic."""
    n, k = shape
    out = x.new_empty((*x.shape[:-1], n), dtype=dtype)
    rows = out.numel() // n if n else 0
    matmul.run_native(
        (rows, n, k), x, weight, PACKED, weight_scale, bias, x_scale, smooth_scale, out, "pertoken", convention
    )
    return out


def normalize(
    x1: Tensor, x2: Tensor, gamma: Tensor, smooth_scale: Tensor | None, beta: Tensor | None, epsilon: float,
    convention: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`add_rms_norm_dynamic_quant` with one int8 output: (codes, sum, scales)."""
    x = torch.empty_like(x1)
    y = torch.empty_like(x, dtype=torch.int8)
    scale = x1.new_empty(x1.shape[:-1], dtype=torch.float32)
    norm_quant.run_native(
        x1, x2, gamma, smooth_scale, None, beta, epsilon, (y, None, scale, scale), x, "int8", convention
    )
    return y, x, scale
