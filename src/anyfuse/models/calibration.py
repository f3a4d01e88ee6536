"""SmoothQuant: how much of an activation's outliers the weights take over, from a few batches of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..nn import QuantLinear

ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
ROWS = 512  # rows of an activation that a search of alpha looks at


@dataclass
class Activation:
    """What calibration saw of the activation that some linears read.

    Attributes:
        absmax: (k,), the largest magnitude in each column.
        rows: (up to ROWS, k), some of its rows, evenly from the first batches.
    """

    absmax: Tensor
    rows: Tensor


@torch.no_grad()
def observe(model: nn.Module, readers: Mapping[str, nn.Module], batches: Iterable[Any]) -> dict[str, Activation]:
    """What the named linears read while the model runs on the batches.

    Args:
        model: called with each batch: a tensor of token ids, or a mapping of keyword arguments.
        readers: the linears, by a name of the caller's.

    Raises ValueError when there is no batch, or an activation is not finite.
    """
    seen: dict[str, Activation] = {}

    def watch(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            rows = arguments[0].detach().flatten(0, -2).float()
            absmax = rows.abs().amax(0)
            sample = rows[:: -(-rows.shape[0] // (ROWS // 2))]
            if name in seen:
                absmax = torch.maximum(absmax, seen[name].absmax)
                sample = torch.cat([seen[name].rows, sample])[:ROWS]
            seen[name] = Activation(absmax, sample.clone())

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
    for name, activation in seen.items():
        if not activation.absmax.isfinite().all():
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


def best_linear(linears: Sequence[nn.Linear], seen: Activation, alphas: Sequence[float]) -> QuantLinear:
    """The quantized linear whose smooth scales, of those of `alphas`, leave the smallest error on the rows seen."""
    made = [QuantLinear.from_float(linears, smooth_scale=smooth_scale(seen.absmax, linears, alpha)) for alpha in alphas]
    if len(made) == 1:
        return made[0]
    exact = torch.cat([nn.functional.linear(seen.rows, one.weight.float()) for one in linears], -1)
    bias = made[0].bias
    exact = exact if bias is None else exact + bias.float()
    errors = [float((one(seen.rows) - exact).square().sum()) for one in made]
    return made[errors.index(min(errors))]
