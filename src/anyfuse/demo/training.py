"""The trainings: the same model, seed and batches under different optimizers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from statistics import median
from typing import Any, Protocol

import torch
from torch import Tensor

from .. import optim
from ..optim import AdamW8bit, EMAAdamW
from .model import FLOAT, Arithmetic, Config, Model, loss

BETAS = (0.9, 0.98)
EPS = 1e-8
WEIGHT_DECAY = 0.1
PEAK_LR = 3e-3
EMA_DECAY = 0.95
WARM_UP = 0.1
"""The share of the steps in which the learning rate rises; then it falls along a cosine to a hundredth."""

LAZY_LR = 3.0
"""The embedding's learning rate under lazy Adam, relative to that of dense AdamW. Dense momentum goes on moving a row
long after its token was seen, up to 1/(1 - beta1) times as far; lazy momentum acts only when the token comes again."""


def learning_rate(step: int, steps: int) -> float:
    """Of the step `step` = 1 … `steps`."""
    rise = max(1, round(steps * WARM_UP))
    if step <= rise:
        return PEAK_LR * step / rise
    progress = (step - rise) / (steps - rise)
    return PEAK_LR * (0.01 + 0.99 * (1 + math.cos(math.pi * progress)) / 2)


# ---- optimizers ----


class Optimizer(Protocol):
    """What a training needs of its optimizer. Step numbers begin at 1; `step` uses up the gradients."""

    def step(self, step: int, lr: float) -> None: ...

    def state(self) -> list[Tensor]: ...


OPTIONS: dict[str, Any] = {"lr": PEAK_LR, "betas": BETAS, "eps": EPS, "weight_decay": WEIGHT_DECAY}


class Scheduled:
    """An optimizer with torch's interface, given the learning rate of each step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self, step: int, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> list[Tensor]:
        entries = [item for state in self.optimizer.state.values() for item in state.items()]
        return [value for key, value in entries if key != "step"]


def torch_adamw(model: Model) -> Scheduled:
    """The yardstick."""
    return Scheduled(torch.optim.AdamW(model.parameters(), **OPTIONS))


def ema_adamw(model: Model) -> EMAAdamW:
    """AdamW and a moving average of the weights in one pass over all parameters."""
    return EMAAdamW(model.parameters(), ema_decay=EMA_DECAY, ema_warmup=False, **OPTIONS)


class LazyAdam(Scheduled):
    """`anyfuse.optim.LazyAdam` for an embedding with sparse gradients. Rows that no token named cost nothing."""

    def __init__(self, table: Tensor) -> None:
        super().__init__(optim.LazyAdam([table], lr=PEAK_LR, betas=BETAS, eps=EPS))
        self.table = table
        self.touched: list[int] = []

    def step(self, step: int, lr: float) -> None:
        if self.table.grad is None:
            raise ValueError("the table has no gradient: run backward before the step")
        self.touched.append(len(self.table.grad._indices().unique()))
        super().step(step, LAZY_LR * lr)

    @property
    def share_touched(self) -> float:
        """The mean share of the table's rows that a step named."""
        return sum(self.touched) / len(self.touched) / len(self.table)


class Together:
    """Several optimizers, each for its part of the parameters."""

    def __init__(self, *parts: Optimizer) -> None:
        self.parts = parts

    def step(self, step: int, lr: float) -> None:
        for part in self.parts:
            part.step(step, lr)

    def state(self) -> list[Tensor]:
        return list(chain.from_iterable(part.state() for part in self.parts))


def eight_bit_and_lazy(model: Model) -> tuple[Together, LazyAdam]:
    """Lazy Adam for the embedding; for the rest AdamW with 8-bit moments (the gains of the norms keep float32 ones)."""
    lazy = LazyAdam(model.embedding.weight)
    rest = [p for p in model.parameters() if p is not model.embedding.weight]
    return Together(Scheduled(AdamW8bit(rest, **OPTIONS)), lazy), lazy


# ---- training ----


@dataclass
class Run:
    """One training: the model it leaves, and what was seen on the way."""

    name: str
    model: Model
    training_loss: list[float] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    optimizer_seconds: list[float] = field(default_factory=list)
    state_bytes: int = 0

    @property
    def loss(self) -> float:
        """The validation loss at the end."""
        return self.validation[-1][1]

    def figures(self) -> dict[str, Any]:
        """What is the same in every run of the same seed on the same machine."""
        return {
            "validation_loss": self.loss,
            "state_bytes": self.state_bytes,
            "state_bytes_per_parameter": self.state_bytes / self.model.size(),
            "curves": {"training_loss": self.training_loss, "validation_loss": self.validation},
        }

    def times(self) -> dict[str, float]:
        """Medians, in seconds."""
        return {"step": median(self.seconds), "optimizer": median(self.optimizer_seconds)}


def train(
    run: Run, optimizer: Optimizer, batches: list[Tensor], held_out: Tensor, advance: Callable[[int, float], None]
) -> Run:
    """Trains the run's model on the batches, one step each; `advance(step, training loss)` is told of every step."""
    steps = len(batches)
    every = max(1, steps // 10)
    for step, batch in enumerate(batches, 1):
        start = time.perf_counter()
        value = loss(run.model(batch[:, :-1]), batch[:, 1:])
        value.backward()
        gradients_ready = time.perf_counter()
        optimizer.step(step, learning_rate(step, steps))
        end = time.perf_counter()
        run.training_loss.append(float(value.detach()))
        run.seconds.append(end - start)
        run.optimizer_seconds.append(end - gradients_ready)
        if step % every == 0 or step == steps:
            run.validation.append((step, validation_loss(run.model, held_out)))
        advance(step, run.training_loss[-1])
    run.state_bytes = sum(tensor.numel() * tensor.element_size() for tensor in optimizer.state())
    return run


def draw_batches(ids: Tensor, steps: int, size: int, config: Config, seed: int) -> list[Tensor]:
    """`steps` batches (size, context + 1) of windows at random places."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(ids) - config.context, (steps, size, 1), generator=generator)
    return list(ids[starts + torch.arange(config.context + 1)])


def windows(ids: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """All of `ids` as (count, context) inputs and the tokens that follow them; a short rest is left out."""
    count = (len(ids) - 1) // context
    return ids[: count * context].view(count, context), ids[1 : count * context + 1].view(count, context)


@torch.no_grad()
def predictions(model: Model, ids: Tensor, arithmetic: Arithmetic = FLOAT) -> tuple[float, Tensor]:
    """The mean loss on all of `ids`, and the model's next token at each place."""
    inputs, targets = windows(ids, model.config.context)
    total, tokens = 0.0, []
    for some, following in zip(inputs.split(32), targets.split(32), strict=True):
        logits = model(some, arithmetic)
        total += float(loss(logits, following)) * len(some)
        tokens.append(logits.argmax(-1))
    return total / len(inputs), torch.cat(tokens)


def validation_loss(model: Model, ids: Tensor, arithmetic: Arithmetic = FLOAT) -> float:
    """The mean loss on all of `ids`, in nats a token."""
    return predictions(model, ids, arithmetic)[0]
