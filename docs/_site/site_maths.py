"""Module docstrings of operators as Markdown, their formulas set as formulas.

A docstring writes formulas in indented blocks, in the order of rounding, with remarks behind several spaces. Here each
formula becomes a row: left side, equals sign, right side and remark.
"""

from __future__ import annotations

import inspect
import re
from html import escape
from itertools import groupby

GREEK = {"beta": "β", "gamma": "γ", "epsilon": "ε", "eps": "ε"}
_NAME = re.compile(r"\b(beta|gamma|epsilon|eps)(?=[0-9_]|\b)")
_POWER = re.compile(r"\^(\([^()]*\)|\w+)")
_SUBSCRIPT = re.compile(r"(?<=[A-Za-zβγε])(?:_([a-z])|([12]))\b")
_MINUS = re.compile(r"(?<![\w)′])-(?=[\w(]|\.\d)")


def markdown(docstring: str, code: bool = False) -> str:
    """The docstring as Markdown: formulas as HTML, other indented blocks as they are. Those of `code` are Python."""
    parts = []
    for indented, lines in _blocks(inspect.cleandoc(docstring)):
        if not indented:
            parts.append(re.sub(r"(?<=\n)(?=- )", "\n", "\n".join(lines), count=0 if lines[0].startswith("- ") else 1))
        elif not code and any(" = " in line for line in lines):
            parts.append(formulas(lines))
        else:
            parts.append("\n".join(["```python" if code else "```text", *lines, "```"]))
    return "\n\n".join(parts)


def _blocks(text: str) -> list[tuple[bool, list[str]]]:
    """Runs of lines between blank ones, and whether each is indented as a block of its own."""
    paragraphs = [
        list(lines) for blank, lines in groupby(text.splitlines(), lambda line: not line.strip()) if not blank
    ]
    result: list[tuple[bool, list[str]]] = []
    for lines in paragraphs:
        if lines[0].startswith("    "):
            result.append((True, inspect.cleandoc("\n".join(lines)).splitlines()))
        else:
            result.append((False, inspect.cleandoc("\n".join(lines)).splitlines()))
    return result


def formulas(lines: list[str]) -> str:
    rows = "\n".join(row for line in lines for row in _rows(line))
    return f'<table class="maths">\n<tbody>\n{rows}\n</tbody>\n</table>'


def _rows(line: str) -> list[str]:
    """The rows of a line, whose parts are divided by two spaces or more. A part without `=` is a remark to the formula
    before it."""
    rows: list[tuple[str, str, str]] = []
    for part in re.split(r"\s{2,}", re.sub(r"\s+= ", " = ", line.strip())):
        left, equals, right = part.removesuffix(",").partition(" = ")
        if equals:
            rows.append((left, right, ""))
        elif rows:
            left, right, remark = rows[-1]
            rows[-1] = (left, right, f"{remark} {part}".strip())
        else:
            rows.append(("", "", part))
    return [
        f"<tr><td>{typeset(left)}</td><td>{'=' if left else ''}</td><td>{typeset(right)}"
        f"{f' <small>{typeset(remark)}</small>' if remark else ''}</td></tr>"
        for left, right, remark in rows
    ]


def typeset(text: str) -> str:
    """A formula as HTML: Greek letters, powers, subscripts, roots, primes and minus signs."""
    text = _NAME.sub(lambda match: GREEK[match[1]], escape(text, quote=False))
    text = _MINUS.sub("−", text.replace(" - ", " − ")).replace("sqrt", "√")
    text = re.sub(r"'(?![a-z])", "′", text)
    text = _POWER.sub(lambda match: f"<sup>{match[1].removeprefix('(').removesuffix(')')}</sup>", text)
    return _SUBSCRIPT.sub(lambda match: f"<sub>{match[1] or match[2]}</sub>", text)
