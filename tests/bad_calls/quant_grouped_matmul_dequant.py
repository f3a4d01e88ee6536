from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from anyfuse import pack_weight

from . import BadCall
from .quant_matmul_dequant import bad_products


def bad_calls() -> Iterable[BadCall]:
    groups, m, n, k = 2, 3, 5, 8
    ends = torch.tensor([1, 3])
    yield from bad_products((groups,), {"group_list": ends})

    def call(**changes: Any) -> dict[str, Any]:
        return {
            "x": torch.ones(m, k),
            "weight": torch.ones(groups, n, k, dtype=torch.int8),
            "weight_scale": torch.ones(groups, n),
            "group_list": ends,
            **changes,
        }

    lists: list[list[int]] = [[2, 1], [1, 4], [-1, 3], [4, 3], [0, 2**62]]
    for wrong in lists:
        yield BadCall(f"ends {wrong}", call(group_list=torch.tensor(wrong)), ValueError, "group_list")
    for shape in ((1, 2), (2, 1), ()):
        wrong_shape = torch.full(shape, 3, dtype=torch.int64)
        yield BadCall(f"group_list of {shape}", call(group_list=wrong_shape), ValueError, "group_list")
    for dtype in (torch.int32, torch.float32, torch.bool):
        yield BadCall(f"group_list of {dtype}", call(group_list=ends.to(dtype)), TypeError, "group_list")
    for kind in ([1, 3], None):
        yield BadCall(f"group_list a {type(kind).__name__}", call(group_list=kind), TypeError, "group_list")
    yield BadCall("more ends than weights", call(group_list=torch.tensor([1, 2, 3])), ValueError, "weight_scale")
    three = torch.ones(3, n, k, dtype=torch.int8)
    yield BadCall("more weights than ends", call(weight=three), ValueError, "weight")
    yield BadCall("packed, more groups", call(weight=pack_weight(three)), ValueError, "weight")
    yield BadCall("packed, no groups", call(weight=pack_weight(three[0])), ValueError, "weight")
    yield BadCall("weight_scale of one group", call(weight_scale=torch.ones(n)), ValueError, "weight_scale")
    yield BadCall("bias of one group", call(bias=torch.ones(n, dtype=torch.int32)), ValueError, "bias")
    yield BadCall("smooth_scale of a group more", call(smooth_scale=torch.ones(3, k)), ValueError, "smooth_scale")
