"""What the subcommands share: the --json option and JSON that every parser reads."""

from __future__ import annotations

import io
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Protocol

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text for people.")]


class Advance(Protocol):
    def __call__(self, name: str, done: int | None = None, words: str = "") -> None: ...


def json_text(value: Any) -> str:
    """JSON; infinities and NaN, which JSON lacks, become the strings "inf", "-inf" and "nan"."""
    return json.dumps(_finite(value), indent=2, allow_nan=False)


def print_json(value: Any) -> None:
    print(json_text(value))


SILENCE = 5.0  # seconds between two lines of progress where there is no terminal


@contextmanager
def progress(totals: Mapping[str, int | None], hidden: bool, each: int | None = None) -> Iterator[Advance]:
    """Bars on stderr while the block runs, one for each thing to do; in pipes a line now and then. None if `hidden`.

    Yields a function that is told what went on: a bar's name, how many steps are done (None: one more), and the words
    beside the bar. A bar whose total is None shows only that something goes on; a name that is not in `totals` gets a
    bar of `each` when it is first told of.
    """
    console = Console(stderr=True)
    if not hidden and not console.is_terminal:
        yield _Lines(totals, each)
        return
    columns = (
        TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[words]}"),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=hidden) as bars:
        tasks = {name: bars.add_task(name, total=total, words="") for name, total in totals.items()}

        def advance(name: str, done: int | None = None, words: str = "") -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=each, words="")
            bars.update(tasks[name], completed=done, advance=1 if done is None else None, words=words)

        yield advance


class _Lines:
    """Progress as lines for logs. What is over in `SILENCE` seconds says nothing."""

    def __init__(self, totals: Mapping[str, int | None], each: int | None) -> None:
        self.totals, self.each = totals, each
        self.done: dict[str, int] = {}
        self.told = time.monotonic()

    def __call__(self, name: str, done: int | None = None, words: str = "") -> None:
        self.done[name] = self.done.get(name, 0) + 1 if done is None else done
        if time.monotonic() - self.told < SILENCE:
            return
        self.told = time.monotonic()
        total = self.totals.get(name, self.each)
        count = "" if total is None else f"{self.done[name]} of {total}"
        print(": ".join(("anyfuse", name, ", ".join(filter(None, (count, words))))), file=sys.stderr, flush=True)


def table(title: str, *columns: str, numbers: tuple[str, ...] = (), wrap: tuple[str, ...] = ()) -> Table:
    """A table in the one style of all commands; columns in `numbers` are aligned right, those in `wrap` break lines.
    The title is plain text: it may name a folder."""
    result = Table(title=escape(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        result.add_column(
            name, justify="right" if name in numbers else "left", no_wrap=name not in wrap, overflow="fold"
        )
    return result


def show(lines: Table, console: Console | None = None) -> None:
    """Prints a table. Where the terminal is too narrow for its cells, it breaks the lines; no figure is cut short."""
    console = console or Console()
    width, wide = console.width, console.options.update(width=10_000)
    for column in lines.columns:
        if column.no_wrap:
            cells = (column.header, *column.cells)
            column.min_width = max(console.measure(cell, options=wide).maximum for cell in cells)
    console.width = max(width, console.measure(lines, options=wide).minimum)
    try:
        console.print(lines)
    finally:
        console.width = width


def plain_output() -> None:
    """Lets stdout and stderr write "?" for what their encoding lacks: a report is not lost for a sign."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
