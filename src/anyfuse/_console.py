"""What the subcommands share: the --json option and JSON that every parser reads."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text for people.")]


def json_text(value: Any) -> str:
    """JSON; infinities and NaN, which JSON lacks, become the strings "inf", "-inf" and "nan"."""
    return json.dumps(_finite(value), indent=2, allow_nan=False)


def print_json(value: Any) -> None:
    print(json_text(value))


def table(title: str, *columns: str, numbers: tuple[str, ...] = (), wrap: tuple[str, ...] = ()) -> Table:
    """A table in the one style of all commands; columns in `numbers` are aligned right, those in `wrap` break lines."""
    result = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        result.add_column(name, justify="right" if name in numbers else "left", no_wrap=name not in wrap)
    return result


def short(count: int) -> str:
    """A count in few characters: 12.3M."""
    value, unit = float(count), ""
    for larger in ("k", "M", "G", "T"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f}{unit}" if unit else str(count)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
