"""SmoothQuant: how much of an activation's outliers the weights take over, from a few batches of text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


@torch.no_grad()
def column_absmax(model: nn.Module, inputs_of: Mapping[str, nn.Module], batches: Iterable[Any]) -> dict[str, Tensor]:
    """The largest magnitude in each column of what the named linears read, over all batches.

    Args:
        model: called with each batch: a tensor of token ids, or a mapping of keyword arguments.
        inputs_of: the linears, by a name of the caller's.

    Raises ValueError when there is no batch, or a column is not finite.
    """
    seen: dict[str, Tensor] = {}

    def watch(name: str) -> Any:
        def hook(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            absmax = arguments[0].detach().abs().flatten(0, -2).amax(0).float()
            seen[name] = torch.maximum(seen[name], absmax) if name in seen else absmax

        return hook

    handles = [module.register_forward_pre_hook(watch(name)) for name, module in inputs_of.items()]
    try:
        for batch in batches:
            if isinstance(batch, Mapping):
                model(**batch)
            else:
                model(batch)
    finally:
        for handle in handles:
            handle.remove()
    if not seen:
        raise ValueError("calibration holds no batch; accepted: at least one")
    for name, absmax in seen.items():
        if not absmax.isfinite().all():
            raise ValueError(f"calibration gives infinities or NaN at {name}; accepted: finite activations")
    return seen


def smooth_scale(absmax: Tensor, linears: Sequence[nn.Linear], alpha: float) -> Tensor:
    """SmoothQuant's factors of an activation's columns: (max|W_j|)^(1-alpha) / (max|x_j|)^alpha.

    The activation is multiplied by them, and the weight of every linear that reads it divided. A column that is zero in
    the text or in all weights keeps the factor 1.
    """
    weights = torch.stack([linear.weight.detach().abs().amax(0).float() for linear in linears]).amax(0)
    scale = weights.pow(1 - alpha) / absmax.pow(alpha)
    return torch.where((weights > 0) & (absmax > 0) & scale.isfinite() & (scale > 0), scale, 1.0)
