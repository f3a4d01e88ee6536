"""The trained model on the quantized operators, and text from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import anyfuse

from .model import EPSILON, FLOAT, Arithmetic, Float, Model


class QuantizedNorm(Float):
    """Residual add + norm by `anyfuse.add_rms_norm_dynamic_quant`; its int8 rows, dequantized, feed float linears."""

    def add_norm(self, residual: Tensor, delta: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        codes, _, residual, scale, _ = anyfuse.add_rms_norm_dynamic_quant(residual, delta, gain, epsilon=EPSILON)
        return residual, codes * scale.unsqueeze(-1)


@dataclass(frozen=True)
class Rows:
    """int8 rows and the scale of each."""

    codes: Tensor
    scale: Tensor


class W8A8:
    """Norms by `add_rms_norm_dynamic_quant`, and every linear by `anyfuse.quant_matmul_dequant`.

    Linears behind a norm multiply its int8 rows as they are; the other two take float rows, which the operator
    quantizes. The weights are int8 with a scale for each output.
    """

    def __init__(self, model: Model) -> None:
        self.weights = {layer: pack(layer) for layer in model.modules() if isinstance(layer, nn.Linear)}

    def add_norm(self, residual: Tensor, delta: Tensor, gain: Tensor) -> tuple[Tensor, Rows]:
        codes, _, residual, scale, _ = anyfuse.add_rms_norm_dynamic_quant(residual, delta, gain, epsilon=EPSILON)
        return residual, Rows(codes, scale)

    def linear(self, rows: Tensor | Rows, layer: nn.Linear) -> Tensor:
        weight = self.weights[layer]
        if isinstance(rows, Rows):
            return anyfuse.quant_matmul_dequant(rows.codes, weight, x_scale=rows.scale, out_dtype=torch.float32)
        return anyfuse.quant_matmul_dequant(rows, weight)


def pack(layer: nn.Linear) -> anyfuse.PackedWeight:
    """A linear's weight in int8, symmetric, with a scale for each output."""
    weight = layer.weight.detach()
    scale = (weight.abs().amax(1) / 127).clamp_min(torch.finfo(torch.float32).tiny)
    return anyfuse.pack_weight((weight / scale[:, None]).round().to(torch.int8), scale)


@torch.no_grad()
def generate(model: Model, prompt: Tensor, count: int, seed: int, arithmetic: Arithmetic = FLOAT) -> Tensor:
    """`count` tokens after the prompt, drawn at temperature 0.7 from the 40 likeliest.

    The random numbers come from `seed` alone: two models that agree write the same text.
    """
    generator = torch.Generator().manual_seed(seed)
    ids = prompt.clone()
    for _ in range(count):
        logits = model(ids[None, -model.config.context :], arithmetic)[0, -1]
        best, tokens = logits.topk(40)
        chosen = torch.multinomial((best / 0.7).softmax(0), 1, generator=generator)
        ids = torch.cat((ids, tokens[chosen]))
    return ids
