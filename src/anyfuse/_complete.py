"""What the shell offers on Tab: names that an argument or option takes."""

from __future__ import annotations

from collections.abc import Iterable

from . import _core
from ._opspec import REGISTRY
from ._products import PRODUCTS


def operators(incomplete: str) -> list[str]:
    return _beginning(sorted(REGISTRY), incomplete)


def targets(incomplete: str) -> list[str]:
    return _beginning(_core.available_targets(), incomplete)


def products(incomplete: str) -> list[str]:
    return _beginning(PRODUCTS, incomplete)


def backends(incomplete: str) -> list[str]:
    return _beginning(("native", "reference"), incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
