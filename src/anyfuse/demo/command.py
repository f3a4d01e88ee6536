"""The command `anyfuse demo`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .._console import Json, json_text, progress
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
    """Train a small language model on Python's manual, run it in 8 bits, and judge the figures.

    Three trainings of the same seed: torch's AdamW, fused EMA AdamW, and 8-bit AdamW with lazy Adam.
    Then the trained model with quantized norms, and in W8A8 (int8 weights, int8 activations).

    Nothing is downloaded; it takes about a minute and a half on two cores.

    \b
    Examples:
    $ anyfuse demo
    $ anyfuse demo --steps 50 --out DIR
    $ anyfuse demo --seed 3 --json

    Exit status: 0 every figure is within its limit, 1 one misses, 2 an error or wrong usage.
    """
    out.mkdir(parents=True, exist_ok=True)
    drawable = importlib.util.find_spec("matplotlib") is not None
    if not drawable:
        print("anyfuse: no picture, since matplotlib is missing: pip install 'anyfuse[demo]'", file=sys.stderr)
    with progress({}, hidden=json_, each=steps) as advance:
        result = study.perform(steps, seed, lambda name, step, loss: advance(name, step, f"loss {loss:.3f}"))
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
        console.print(f"\nWritten: {', '.join(written)}", highlight=False, markup=False)
    missed = [check for check in result.checks if not check.passed]
    for check in missed:
        print(f"anyfuse: missed: {check.name}: {check.value:.3%} apart, limit {check.limit:.0%}", file=sys.stderr)
    if missed:
        raise typer.Exit(1)
