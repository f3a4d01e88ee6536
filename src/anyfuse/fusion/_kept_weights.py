"""int8 weights of compiled graphs, packed once.

A graph takes its weights as inputs, so that they may change between two calls. Its matmuls are given them as they are;
the operator here remembers the packed form of a weight that comes a second time, for as long as the tensor lives.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..ops import _direct
from ..packed import pack_weight

#: Of how many rows and columns a weight's changes are looked for where no version counter tells.
SAMPLES = 8

library = torch.library.Library("anyfuse", "FRAGMENT")
library.define(
    "_quant_matmul_dequant_keeping(Tensor x, Tensor weight, Tensor weight_scale, Tensor? bias, Tensor x_scale, "
    "bool transpose_weight, ScalarType out_dtype) -> Tensor"
)


_product: Callable[..., Tensor] = torch.ops.anyfuse.quant_matmul_dequant.default


class _Kept:
    """A weight that was seen, and its packed form from the second time on.

    A write through a tensor or a view of it moves the version counter. `.data` and NumPy write past it: for those some
    weights, spread over the matrix, are compared, so that a weight that was loaded anew is noticed.
    """

    def __init__(self, weight: Tensor, forget: Callable[[weakref.ref[Tensor]], Any]) -> None:
        self.tensor = weakref.ref(weight, forget)
        self.version, self.place, self.form = weight._version, weight.data_ptr(), _form(weight)
        self.sample = weight.detach()[tuple(slice(None, None, max(1, size // SAMPLES)) for size in weight.shape)]
        self.values = self.sample.clone()
        self.packed: Tensor | None = None

    def holds(self, weight: Tensor) -> bool:
        same = self.tensor() is weight and self.version == weight._version and self.place == weight.data_ptr()
        return same and self.form == _form(weight) and torch.equal(self.sample, self.values)


def _form(weight: Tensor) -> tuple[torch.Size, tuple[int, ...]]:
    """How a weight lies in its memory; `.data` may be given another view of it."""
    return weight.shape, weight.stride()


_kept: dict[tuple[int, bool], _Kept] = {}


def packed(weight: Tensor, transpose_weight: bool) -> Tensor | None:
    """The packed form of a weight, from the second call with it on; None before."""
    if weight.is_inference() or not weight.data_ptr():  # no version counter; nothing in memory
        return None
    key = id(weight), transpose_weight
    entry = _kept.get(key)
    if entry is None or not entry.holds(weight):
        _kept[key] = _Kept(weight, lambda _: _kept.pop(key, None))
        return None
    if entry.packed is None:
        entry.packed = pack_weight(weight.detach(), transpose_weight=transpose_weight).data
    return entry.packed


def _cpu(
    x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None, x_scale: Tensor, transpose_weight: bool,
    out_dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    data = packed(weight, transpose_weight)
    n, k = weight.shape if transpose_weight else (weight.shape[1], weight.shape[0])
    given = [t for t in (x, x_scale, weight_scale, bias) if t is not None]
    if data is not None and _fits(x, x_scale, weight_scale, bias, n, k) and _direct.possible(*given):
        return _direct.multiply(x, x_scale, None, data, weight_scale, (n, k), out_dtype, "formula", bias)
    shape = [] if data is None else [n, k]
    return _product(
        x, weight if data is None else data, weight_scale, bias, x_scale, None, "pertoken", transpose_weight, shape,
        out_dtype, "formula",
    )  # fmt: skip


def _fits(x: Tensor, x_scale: Tensor, weight_scale: Tensor, bias: Tensor | None, n: int, k: int) -> bool:
    """Whether nothing is read beyond its end; a call that does not fit is for the operator to refuse."""
    return (
        x.dtype is torch.int8
        and x.shape[-1:] == (k,)
        and x_scale.numel() * k == x.numel()
        and weight_scale.numel() == n
        and (bias is None or bias.numel() == n)
        and x_scale.dtype is weight_scale.dtype is torch.float32
        and (bias is None or bias.dtype is torch.int32)
    )


def _fake(
    x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None, x_scale: Tensor, transpose_weight: bool,
    out_dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    return _product(
        x, weight, weight_scale, bias, x_scale, None, "pertoken", transpose_weight, [], out_dtype, "formula"
    )


library.impl("_quant_matmul_dequant_keeping", _cpu, "CPU")
torch.library.register_fake("anyfuse::_quant_matmul_dequant_keeping", _fake, lib=library)
multiply = torch.ops.anyfuse._quant_matmul_dequant_keeping.default
