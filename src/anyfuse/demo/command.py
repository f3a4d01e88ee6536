"""The command `anyfuse demo`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .._console import Json, json_text
from . import report, study

PICTURE, FIGURES = "demo.png", "demo.json"


def demo(
    steps: Annotated[int, typer.Option(min=1, help="Steps of each of the three trainings.")] = study.STEPS,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights, the batches and the written text.")] = 0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the picture and the figures.")] = Path(
        "anyfuse-demo"
    ),
    json_: Json = False,
) -> None:
    """Train a small language model on Python's manual, run it in 8 bits, and exit with 1 if a figure misses.

    Three trainings of the same seed: torch's AdamW, fused EMA AdamW, and 8-bit AdamW with lazy Adam. Then the trained
    model with quantized norms, and in W8A8. Nothing is downloaded; it takes about a minute and a half on two cores.
    """
    out.mkdir(parents=True, exist_ok=True)
    drawable = importlib.util.find_spec("matplotlib") is not None
    if not drawable:
        print("anyfuse: no picture, since matplotlib is missing: pip install 'anyfuse[demo]'", file=sys.stderr)
    with _progress(steps, hidden=json_) as advance:
        result = study.perform(steps, seed, advance)
    if drawable:
        report.draw(result, out / PICTURE)
    text = json_text(result.to_json())
    (out / FIGURES).write_text(text + "\n")
    if json_:
        print(text)
    else:
        console = Console()
        report.print_report(result, console)
        written = [str(out / name) for name in (PICTURE, FIGURES) if name == FIGURES or drawable]
        console.print(f"\nWritten: {', '.join(written)}", highlight=False)
    missed = [check for check in result.checks if not check.passed]
    for check in missed:
        print(f"anyfuse: missed: {check.name}: {check.value:.3%} apart, limit {check.limit:.0%}", file=sys.stderr)
    if missed:
        raise typer.Exit(1)


@contextmanager
def _progress(steps: int, hidden: bool) -> Iterator[study.Progress]:
    columns = (
        TextColumn("{task.description:<24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def advance(name: str, step: int, loss: float) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=steps, loss=loss)
            bars.update(tasks[name], completed=step, loss=loss)

        yield advance
