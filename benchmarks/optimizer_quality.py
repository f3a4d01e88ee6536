"""What 8-bit state, an EMA and 16-bit weights cost in loss: the demo's model trained in pairs with torch's AdamW.

    python benchmarks/optimizer_quality.py --json quality.json --plot quality.png

Each seed gives the initial weights and the batches of one training a way, so that a way and torch AdamW (float32)
differ in the optimizer alone. Printed is the mean over the seeds of the relative difference of the validation losses,
with its 95 % confidence interval (Student's t). Weights of bfloat16 are widened to float32 for the forward pass: the
differences are those of storing and updating them.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from torch.func import functional_call

from anyfuse.demo.model import Config, Model, loss
from anyfuse.demo.study import BATCH, VOCABULARY
from anyfuse.demo.text import build_vocabulary, corpus
from anyfuse.demo.training import BETAS, EPS, WEIGHT_DECAY, draw_batches, learning_rate, validation_loss
from anyfuse.optim import AdamW8bit, EMAAdamW

OPTIONS: dict[str, Any] = {"betas": BETAS, "eps": EPS, "weight_decay": WEIGHT_DECAY}
EMA_DECAY = 0.95
BASE = "torch AdamW"

Make = Callable[[Any], torch.optim.Optimizer]

#: A way: the dtype of the weights, and its optimizer.
WAYS: dict[str, tuple[torch.dtype, Make]] = {
    BASE: (torch.float32, lambda params: torch.optim.AdamW(params, **OPTIONS)),
    "AdamW8bit": (torch.float32, lambda params: AdamW8bit(params, **OPTIONS)),
    "EMAAdamW": (torch.float32, lambda params: EMAAdamW(params, ema_decay=EMA_DECAY, **OPTIONS)),
    "AdamW8bit, bf16, stochastic": (
        torch.bfloat16,
        lambda params: AdamW8bit(params, stochastic_rounding=True, **OPTIONS),
    ),
    "AdamW8bit, bf16, nearest": (torch.bfloat16, lambda params: AdamW8bit(params, **OPTIONS)),
}

#: Student's t, 97.5 %, for 1, 2, ... degrees of freedom.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def main(
    steps: Annotated[int, typer.Option(min=10, help="Steps of a training.")] = 150,
    seeds: Annotated[int, typer.Option(min=2, max=len(T) + 1, help="Trainings of each way.")] = 5,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all losses here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the differences here.")] = None,
) -> None:
    training_text, held_out_text = corpus()
    vocabulary = build_vocabulary(training_text, VOCABULARY)
    tokens, held_out = vocabulary.encode(training_text), vocabulary.encode(held_out_text)
    config = Config(len(vocabulary))
    losses: dict[str, list[float]] = {}
    start = time.perf_counter()
    for seed in range(seeds):
        batches = draw_batches(tokens, steps, BATCH, config, seed)
        for way, (dtype, make) in WAYS.items():
            for name, value in train(way, dtype, make, config, seed, batches, held_out).items():
                losses.setdefault(name, []).append(value)
        print(f"seed {seed}, {time.perf_counter() - start:.0f} s: {shown(losses)}")
    differences = {name: compare(values, losses[BASE]) for name, values in losses.items() if name != BASE}
    for name, (center, half) in differences.items():
        print(f"{name:30} {100 * center:+.2f} % ± {100 * half:.2f} %")
    if json_file:
        figures = {name: {"mean": center, "half_interval": half} for name, (center, half) in differences.items()}
        json_file.write_text(json.dumps({"steps": steps, "losses": losses, "differences": figures}, indent=2))
    if plot:
        draw(differences, steps, seeds, plot)


def train(
    way: str, dtype: torch.dtype, make: Make, config: Config, seed: int, batches: list[Tensor], held_out: Tensor
) -> dict[str, float]:
    """The validation loss after a training, and that of the EMA where there is one."""
    torch.manual_seed(seed)
    model = Model(config, seed).to(dtype)
    optimizer = make(model.parameters())
    for step, batch in enumerate(batches, 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, len(batches))
        wide = {name: param.float() for name, param in model.named_parameters()}
        loss(functional_call(model, wide, (batch[:, :-1],)), batch[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    trained = model.state_dict()
    evaluated = Model(config, seed)
    evaluated.load_state_dict(trained)
    result = {way: validation_loss(evaluated, held_out)}
    if isinstance(optimizer, EMAAdamW):
        evaluated.load_state_dict(optimizer.ema_state_dict(model))
        result["EMAAdamW, the EMA"] = validation_loss(evaluated, held_out)
    return result


def compare(losses: list[float], base: list[float]) -> tuple[float, float]:
    """The mean relative difference of the pairs, and half the width of its confidence interval."""
    differences = [value / other - 1 for value, other in zip(losses, base, strict=True)]
    return mean(differences), T[len(differences) - 2] * stdev(differences) / math.sqrt(len(differences))


def shown(losses: dict[str, list[float]]) -> str:
    return ", ".join(f"{name} {values[-1]:.4f}" for name, values in losses.items())


def draw(differences: dict[str, tuple[float, float]], steps: int, seeds: int, file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    names = list(differences)[::-1]
    centers = [100 * differences[name][0] for name in names]
    axes.errorbar(centers, names, xerr=[100 * differences[name][1] for name in names], fmt="o", capsize=4)
    axes.axvspan(-0.5, 0.5, alpha=0.15)
    axes.axvline(0.0, linewidth=0.8)
    axes.set_xlabel(f"validation loss against torch AdamW in float32, % (95 % interval, {seeds} seeds, {steps} steps)")
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    typer.run(main)
