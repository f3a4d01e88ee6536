"""`anyfuse demo`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from .console import Json, json_text, progress, show, table

if TYPE_CHECKING:
    from anyfuse.demo.study import Study

PICTURE, FIGURES = "demo.png", "demo.json"


def demo(
    steps: Annotated[int, typer.Option(min=1, help="Steps of each of the three trainings.")] = 500,
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
    from anyfuse._saving import write_file
    from anyfuse.demo import picture, study

    out.mkdir(parents=True, exist_ok=True)
    drawable = importlib.util.find_spec("matplotlib") is not None
    if not drawable:
        print("anyfuse: no picture, since matplotlib is missing: pip install 'anyfuse[demo]'", file=sys.stderr)
    with progress({}, hidden=json_, each=steps) as advance:
        result = study.perform(steps, seed, lambda name, step, loss: advance(name, step, f"loss {loss:.3f}"))
    if drawable:
        picture.draw(result, out / PICTURE)
    text = json_text(result.to_json())
    write_file(out / FIGURES, (text + "\n").encode())
    if json_:
        print(text)
    else:
        console = Console()
        print_report(result, console)
        written = [str(out / name) for name in (PICTURE, FIGURES) if name == FIGURES or drawable]
        console.print(f"\nWritten: {', '.join(written)}", highlight=False, markup=False)
    missed = [check for check in result.checks if not check.passed]
    for check in missed:
        print(f"anyfuse: missed: {check.name}: {check.value:.3%} apart, limit {check.limit:.0%}", file=sys.stderr)
    if missed:
        raise typer.Exit(1)


def print_report(study: Study, console: Console) -> None:
    figures, seconds = study.figures, study.seconds
    parameters, vocabulary = figures["parameters"], figures["vocabulary"]
    console.print(
        f"\nA Llama of [bold]{parameters:,}[/] parameters, {vocabulary:,} word pieces, {figures['steps']} steps, "
        f"{seconds['total']:.0f} s.\n"
    )
    numbers = ("loss", "vs torch", "ms/step", "update", "state/param")
    lines = table("Trainings: same seed, same batches; loss on held-out text", "optimizer", *numbers, numbers=numbers)
    yardstick = next(iter(figures["trainings"].values()))["validation_loss"]
    for name, run in figures["trainings"].items():
        times = seconds["trainings"][name]
        lines.add_row(
            name,
            f"{run['validation_loss']:.4f}",
            f"{run['validation_loss'] / yardstick - 1:+.3%}",
            f"{times['step'] * 1e3:.1f}",
            f"{times['optimizer'] * 1e3:.2f} ms",
            f"{run['state_bytes_per_parameter']:.2f} B",
        )
        if "ema_validation_loss" in run:
            ema = run["ema_validation_loss"]
            lines.add_row("  its EMA weights", f"{ema:.4f}", f"{ema / yardstick - 1:+.3%}")
    show(lines, console)
    console.print(
        f"Lazy Adam touched {figures['embedding_rows_touched']:.1%} of the embedding's rows in a step. "
        "Its state has 8 bytes a parameter, that of 8-bit AdamW about 2.\n",
        highlight=False,
    )
    columns = ("loss", "vs float", "same next token")
    lines = table("The trained model on held-out text", "computed in", *columns, numbers=columns)
    base = figures["inference"]["float"]["loss"]
    for name, result in figures["inference"].items():
        same = f"{result['agreement']:.1%}" if "agreement" in result else ""
        lines.add_row(name, f"{result['loss']:.4f}", f"{result['loss'] / base - 1:+.3%}", same)
    show(lines, console)
    _print_texts(figures["text"], console)
    for check in study.checks:
        mark = "[green]✓[/]" if check.passed else "[red]✗[/]"
        console.print(f"{mark} {check.name}: {check.value:.3%} apart, limit {check.limit:.0%}", highlight=False)


def _print_texts(text: dict[str, str], console: Console) -> None:
    """The texts side by side, their line breaks left out (the JSON has them)."""
    names = [name for name in text if name != "prompt"]
    lines = table(f"Written after “{text['prompt']}”", *names, wrap=tuple(names))
    lines.add_row(*(Text(" ".join(text[name].split())) for name in names))
    show(lines, console)
