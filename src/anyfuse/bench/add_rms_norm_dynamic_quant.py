"""Add, RMSNorm and dynamic quantization in one pass, beside the same composed in PyTorch, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._settings import backend
from ..ops.add_rms_norm_dynamic_quant import add_rms_norm_dynamic_quant
from ..samples.add_rms_norm_dynamic_quant import EPSILON, composition
from .case import READ, WRITE, Array, Case, Goal, Peer, Runner, Traffic, Work
from .overhead import tiny

COMPILED, EAGER = "composition, torch.compile", "composition, eager"


def call(rows: int, cols: int, dtype: torch.dtype, outputs: int = 2, y_dtype: Any = torch.int8) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    smooth = {f"smooth_scale{i}": normal(cols).abs() + 0.5 for i in range(1, outputs + 1)}
    return {
        "x1": normal(rows, cols),
        "x2": normal(rows, cols),
        "gamma": normal(cols),
        **smooth,
        "epsilon": EPSILON,
        "y_dtype": y_dtype,
    }


# ---- peers ----


def inputs(given: dict[str, Any]) -> tuple[Tensor, ...]:
    return tuple(value for value in given.values() if isinstance(value, Tensor))


def composed(transform: Callable[[Any], Any], given: dict[str, Any]) -> Runner:
    return Runner(partial(torch.inference_mode()(transform(composition)), *inputs(given)))


def compiled(function: Any) -> Any:
    return torch.compile(function, dynamic=False)


def accuracy(transform: Callable[[Any], Any], dtype: torch.dtype) -> dict[str, Any]:
    given = call(64, 4096, dtype)
    with backend("reference"):
        y1, y2, x, _, _ = add_rms_norm_dynamic_quant(**given)
    found = composed(transform, given).run()
    codes = torch.stack([found[1], found[3]]).int() - torch.stack([y1, y2]).int()
    return {
        "codes that differ": float((codes != 0).float().mean()),
        "by at most": int(codes.abs().max()),
        "sum equal": bool(torch.equal(found[0], x)),
    }


# ---- cases ----


def norm(rows: int, dtype: torch.dtype, quick: bool, outputs: int = 2, y_dtype: Any = torch.int8) -> Work:
    rows, cols = (min(rows, 8), 512) if quick else (rows, 4096)
    given = call(rows, cols, dtype, outputs, y_dtype)
    width = dtype.itemsize
    code = 0.5 if y_dtype == "int4" else 1
    codes = Array(round(outputs * code), WRITE) if outputs * code >= 1 else None
    peers = []
    if y_dtype == torch.int8:
        peers = [
            Peer(COMPILED, partial(composed, compiled, given), accuracy=partial(accuracy, compiled, dtype)),
            Peer(EAGER, partial(composed, lambda function: function, given)),
        ]
    arrays = (Array(width, READ), Array(width, READ), Array(width, WRITE), *([codes] if codes else []))
    return Work(
        ours=Runner(partial(add_rms_norm_dynamic_quant, **given)),
        units=rows * cols,
        unit="element",
        sample=call(37, 515 if y_dtype != "int4" else 514, dtype, outputs, y_dtype),
        traffic=Traffic(arrays, rows * cols),
        peers=tuple(peers),
    )


TWICE = (Goal(f"ratio {COMPILED}", least=2, aim=3),)
HALF, BRAIN = torch.float16, torch.bfloat16
CASES = (
    Case(
        "2048 x 4096 fp16, two int8 outputs",
        partial(norm, 2048, HALF),
        goals=(*TWICE, Goal("transient KiB", most=1024)),
        memory=True,
    ),
    Case("2048 x 4096 bf16, two int8 outputs", partial(norm, 2048, BRAIN), goals=TWICE),
    Case("2048 x 4096 bf16, one int8 output", partial(norm, 2048, BRAIN, outputs=1)),
    Case("2048 x 4096 bf16, two int4 outputs", partial(norm, 2048, BRAIN, y_dtype="int4")),
    Case("2048 x 4096 bf16, two fp8 outputs", partial(norm, 2048, BRAIN, y_dtype=torch.float8_e4m3fn)),
    Case("2048 x 4096 bf16, two HiFloat8 outputs", partial(norm, 2048, BRAIN, y_dtype="hifloat8")),
    Case("16 x 4096 bf16, two int8 outputs", partial(norm, 16, BRAIN)),
    tiny(add_rms_norm_dynamic_quant, partial(call, 1, 16, HALF), 15.0, "1 x 16"),
    tiny(add_rms_norm_dynamic_quant, partial(call, 1, 4096, HALF), 25.0, "1 x 4096"),
)
