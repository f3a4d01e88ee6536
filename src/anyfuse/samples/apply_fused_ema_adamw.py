"""Calls of `apply_fused_ema_adamw_`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..ops import _checks as checks
from .draw import Draw
from .kinds import CaseSpec, Sample, Samples


def draw(draw: Draw) -> Sample:
    mixed = draw.chance(0.3)
    common = draw.choice(checks.FLOATS)
    tensors: dict[str, list[Tensor]] = {name: [] for name in "grad var m v s".split()}
    count = draw.choice((1, 1, 1, 2, 5))
    for _ in range(count):
        shape = draw.shape()
        for name, group in tensors.items():
            tensor = draw.normal(shape, draw.choice(checks.FLOATS) if mixed else common)
            tensor = tensor.abs() if name == "v" else tensor
            if draw.chance(0.15):
                tensor = draw.special(tensor)
            group.append(draw.view(tensor, writable=name != "grad"))
    one = count == 1 and draw.chance(0.8)
    arguments: dict[str, Any] = {name: group[0] if one else group for name, group in tensors.items()}
    steps: list[Any] = [draw.choice((1, 2, 7, 1000, 10**6)) for _ in range(count)]
    if draw.chance(0.5):
        steps = [torch.tensor([value]) for value in steps]
    arguments |= {
        "step": steps if not one and draw.chance(0.5) else steps[0],
        "lr": draw.choice((1e-3, 0.1, 1.0, 0.0)),
        "ema_decay": draw.choice((0.9999, 0.9, 0.0, 1.0)),
        "beta1": draw.choice((0.9, 0.5, 0.0)),
        "beta2": draw.choice((0.999, 0.99, 0.9999)),
        "eps": draw.choice((1e-8, 1e-3, 0.0)),
        "mode": draw.choice((0, 1)),
        "bias_correction": draw.chance(0.7),
        "weight_decay": draw.choice((0.0, 0.01, 0.5)),
        "convention": draw.choice(("formula", "device")),
        "maximize": draw.chance(0.2),
        "grad_scale": torch.tensor([draw.choice((1.0, 1024.0, 3.0))]) if draw.chance(0.2) else None,
        "stochastic_rounding": draw.choice((None, None, 0, 7, 2**32 - 1)),
    }
    if not one and draw.chance(0.3):
        arguments["stochastic_rounding"] = [draw.integer(0, 2**32) for _ in range(count)]
    shapes = [tuple(tensor.shape) for tensor in tensors["var"]]
    return Sample(f"shapes={shapes} dtype={'mixed' if mixed else common}", arguments)


def edges() -> Iterable[Sample]:
    """Every size around a vector, a tile and a piece of the parallel loop, and a list of all of them."""
    source = Draw(0)
    sizes = (0, 1, 7, 8, 9, 15, 16, 17, 255, 256, 257, 16383, 16384, 16385, 100_003)
    for dtype in checks.FLOATS:
        lists = {name: [source.normal((size,), dtype).abs() for size in sizes] for name in "grad var m v s".split()}
        yield Sample(f"{dtype}, list", {**lists, "step": list(range(1, len(sizes) + 1)), "weight_decay": 0.01})
        largest = {name: group[-1] for name, group in lists.items()}
        seed = None if dtype == checks.FLOATS[0] else 5
        yield Sample(f"{dtype}, {sizes[-1]} elements", {**largest, "step": 3, "lr": 0.01, "stochastic_rounding": seed})


def case_inputs(
    draw: Draw, shape: tuple[int, ...], dtype: torch.dtype, attributes: Mapping[str, Any]
) -> dict[str, Tensor]:
    tensors = {name: draw.normal(shape, dtype) for name in ("grad", "var", "m", "s")}
    tensors["v"] = (tensors["m"].float().square() + draw.normal(shape, scale=0.1).abs()).to(dtype)
    return {**tensors, "step": torch.tensor([1]), "grad_scale": torch.tensor([1024.0]), "found_inf": torch.zeros(1)}


def unfused(call: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """One plain step by torch.optim.AdamW, in the tensors' own dtypes, then a lerp of the average: (var, m, v, s)."""
    parameter, m, v = torch.nn.Parameter(call["var"]), call["m"], call["v"]
    parameter.grad = call["grad"]
    optimizer = torch.optim.AdamW(
        [parameter], lr=call["lr"], betas=(call["beta1"], call["beta2"]), eps=call["eps"],
        weight_decay=call["weight_decay"], foreach=False,
    )  # fmt: skip
    optimizer.state[parameter].update({"step": call["step"].float() - 1, "exp_avg": m, "exp_avg_sq": v})
    optimizer.step()
    var = parameter.detach()
    return var, m, v, call["s"].lerp(var, 1 - call["ema_decay"])


SAMPLES = Samples(
    draw=draw, edges=edges, unfused=unfused, case=CaseSpec(inputs=case_inputs, sizes=(128, 64), dtypes=checks.FLOATS)
)
