from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from . import BadCall


def bad_calls() -> Iterable[BadCall]:
    def call(**changes: Any) -> dict[str, Any]:
        arguments = {"x1": torch.ones(3, 6), "x2": torch.ones(3, 6), "gamma": torch.ones(6)}
        return {**arguments, **changes}

    smooth = torch.ones(6)
    double = torch.float64
    for name in ("x1", "x2"):
        yield BadCall(f"{name} of dtype float64", call(**{name: torch.ones(3, 6, dtype=double)}), TypeError, name)
    yield BadCall("both of dtype int8", call(x1=torch.ones(3, 6).to(torch.int8)), TypeError, "x1")
    yield BadCall("x2 of another dtype", call(x2=torch.ones(3, 6, dtype=torch.float16)), TypeError, "x2")
    yield BadCall("x2 of another shape", call(x2=torch.ones(6, 3)), ValueError, "x2")
    yield BadCall("x2 to be broadcast", call(x2=torch.ones(6)), ValueError, "x2")
    yield BadCall("0-dim tensors", call(x1=torch.ones(()), x2=torch.ones(())), ValueError, "x1")
    for name in ("gamma", "smooth_scale1", "beta"):
        for error, value in (
            (TypeError, torch.ones(6, dtype=double)),
            (TypeError, torch.ones(6, dtype=torch.bfloat16)),
            (TypeError, [1.0] * 6),
            (ValueError, torch.ones(5)),
            (ValueError, torch.ones(1, 6)),
            (ValueError, torch.ones(())),
        ):
            what = tuple(value.shape) if isinstance(value, Tensor) else "a list"
            yield BadCall(f"{name}: {what}, {error.__name__}", call(**{name: value}), error, name)
    both = {"smooth_scale1": smooth, "smooth_scale2": torch.ones(7)}
    yield BadCall("smooth_scale2 too long", call(**both), ValueError, "smooth_scale2")
    yield BadCall("x1 no tensor", call(x1=[[1.0] * 6]), TypeError, "x1")
    yield BadCall("only smooth_scale2", call(smooth_scale2=smooth), ValueError, "smooth_scale2")
    yield BadCall("an empty mask", call(smooth_scale2=smooth, output_mask=[]), ValueError, "smooth_scale2")
    for mask in ((True,), (True, True, False)):
        yield BadCall(f"mask {mask}", call(output_mask=mask), ValueError, "output_mask")
    for unknown in ((1, 0), "TF", (None, True), True):
        yield BadCall(f"mask {unknown}", call(output_mask=unknown), TypeError, "output_mask")
    yield BadCall("no output", call(output_mask=(False, False)), ValueError, "output_mask")
    masked = {"smooth_scale1": smooth, "output_mask": (False, True)}
    yield BadCall("smooth_scale1 masked out", call(**masked), ValueError, "output_mask")
    masked = {"smooth_scale2": smooth, "output_mask": (True, False)}
    yield BadCall("smooth_scale2 masked out", call(**masked), ValueError, "output_mask")
    for epsilon in (-1e-6, float("nan")):
        yield BadCall(f"epsilon {epsilon}", call(epsilon=epsilon), ValueError, "epsilon")
    yield BadCall("epsilon no number", call(epsilon="1e-6"), TypeError, "epsilon")
    for y_dtype in (torch.int32, torch.float16, "int5", "int8", None, 2):
        yield BadCall(f"y_dtype {y_dtype}", call(y_dtype=y_dtype), TypeError, "y_dtype")
    odd = {"x1": torch.ones(3, 7), "x2": torch.ones(3, 7), "gamma": torch.ones(7)}
    yield BadCall("int4, odd last dimension", {**odd, "y_dtype": "int4"}, ValueError, "x1")
    yield BadCall("unknown convention", call(convention="kernel"), ValueError, "convention")
