from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from anyfuse.formats import codebook

from . import BadCall


def bad_calls() -> Iterable[BadCall]:
    def call(**changes: Any) -> dict[str, Any]:
        tensors = {
            "var": torch.ones(3, 100),
            "grad": torch.ones(3, 100),
            "m": torch.zeros(3, 100, dtype=torch.uint8),
            "v": torch.zeros(3, 100, dtype=torch.uint8),
            "qmap_m": codebook.create_codebook("linear"),
            "qmap_v": codebook.create_codebook("linear", signed=False),
            "absmax_m": torch.ones(2),
            "absmax_v": torch.ones(2),
        }
        return {**tensors, "step": 1, "lr": 0.1, **changes}

    for name in ("var", "grad"):
        for dtype in (torch.float64, torch.int8):
            yield BadCall(f"{name} of {dtype}", call(**{name: torch.ones(3, 100, dtype=dtype)}), TypeError, name)
    for name in ("m", "v"):
        for dtype in (torch.float32, torch.int8):
            yield BadCall(
                f"{name} of {dtype}",
                call(**{name: torch.ones(3, 100, dtype=dtype)}),
                TypeError,
                "v has" if dtype == torch.float32 else name,
            )
        turned = torch.zeros(100, 3, dtype=torch.uint8)
        yield BadCall(f"{name} of another shape", call(**{name: turned}), ValueError, name)
    yield BadCall("grad of another shape", call(grad=torch.ones(100, 3)), ValueError, "grad")
    floats = {"m": torch.zeros(3, 100), "v": torch.zeros(3, 100)}
    yield BadCall("scales of moments in float32", call(**floats), ValueError, "absmax_m")
    yield BadCall("s of float64", call(s=torch.ones(3, 100, dtype=torch.float64)), TypeError, "s has dtype")
    yield BadCall("s of another shape", call(s=torch.ones(100, 3)), ValueError, "s has shape")
    yield BadCall("s a list", call(s=[torch.ones(3, 100)]), TypeError, "s is a")
    yield BadCall("a seed that is True", call(stochastic_rounding=True), TypeError, "stochastic_rounding")
    yield BadCall("a negative seed", call(stochastic_rounding=-1), ValueError, "stochastic_rounding")
    for name in ("absmax_m", "absmax_v"):
        yield BadCall(f"{name} of float16", call(**{name: torch.ones(2, dtype=torch.float16)}), TypeError, name)
        for shape in ((1,), (3,), (2, 1)):
            yield BadCall(f"{name} of shape {shape}", call(**{name: torch.ones(shape)}), ValueError, name)
    for name in ("qmap_m", "qmap_v"):
        linear = codebook.create_codebook("linear")
        yield BadCall(f"{name} of float64", call(**{name: linear.double()}), TypeError, name)
        for shape in ((255,), (1, 256)):
            yield BadCall(f"{name} of shape {shape}", call(**{name: torch.zeros(shape)}), ValueError, name)
        yield BadCall(f"{name} falling", call(**{name: linear.flip(0)}), ValueError, name)
        for value in (float("nan"), float("inf")):
            odd = linear.clone()
            odd[-1] = value
            yield BadCall(f"{name} with {value}", call(**{name: odd}), ValueError, name)
    for name in ("grad", "m", "v", "absmax_m", "absmax_v"):
        yield BadCall(f"{name} not a tensor", call(**{name: [1.0]}), TypeError, name)
        yield BadCall(f"{name} a list", call(**{name: [torch.ones(3, 100)]}), TypeError, name)
    lists = {
        name: [value] for name, value in call().items() if isinstance(value, Tensor) and not name.startswith("qmap")
    }
    yield BadCall("lists of different lengths", call(**{**lists, "v": lists["v"] * 2}), ValueError, "v")
    yield BadCall("a step too many", call(step=[1, 2]), ValueError, "step")
    yield BadCall("step of two elements", call(step=torch.tensor([1, 2])), ValueError, "step")
    yield BadCall("step of a float dtype", call(step=torch.tensor([1.0])), TypeError, "step")
    yield BadCall("step 0", call(step=0, convention="formula"), ValueError, "step")
    yield BadCall("step -1 on the device", call(step=-1, convention="device"), ValueError, "step")
    for size in (0, -1, 3, 32, 4096, 2**64, "256", 256.0):
        yield BadCall(f"block_size {size!r}", call(block_size=size), ValueError, "block_size")
    yield BadCall("quant_mode", call(quant_mode="TENSORWISE"), ValueError, "quant_mode")
    yield BadCall("unknown convention", call(convention="kernel"), ValueError, "convention")
    yield BadCall("lr of two elements", call(lr=torch.ones(2)), ValueError, "lr")
    yield BadCall("grad_scale of int64", call(grad_scale=torch.tensor([2])), TypeError, "grad_scale")
    yield BadCall("found_inf of two elements", call(found_inf=torch.ones(2)), ValueError, "found_inf")
    codes, scales, ones = torch.zeros(3, 100, dtype=torch.uint8), torch.ones(2), torch.ones(3, 100)
    yield BadCall("m is v", call(m=codes, v=codes), ValueError, "shares memory")
    yield BadCall("absmax_m is absmax_v", call(absmax_m=scales, absmax_v=scales), ValueError, "shares memory")
    yield BadCall("grad is var", call(grad=ones, var=ones), ValueError, "shares memory")
    yield BadCall("expanded m", call(m=torch.zeros(1, 100, dtype=torch.uint8).expand(3, 100)), ValueError, "m has")
    yield BadCall("s is var", call(s=ones, var=ones), ValueError, "shares memory")
