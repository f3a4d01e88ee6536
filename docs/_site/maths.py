"""Module docstrings of operators as Markdown, their formulas set as formulas.

A docstring writes formulas in indented blocks, a line each, in the order of rounding, with remarks behind several
spaces. Here each line becomes a row: left side, equals sign, right side, remark.
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
_ROW = re.compile(r"(?P<left>\S.*?) = (?P<right>.*)")


def markdown(docstring: str) -> str:
    """The docstring as Markdown: formulas as HTML, other indented blocks as they are."""
    parts = []
    for indented, lines in _blocks(inspect.cleandoc(docstring)):
        if not indented:
            parts.append("\n".join(lines))
        elif any(" = " in line for line in lines):
            parts.append(formulas(lines))
        else:
            parts.append("\n".join(["```text", *lines, "```"]))
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
            result.append((False, lines))
    return result


def formulas(lines: list[str]) -> str:
    rows = "\n".join(_row(line) for line in lines)
    return f'<table class="maths">\n<tbody>\n{rows}\n</tbody>\n</table>'


def _row(line: str) -> str:
    """One formula. Parts of a line are divided by two spaces or more; the last is a remark when it has no formula."""
    line = re.sub(r"\s+= ", " = ", line.strip())
    found = _ROW.fullmatch(line)
    if found is None:
        return f'<tr><td></td><td></td><td colspan="2">{typeset(line)}</td></tr>'
    first, *others = re.split(r"\s{2,}", found["right"])
    remark = others.pop() if others and " = " not in others[-1] else ""
    right = " &emsp; ".join(typeset(part) for part in (first, *others))
    cells = (typeset(found["left"]), "=", right, typeset(remark))
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def typeset(text: str) -> str:
    """A formula as HTML: Greek letters, powers, subscripts, roots, primes and minus signs."""
    text = re.sub(r"\s{2,}", " \u2003 ", escape(text, quote=False))
    text = _NAME.sub(lambda match: GREEK[match[1]], text)
    text = text.replace(" - ", " − ").replace("sqrt", "√")
    text = re.sub(r"'(?![a-z])", "′", text)
    text = _POWER.sub(lambda match: f"<sup>{match[1].removeprefix('(').removesuffix(')')}</sup>", text)
    return _SUBSCRIPT.sub(lambda match: f"<sub>{match[1] or match[2]}</sub>", text)
