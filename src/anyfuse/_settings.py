"""What a call takes from its surroundings when it is not given: the backend and the convention.

Both are context variables (each thread and async task has its own), with environment defaults read once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from . import _core
from ._checks import one_of

BACKENDS = ("auto", "native", "reference")
CONVENTIONS = ("formula", "device")


def from_environment(variable: str, accepted: tuple[str, ...]) -> str:
    """The value of an environment variable; the first of those accepted where it is not set."""
    return one_of(variable, os.environ.get(variable, accepted[0]), accepted)


_default_backend = from_environment("ANYFUSE_BACKEND", BACKENDS)
if _default_backend == "reference":
    _core.go_generally()
_backend: ContextVar[str] = ContextVar("anyfuse_backend", default=_default_backend)
_default_convention = (
    from_environment("ANYFUSE_CONVENTION", CONVENTIONS) if "ANYFUSE_CONVENTION" in os.environ else None
)


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Runs the block's operators on one implementation.

    "native": the compiled kernels. "reference": plain PyTorch, slow, the definition of the numbers. "auto" (default;
    `ANYFUSE_BACKEND` changes it): native. The choice is taken when an operator runs, inside compiled graphs too.

    Raises ValueError for another name.
    """
    token = _backend.set(one_of("backend", name, BACKENDS))
    if name == "reference":
        _core.go_generally()
    try:
        yield
    finally:
        _backend.reset(token)


def use_reference() -> bool:
    return _backend.get() == "reference"


_float64: ContextVar[bool] = ContextVar("anyfuse_float64", default=False)


@contextmanager
def float64_reference() -> Iterator[None]:
    """Runs the block's operators on their references, computing in float64 and rounding once, at each store.

    For goldens that do not depend on the order of roundings: the update rule is the reference's own.
    """
    token = _float64.set(True)
    try:
        with backend("reference"):
            yield
    finally:
        _float64.reset(token)


def use_float64() -> bool:
    return _float64.get()


def convention_or_default(convention: str | None, usual: str = "formula") -> str:
    """The convention of a call: its own, or `ANYFUSE_CONVENTION`, or the operator's usual one."""
    if convention is None:
        return _default_convention or usual
    return one_of("convention", convention, CONVENTIONS)
