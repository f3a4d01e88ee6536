"""int8 weights of compiled graphs, packed once.

A graph takes its weights as inputs, so that they may change between two calls. Its matmuls are given them as they are;
the operator here remembers the packed form of a weight that comes a second time, for as long as the tensor lives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..ops.quant_matmul_dequant import product
from ..packed import pack_weight

#: Of how many rows and columns a weight's changes are looked for where no version counter tells.
SAMPLES = 8

library = torch.library.Library("anyfuse", "FRAGMENT")
library.define(
    "_quant_matmul_dequant_keeping(Tensor x, Tensor weight, Tensor weight_scale, Tensor? bias, Tensor x_scale, "
    "bool transpose_weight, ScalarType out_dtype) -> Tensor"
)


class _Kept:
    """A weight that was seen, and its packed form from the second time on.

    A write through a tensor or a view of it moves the version counter. `.data` and NumPy write past it: for those some
    weights, spread over the matrix, are compared, so that a weight that was loaded anew is noticed.
    """

    def __init__(self, weight: Tensor, transpose_weight: bool) -> None:
        self.state = _state(weight, transpose_weight)
        self.sample = weight.detach()[tuple(slice(None, None, max(1, size // SAMPLES)) for size in weight.shape)]
        self.values = self.sample.clone()
        self.packed: Tensor | None = None

    def holds(self, weight: Tensor, transpose_weight: bool) -> bool:
        return self.state == _state(weight, transpose_weight) and torch.equal(self.sample, self.values)


def _state(weight: Tensor, transpose_weight: bool) -> tuple[Any, ...]:
    """`.data` may be given other memory, or another view of it."""
    return weight._version, weight.data_ptr(), weight.shape, weight.stride(), transpose_weight


_kept: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def packed(weight: Tensor, transpose_weight: bool) -> Tensor | None:
    """The packed form of a weight, from the second call with it on; None before."""
    if weight.is_inference() or not weight.data_ptr():  # no version counter; nothing in memory
        return None
    kept = _kept.get(weight)
    if kept is None or not kept.holds(weight, transpose_weight):
        _kept[weight] = _Kept(weight, transpose_weight)
        return None
    if kept.packed is None:
        kept.packed = pack_weight(weight.detach(), transpose_weight=transpose_weight).data
    return kept.packed  # type: ignore[no-any-return]


def _product(
    x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None, x_scale: Tensor, transpose_weight: bool,
    out_dtype: torch.dtype, data: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The operator's call. `data`: the weight's packed form, where there is one."""
    n, k = weight.shape if transpose_weight else weight.shape[::-1]
    out: Tensor = product(
        x, weight if data is None else data, weight_scale, bias, x_scale, None, "pertoken", transpose_weight,
        [] if data is None else [n, k], out_dtype, "formula",
    )  # fmt: skip
    return out


def _cpu(
    x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None, x_scale: Tensor, transpose_weight: bool,
    out_dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    data = packed(weight, transpose_weight)
    return _product(x, weight, weight_scale, bias, x_scale, transpose_weight, out_dtype, data)


library.impl("_quant_matmul_dequant_keeping", _cpu, "CPU")
torch.library.register_fake("anyfuse::_quant_matmul_dequant_keeping", _product, lib=library)
multiply = torch.ops.anyfuse._quant_matmul_dequant_keeping.default
