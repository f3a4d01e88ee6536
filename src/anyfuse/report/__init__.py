"""Reports: what `verify` and `bench` found, as one HTML page that needs nothing else.

A page holds its style and its pictures and no script. The pictures are SVG written here, not drawn by a plotting
library: a few kilobytes each, they take their colours from the page (light, dark, paper) and their text is text.
Whatever a picture shows stands in a table of the page, too.
"""

from __future__ import annotations

import os
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from .._console import duration, short
from .._machine import words
from ..verify.files import Folder, text_writer


def check_path(path: Path) -> None:
    """Raises before the work whose result could not be written to `path` begins. OSError."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; accepted: a file for the report")
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not os.access(parent, os.W_OK):
        raise PermissionError(f"{path} cannot be written: no permission in {parent}")


def save(path: Path, template: str, **values: Any) -> None:
    """Fills a template and writes the page, whole or not at all."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    text = _environment().get_template(template).render(written=now, **values)
    Folder(path.parent).write({path.name: text_writer(text)})


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("anyfuse.report"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"short": short, "duration": duration, "percent": percent, "words": words}
    return environment


def percent(part: float, whole: float = 1.0) -> str:
    """A share in few characters, of which none is a false 0 or 100: "<0.01 %", "99.98 %"."""
    share = 100 * part / whole if whole else 0.0
    if share in (0.0, 100.0):
        return f"{share:.0f} %"
    if share < 0.01:
        return "<0.01 %"
    if share > 99.99:
        return ">99.99 %"
    return f"{share:.2f} %" if share < 1 or share > 99 else f"{share:.1f} %"
