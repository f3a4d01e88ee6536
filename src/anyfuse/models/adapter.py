"""Where a decoder keeps the parts that quantization replaces."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from .kinds import KINDS


@dataclass(frozen=True)
class Adapter:
    """The names of a decoder's parts. The defaults are Llama's.

    It fits a model whose decoder layers compute

        x = x + attention(input_norm(x), ...)[0]
        x = x + mlp(post_norm(x))

    with RMSNorms that multiply by their weight, and whose attention and MLP do nothing with the norm's output but give
    it to the linears of `qkv` and `gate_up` and ask for its shape.

    Attributes:
        layers: the list of decoder layers, from the model.
        input_norm, attention, post_norm, mlp: parts of a layer, its own attributes.
        qkv, out: linears of the attention: those that read the norm's output, and the last one.
        gate_up, down: linears of the MLP, likewise.
        epsilon: attribute of a norm.
        head: the linear from hidden states to logits, from the model.
    """

    layers: str = "model.layers"
    input_norm: str = "input_layernorm"
    attention: str = "self_attn"
    post_norm: str = "post_attention_layernorm"
    mlp: str = "mlp"
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    out: str = "o_proj"
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    down: str = "down_proj"
    epsilon: str = "variance_epsilon"
    head: str = "lm_head"


#: Models that need no adapter from the user, by the name of their class.
ADAPTERS = dict.fromkeys(KINDS, Adapter())


def adapter_of(model: nn.Module) -> Adapter:
    """The adapter of a known model. ValueError for another one."""
    name = type(model).__name__
    if name not in ADAPTERS:
        raise ValueError(f"model is a {name}; accepted: {', '.join(ADAPTERS)}, or another with an adapter")
    return ADAPTERS[name]
