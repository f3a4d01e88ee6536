"""AdamW with 8-bit moments, beside the 8-bit optimizers of bitsandbytes and torchao and torch's fused fp32 AdamW."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch

from ..formats import create_codebook
from ..ops.apply_adam_w_quant import apply_adam_w_quant_
from .case import READ, UPDATE, Array, Case, Goal, Peer, Runner, Traffic, Work
from .overhead import many, tiny

OPTIONS: dict[str, Any] = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 1e-2}
BLOCK = 256
BITSANDBYTES, TORCHAO, FUSED = "bitsandbytes AdamW8bit", "torchao AdamW8bit", "AdamW(fused), fp32 state"


def tensors(size: int, dtype: torch.dtype) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    blocks = -(-size // BLOCK)

    def codes() -> torch.Tensor:
        return torch.randint(0, 256, (size,), generator=generator, dtype=torch.uint8)

    return {
        "var": torch.randn(size, generator=generator).to(dtype),
        "grad": (torch.randn(size, generator=generator) * 1e-2).to(dtype),
        "m": codes(),
        "v": codes(),
        "absmax_m": torch.rand(blocks, generator=generator) * 1e-2,
        "absmax_v": torch.rand(blocks, generator=generator) * 1e-4,
    }


def maps(kind: str) -> dict[str, Any]:
    return {"qmap_m": create_codebook(kind, signed=True), "qmap_v": create_codebook(kind, signed=False)}


def call(size: int, dtype: torch.dtype = torch.float32, kind: str = "dynamic") -> dict[str, Any]:
    return {**tensors(size, dtype), **maps(kind), "step": 10, **OPTIONS}


def lists(sizes: list[int]) -> dict[str, Any]:
    each = [tensors(size, torch.float32) for size in sizes]
    return {**{name: [one[name] for one in each] for name in each[0]}, **maps("dynamic"), "step": 10, **OPTIONS}


# ---- peers ----

Make = Callable[[torch.nn.Parameter], torch.optim.Optimizer]
COMMON: dict[str, Any] = {"lr": OPTIONS["lr"], "weight_decay": OPTIONS["weight_decay"]}


def bitsandbytes(parameter: torch.nn.Parameter) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = import_module("bitsandbytes").optim.AdamW8bit(
        [parameter], **COMMON, min_8bit_size=4096
    )
    return optimizer


def torchao(parameter: torch.nn.Parameter) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = import_module("torchao.optim").AdamW8bit([parameter], **COMMON, block_size=BLOCK)
    return optimizer


def fused(parameter: torch.nn.Parameter) -> torch.optim.Optimizer:
    return torch.optim.AdamW([parameter], **COMMON, fused=True)


def runner(make: Make, size: int, dtype: torch.dtype) -> Runner:
    given = tensors(size, dtype)
    parameter = torch.nn.Parameter(given["var"])
    parameter.grad = given["grad"]
    return Runner(make(parameter).step)


def accuracy(make: Make | None) -> dict[str, Any]:
    """Ten steps from zero state on changing gradients: how far from AdamW in double, as a share of the way gone.

    None stands for us. All 8-bit optimizers lose something by their codes; this tells whose loss is of what size.
    """
    size, steps = 1 << 16, 10
    generator = torch.Generator().manual_seed(2)
    start = torch.randn(size, generator=generator)
    gradients = [torch.randn(size, generator=generator) * 1e-2 for _ in range(steps)]
    exact = torch.nn.Parameter(start.double())
    judge = torch.optim.AdamW([exact], **COMMON)
    if make is None:
        found = start.clone()
        state = {
            **maps("dynamic"),
            "m": torch.zeros(size, dtype=torch.uint8),
            "v": torch.zeros(size, dtype=torch.uint8),
        }
        state |= {"absmax_m": torch.zeros(size // BLOCK), "absmax_v": torch.zeros(size // BLOCK)}
    else:
        parameter = torch.nn.Parameter(start.clone())
        optimizer, found = make(parameter), parameter.detach()
    for step, gradient in enumerate(gradients, 1):
        exact.grad = gradient.double()
        judge.step()
        if make is None:
            apply_adam_w_quant_(var=found, grad=gradient, **state, step=step, **OPTIONS)
        else:
            parameter.grad = gradient
            optimizer.step()
    error = (found.double() - exact.detach()).norm() / (exact.detach() - start.double()).norm()
    return {"error after 10 steps": float(error)}


def large(size: int, dtype: torch.dtype, quick: bool, kind: str = "dynamic") -> Work:
    size = 1 << 15 if quick else size

    def peer(name: str, make: Make, package: str) -> Peer:
        return Peer(name, partial(runner, make, size, dtype), package, partial(accuracy, make))

    width = dtype.itemsize
    return Work(
        ours=Runner(partial(apply_adam_w_quant_, **call(size, dtype, kind))),
        units=size,
        unit="element",
        sample=call(10_007, dtype, kind),
        traffic=Traffic((Array(width, UPDATE), Array(width, READ), Array(1, UPDATE), Array(1, UPDATE)), size),
        peers=(
            peer(BITSANDBYTES, bitsandbytes, "bitsandbytes"),
            peer(TORCHAO, torchao, "torchao"),
            peer(FUSED, fused, "torch"),
        ),
        accuracy=partial(accuracy, None),
    )


CASES = (
    Case(
        "16 Mi fp32, dynamic map",
        partial(large, 1 << 24, torch.float32),
        goals=(
            Goal(f"ratio {BITSANDBYTES}", least=15, aim=22),
            Goal(f"ratio {TORCHAO}", least=15, aim=22),
            Goal(f"ratio {FUSED}", least=1 / 2.5, aim=1 / 1.3),
            Goal("transient KiB", most=1024),
        ),
        memory=True,
    ),
    Case(
        "16 Mi bf16, dynamic map",
        partial(large, 1 << 24, torch.bfloat16),
        goals=(Goal(f"ratio {BITSANDBYTES}", least=12),),
    ),
    Case("1 Mi fp32, linear map", partial(large, 1 << 20, torch.float32, kind="linear")),
    tiny(apply_adam_w_quant_, partial(call, 256), None, "one block of 256"),
    many(apply_adam_w_quant_, lists),
)
