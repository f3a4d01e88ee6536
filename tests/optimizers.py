"""What the tests of all optimizers share: the classes in their variants, small models, and training runs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anyfuse._bits import same_bits
from anyfuse.optim import AdamW8bit, EMAAdamW, LazyAdam

#: Every optimizer, in the variants whose state or numbers differ.
VARIANTS: dict[str, Callable[..., Any]] = {
    "AdamW8bit": AdamW8bit,
    "AdamW8bit stochastic": partial(AdamW8bit, stochastic_rounding=True),
    "EMAAdamW": EMAAdamW,
    "EMAAdamW stochastic": partial(EMAAdamW, stochastic_rounding=True, ema_dtype=torch.bfloat16),
    "EMAAdamW 8-bit": partial(EMAAdamW, state_bits=8),
    "LazyAdam": LazyAdam,
    "LazyAdam by row, stochastic": partial(LazyAdam, bias_correction="row", stochastic_rounding=True),
    "LazyAdam catching up": partial(LazyAdam, decay_mode="catch_up", weight_decay=0.1),
}
CLASSES = (AdamW8bit, EMAAdamW)


def model(dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    """8 192 weights (8-bit state) and 128 biases (fp32 state), and a small layer behind."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 3)).to(dtype)


def give_gradients(params: Iterable[Tensor], step: int) -> None:
    """Gradients that depend on the number of the step alone."""
    generator = torch.Generator().manual_seed(1000 + step)
    for param in params:
        param.grad = (torch.randn(param.shape, generator=generator) * 1e-2).to(param.dtype)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: Iterable[int]) -> None:
    for step in steps:
        give_gradients(model.parameters(), step)
        optimizer.step()


def values(model: nn.Module) -> list[Tensor]:
    return [param.detach().clone() for param in model.parameters()]


def equal(some: Iterable[Tensor], others: Iterable[Tensor]) -> bool:
    return all(same_bits(a.detach(), b.detach()) for a, b in zip(some, others, strict=True))


def snapshot(optimizer: torch.optim.Optimizer) -> Any:
    """All that an optimizer would save, copied."""
    return copy.deepcopy(optimizer.state_dict())


def same(a: Any, b: Any) -> bool:
    """Equality of nested states, bit for bit, with dtypes."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and same_bits(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def parameter(*values: float, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=dtype))
