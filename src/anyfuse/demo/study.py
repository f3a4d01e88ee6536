"""The demo's work from text to figures: trainings, the trained model on quantized operators, what must hold."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from .inference import W8A8, QuantizedNorm, generate
from .model import Config, Model
from .text import build_vocabulary, corpus
from .training import (
    Run,
    Scheduled,
    draw_batches,
    eight_bit_and_lazy,
    ema_adamw,
    predictions,
    torch_adamw,
    train,
    validation_loss,
)

STEPS = 500
VOCABULARY = 3072
BATCH = 8
PROMPT = "The statement"
GENERATED = 64

LIMITS = {
    "fused EMA AdamW against torch AdamW": 0.02,
    "8-bit AdamW + lazy Adam against torch AdamW": 0.03,
    "quantized norm against float": 0.01,
    "W8A8 against float": 0.01,
}
"""The figures that must hold: how far two losses may be apart, relative to the second."""

Progress = Callable[[str, int, float], None]
"""Told of every step: the training's name, the step, its loss."""


@dataclass(frozen=True)
class Check:
    """A figure that must hold."""

    name: str
    value: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.value <= self.limit  # False for NaN


@dataclass(frozen=True)
class Study:
    """All figures. Those under `figures` are the same in every run of the same seed, machine and thread count."""

    figures: dict[str, Any]
    seconds: dict[str, Any]
    checks: list[Check]

    def to_json(self) -> dict[str, Any]:
        checks = [{**asdict(check), "passed": check.passed} for check in self.checks]
        return {"figures": self.figures, "checks": checks, "seconds": self.seconds}


def perform(steps: int, seed: int, progress: Progress) -> Study:
    start = time.perf_counter()
    training_text, held_out_text = corpus()
    vocabulary = build_vocabulary(training_text, VOCABULARY)
    tokens, held_out = vocabulary.encode(training_text), vocabulary.encode(held_out_text)
    config = Config(len(vocabulary))
    batches = draw_batches(tokens, steps, BATCH, config, seed)

    def run(name: str, model: Model, optimizer: Any) -> Run:
        return train(Run(name, model), optimizer, batches, held_out, lambda step, loss: progress(name, step, loss))

    model = Model(config, seed)
    adamw = run("torch AdamW", model, torch_adamw(model))
    model = Model(config, seed)
    ema = ema_adamw(model)
    fused = run("fused EMA AdamW", model, Scheduled(ema))
    model = Model(config, seed, sparse=True)
    optimizer, lazy = eight_bit_and_lazy(model)
    lowbit = run("8-bit AdamW + lazy Adam", model, optimizer)
    runs = [adamw, fused, lowbit]

    trainings = {run.name: run.figures() for run in runs}
    averaged = copy.deepcopy(fused.model)
    averaged.load_state_dict(ema.ema_state_dict(fused.model))
    trainings[fused.name]["ema_validation_loss"] = validation_loss(averaged, held_out)
    float_loss, float_tokens = predictions(fused.model, held_out)
    norm_loss, norm_tokens = predictions(fused.model, held_out, QuantizedNorm())
    w8a8 = W8A8(fused.model)
    w8a8_loss, w8a8_tokens = predictions(fused.model, held_out, w8a8)
    prompt = vocabulary.encode(PROMPT)
    float_text, w8a8_text = (
        vocabulary.decode(generate(fused.model, prompt, GENERATED, seed, **how).tolist())
        for how in ({}, {"arithmetic": w8a8})
    )
    figures = {
        "steps": steps,
        "seed": seed,
        "threads": torch.get_num_threads(),
        "batch": [BATCH, config.context],
        "parameters": fused.model.size(),
        "vocabulary": len(vocabulary),
        "training_tokens": len(tokens),
        "held_out_tokens": len(held_out),
        "trainings": trainings,
        "embedding_rows_touched": lazy.share_touched,
        "inference": {
            "float": {"loss": float_loss},
            "quantized norm": {"loss": norm_loss, "agreement": agreement(norm_tokens, float_tokens)},
            "W8A8": {"loss": w8a8_loss, "agreement": agreement(w8a8_tokens, float_tokens)},
        },
        "text": {"prompt": PROMPT, "float": float_text, "W8A8": w8a8_text},
    }
    pairs = [(fused.loss, adamw.loss), (lowbit.loss, adamw.loss), (norm_loss, float_loss), (w8a8_loss, float_loss)]
    checks = [Check(name, apart(*pair), limit) for (name, limit), pair in zip(LIMITS.items(), pairs, strict=True)]
    seconds = {"trainings": {run.name: run.times() for run in runs}, "total": time.perf_counter() - start}
    return Study(figures, seconds, checks)


def agreement(some: Tensor, others: Tensor) -> float:
    """The share of equal tokens."""
    return float((some == others).double().mean())


def apart(loss: float, other: float) -> float:
    return abs(loss / other - 1)
