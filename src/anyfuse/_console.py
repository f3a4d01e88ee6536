"""What the subcommands share: the --json option and JSON that every parser reads."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text for people.")]


def print_json(value: Any) -> None:
    """Prints JSON; infinities and NaN, which JSON lacks, become the strings "inf", "-inf" and "nan"."""
    print(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
