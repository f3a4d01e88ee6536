"""Invalid calls of each operator, one module an operator, of its name: each must be refused, and nothing written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class BadCall:
    """One invalid call, the exception it raises and a word its message holds (the argument's name)."""

    label: str
    arguments: dict[str, Any]
    error: type[Exception]
    names: str


def bad_calls(operator: str) -> Iterable[BadCall]:
    calls: Iterable[BadCall] = import_module(f"bad_calls.{operator}").bad_calls()
    return calls
