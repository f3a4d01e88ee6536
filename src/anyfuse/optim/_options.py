"""Checks of a group's options, with one wording."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..ops import _checks as checks


def check_number(name: str, value: Any, low: float, below: float = math.inf) -> None:
    """A number or a one-element tensor in [low, below)."""
    if isinstance(value, Tensor):
        checks.require(value.numel() == 1, f"{name} has shape {tuple(value.shape)}; accepted: one element")
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a {type(value).__name__}; accepted: a number")
    accepted = f"{low} and above" if below == math.inf else f"{low} up to, but less than, {below}"
    checks.require(low <= value < below, f"{name} is {value}; accepted: {accepted}")


def check_betas(betas: Any) -> None:
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise ValueError(f"betas is {betas!r}; accepted: two numbers")
    for i, beta in enumerate(betas):
        check_number(f"betas[{i}]", beta, 0.0, 1.0)


def check_flag(name: str, value: Any) -> None:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is a {type(value).__name__}; accepted: True or False")


def check_choice(name: str, value: Any, accepted: Sequence[Any]) -> None:
    """One of the values accepted; 1 is not taken for True."""
    if not any(value == choice and type(value) is type(choice) for choice in accepted):
        raise ValueError(f"{name} is {value!r}; accepted: {', '.join(map(repr, accepted))}")


def check_whole(name: str, value: Any, low: int | None = None) -> None:
    """A whole number, of `low` or more where one is given."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is a {type(value).__name__}; accepted: a whole number")
    checks.require(low is None or value >= low, f"{name} is {value}; accepted: {low} and above")
