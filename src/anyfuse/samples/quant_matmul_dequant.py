"""Calls of `quant_matmul_dequant`, and what those of the grouped operator share with them: `groups` is what weights,
their scales and biases have in front of their dimensions, nothing or the number of groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..formats.blocked import nd_to_nz, pack_scale_int64
from ..ops import _checks as checks
from ..packed import pack_weight
from .draw import Draw
from .kinds import CaseSpec, Sample, Samples


def draw(draw: Draw) -> Sample:
    m, n, k = _sizes(draw)
    label, arguments = product(draw, (), m, n, k)
    return Sample(f"m={m} n={n} k={k} {label}", arguments)


def product(draw: Draw, groups: tuple[int, ...], m: int, n: int, k: int) -> tuple[str, dict[str, Any]]:
    """A random call on m rows, and words for its kind."""
    lead = draw.choice(((m,), (m,), (m,), (1, m), (m, 1), (1, m, 1)))
    kind = draw.choice(("dynamic", "dynamic", "pertoken", "pertensor", "int64", "quantized"))
    x_dtype = torch.int8 if kind == "quantized" else draw.choice(checks.FLOATS)
    if kind == "quantized":
        x = int8(draw, (*lead, k))
    else:
        x = draw.normal((*lead, k), x_dtype, draw.choice((1.0, 1.0, 1e-3, 100.0, 1e-38)))
        x = draw.special(x) if draw.chance(0.15) else x
        x[:1] = 0 if draw.chance(0.1) else x[:1]
    arguments: dict[str, Any] = {"x": draw.view(x, writable=False)}
    scale = draw.normal((*groups, n), scale=0.02).abs()
    scale = draw.special(scale) if draw.chance(0.1) else scale
    if kind == "int64":
        scale = pack_scale_int64(scale)
    arguments |= _weight(draw, groups, n, k, draw.view(scale, writable=False))
    if draw.chance(0.4):
        low, high = -(2**31) if draw.chance(0.3) else -5000, 2**31 if draw.chance(0.3) else 5000
        bias = torch.from_numpy(draw.rng.integers(low, high, (*groups, n))).to(torch.int32)
        arguments["bias"] = draw.view(bias, writable=False)
    if kind != "quantized" and draw.chance(0.4):
        smooth = draw.normal(draw.choice(((k,), (*groups, k))), draw.choice(checks.FLOATS)).abs() + 0.1
        arguments["smooth_scale"] = draw.view(draw.special(smooth) if draw.chance(0.2) else smooth, writable=False)
    arguments |= _x_scale(draw, kind, m)
    if kind == "quantized" or draw.chance(0.4):
        arguments["out_dtype"] = draw.choice(checks.FLOATS)
    arguments["convention"] = draw.choice(("formula", "device"))
    return f"{kind} {x_dtype}", arguments


def _sizes(draw: Draw) -> tuple[int, int, int]:
    m = draw.choice((0, 1, 1, 1, 2, 3, 4, 5, 6, 7, 11, 13, 24, 37, 130))
    n = draw.choice((0, 1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 100, 130, 200))
    k = draw.choice((0, 1, 2, 3, 4, 5, 15, 16, 31, 32, 33, 48, 63, 65, 127, 255, 256, 257, 300, 513, 1027))
    return m, n, k


def int8(draw: Draw, shape: tuple[int, ...]) -> Tensor:
    kind = draw.choice(("any", "any", "any", "lowest", "highest"))
    if kind != "any":
        return torch.full(shape, -128 if kind == "lowest" else 127, dtype=torch.int8)
    return torch.from_numpy(draw.rng.integers(-128, 128, shape, dtype="int8"))


def _weight(draw: Draw, groups: tuple[int, ...], n: int, k: int, scale: Tensor) -> dict[str, Any]:
    transpose = draw.chance(0.7)
    weight = int8(draw, (*groups, n, k) if transpose else (*groups, k, n))
    layout = draw.choice(("nd", "nz", "packed", "packed with scale"))
    if layout.startswith("packed"):
        inside = layout == "packed with scale"
        packed = pack_weight(weight, scale if inside else None, transpose_weight=transpose)
        return {"weight": packed, "weight_scale": None if inside else scale}
    if layout == "nz":
        rows, columns = weight.shape[-2:]
        garbage = torch.full((*groups, -(-rows // 16) * 16, -(-columns // 32) * 32), 127, dtype=torch.int8)
        garbage[..., :rows, :columns] = weight
        weight = torch.stack([nd_to_nz(one) for one in garbage]) if groups else nd_to_nz(garbage)
    if not groups and draw.chance(0.1):
        scale = scale.reshape(1, n)
    return {"weight": draw.view(weight), "weight_scale": scale, "transpose_weight": transpose}


def _x_scale(draw: Draw, kind: str, m: int) -> dict[str, Any]:
    if kind == "dynamic":
        return {}
    values = draw.normal((m,), scale=0.05).abs()
    if m and draw.chance(0.2):
        values[draw.integer(0, m)] = draw.choice((0.0, -0.0, 1e-45, 1e30, math.inf, -0.05, -math.inf))
    if kind == "quantized" and m and draw.chance(0.2):
        values[draw.integer(0, m)] = math.nan
    if kind in ("pertoken", "quantized"):
        return {"x_scale": draw.view(values.reshape(draw.choice(((m,), (m, 1)))), writable=False)}
    value = torch.tensor([draw.choice((0.01, 0.05, 3.0, 0.0, math.inf, -1.0))])
    value = value.half() if kind == "int64" else value
    return {"x_scale": value if draw.chance(0.5) else value[0], "quant_mode": "pertensor"}


def case_inputs(
    draw: Draw, sizes: tuple[int, ...], dtype: torch.dtype, attributes: Mapping[str, Any]
) -> dict[str, Tensor]:
    return case_product(draw, (), sizes, dtype, attributes)


def case_product(
    draw: Draw, groups: tuple[int, ...], sizes: tuple[int, ...], dtype: torch.dtype, attributes: Mapping[str, Any]
) -> dict[str, Tensor]:
    m, k, n = sizes
    shape = (n, k) if attributes["transpose_weight"] else (k, n)
    return {
        "x": draw.normal((m, k), dtype),
        "weight": torch.from_numpy(draw.rng.integers(-128, 128, (*groups, *shape), dtype="int8")),
        "weight_scale": draw.normal((*groups, n), scale=0.01).abs(),
        "bias": torch.from_numpy(draw.rng.integers(-1000, 1000, (*groups, n), dtype="int32")),
        "x_scale": draw.normal((m if attributes["quant_mode"] == "pertoken" else 1,), scale=0.03).abs(),
        "smooth_scale": draw.normal((k,), dtype).abs(),
    }


def edges() -> Iterable[Sample]:
    """Every number of rows in a tile, sizes around panels, steps and blocks of k, and one for several threads."""
    source = Draw(0)
    shapes = [(m, 71, 39) for m in range(1, 14)]
    shapes += [(m, n, k) for m in (1, 7) for n in (15, 16, 17, 64, 65) for k in (1, 4, 31, 255, 256, 257, 1027)]
    shapes += [(130, 65, 257), (127, 2100, 64), (1, 1027, 2880), (17, 300, 700)]
    for m, n, k in shapes:
        x, weight = source.normal((m, k)), int8(source, (n, k))
        arguments: dict[str, Any] = {"x": x, "weight_scale": source.normal((n,), scale=0.02)}
        yield Sample(f"nd, m={m} n={n} k={k}", {**arguments, "weight": weight})
        yield Sample(f"packed, m={m} n={n} k={k}", {**arguments, "weight": pack_weight(weight)})


def int_mm(given: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    weight, scales = given["weight"].t().contiguous(), given["weight_scale"]

    def run(x: Tensor) -> Tensor:
        scale = x.abs().amax(-1, keepdim=True) / 127.0
        codes = torch.round(x / scale).clamp_(-128, 127).to(torch.int8)
        sums = torch._int_mm(codes, weight)
        product: Tensor = sums.float() * scales * scale
        return product

    return run


def unfused(call: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """`int_mm` of a plain call, in fp32 between its rows and its result: (out,)."""
    return (int_mm(dict(call))(call["x"].float()).to(call["x"].dtype),)


SAMPLES = Samples(
    draw=draw,
    edges=edges,
    unfused=unfused,
    case=CaseSpec(
        inputs=case_inputs,
        sizes=(16, 256, 128),
        axes=("m", "k", "n"),
        dtypes=(torch.float16, torch.bfloat16, torch.float32),
        always=("weight_scale",),
    ),
)
