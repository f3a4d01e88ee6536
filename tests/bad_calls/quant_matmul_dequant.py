from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from anyfuse import pack_weight
from anyfuse.ops.quant_matmul_dequant import MAX_K

from . import BadCall


def bad_calls() -> Iterable[BadCall]:
    yield from bad_products((), {})
    n, k = 5, 8
    call = {"x": torch.ones(3, k), "weight": torch.ones(n, k, dtype=torch.int8), "weight_scale": torch.ones(n)}
    packed = pack_weight(torch.ones(2, n, k, dtype=torch.int8))
    yield BadCall("weight packed in groups", {**call, "weight": packed}, ValueError, "weight")
    for shape in ((n, 1), (1, 1, n)):
        yield BadCall(
            f"weight_scale of {shape}", {**call, "weight_scale": torch.ones(shape)}, ValueError, "weight_scale"
        )


def bad_products(groups: tuple[int, ...], more: dict[str, Any]) -> Iterable[BadCall]:
    """Calls on 3 rows, n = 5 and k = 8; `more` goes along in each."""
    m, n, k = 3, 5, 8
    columns, matrix = (*groups, n), (*groups, n, k)

    def call(**changes: Any) -> dict[str, Any]:
        return {
            "x": torch.ones(m, k),
            "weight": torch.ones(matrix, dtype=torch.int8),
            "weight_scale": torch.ones(columns),
            **more,
            **changes,
        }

    int8, half = torch.int8, torch.float16
    int64 = {"weight_scale": torch.ones(columns, dtype=torch.int64)}
    one = {"x_scale": torch.ones(1), "quant_mode": "pertensor"}
    codes = {"x": torch.ones(m, k, dtype=int8), "x_scale": torch.ones(m), "out_dtype": torch.float32}
    kinds = {"x": x_types, "weight": weight_types, "weight_scale": scale_types, "bias": bias_types}
    for name, dtypes in kinds.items():
        size = {"x": (m, k), "weight": matrix}.get(name, columns)
        for dtype in dtypes:
            yield BadCall(f"{name} of {dtype}", call(**{name: torch.ones(size, dtype=dtype)}), TypeError, name)
        yield BadCall(f"{name} a list", call(**{name: [1.0]}), TypeError, name)
    yield BadCall("no weight_scale", call(weight_scale=None), TypeError, "weight_scale")
    packed = pack_weight(torch.ones(matrix, dtype=int8))
    yield BadCall("packed without a scale", call(weight=packed, weight_scale=None), TypeError, "weight_scale")
    yield BadCall("packed, other k", call(weight=packed, x=torch.ones(m, k - 1)), ValueError, "weight")
    yield BadCall("packed, other n", call(weight=packed, weight_scale=torch.ones(*groups, n - 1)), ValueError, "weight")
    yield BadCall("x_offset", call(x_offset=torch.ones(1)), ValueError, "x_offset")
    yield BadCall("x of 1 dimension", call(x=torch.ones(k)), ValueError, "x")
    yield BadCall(
        "k too long",
        call(x=torch.ones(1, MAX_K + 1), weight=torch.ones(*groups, n, MAX_K + 1, dtype=int8)),
        ValueError,
        "x",
    )
    yield BadCall("weight the other way", call(transpose_weight=False), ValueError, "weight")
    yield BadCall("weight of a dimension more", call(weight=torch.ones(*matrix, 1, dtype=int8)), ValueError, "weight")
    yield BadCall(
        "weight of wrong blocks", call(weight=torch.ones(*groups, 1, 1, 32, 16, dtype=int8)), ValueError, "weight"
    )
    blocks = torch.ones(*groups, 2, 1, 16, 32, dtype=int8)
    yield BadCall("weight of too many blocks", call(weight=blocks), ValueError, "weight")
    yield BadCall("blocks the other way", call(weight=blocks, transpose_weight=False), ValueError, "weight")
    shape: tuple[int, ...]
    for shape in ((*groups, n + 1), (), (7, n)):
        yield BadCall(f"weight_scale of {shape}", call(weight_scale=torch.ones(shape)), ValueError, "weight")
    for shape in ((*groups, n + 1), (1, n), ()):
        yield BadCall(f"bias of {shape}", call(bias=torch.ones(shape, dtype=torch.int32)), ValueError, "bias")
    for shape in ((k + 1,), (1, k), (1,), (*groups, k + 1)):
        yield BadCall(f"smooth_scale of {shape}", call(smooth_scale=torch.ones(shape)), ValueError, "smooth_scale")
    for dtype in (torch.float64, int8):
        smooth = torch.ones(k, dtype=dtype)
        yield BadCall(f"smooth_scale of {dtype}", call(smooth_scale=smooth), TypeError, "smooth_scale")
    for shape in ((m + 1,), (1, m), (1,), (), (m, 2)):
        yield BadCall(f"x_scale of {shape}", call(x_scale=torch.ones(shape)), ValueError, "x_scale")
        per_tensor = {"x_scale": torch.ones(shape), "quant_mode": "pertensor"}
        if shape not in ((), (1,)):
            yield BadCall(f"x_scale of {shape}, pertensor", call(**per_tensor), ValueError, "x_scale")
    for dtype in (half, torch.bfloat16, torch.float64):
        yield BadCall(f"x_scale of {dtype}", call(x_scale=torch.ones(m, dtype=dtype)), TypeError, "x_scale")
    yield BadCall("x_scale NaN", call(x_scale=torch.tensor([1.0, math.nan, 1.0])), ValueError, "x_scale")
    yield BadCall("x_scale a number", call(x_scale=0.5), TypeError, "x_scale")
    yield BadCall("dynamic per tensor", call(quant_mode="pertensor"), ValueError, "x_scale")
    yield BadCall("unknown quant_mode", call(quant_mode="perchannel"), ValueError, "quant_mode")
    yield BadCall("unknown convention", call(convention="kernel"), ValueError, "convention")
    yield BadCall("int64 scales, dynamic", call(**int64), ValueError, "weight_scale")
    yield BadCall(
        "int64 scales, pertoken", call(**int64, x_scale=torch.ones(m, dtype=half)), ValueError, "weight_scale"
    )
    yield BadCall("int64 scales, fp32 x_scale", call(**int64, **one), TypeError, "x_scale")
    fp16 = {"x_scale": torch.ones(1, dtype=half), "quant_mode": "pertensor"}
    yield BadCall("fp16 x_scale, fp32 scales", call(**fp16), TypeError, "x_scale")
    nan = {"x_scale": torch.tensor([math.nan], dtype=half), "quant_mode": "pertensor"}
    yield BadCall("fp16 x_scale NaN", call(**int64, **nan), ValueError, "x_scale")
    yield BadCall("out_dtype int8", call(out_dtype=int8), TypeError, "out_dtype")
    yield BadCall("out_dtype float64", call(out_dtype=torch.float64), TypeError, "out_dtype")
    yield BadCall("codes without scales", call(**{**codes, "x_scale": None}), ValueError, "x_scale")
    yield BadCall("codes without out_dtype", call(**{**codes, "out_dtype": None}), ValueError, "out_dtype")
    yield BadCall("codes, pertensor", call(**{**codes, **one}), ValueError, "quant_mode")
    yield BadCall("codes and smooth_scale", call(**codes, smooth_scale=torch.ones(k)), ValueError, "smooth_scale")
    yield BadCall("codes and int64 scales", call(**{**codes, **int64, **fp16}), ValueError, "weight_scale")


x_types = (torch.float64, torch.int32, torch.uint8)
weight_types = (torch.uint8, torch.float32, torch.int32)
scale_types = (torch.float16, torch.bfloat16, torch.float64, torch.int32)
bias_types = (torch.float32, torch.int64, torch.int8)
