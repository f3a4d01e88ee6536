"""Pages: what `verify` and `bench` found, as one HTML file that needs nothing else. Their own modules fill them.

A page holds its style and its pictures and no script. The pictures are SVG written here, not drawn by a plotting
library: a few kilobytes each, they take their colours from the page (light, dark, paper) and their text is text.
Whatever a picture shows stands in a table of the page, too.
"""

from __future__ import annotations

from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from .._saving import check_path as check_path
from .._saving import write_file
from .._words import duration, percent, short, words


def save(path: Path, template: str, **values: Any) -> None:
    """Fills a template and writes the page, whole or not at all."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    text = _environment().get_template(template).render(written=now, **values)
    write_file(path, text.encode())


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("anyfuse.html"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"short": short, "duration": duration, "percent": percent, "words": words}
    return environment
