"""A small Llama: RMSNorm, residual stream, rotary attention, SwiGLU. How norms and linears compute is exchangeable.

The stream carries (residual, delta): each sublayer leaves its output beside the residual, and the next norm adds it. So
"add, then normalize" is one step of the arithmetic, as it is one operator of the package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPSILON = 1e-6


@dataclass(frozen=True)
class Config:
    vocabulary: int
    width: int = 128
    layers: int = 3
    heads: int = 4
    hidden: int = 352
    context: int = 64


class Arithmetic(Protocol):
    """How the model computes. `add_norm` returns the new residual, and the normalized rows in a form `linear` takes."""

    def add_norm(self, residual: Tensor, delta: Tensor, gain: Tensor) -> tuple[Tensor, Any]: ...

    def linear(self, rows: Any, layer: nn.Linear) -> Tensor: ...


class Float:
    """Plain PyTorch in float32."""

    def add_norm(self, residual: Tensor, delta: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        residual = residual + delta
        return residual, F.rms_norm(residual, gain.shape, gain, EPSILON)

    def linear(self, rows: Tensor, layer: nn.Linear) -> Tensor:
        return F.linear(rows, layer.weight)


FLOAT = Float()


class Block(nn.Module):
    """Attention and SwiGLU, each behind its norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, hidden = config.width, config.hidden
        self.heads = config.heads
        self.attention_gain = nn.Parameter(torch.ones(width))
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_gain = nn.Parameter(torch.ones(width))
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(
        self, residual: Tensor, delta: Tensor, rotation: tuple[Tensor, Tensor], arithmetic: Arithmetic
    ) -> tuple[Tensor, Tensor]:
        residual, rows = arithmetic.add_norm(residual, delta, self.attention_gain)
        joint = arithmetic.linear(rows, self.query_key_value)
        query, key, value = joint.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(rotate(query, rotation), rotate(key, rotation), value, is_causal=True)
        delta = arithmetic.linear(mixed.transpose(1, 2).flatten(-2), self.attention_out)
        residual, rows = arithmetic.add_norm(residual, delta, self.mlp_gain)
        gate, up = arithmetic.linear(rows, self.gate_up).chunk(2, dim=-1)
        return residual, arithmetic.linear(F.silu(gate) * up, self.down)


class Model(nn.Module):
    """Token ids (batch, time) to logits (batch, time, vocabulary).

    `sparse` gives the embedding sparse gradients: the rows of the batch's tokens and nothing else. The weights are
    drawn from `seed` alone.
    """

    def __init__(self, config: Config, seed: int, sparse: bool = False) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width, sparse=sparse)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.head_gain = nn.Parameter(torch.ones(config.width))
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        generator = torch.Generator().manual_seed(seed)
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=config.width**-0.5 / 2, generator=generator)
        # What adds to the residual is scaled so that the stream does not grow with depth.
        for name, weight in self.named_parameters():
            if name.endswith(("attention_out.weight", "down.weight")):
                weight.data *= (2 * config.layers) ** -0.5

    def size(self) -> int:
        """How many numbers it has to learn."""
        return sum(p.numel() for p in self.parameters())

    def forward(self, ids: Tensor, arithmetic: Arithmetic = FLOAT) -> Tensor:
        residual = self.embedding(ids)
        delta = torch.zeros_like(residual)
        rotation = rotations(ids.shape[1], self.config.width // self.config.heads)
        for block in self.blocks:
            residual, delta = block(residual, delta, rotation, arithmetic)
        _, rows = arithmetic.add_norm(residual, delta, self.head_gain)
        return arithmetic.linear(rows, self.head)


def rotations(length: int, width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines (length, width / 2) of the rotary position embedding."""
    frequencies = 10000.0 ** (-torch.arange(0, width, 2) / width)
    angles = torch.outer(torch.arange(length), frequencies)
    return angles.cos(), angles.sin()


def rotate(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turns the pairs (i, i + width/2) of each head by the angles of its position."""
    cos, sin = rotation
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in nats a token."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())
