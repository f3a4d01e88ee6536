"""`anyfuse bench`."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.status import Status

from .._opspec import REGISTRY
from . import cases, plot, report
from .measure import Settings, measure

INCONCLUSIVE = 3  # the exit status of a run that was too noisy


def bench(
    ops: Annotated[
        list[str] | None, typer.Argument(metavar="[OP]...", help="Operators; all when none is named.")
    ] = None,
    peers: Annotated[bool, typer.Option(help="Time what one could use instead, too.")] = True,
    peer_python: Annotated[
        Path | None, typer.Option(help="Run in this interpreter, where the peers are installed (benchmarks/README.md).")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of all sides; default: torch's.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which every side runs once.")] = 9,
    case: Annotated[str | None, typer.Option(help="Only cases whose name contains this.")] = None,
    spread_limit: Annotated[float, typer.Option(help="No conclusion where the rounds scatter more than this.")] = 0.15,
    neighbour_limit: Annotated[
        float, typer.Option(help="No conclusion where other processes take a larger share of the processors.")
    ] = 0.1,
    quick: Annotated[bool, typer.Option(help="Tiny sizes: shows that everything runs; judges nothing.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the results to this file.")] = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", help="Draw the results into this file.")] = None,
) -> None:
    """Time operators side by side with their peers, in interleaved rounds, against the machine's memory bandwidth.

    Every case first checks that the results have the reference's bits. Exits with 3 when a case was too noisy to
    conclude anything from.
    """
    names = ops or sorted(REGISTRY)
    for name in names:
        if name not in REGISTRY:
            raise ValueError(f"operator {name!r} is unknown; accepted: {', '.join(sorted(REGISTRY))}")
    if peer_python is not None and peer_python.absolute() != Path(sys.executable).absolute():
        raise typer.Exit(_elsewhere(peer_python))
    torch.set_num_threads(threads or torch.get_num_threads())
    settings = Settings(rounds, spread_limit, neighbour_limit, peers, quick, torch.get_num_threads())
    chosen = [(name, item) for name in names for item in cases(name) if case is None or case in item.name]
    if not chosen:
        raise ValueError(f"no benchmark case of {', '.join(names)} matches {case!r}")
    console = Console()
    results: list[dict[str, Any]] = []
    for name, item in chosen:
        with console.status("") as status:

            def progress(text: str, status: Status = status, at: str = f"{name}, {item.name}") -> None:
                status.update(f"{at}: {text}")

            results.append(measure(REGISTRY[name], item, settings, progress))
        report.show(results[-1], console)
    finish(results, settings, json_file, plot_file, console)


def finish(
    results: list[dict[str, Any]], settings: Settings, json_file: Path | None, plot_file: Path | None, console: Console
) -> None:
    """Writes what was asked for, and says whether the run allows a conclusion."""
    from ..cli import machine

    whole = report.assemble(machine(), asdict(settings), results)
    if json_file is not None:
        report.write(whole, json_file)
    if plot_file is not None:
        plot.draw(whole, plot_file)
    lacking = sorted(
        {
            f"{peer['name']} ({peer['status']})"
            for result in results
            for peer in result["peers"]
            if peer["times"] is None
        }
    )
    if lacking:
        console.print("[yellow]peers not measured:[/] " + "; ".join(lacking))
    if not whole["conclusive"]:
        console.print("[red]no conclusion from the cases marked as noisy: run again on a quiet machine[/]")
        raise typer.Exit(INCONCLUSIVE)


def _elsewhere(python: Path) -> int:
    """The same command in another interpreter, with this package on its path: both sides must share a process."""
    given = sys.argv[1:]
    for i, argument in enumerate(given):
        if argument == "--peer-python":
            del given[i : i + 2]
            break
        if argument.startswith("--peer-python="):
            del given[i]
            break
    package = Path(__file__).parent.parent.parent
    path = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
    return subprocess.run([str(python), "-m", "anyfuse", *given], env={**os.environ, "PYTHONPATH": path}).returncode
