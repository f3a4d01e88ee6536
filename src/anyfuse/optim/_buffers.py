"""Averages of a model's buffers, beside those of its parameters (`EMAAdamW.average_buffers`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from ..ops import _checks as checks
from ..ops import _numerics as numerics
from . import _sharding as sharding


class Buffers:
    """The floating-point buffers of a model that are part of its state dict, by name.

    A module may assign another tensor to a buffer; it is therefore looked up in its module at each step.
    """

    def __init__(self, model: nn.Module) -> None:
        self._places = {name.replace("_orig_mod.", ""): place for name, place in _floating_buffers(model)}
        self._products: dict[str, Tensor] = {}

    def now(self) -> dict[str, Tensor]:
        gone = [name for name, (buffers, key) in self._places.items() if buffers.get(key) is None]
        if gone:
            raise ValueError(f"the model has no buffer {', '.join(gone)} any more; accepted: those that are averaged")
        return {name: sharding.local(buffers[key]) for name, (buffers, key) in self._places.items()}

    def first_averages(self) -> dict[str, Tensor]:
        """Copies of the buffers; float32 for those of 16 bits."""
        return {name: value.detach().to(_wide(value), copy=True) for name, value in self.now().items()}

    def check(self, averages: Mapping[str, Tensor]) -> None:
        """ValueError unless there is an average of its shape for each buffer, and no other."""
        now = self.now()
        if now.keys() != averages.keys():
            odd = sorted(now.keys() ^ averages.keys())
            raise ValueError(f"averaged buffers differ from the model's in {', '.join(odd)}; accepted: the same names")
        for name, value in now.items():
            checks.require_tensor(f"the average of {name}", averages[name], (torch.float64, *checks.FLOATS))
            checks.require_shape(f"the average of {name}", averages[name], value.shape, "its buffer")

    def average(self, averages: Mapping[str, Tensor], decay: float) -> None:
        """average = decay·average + (1 - decay)·buffer, each operation rounded, as the operator's EMA of a weight."""
        kept, rest = numerics.f32(decay), numerics.f32(1.0 - decay)
        for name, value in self.now().items():
            average = averages[name]
            product = self._products.get(name)
            if product is None or product.shape != average.shape or product.dtype != average.dtype:
                product = self._products[name] = torch.empty_like(average)
            average.mul_(kept).add_(product.copy_(value).mul_(rest))


def _floating_buffers(model: nn.Module) -> Iterator[tuple[str, tuple[dict[str, Tensor | None], str]]]:
    in_state_dict = {id(value) for value in model.state_dict(keep_vars=True).values()}
    for name, value in model.named_buffers():
        if value.is_floating_point() and id(value) in in_state_dict:
            path, _, key = name.rpartition(".")
            yield name, (model.get_submodule(path)._buffers, key)


def _wide(value: Tensor) -> torch.dtype:
    return torch.float64 if value.dtype == torch.float64 else torch.float32
