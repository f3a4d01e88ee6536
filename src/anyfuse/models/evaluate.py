"""How good and how fast a language model is: perplexity, tokens per second, bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..nn import QuantLinear

WINDOW = 1024  # tokens that are judged at once


@dataclass(frozen=True)
class Evaluation:
    """Attributes:
    tokens: how many were judged.
    perplexity: exp of the mean cross entropy, in nats, of each token but a window's first.
    prefill: tokens per second of reading `prompt` tokens at once.
    decode: tokens per second of greedy decoding at batch 1 behind them.
    prompt: tokens of the prompt.
    linear_bytes: of the weights of all linears, with their scales; embeddings that are a linear's weight count.
    bytes: of all parameters and buffers.
    """

    tokens: int
    perplexity: float
    prefill: float
    decode: float
    prompt: int
    linear_bytes: int
    bytes: int


@torch.no_grad()
def perplexity(model: Any, ids: Tensor, window: int = WINDOW, advance: Callable[[], None] = lambda: None) -> float:
    """exp of the mean cross entropy of ids (length,), in windows that do not see each other.

    Raises ValueError for less than two tokens.
    """
    if ids.dim() != 1 or ids.shape[0] < 2:
        raise ValueError(f"ids has shape {tuple(ids.shape)}; accepted: one dimension of two tokens or more")
    total, count = 0.0, 0
    for part in ids.split(window):
        if part.shape[0] > 1:
            logits = model(part[None]).logits[0, :-1].float()
            total += torch.nn.functional.cross_entropy(logits, part[1:], reduction="sum").item()
            count += part.shape[0] - 1
        advance()
    return float(torch.tensor(total / count, dtype=torch.float64).exp())


@torch.no_grad()
def prefill_seconds(model: Any, ids: Tensor) -> float:
    """Seconds of one pass over a prompt of ids (length,), to the logits of its last token."""
    start = time.perf_counter()
    model(ids[None], logits_to_keep=1)
    return time.perf_counter() - start


@torch.no_grad()
def decode_seconds(model: Any, ids: Tensor, count: int) -> float:
    """Seconds of `count` tokens of greedy decoding behind a prompt of ids (length,), which is not timed."""
    stamps = []

    class Clock:
        def put(self, _: Tensor) -> None:
            stamps.append(time.perf_counter())

        def end(self) -> None:
            pass

    model.generate(
        ids[None], attention_mask=torch.ones_like(ids[None]), max_new_tokens=count + 1, min_new_tokens=count + 1,
        do_sample=False, pad_token_id=0, streamer=Clock(),
    )  # fmt: skip
    return stamps[-1] - stamps[1]  # the prompt comes first, then the token that ends the prefill


def linear_bytes(model: torch.nn.Module) -> int:
    """Bytes of the linears' weights, biases and scales."""
    return sum(
        tensor.nbytes
        for module in model.modules()
        if isinstance(module, (torch.nn.Linear, QuantLinear))
        for tensor in (*module.parameters(), *module.buffers())
    )


def all_bytes(model: torch.nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def evaluate(model: Any, ids: Tensor, count: int = 32, advance: Callable[[], None] = lambda: None) -> Evaluation:
    """Judges a model on a text's ids (length,)."""
    prompt = ids[:WINDOW]
    value = perplexity(model, ids, advance=advance)
    prefill = min(prefill_seconds(model, prompt) for _ in range(2))
    decode = decode_seconds(model, prompt[:64], count)
    return Evaluation(
        ids.shape[0], value, prompt.shape[0] / prefill, count / decode, prompt.shape[0], linear_bytes(model),
        all_bytes(model),
    )  # fmt: skip
