"""A decoder layer on quantized parts."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..nn import AddRMSNormQuant


class Pending(NamedTuple):
    """A hidden state before its last residual add, which the next layer's norm does on its way."""

    delta: Tensor
    residual: Tensor


class AddNorm(nn.Module):
    """Residual add and a float norm, where what follows the norm stays float."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        total = residual + x
        return total, self.norm(total)


class QuantDecoderLayer(nn.Module):
    """x + attention(norm(x)), then + mlp(norm(·)), with each residual add inside the norm that follows it.

    The last add of a layer is left to the next one (`hands_over`): it receives `Pending`. Attention and MLP are the
    model's own modules, with their linears replaced.

    Args:
        names: of the four parts below, in this order; the layer keeps them as the model had them, so that the names in
            its state stay.
        input_norm, post_norm: `AddRMSNormQuant`, or `AddNorm` of a float norm.
        attention, mlp: called as the model's layer calls them.
        hands_over: whether the next layer is one of this class.
    """

    def __init__(
        self,
        names: tuple[str, str, str, str],
        input_norm: AddRMSNormQuant | AddNorm,
        attention: nn.Module,
        post_norm: AddRMSNormQuant | AddNorm,
        mlp: nn.Module,
        hands_over: bool,
    ) -> None:
        super().__init__()
        for name, part in zip(names, (input_norm, attention, post_norm, mlp), strict=True):
            self.add_module(name, part)
        self.names, self.hands_over = names, hands_over

    def forward(self, hidden_states: Tensor | Pending, **options: Any) -> Tensor | Pending:
        first, second, third, last = self.names
        parts: dict[str, Any] = self._modules
        input_norm, attention, post_norm, mlp = parts[first], parts[second], parts[third], parts[last]
        if isinstance(hidden_states, Pending):
            residual, rows = input_norm(hidden_states.delta, hidden_states.residual)
        else:
            residual, rows = input_norm(torch.zeros_like(hidden_states), hidden_states)
        delta = attention(hidden_states=rows, **options)[0]
        residual, rows = post_norm(delta, residual)
        delta = mlp(rows)
        return Pending(delta, residual) if self.hands_over else residual + delta
