from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from anyfuse.ops.lazy_adam import IDS

from . import BadCall


def bad_calls() -> Iterable[BadCall]:
    def call(**changes: Any) -> dict[str, Any]:
        tensors = {name: torch.ones(3, 4) for name in "m v var".split()}
        return {"gradient": torch.ones(2, 4), "indices": torch.tensor([2, 0]), **tensors, "lr": 0.1, **changes}

    for name in ("m", "v", "var"):
        for dtype in (torch.float64, torch.int8):
            yield BadCall(f"{name} of dtype {dtype}", call(**{name: torch.ones(3, 4, dtype=dtype)}), TypeError, name)
        yield BadCall(f"{name} of one dimension", call(**{name: torch.ones(12)}), ValueError, name)
        yield BadCall(f"{name} expanded", call(**{name: torch.ones(1, 4).expand(3, 4)}), ValueError, name)
    for name in ("m", "v"):
        yield BadCall(f"{name} of dtype float16", call(**{name: torch.ones(3, 4).half()}), TypeError, name)
        yield BadCall(f"{name} of another shape", call(**{name: torch.ones(4, 3)}), ValueError, name)
    for name in ("gradient", "indices", "m", "v"):
        yield BadCall(f"{name} not a tensor", call(**{name: 1.0}), TypeError, name)
        yield BadCall(f"{name} a list", call(**{name: [torch.ones(3, 4)]}), TypeError, name)
    yield BadCall("gradient of dtype float64", call(gradient=torch.ones(2, 4).double()), TypeError, "gradient")
    yield BadCall("gradient of more rows than ids", call(gradient=torch.ones(3, 4)), ValueError, "gradient")
    yield BadCall("gradient of another width", call(gradient=torch.ones(2, 5)), ValueError, "gradient")
    yield BadCall("gradient of three dimensions", call(gradient=torch.ones(2, 4, 1)), ValueError, "gradient")
    for dtype in (torch.uint8, torch.int16, torch.float32):
        yield BadCall(f"ids of dtype {dtype}", call(indices=torch.tensor([1, 0]).to(dtype)), TypeError, "indices")
    yield BadCall("ids of shape (1, n)", call(indices=torch.tensor([[2, 0]])), ValueError, "indices")
    yield BadCall("ids of no dimension", call(indices=torch.tensor(2)), ValueError, "indices")
    for dtype in IDS:
        for assume_unique in (False, True):
            ids = torch.tensor([0, 3], dtype=dtype)
            label = f"an id of 3 in 3 rows, {dtype}, assume_unique={assume_unique}"
            yield BadCall(label, call(indices=ids, assume_unique=assume_unique), IndexError, "indices")
    yield BadCall("an id of 2^40", call(indices=torch.tensor([0, 2**40])), IndexError, "indices")
    wide = torch.ones(3, 8)
    yield BadCall(
        "an id beyond a strided table", call(indices=torch.tensor([0, 3]), var=wide[:, ::2]), IndexError, "indices"
    )
    two = {name: [value, value.clone()] for name, value in call().items() if isinstance(value, Tensor)}
    second = {**two, "indices": [torch.tensor([0, 1]), torch.tensor([0, 3])]}
    yield BadCall("an id beyond the second table", {**second, "lr": 0.1}, IndexError, "indices")
    yield BadCall("lists of different lengths", {**two, "v": two["v"][:1], "lr": 0.1}, ValueError, "v")
    yield BadCall("a list and a tensor", {**two, "v": torch.ones(3, 4), "lr": 0.1}, TypeError, "v")
    yield BadCall("an lr too many", {**two, "lr": [0.1, 0.1, 0.1]}, ValueError, "lr")
    yield BadCall("lr of two elements", call(lr=torch.ones(2)), ValueError, "lr")
    yield BadCall("lr of an integer dtype", call(lr=torch.tensor([1])), TypeError, "lr")
    yield BadCall("lr a string", call(lr="0.1"), TypeError, "lr")
    for epsilon in (0.0, 9.9e-9, -9.9e-9, float("nan")):
        yield BadCall(f"epsilon {epsilon}", call(epsilon=epsilon), ValueError, "epsilon")
    yield BadCall("a mask of too few rows", call(indices=torch.tensor([True, False])), ValueError, "indices")
    yield BadCall("all rows, of some a gradient", call(indices=None), ValueError, "gradient")
    yield BadCall("a list that holds a number", {**two, "indices": [None, 1], "lr": 0.1}, TypeError, "indices")
    yield BadCall("no list of indices", {**two, "indices": None, "lr": 0.1}, TypeError, "indices")
    for correction in (True, "none", "local", 1):
        bad = call(bias_correction=correction, step=1)
        yield BadCall(f"bias_correction {correction}", bad, ValueError, "bias_correction")
    counts = torch.zeros(3, dtype=torch.int32)
    caught_up = {"decay_mode": "catch_up", "row_step": counts}
    yield BadCall("unknown eps_mode", call(eps_mode="both"), ValueError, "eps_mode")
    yield BadCall("unknown decay_mode", call(decay_mode="lazy"), ValueError, "decay_mode")
    yield BadCall("no counts of rows", call(bias_correction="row"), ValueError, "row_step")
    yield BadCall("counts that nothing needs", call(row_step=counts), ValueError, "row_step")
    yield BadCall("counts of another dtype", call(bias_correction="row", row_step=counts.long()), TypeError, "row_step")
    yield BadCall("counts of other rows", call(bias_correction="row", row_step=counts[:2]), ValueError, "row_step")
    yield BadCall(
        "two kinds of counts", call(bias_correction="row", step=1, **caught_up), ValueError, "bias_correction"
    )
    yield BadCall("no step", call(bias_correction="global"), ValueError, "step")
    yield BadCall("step 0", call(bias_correction="global", step=0), ValueError, "step")
    yield BadCall("step 2^31", call(step=2**31, **caught_up), ValueError, "step")
    yield BadCall("padding without its rule", call(padding_idx=0), ValueError, "padding_idx")
    for padding in (None, -1):
        given = call(indices=torch.tensor([0, -2]), refuse_negative=True, padding_idx=padding)
        yield BadCall(f"an id of -2, padding {padding}", given, IndexError, "indices")
    yield BadCall("a seed of 33 bits", call(step=1, stochastic_rounding=2**32), ValueError, "stochastic_rounding")
    yield BadCall("grad_scale of two elements", call(grad_scale=torch.ones(2)), ValueError, "grad_scale")
    yield BadCall("unknown convention", call(convention="kernel"), ValueError, "convention")
    same = torch.ones(3, 4)
    yield BadCall("m is v", call(m=same, v=same), ValueError, "shares memory")
    yield BadCall("overlapping views", call(var=wide[:, :4], m=wide[:, 3:7]), ValueError, "shares memory")
    yield BadCall("gradient is part of var", call(gradient=same[:2], var=same), ValueError, "shares memory")
