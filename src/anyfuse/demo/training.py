"""The trainings: the same model, seed and batches under different optimizers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

import torch
from torch import Tensor, nn

import anyfuse

from .model import Config, Model, loss

BETAS = (0.9, 0.98)
EPS = 1e-8
WEIGHT_DECAY = 0.1
PEAK_LR = 3e-3
WARM_UP = 0.1
"""The share of the steps in which the learning rate rises; then it falls along a cosine to a hundredth."""


def learning_rate(step: int, steps: int) -> float:
    """Of the step `step` = 1 … `steps`."""
    rise = max(1, round(steps * WARM_UP))
    if step <= rise:
        return PEAK_LR * step / rise
    progress = (step - rise) / (steps - rise)
    return PEAK_LR * (0.01 + 0.99 * (1 + math.cos(math.pi * progress)) / 2)


# ---- optimizers ----


class Optimizer(Protocol):
    """What a training needs of its optimizer. Step numbers begin at 1."""

    sparse: bool

    def step(self, step: int, lr: float) -> None: ...

    def state(self) -> list[Tensor]: ...


class TorchAdamW:
    """`torch.optim.AdamW`, the yardstick."""

    sparse = False

    def __init__(self, model: Model) -> None:
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=PEAK_LR, betas=BETAS, eps=EPS, weight_decay=WEIGHT_DECAY
        )

    def step(self, step: int, lr: float) -> None:
        self.optimizer.param_groups[0]["lr"] = lr
        self.optimizer.step()

    def state(self) -> list[Tensor]:
        states = self.optimizer.state.values()
        return [state[name] for state in states for name in ("exp_avg", "exp_avg_sq")]


class FusedEmaAdamW:
    """`anyfuse.apply_fused_ema_adamw_`: AdamW that keeps a moving average of the weights in the same pass."""

    sparse = False

    def __init__(self, model: Model, ema_decay: float) -> None:
        self.ema_decay = ema_decay
        self.parameters = list(model.parameters())
        self.m = [torch.zeros_like(p) for p in self.parameters]
        self.v = [torch.zeros_like(p) for p in self.parameters]
        self.ema = [p.detach().clone() for p in self.parameters]

    def step(self, step: int, lr: float) -> None:
        anyfuse.apply_fused_ema_adamw_(
            [p.grad for p in self.parameters], [p.data for p in self.parameters], self.m, self.v, self.ema, step,
            lr=lr, ema_decay=self.ema_decay, beta1=BETAS[0], beta2=BETAS[1], eps=EPS, weight_decay=WEIGHT_DECAY,
        )  # fmt: skip

    def state(self) -> list[Tensor]:
        return [*self.m, *self.v, *self.ema]


# ---- training ----


@dataclass
class Run:
    """One training: the model it leaves and what was seen on the way."""

    name: str
    model: Model
    training_loss: list[float] = field(default_factory=list)
    validation_loss: list[tuple[int, float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    optimizer_seconds: list[float] = field(default_factory=list)
    state_bytes: int = 0

    @property
    def state_bytes_per_parameter(self) -> float:
        return self.state_bytes / sum(p.numel() for p in self.model.parameters())

    @property
    def seconds_per_step(self) -> float:
        return median(self.seconds)


def batches(ids: Tensor, steps: int, size: int, context: int, seed: int) -> list[Tensor]:
    """`steps` batches (size, context + 1) of windows at random places."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(ids) - context, (steps, size, 1), generator=generator)
    return list(ids[starts + torch.arange(context + 1)])


@torch.no_grad()
def validation_loss(model: Model, ids: Tensor, **options) -> float:
    """Mean loss on all of `ids`, cut into windows of the context."""
    context = model.config.context
    count = (len(ids) - 1) // context
    inputs, targets = ids[: count * context].view(count, context), ids[1 : count * context + 1].view(count, context)
    parts = [loss(model(i, **options), t) * len(i) for i, t in zip(inputs.split(32), targets.split(32))]
    return float(sum(parts)) / count
