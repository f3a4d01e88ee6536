from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from . import BadCall


def bad_calls() -> Iterable[BadCall]:
    def call(**changes: Any) -> dict[str, Any]:
        tensors = {name: torch.ones(3, 4) for name in "grad var m v s".split()}
        return {**tensors, "step": 1, **changes}

    for name in ("grad", "var", "m", "v", "s"):
        yield BadCall(
            f"{name} of dtype float64", call(**{name: torch.ones(3, 4, dtype=torch.float64)}), TypeError, name
        )
        yield BadCall(f"{name} of dtype int8", call(**{name: torch.ones(3, 4, dtype=torch.int8)}), TypeError, name)
    for name in ("grad", "m", "v", "s"):
        yield BadCall(f"{name} of another shape", call(**{name: torch.ones(4, 3)}), ValueError, name)
        yield BadCall(f"{name} not a tensor", call(**{name: [1.0]}), TypeError, name)
        yield BadCall(f"{name} a list", call(**{name: [torch.ones(3, 4)]}), TypeError, name)
    one = [torch.ones(2)]
    two = [torch.ones(2), torch.ones(2)]
    lists = {"grad": two, "var": [t.clone() for t in two], "m": [t.clone() for t in two], "v": [t.clone() for t in two]}
    yield BadCall("lists of different lengths", call(**lists, s=one), ValueError, "s")
    yield BadCall("a step too many", call(step=[1, 2]), ValueError, "step")
    yield BadCall("step of two elements", call(step=torch.tensor([1, 2])), ValueError, "step")
    yield BadCall("step of a float dtype", call(step=torch.tensor([1.0])), TypeError, "step")
    yield BadCall("step a float", call(step=1.5), TypeError, "step")
    yield BadCall("mode 2", call(mode=2), ValueError, "mode")
    yield BadCall("unknown convention", call(convention="kernel"), ValueError, "convention")
    yield BadCall("a seed that is True", call(stochastic_rounding=True), TypeError, "stochastic_rounding")
    yield BadCall("a negative seed", call(stochastic_rounding=-1), ValueError, "stochastic_rounding")
    yield BadCall("a seed of 33 bits", call(stochastic_rounding=2**32), ValueError, "stochastic_rounding")
    yield BadCall("a seed too many", call(stochastic_rounding=[1, 2]), ValueError, "stochastic_rounding")
    same = torch.ones(3, 4)
    yield BadCall("m is v", call(m=same, v=same), ValueError, "shares memory")
    wide = torch.ones(3, 8)
    yield BadCall("overlapping views", call(var=wide[:, :4], s=wide[:, 3:7]), ValueError, "shares memory")
    yield BadCall("expanded var", call(var=torch.ones(1, 4).expand(3, 4)), ValueError, "var")
    yield BadCall("grad is var", call(grad=same, var=same), ValueError, "shares memory")
