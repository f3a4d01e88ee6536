"""`anyfuse bench`: the operators and what one could use instead, timed side by side.

One module per operator, named after it, holds its cases and peers (`CASES`); the rest is shared. Nothing is listed: the
modules are found by the names in the registry.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from torch import Tensor

from .case import Case

Unfused = Callable[[Mapping[str, Any]], tuple[Tensor, ...]]


def cases(operator: str) -> tuple[Case, ...]:
    """The cases of one operator; none when it has no benchmark module."""
    found: tuple[Case, ...] = getattr(_module(operator), "CASES", ())
    return found


def unfused(operator: str) -> Unfused | None:
    """The operator's plain call (default attributes, no optional tensors) as PyTorch's own operators one after another
    give it: a function of the call's arguments, which it may overwrite, that returns its outputs in order. None where
    there is none."""
    found: Unfused | None = getattr(_module(operator), "unfused", None)
    return found


def _module(operator: str) -> ModuleType | None:
    name = f"{__name__}.{operator}"
    return importlib.import_module(name) if importlib.util.find_spec(name) is not None else None
