"""Pages: what `verify` and `bench` found, as one HTML file that needs nothing else. Their own modules fill them.

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

from .._files import Folder, text_writer
from .._words import duration, percent, short, words


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
        loader=PackageLoader("anyfuse.html"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"short": short, "duration": duration, "percent": percent, "words": words}
    return environment
