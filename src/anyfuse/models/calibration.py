"""SmoothQuant: how much of an activation's outliers the weights take over, from a few batches of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


@torch.no_grad()
def observe(model: nn.Module, readers: Mapping[str, nn.Module], batches: Iterable[Any]) -> dict[str, Tensor]:
    """The largest magnitude in each column, (k,) float32, of what the named linears read while the model runs.

    Args:
        model: called with each batch: a tensor of token ids, or a mapping of keyword arguments.
        readers: the linears, by a name of the caller's.

    Raises ValueError when there is no batch, or an activation is not finite.
    """
    seen: dict[str, Tensor] = {}

    def watch(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            absmax = arguments[0].detach().flatten(0, -2).abs().amax(0).float()
            seen[name] = torch.maximum(absmax, seen[name]) if name in seen else absmax

        return hook

    handles = [module.register_forward_pre_hook(watch(name)) for name, module in readers.items()]
    try:
        for batch in batches:
            if isinstance(batch, Mapping):
                model(**batch)
            else:
                model(batch)
    finally:
        for handle in handles:
            handle.remove()
    if readers and not seen:
        raise ValueError("calibration holds no batch; accepted: at least one")
    for name, absmax in seen.items():
        if not absmax.isfinite().all():
            raise ValueError(f"calibration gives infinities or NaN at {name}; accepted: finite activations")
    return seen


def random_tokens(vocabulary: int) -> Tensor:
    """Two batches' worth of token ids, the same ones in every run."""
    return torch.randint(vocabulary, (2, 256), generator=torch.Generator().manual_seed(0))


def smooth_scale(absmax: Tensor, linears: Sequence[nn.Linear], alpha: float) -> Tensor:
    """SmoothQuant's factors of an activation's columns: (max|W_j|)^(1-alpha) / (max|x_j|)^alpha.

    The activation is multiplied by them, and the weight of every linear that reads it divided. A column that is zero in
    the text or in all weights keeps the factor 1.
    """
    weights = torch.stack([linear.weight.detach().abs().amax(0).float() for linear in linears]).amax(0)
    scale = weights.pow(1 - alpha) / absmax.pow(alpha)
    return torch.where((weights > 0) & (absmax > 0) & scale.isfinite() & (scale > 0), scale, 1.0)
