"""Smooth scales: how much of an activation's outliers the weights take over, from a few batches of text.

Two ways to choose them. SmoothQuant's formula balances the largest magnitudes of an activation's columns and of the
weights that read them. `fitted_scale` begins with it and descends on the error that rounding is expected to make.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

ROWS = 2048  # of an activation that are kept; few rows would fit a factor for each column to chance
STEPS, RATE = 40, 0.1  # of the descent on the scales' logarithms


@dataclass
class Seen:
    """What a linear read: the largest magnitude in each column, (k,) float32, and the first rows, where kept."""

    absmax: Tensor
    rows: list[Tensor]


@torch.no_grad()
def observe(
    model: nn.Module, readers: Mapping[str, nn.Module], batches: Iterable[Any], keep: Collection[str] = ()
) -> dict[str, Seen]:
    """Watches what the named linears read while the model runs.

    Args:
        model: called with each batch: a tensor of token ids, or a mapping of keyword arguments.
        readers: the linears, by a name of the caller's.
        keep: the names of those whose rows are kept: `ROWS`, in the model's dtype.

    Raises ValueError when there is no batch, or an activation is not finite.
    """
    seen: dict[str, Seen] = {}

    def watch(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            rows = arguments[0].detach().flatten(0, -2)
            absmax = rows.abs().amax(0).float()
            one = seen.setdefault(name, Seen(absmax, []))
            one.absmax = torch.maximum(one.absmax, absmax)
            room = ROWS - sum(len(kept) for kept in one.rows)
            if name in keep and room > 0:
                one.rows.append(rows[:room].clone())

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
    for name, one in seen.items():
        if not one.absmax.isfinite().all():
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


def fitted_scale(seen: Seen, linears: Sequence[nn.Linear]) -> Tensor:
    """Factors of an activation's columns that make the products' expected error small, found on the rows seen.

    With step Δ_i = max_j |x_ij s_j| / 127 of row i and Δ'_n = max_j |W_nj / s_j| / 127 of output n, and each rounding a
    chance of its own, even within its step, the squared errors of row i's products sum up to

        Δ_i² / 12 · Σ_j |W_j|² / s_j²  +  Σ_n Δ'_n² / 12 · Σ_j x_ij² s_j²

    where |W_j|² is the sum of column j's squares. Its mean over the rows, each divided by the squares of its exact
    products, is descended upon (Adam, on log s) from SmoothQuant's scales at alpha 0.5. Every other run of rows is held
    back, and the scales with the least error on those are taken: a factor for each column can fit what only some rows
    have. Columns that are zero in the text or in all weights keep the factor 1.

    It is for what a norm gives. Behind an activation function most codes are 0, and their error is no chance: there the
    sum misleads, and SmoothQuant's scales are measured to be better.

    Sources: SmoothQuant balances the errors of both sides by a factor for each column; AWQ chooses factors by the error
    of the products on a text's rows. The descent on the expected error is our own.
    """
    scale = smooth_scale(seen.absmax, linears, 0.5)
    runs = torch.cat(seen.rows).float().chunk(8)
    if len(runs) < 2:
        return scale
    weight = torch.cat([linear.weight.detach().float() for linear in linears])
    fit, held = (Rounding(torch.cat(part), weight) for part in (runs[::2], runs[1::2]))
    free = (seen.absmax > 0) & (weight.abs().amax(0) > 0)
    best, least = scale, held(scale)[0]
    logs, mean, square = scale.log(), torch.zeros_like(scale), torch.zeros_like(scale)
    for step in range(1, STEPS + 1):
        slope = torch.where(free, fit(logs.exp())[1], 0.0)
        mean = 0.9 * mean + 0.1 * slope
        square = 0.95 * square + 0.05 * slope.square()
        rate = RATE * (1 - (step - 1) / STEPS)
        logs = logs - rate * (mean / (1 - 0.9**step)) / ((square / (1 - 0.95**step)).sqrt() + 1e-12)
        if step % 4 == 0:
            error = held(logs.exp())[0]
            if error < least:
                best, least = logs.exp(), error
    return best


class Rounding:
    """The expected error of rows (r, k) times a weight (n, k), both in int8, by their smooth scale."""

    def __init__(self, rows: Tensor, weight: Tensor) -> None:
        exact = (rows @ weight.T).square().sum(1)
        share = 1 / (exact + 1e-3 * exact.mean()).clamp(min=torch.finfo(torch.float32).tiny)
        self.share = share / share.sum()
        self.rows, self.weight = rows.abs(), weight.abs()
        self.row_squares, self.weight_squares = self.share @ rows.square(), weight.square().sum(0)

    def __call__(self, scale: Tensor) -> tuple[float, Tensor]:
        """The error, up to a factor, and the slope (k,) of its logarithm by the scales' logarithms.

        A step's slope is all in the column that has the largest magnitude.
        """
        largest, column = (self.rows * scale).max(1)
        row_steps, from_rows = self.share * largest.square(), self.weight_squares / scale.square()
        widest, place = (self.weight / scale).max(1)
        weight_steps, from_weights = widest.square(), self.row_squares * scale.square()
        of_rows, of_weights = row_steps.sum() * from_rows.sum(), weight_steps.sum() * from_weights.sum()
        slope = torch.zeros_like(scale).index_add_(0, column, row_steps) * from_rows.sum()
        slope -= row_steps.sum() * from_rows
        slope -= torch.zeros_like(scale).index_add_(0, place, weight_steps) * from_weights.sum()
        slope += weight_steps.sum() * from_weights
        error = of_rows + of_weights
        return error.item(), 2 * slope / error
