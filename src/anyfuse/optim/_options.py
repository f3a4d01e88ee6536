"""Checks of options that several optimizers have."""

from __future__ import annotations

from typing import Any

from ..ops import _dispatch as d


def check_whole(name: str, value: Any, low: int | None = None) -> None:
    """A whole number, of `low` or more where one is given."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is a {type(value).__name__}; accepted: a whole number")
    d.require(low is None or value >= low, f"{name} is {value}; accepted: {low} and above")
