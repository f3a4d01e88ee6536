"""`anyfuse bench`: the operators and what one could use instead, timed side by side.

One module per operator, named after it, holds its cases and peers (`CASES`); the rest is shared. Nothing is listed: the
modules are found by the names in the registry.
"""

from __future__ import annotations

import importlib
import importlib.util

from .case import Case


def cases(operator: str) -> tuple[Case, ...]:
    """The cases of one operator; none when it has no benchmark module."""
    name = f"{__name__}.{operator}"
    if importlib.util.find_spec(name) is None:
        return ()
    found: tuple[Case, ...] = importlib.import_module(name).CASES
    return found
