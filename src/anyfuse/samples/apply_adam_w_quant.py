"""Calls of `apply_adam_w_quant_`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..formats import codebook, dequantize_blockwise, quantize_blockwise
from ..ops import _checks as checks
from .draw import Draw
from .kinds import CaseSpec, Sample, Samples


def _random_map(draw: Draw) -> Tensor:
    """Maps that a table encodes, and maps that it cannot: dense, with equal entries, short of 1, one-sided."""
    kind = draw.choice(("dynamic", "linear", "random", "equal", "dense", "short", "negative", "steps"))
    if kind in ("dynamic", "linear"):
        return codebook.create_codebook(kind, signed=draw.chance(0.5))
    values = draw.normal((256,)) / 3.0
    if kind == "equal":
        values = (values * 8.0).round() / 8.0
    elif kind == "dense":
        values[:200] = values[0] * (1.0 + draw.normal((200,), scale=1e-6))
    elif kind == "short":
        values = values * draw.choice((1e-3, 1e-7, 1e-30))
    elif kind == "negative":
        values = -values.abs()
    elif kind == "steps":
        values = (values * 128.0).round() / 128.0 + draw.choice((0.0, 1e-4))
    return values.sort().values


def draw(draw: Draw) -> Sample:
    dtype = draw.choice(checks.FLOATS)
    mixed = draw.chance(0.2)
    block_size = draw.choice(codebook.BLOCK_SIZES)
    lists: dict[str, list[Tensor]] = {name: [] for name in "var grad m v absmax_m absmax_v s".split()}
    count = draw.choice((1, 1, 1, 2, 5))
    ema = draw.chance(0.4)
    for _ in range(count):
        shape = draw.shape()
        blocks = -(-math.prod(shape) // block_size)
        made = {
            "var": draw.normal(shape, dtype),
            "grad": draw.normal(shape, draw.choice(checks.FLOATS) if mixed else dtype, draw.choice((1.0, 1e-3, 0.0))),
            "m": torch.from_numpy(draw.rng.integers(0, 256, shape, dtype="uint8")),
            "v": torch.from_numpy(draw.rng.integers(0, 256, shape, dtype="uint8")),
            "absmax_m": draw.normal((blocks,)).abs() * draw.choice((1.0, 1e-6, 0.0)),
            "absmax_v": draw.normal((blocks,)).abs() * draw.choice((1.0, 1e-12, 0.0)),
        }
        if draw.chance(0.25):
            made |= {"m": draw.normal(shape), "v": draw.normal(shape).abs()}
            made |= {"absmax_m": torch.zeros(0), "absmax_v": torch.zeros(0)}
        if ema:
            made["s"] = draw.normal(shape, draw.choice(checks.FLOATS))
        for name, tensor in made.items():
            if tensor.is_floating_point() and draw.chance(0.1):
                tensor = draw.special(tensor)
            lists[name].append(draw.view(tensor, writable=name != "grad"))
    one = count == 1 and draw.chance(0.8)
    convention = draw.choice(("formula", "device"))
    steps: list[Any] = [draw.choice((1, 2, 7, 1000, 10**6)) for _ in range(count)]
    if draw.chance(0.5):
        steps = [torch.tensor([value]) for value in steps]
    lr = draw.choice((1e-3, 0.1, 1.0, 0.0))
    arguments: dict[str, Any] = {name: group[0] if one else group for name, group in lists.items() if group}
    arguments |= {
        "qmap_m": draw.view(_random_map(draw)),
        "qmap_v": draw.view(_random_map(draw)),
        "step": steps if not one and draw.chance(0.5) else steps[0],
        "lr": torch.tensor([lr], dtype=torch.float64) if draw.chance(0.1) else lr,
        "beta1": draw.choice((0.9, 0.5, 0.0)),
        "beta2": draw.choice((0.999, 0.99, 0.9999)),
        "weight_decay": draw.choice((0.0, 0.01, 0.5)),
        "eps": draw.choice((1e-8, 1e-3, 0.0)),
        "gnorm_scale": draw.choice((1.0, 1.0, 0.37)),
        "quant_mode": draw.choice((None, "BLOCKWISE")),
        "block_size": block_size,
        "convention": convention,
        "skip_nonfinite": draw.chance(0.3),
        "nonzero_v": draw.chance(0.3),
        "maximize": draw.chance(0.2),
        "grad_scale": torch.tensor([draw.choice((1.0, 1024.0, 3.0))]) if draw.chance(0.2) else None,
        "found_inf": torch.tensor([float(draw.chance(0.3))]) if draw.chance(0.1) else None,
        "ema_decay": draw.choice((0.9999, 0.9, 0.0, 1.0)),
        "stochastic_rounding": draw.choice((None, None, 0, 7, 2**32 - 1)),
    }
    arguments.setdefault("s", None)
    shapes = [tuple(tensor.shape) for tensor in lists["var"]]
    return Sample(f"shapes={shapes} dtype={dtype} block_size={block_size}", arguments)


def case_inputs(
    draw: Draw, shape: tuple[int, ...], dtype: torch.dtype, attributes: Mapping[str, Any]
) -> dict[str, Tensor]:
    """A state that a few steps could have left: the codes of moments that belong together."""
    block_size = attributes["block_size"]
    codebook.check_block_size(block_size)
    qmap_m, qmap_v = (codebook.create_codebook("dynamic", signed=signed) for signed in (True, False))
    moment = draw.normal(shape, scale=0.1)
    square = moment.square() + draw.normal(shape, scale=0.01).abs()
    m, absmax_m = codebook.quantize_blockwise(moment, qmap_m, block_size)
    v, absmax_v = codebook.quantize_blockwise(square, qmap_v, block_size, nonzero=True)
    return {
        "var": draw.normal(shape, dtype),
        "grad": draw.normal(shape, dtype, scale=0.1),
        "m": m,
        "v": v,
        "qmap_m": qmap_m,
        "qmap_v": qmap_v,
        "absmax_m": absmax_m,
        "absmax_v": absmax_v,
        "step": torch.tensor([10]),
        "lr": torch.tensor([1e-3]),
        "grad_scale": torch.tensor([1024.0]),
        "found_inf": torch.zeros(1),
    }


def edges() -> Iterable[Sample]:
    """Every size around a vector, a block and a piece of the parallel loop, and a list of all of them."""
    source = Draw(0)
    sizes = (0, 1, 7, 8, 9, 15, 16, 17, 255, 256, 257, 16383, 16384, 16385, 100_003)
    maps = {f"qmap_{x}": codebook.create_codebook("dynamic", signed=x == "m") for x in "mv"}
    for dtype in checks.FLOATS:
        for block_size in (64, 256, 2048):
            lists = {
                "var": [source.normal((size,), dtype) for size in sizes],
                "grad": [source.normal((size,), dtype) for size in sizes],
                "m": [torch.from_numpy(source.rng.integers(0, 256, size, dtype="uint8")) for size in sizes],
                "v": [torch.from_numpy(source.rng.integers(0, 256, size, dtype="uint8")) for size in sizes],
                "absmax_m": [source.normal((-(-size // block_size),)).abs() for size in sizes],
                "absmax_v": [source.normal((-(-size // block_size),)).abs() for size in sizes],
                "s": [source.normal((size,), dtype) for size in sizes],
            }
            common = {**maps, "lr": 1e-3, "weight_decay": 0.01, "block_size": block_size}
            label = f"{dtype}, blocks of {block_size}"
            yield Sample(f"{label}, list", {**lists, **common, "step": list(range(1, len(sizes) + 1))})
            floats = {name: [source.normal((size,)).abs() for size in sizes] for name in "mv"}
            floats |= {f"absmax_{name}": [torch.zeros(0)] * len(sizes) for name in "mv"}
            yield Sample(f"{label}, fp32 state", {**lists, **floats, **common, "step": 2, "stochastic_rounding": 3})
        largest = {name: group[-1] for name, group in lists.items()}
        yield Sample(f"{dtype}, {sizes[-1]} elements", {**largest, **common, "step": 3, "stochastic_rounding": 9})


def unfused(call: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """One plain step of PyTorch's own operators, in fp32 between codes: (var, m, v, absmax_m, absmax_v)."""
    step, lr = int(call["step"]), float(call["lr"])
    g, p, block = call["grad"].float(), call["var"].float(), call["block_size"]
    m, v = (dequantize_blockwise(call[x], call[f"absmax_{x}"], call[f"qmap_{x}"], block) for x in "mv")
    m.mul_(call["beta1"]).add_(g, alpha=1 - call["beta1"])
    v.mul_(call["beta2"]).addcmul_(g, g, value=1 - call["beta2"])
    c1, c2 = 1 - call["beta1"] ** step, 1 - call["beta2"] ** step
    p.mul_(1 - lr * call["weight_decay"]).addcdiv_(m, v.sqrt().div_(c2**0.5).add_(call["eps"]), value=-lr / c1)
    (m, absmax_m), (v, absmax_v) = (quantize_blockwise(t, call[f"qmap_{x}"], block) for t, x in ((m, "m"), (v, "v")))
    return p.to(call["var"].dtype), m, v, absmax_m, absmax_v


SAMPLES = Samples(
    draw=draw, edges=edges, unfused=unfused, case=CaseSpec(inputs=case_inputs, sizes=(128, 64), dtypes=checks.FLOATS)
)
