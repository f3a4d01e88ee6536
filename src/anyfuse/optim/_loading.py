"""Saved states on their way in: what is in them is looked at before any of it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..ops import _arguments as arguments
from ..ops import _checks as checks
from ._step import State


def new_step(value: int = 0) -> Tensor:
    """The number of the steps taken: on the CPU, wherever the parameter lies."""
    return torch.tensor(value, dtype=torch.int64)


def copies(state: Mapping[str, Any], param: Tensor) -> State:
    """A parameter's saved state as copies on its device, the step (a number, or a tensor of any dtype) as int64.

    Raises TypeError for tensors whose values cannot be copied (sparse, quantized …), ValueError for those of no values
    and for a step that is not a whole number of 0 or more.
    """
    copied = {}
    for key, value in {"step": 0, **state}.items():
        if isinstance(value, Tensor):
            if value.is_meta:
                raise ValueError(f"{key} of a saved state lies on meta; accepted: a tensor with values")
            value = value.detach().resolve_neg()
            arguments.check_memory_exists([(f"{key} of a saved state", value)])
            value = value.to(param.device).clone(memory_format=torch.contiguous_format)
        copied[key] = new_step(whole_step(value)) if key == "step" else value
    return copied


def whole_step(value: Any) -> int:
    """The step of a saved state; TypeError or ValueError for what is none."""
    if isinstance(value, Tensor):
        checks.require(
            value.numel() == 1, f"step of a saved state has shape {tuple(value.shape)}; accepted: one element"
        )
    if isinstance(value, (Tensor, np.number)):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"step of a saved state is a {type(value).__name__}; accepted: a whole number")
    checks.require(
        0 <= value < 2**62 and value % 1 == 0, f"step of a saved state is {value}; accepted: 0 and whole numbers above"
    )
    return int(value)
