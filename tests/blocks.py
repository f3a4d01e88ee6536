"""The code blocks of a Markdown page, run in order as a reader would: `run(page, folder)`.

    python          one namespace for the whole page
    bash            in the page's folder; `anyfuse` is this package's command
    text            right behind one of those: what it prints, exactly
    anything else   needs `<!-- file: NAME -->` before it, and is written to that file

On a tutorial every block is run. On another page those behind `<!-- run -->` or `<!-- file: NAME -->`, and
`python="all"` runs all of Python's.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import anyfuse
from anyfuse_cli.app import app

_FENCE = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*?) -->\n)?^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    note: str
    line: int
    follows: bool  # nothing but space stands between it and the block before


def blocks(text: str) -> Iterator[Block]:
    end = 0
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start("code")) + 1
        follows = end > 0 and not text[end : match.start()].strip()
        yield Block(match["language"], match["code"], match["note"] or "", line, follows)
        end = match.end()


def run(page: Path, folder: Path, every: bool = True, python: bool = False) -> int:
    """Runs a page's blocks in a folder; returns how many. `every` block, or all of `python`'s and the marked ones."""
    namespace: dict[str, Any] = {"__name__": "__page__"}
    printed: str | None = None
    count = 0
    for block in blocks(page.read_text(encoding="utf-8")):
        place = f"{page.name}:{block.line}"
        if block.language == "text" and block.follows and printed is not None:
            assert printed.rstrip() == block.code.rstrip(), f"{place}: the block before prints\n{printed}"
            printed = None
            continue
        printed = None
        marked = block.note == "run" or block.note.startswith("file: ")
        if not (every or marked or (python and block.language == "python")):
            continue
        count += 1
        if block.note.startswith("file: "):
            (folder / block.note.removeprefix("file: ")).write_text(block.code, encoding="utf-8")
        elif block.language == "python":
            printed = _python(block.code, place, block.line, namespace)
        elif block.language == "bash":
            printed = _bash(block.code, place, folder)
        else:
            raise AssertionError(f"{place}: nothing runs a block of {block.language!r}")
    return count


def _python(code: str, place: str, line: int, namespace: dict[str, Any]) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile("\n" * (line - 1) + code, place, "exec"), namespace)
    return output.getvalue()


def _bash(code: str, place: str, folder: Path) -> str:
    """Commands of anyfuse alone run in this process, which saves them the import of torch; others in a shell."""
    lines = code.replace("\\\n", " ").splitlines()
    commands = [shlex.split(line, comments=True) for line in lines]
    if all(not words or (words[0] == "anyfuse" and not set("|&;<>$") & set("".join(words))) for words in commands):
        with _chdir(folder):
            return "".join(_command(words[1:], place) for words in commands if words)
    program = folder / "bin" / "anyfuse"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m anyfuse "$@"\n')
    program.chmod(0o755)
    path = os.pathsep.join((str(program.parent), os.environ.get("PATH", "")))
    package = str(Path(anyfuse.__file__).resolve().parent.parent)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code], cwd=folder, env={**os.environ, "PATH": path, "PYTHONPATH": package},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, f"{place}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def _command(words: list[str], place: str) -> str:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, f"{place}: anyfuse {shlex.join(words)}: {result.exception!r}\n{result.output}"
    return result.stdout


@contextlib.contextmanager
def _chdir(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
