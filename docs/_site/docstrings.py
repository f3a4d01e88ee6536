"""What griffe does to docstrings before it reads them, as an extension of it (mkdocs.yml)."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
_ELSEWHERE = "The mathematics is in this module's docstring. "


class Docstrings(griffe.Extension):
    """Examples are a section, which griffe knows by its plural. The sentence that sends readers to the docstring of the
    module is left out: on an operator's page that stands above."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = _EXAMPLE.sub("Examples:", obj.docstring.value)
            obj.docstring.value = text.replace(_ELSEWHERE, "").replace(_ELSEWHERE.strip() + "\n\n", "")
