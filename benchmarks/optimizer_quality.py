"""What 8-bit state, an EMA and 16-bit weights cost in loss: the demo's model trained in pairs with torch's AdamW.

    python benchmarks/optimizer_quality.py --json benchmarks/results/NAME.json --plot benchmarks/results/NAME.png

Each seed gives the initial weights and the batches of one training a way, so that a way and its yardstick, torch AdamW
in float32 (for the EMA: torch's AveragedModel over it), differ in the optimizer alone. Printed is the mean over the
seeds of the relative difference of the validation losses, with its 95 % confidence interval (Student's t). Weights of
bfloat16 are widened to float32 for the forward pass: the differences are those of storing and updating them.

The file is written after each training; the same command goes on where an interrupted one stopped.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from torch.func import functional_call
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from anyfuse.cli import machine
from anyfuse.demo.model import Config, Model, loss
from anyfuse.demo.study import BATCH, STEPS, VOCABULARY
from anyfuse.demo.text import build_vocabulary, corpus
from anyfuse.demo.training import BETAS, EMA_DECAY, EPS, WEIGHT_DECAY, draw_batches, learning_rate, validation_loss
from anyfuse.optim import AdamW8bit, EMAAdamW

OPTIONS: dict[str, Any] = {"betas": BETAS, "eps": EPS, "weight_decay": WEIGHT_DECAY}
Make = Callable[[Any], torch.optim.Optimizer]


def adamw_fp32_state(params: Any, **options: Any) -> torch.optim.Optimizer:
    return AdamW8bit([{"params": list(params), "state_bits": 32}], **options)


BASE = "torch AdamW"
#: A way: the dtype of the weights, and its optimizer.
WAYS: dict[str, tuple[torch.dtype, Make]] = {
    BASE: (torch.float32, partial(torch.optim.AdamW, **OPTIONS)),
    "AdamW8bit": (torch.float32, partial(AdamW8bit, **OPTIONS)),
    "EMAAdamW": (torch.float32, partial(EMAAdamW, ema_decay=EMA_DECAY, ema_warmup=False, **OPTIONS)),
    "bf16, stochastic": (torch.bfloat16, partial(adamw_fp32_state, stochastic_rounding=True, **OPTIONS)),
    "bf16, nearest": (torch.bfloat16, partial(adamw_fp32_state, **OPTIONS)),
    "AdamW8bit, bf16, stochastic": (torch.bfloat16, partial(AdamW8bit, stochastic_rounding=True, **OPTIONS)),
}
EMA, BASE_EMA = "EMAAdamW, its EMA", "torch AdamW, AveragedModel"
YARDSTICKS = {EMA: BASE_EMA}

#: Student's t, 97.5 %, for 1, 2, ... degrees of freedom.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)

Losses = dict[str, list[float]]


def main(
    steps: Annotated[int, typer.Option(min=10, help="Steps of a training; the default is the demo's.")] = STEPS,
    seeds: Annotated[int, typer.Option(min=2, max=len(T) + 1, help="Trainings of each way.")] = 5,
    json_file: Annotated[Path | None, typer.Option("--json", help="Keep all losses here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the differences here.")] = None,
) -> None:
    training_text, held_out_text = corpus()
    vocabulary = build_vocabulary(training_text, VOCABULARY)
    tokens, held_out = vocabulary.encode(training_text), vocabulary.encode(held_out_text)
    config = Config(len(vocabulary))
    done = read(json_file, steps)
    for seed, way in todo(seeds, done):
        start = time.perf_counter()
        batches = draw_batches(tokens, steps, BATCH, config, seed)
        found = train(way, config, seed, batches, held_out)
        done[f"{way}, seed {seed}"] = found
        print(f"seed {seed}, {time.perf_counter() - start:.0f} s: {shown(found)}", flush=True)
        write(json_file, steps, done, {})
    losses: Losses = {}
    for seed in range(seeds):
        for way in WAYS:
            for name, value in done[f"{way}, seed {seed}"].items():
                losses.setdefault(name, []).append(value)
    differences = {
        name: compare(values, losses[YARDSTICKS.get(name, BASE)])
        for name, values in losses.items()
        if name not in (BASE, BASE_EMA)
    }
    for name, (center, half) in differences.items():
        print(f"{name:30} {100 * center:+.3f} % ± {100 * half:.3f} %")
    write(json_file, steps, done, differences)
    if plot:
        draw(differences, steps, seeds, plot)


def todo(seeds: int, done: dict[str, Any]) -> Iterator[tuple[int, str]]:
    return ((seed, way) for seed in range(seeds) for way in WAYS if f"{way}, seed {seed}" not in done)


def read(file: Path | None, steps: int) -> dict[str, dict[str, float]]:
    """The trainings of an interrupted run."""
    if file is None or not file.exists():
        return {}
    given = json.loads(file.read_text())
    if given["steps"] != steps:
        raise typer.BadParameter(f"{file} holds trainings of {given['steps']} steps, not of {steps}")
    trainings: dict[str, dict[str, float]] = given["trainings"]
    return trainings


def write(
    file: Path | None, steps: int, trainings: dict[str, Any], differences: dict[str, tuple[float, float]]
) -> None:
    if file is None:
        return
    figures = {name: {"mean": center, "half_interval": half} for name, (center, half) in differences.items()}
    whole = {"machine": machine(), "steps": steps, "trainings": trainings, "differences": figures}
    part = file.with_suffix(".part")
    part.write_text(json.dumps(whole, indent=2) + "\n")
    os.replace(part, file)


def train(way: str, config: Config, seed: int, batches: list[Tensor], held_out: Tensor) -> dict[str, float]:
    """The validation loss after a training, and that of the moving average where there is one."""
    dtype, make = WAYS[way]
    torch.manual_seed(seed)
    model = Model(config, seed).to(dtype)
    optimizer = make(model.parameters())
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(EMA_DECAY)) if way == BASE else None
    for step, batch in enumerate(batches, 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, len(batches))
        wide = {name: param.float() for name, param in model.named_parameters()}
        loss(functional_call(model, wide, (batch[:, :-1],)), batch[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
        if averaged is not None:
            averaged.update_parameters(model)
    result = {way: _validation_loss(config, model.state_dict(), held_out)}
    if averaged is not None:
        result[BASE_EMA] = _validation_loss(config, averaged.module.state_dict(), held_out)
    if isinstance(optimizer, EMAAdamW):
        result[EMA] = _validation_loss(config, optimizer.ema_state_dict(model), held_out)
    return result


def _validation_loss(config: Config, weights: dict[str, Any], held_out: Tensor) -> float:
    model = Model(config, 0)
    model.load_state_dict(weights)
    return validation_loss(model, held_out)


def compare(losses: list[float], base: list[float]) -> tuple[float, float]:
    """The mean relative difference of the pairs, and half the width of its confidence interval."""
    differences = [value / other - 1 for value, other in zip(losses, base, strict=True)]
    return mean(differences), T[len(differences) - 2] * stdev(differences) / math.sqrt(len(differences))


def shown(losses: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in losses.items())


def draw(differences: dict[str, tuple[float, float]], steps: int, seeds: int, file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    names = list(differences)[::-1]
    centers = [100 * differences[name][0] for name in names]
    axes.errorbar(centers, names, xerr=[100 * differences[name][1] for name in names], fmt="o", capsize=4)
    axes.axvspan(-0.5, 0.5, alpha=0.15)
    axes.axvline(0.0, linewidth=0.8)
    axes.set_xlabel(f"validation loss against torch's AdamW in float32, %\n95 % interval, {seeds} seeds, {steps} steps")
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    typer.run(main)
