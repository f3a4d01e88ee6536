"""Calls of `add_rms_norm_dynamic_quant`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..ops import _checks as checks
from ..ops.add_rms_norm_dynamic_quant import Y_NAMES
from .draw import Draw
from .kinds import CaseSpec, Sample, Samples

EPSILON = 1e-6
MASKS = (None, (), (True, True), (True, False), (False, True))


def _weights(draw: Draw, cols: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """gamma, and some of the optional weights, in x's dtype or float32, together or each for itself."""
    common = draw.choice((dtype, dtype, torch.float32, None))
    weights = {}
    for name, probability in (("gamma", 1.0), ("beta", 0.4), ("smooth_scale1", 0.5), ("smooth_scale2", 0.5)):
        if draw.chance(probability):
            weight = draw.normal((cols,), common or draw.choice((dtype, torch.float32)), draw.choice((1.0, 1.0, 100.0)))
            if draw.chance(0.08):
                weight = draw.special(weight)
            weights[name] = draw.view(weight, writable=False)
    return weights


def _mask(draw: Draw, smooth1: bool, smooth2: bool) -> Any:
    """A mask that goes with the smooth scales."""
    fitting = []
    for mask in MASKS:
        first, second = mask or (True, smooth1 and smooth2)
        if (first or not smooth1) and (second or not smooth2):
            fitting.append(mask)
    return draw.choice(fitting)


def draw(draw: Draw) -> Sample:
    dtype, y_dtype = draw.choice(checks.FLOATS), draw.choice(tuple(Y_NAMES))
    cols = draw.size() if draw.chance(0.98) else draw.choice((16383, 16384, 16385, 16448, 40001))
    cols += cols % 2 if y_dtype == "int4" else 0
    rows = draw.choice((0, 1, 2, 3, 5, 6, 8, 16)) if cols < 10000 else draw.choice((1, 2))
    shape = (*draw.shape(rows, max_dims=7), cols) if draw.chance(0.9) else (cols,)
    scale = draw.choice((1.0, 1.0, 1.0, 1e-3, 30.0, 1e-20 if dtype != torch.float16 else 1e-6))
    x1, x2 = draw.normal(shape, dtype, scale), draw.normal(shape, dtype, scale)
    if draw.chance(0.15):
        x1 = draw.special(x1)
    if draw.chance(0.1):
        x2 = draw.special(x2)
    if draw.chance(0.15) and x1.numel():
        flat = x2.view(-1, cols)
        row = draw.integer(0, flat.shape[0])
        flat[row] = -x1.view(-1, cols)[row]
    arguments: dict[str, Any] = {
        "x1": draw.view(x1, writable=False),
        "x2": draw.view(x2, writable=False),
        **_weights(draw, cols, dtype),
    }
    arguments["output_mask"] = _mask(draw, "smooth_scale1" in arguments, "smooth_scale2" in arguments)
    arguments["epsilon"] = draw.choice((1e-6, 1e-6, 1e-5, 1e-3, 1.0, 0.0))
    arguments["y_dtype"] = y_dtype
    arguments["convention"] = draw.choice(("formula", "device"))
    given = [name for name in arguments if name not in ("x1", "x2")]
    return Sample(f"shape={shape} dtype={dtype} y_dtype={y_dtype} {given}", arguments)


def case_inputs(
    draw: Draw, shape: tuple[int, ...], dtype: torch.dtype, attributes: Mapping[str, Any]
) -> dict[str, Tensor]:
    checks.require(len(shape) > 0, "shape is (); accepted: at least one size")
    rows = {name: draw.normal(shape, dtype) for name in ("x1", "x2")}
    weights = {name: draw.normal(shape[-1:], dtype) for name in ("gamma", "smooth_scale1", "smooth_scale2", "beta")}
    return {**rows, **weights}


def case_encodings(attributes: Mapping[str, Any]) -> dict[str, str]:
    y_dtype = attributes["y_dtype"]
    return dict.fromkeys(("y1", "y2"), y_dtype) if isinstance(y_dtype, str) else {}


def edges() -> Iterable[Sample]:
    rows = Draw(4)
    for y_dtype in Y_NAMES:
        for convention in ("formula", "device"):
            x1, x2, gamma, smooth1, smooth2 = (
                rows.normal(shape, torch.bfloat16) for shape in ((3, 128), (3, 128), (128,), (128,), (128,))
            )
            x2[1] = -x1[1]
            arguments = {"x1": x1, "x2": x2, "gamma": gamma, "smooth_scale1": smooth1, "smooth_scale2": smooth2}
            options = {"y_dtype": y_dtype, "convention": convention}
            yield Sample(f"a zero row, {y_dtype}, {convention}", {**arguments, **options})
    for shape in ((0,), (0, 8), (3, 0), (2, 0, 4), (1,), (1, 1)):
        empty = torch.ones(shape)
        yield Sample(f"shape {shape}", {"x1": empty, "x2": empty, "gamma": torch.ones(shape[-1])})
    for cols in (1, 63, 64, 65, 16384, 16385, 40000):
        x1, x2, gamma = (rows.normal(shape, torch.float16) for shape in ((2, cols), (2, cols), (cols,)))
        mask = (True, True)
        yield Sample(f"{cols} columns", {"x1": x1, "x2": x2, "gamma": gamma, "output_mask": mask})
    for dtype in checks.FLOATS:
        x1, x2 = rows.normal((301, 520), dtype), rows.normal((301, 520), dtype)
        weights = {name: rows.normal((520,), dtype) for name in ("gamma", "smooth_scale1", "smooth_scale2", "beta")}
        yield Sample(f"many rows of {dtype}", {"x1": x1, "x2": x2, **weights})


def composition(x1: Tensor, x2: Tensor, gamma: Tensor, *smooth_scales: Tensor) -> tuple[Tensor, ...]:
    """What one writes in PyTorch: the formula, int8 codes, the sum rounded to its dtype at the end."""
    x = x1.float() + x2.float()
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * gamma.float()
    outputs = [x.to(x1.dtype)]
    for smooth in smooth_scales:
        scaled = y * smooth.float()
        scale = scaled.abs().amax(-1, keepdim=True) / 127.0
        outputs += [torch.round(scaled / scale).to(torch.int8), scale.squeeze(-1)]
    return tuple(outputs)


def unfused(call: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """`composition` of a plain call, which has no smooth scales: (y1, y2, x, scale1, scale2), the second ones empty."""
    x1, x2, gamma = call["x1"], call["x2"], call["gamma"]
    x, y1, scale1 = composition(x1, x2, gamma, torch.ones_like(gamma))
    return y1, y1.new_empty(0), x, scale1, scale1.new_empty(0)


SAMPLES = Samples(
    draw=draw,
    edges=edges,
    unfused=unfused,
    case=CaseSpec(
        inputs=case_inputs,
        sizes=(64, 512),
        dtypes=(torch.float16, torch.bfloat16, torch.float32),
        encodings=case_encodings,
    ),
)
