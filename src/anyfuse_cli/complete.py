"""What the shell offers on Tab: names that an argument or option takes."""

from __future__ import annotations

from collections.abc import Iterable

from . import package


def operators(incomplete: str) -> list[str]:
    files = (package.folder() / "ops").glob("[!_]*.py")  # the registry's names: one file each
    return _beginning(sorted(file.stem for file in files), incomplete)


def targets(incomplete: str) -> list[str]:
    return _beginning(package.module("_core").available_targets(), incomplete)


def products(incomplete: str) -> list[str]:
    return _beginning(package.module("_products").PRODUCTS, incomplete)


def backends(incomplete: str) -> list[str]:
    return _beginning(("native", "reference"), incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
