"""AdamW and an EMA in one pass, beside fused AdamW followed by what people average weights with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from .._bits import clone_with_storage
from .._settings import backend
from ..ops.apply_fused_ema_adamw import apply_fused_ema_adamw_
from .case import READ, UPDATE, Array, Case, Goal, Peer, Runner, Traffic, Work
from .overhead import many, tiny

OPTIONS: dict[str, Any] = {
    "lr": 1e-3,
    "ema_decay": 0.9999,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "weight_decay": 1e-2,
}
STEP = 10
LERP = "AdamW(fused) + _foreach_lerp_"


def tensors(size: int, dtype: torch.dtype) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    normal = partial(torch.randn, size, generator=generator)
    return {
        "grad": (normal() * 1e-2).to(dtype),
        "var": normal().to(dtype),
        "m": (normal() * 1e-3).to(dtype),
        "v": (normal() * 1e-3).square().to(dtype),
        "s": normal().to(dtype),
    }


def call(size: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    return {**tensors(size, dtype), "step": STEP, **OPTIONS}


def lists(sizes: list[int]) -> dict[str, Any]:
    each = [tensors(size, torch.float32) for size in sizes]
    return {**{name: [one[name] for one in each] for name in each[0]}, "step": STEP, **OPTIONS}


# ---- peers: each steps the parameter of a module with torch's fused AdamW, then its own average ----

Average = Callable[[torch.nn.Module, Tensor], Callable[[], object]]


def foreach_lerp(module: torch.nn.Module, ema: Tensor) -> Callable[[], object]:
    parameters = [parameter.detach() for parameter in module.parameters()]
    return lambda: torch._foreach_lerp_([ema], parameters, 1 - OPTIONS["ema_decay"])


def timm_average(module: torch.nn.Module, ema: Tensor) -> Callable[[], object]:
    average = import_module("timm.utils").ModelEmaV3(module, decay=OPTIONS["ema_decay"], foreach=True)
    return lambda: average.update(module)


def diffusers_average(module: torch.nn.Module, ema: Tensor) -> Callable[[], object]:
    parameters = list(module.parameters())
    average = import_module("diffusers.training_utils").EMAModel(parameters, decay=OPTIONS["ema_decay"], foreach=True)
    return lambda: average.step(parameters)


def adamw_and(average: Average, given: dict[str, Any]) -> tuple[Runner, torch.nn.Parameter, Tensor]:
    """The runner, the parameter that it steps and the average that `foreach_lerp` moves."""
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(given["var"].clone())
    module.weight.grad = given["grad"].clone()
    ema = given["s"].clone()
    update = average(module, ema)
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=OPTIONS["lr"], betas=(OPTIONS["beta1"], OPTIONS["beta2"]), eps=OPTIONS["eps"],
        weight_decay=OPTIONS["weight_decay"], fused=True,
    )  # fmt: skip
    state = {"step": torch.tensor(float(STEP - 1)), "exp_avg": given["m"].clone(), "exp_avg_sq": given["v"].clone()}
    optimizer.state[module.weight].update(state)

    def run() -> None:
        optimizer.step()
        update()

    return Runner(run), module.weight, ema


def accuracy() -> dict[str, Any]:
    """How far fused AdamW and the lerp end from our reference after one step from the same state."""
    given = tensors(1 << 16, torch.float32)
    runner, weight, ema = adamw_and(foreach_lerp, given)
    runner.run()
    with backend("reference"):
        var, _, _, s = apply_fused_ema_adamw_(**clone_with_storage(given), step=STEP, **OPTIONS)
    return {
        "max error of var": float((weight.detach() - var).abs().max()),
        "of the EMA": float((ema - s).abs().max()),
    }


def large(size: int, dtype: torch.dtype, quick: bool) -> Work:
    size = 1 << 15 if quick else size
    given = tensors(size, dtype)

    def peer(name: str, average: Average, package: str) -> Peer:
        return Peer(
            name,
            lambda: adamw_and(average, given)[0],
            package,
            accuracy if average is foreach_lerp and dtype == torch.float32 else None,
        )

    width = dtype.itemsize
    return Work(
        ours=Runner(partial(apply_fused_ema_adamw_, **given, step=STEP, **OPTIONS)),
        units=size,
        unit="element",
        sample=call(10_007, dtype),
        traffic=Traffic((Array(width, READ), *[Array(width, UPDATE)] * 4), size),
        peers=(
            peer(LERP, foreach_lerp, "torch"),
            peer("AdamW(fused) + ModelEmaV3", timm_average, "timm"),
            peer("AdamW(fused) + EMAModel", diffusers_average, "diffusers"),
        ),
    )


CASES = (
    Case(
        "16 Mi fp32",
        partial(large, 1 << 24, torch.float32),
        goals=(
            Goal(f"ratio {LERP}", least=1.03, aim=1.1),
            Goal("of stream", least=0.9),
            Goal("transient KiB", most=1024),
        ),
        memory=True,
    ),
    Case("16 Mi bf16", partial(large, 1 << 24, torch.bfloat16)),
    Case("256 Ki fp32", partial(large, 1 << 18, torch.float32)),
    tiny(apply_fused_ema_adamw_, partial(call, 16), 30.0, "16 elements"),
    many(apply_fused_ema_adamw_, lists),
)
