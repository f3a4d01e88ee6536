"""`anyfuse bench`."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from . import complete
from .console import Advance, Json, print_json, progress
from .console import show as show_table

INCONCLUSIVE = 3  # the exit status of a run that was too noisy


def bench(
    ops: Annotated[
        list[str] | None,
        typer.Argument(metavar="OP", autocompletion=complete.operators, help="Operators; default: all."),
    ] = None,
    peers: Annotated[bool, typer.Option(help="Time what one could use instead, too.")] = True,
    peer_python: Annotated[
        Path | None, typer.Option(help="Run in this interpreter, which has the peers: benchmarks/README.md.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of all sides; default: torch's.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which every side runs once.")] = 9,
    case: Annotated[str | None, typer.Option(help="Only cases whose name contains this.")] = None,
    spread_limit: Annotated[float, typer.Option(help="No conclusion where the rounds scatter more than this.")] = 0.15,
    neighbour_limit: Annotated[
        float, typer.Option(help="No conclusion where other processes take a larger share of the processors.")
    ] = 0.1,
    quick: Annotated[bool, typer.Option(help="Tiny sizes: shows that everything runs; judges nothing.")] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the results (JSON).")] = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the results; the suffix chooses the format.")
    ] = None,
    report_file: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write a page (HTML): bars, roofline, history.")
    ] = None,
    history: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="Earlier results for the page: a file or a folder of them; repeatable."),
    ] = None,
    run: Annotated[bool, typer.Option("--run/--no-run", help="Time, or make the page of --history alone.")] = True,
    json_: Json = False,
) -> None:
    """Time operators side by side with their peers, in interleaved rounds, against the machine's memory bandwidth.

    Every case first checks that the results have the reference's bits.

    \b
    Examples:
    $ anyfuse bench
    $ anyfuse bench lazy_adam --quick --rounds 3
    $ anyfuse bench --out results/today.json --report out.html --history results
    $ anyfuse bench --no-run --history results --report out.html

    Exit status: 0 done, 2 an error or wrong usage, 3 a case was too noisy to conclude anything from.
    """
    import torch

    from anyfuse import bench as benchmarks
    from anyfuse._machine import machine
    from anyfuse._opspec import REGISTRY
    from anyfuse.bench import plot, results
    from anyfuse.bench.measure import Settings, measure

    _check_files(report_file, history, run, out, plot_file)
    before = results.read(history or [], lambda text: print(f"anyfuse: {text}", file=sys.stderr))
    if report_file is not None and not run:
        if not before:
            places = ", ".join(map(str, history or []))
            found = f"{places} holds none" if places else "--history names none"
            raise ValueError(f"--no-run needs results, and {found}; accepted: JSON that anyfuse bench --out wrote")
        _write_page(report_file, before)
        if json_:
            print_json({"report": str(report_file), "runs": len(before)})
        return
    names = ops or sorted(REGISTRY)
    for name in names:
        if name not in REGISTRY:
            raise ValueError(f"operator {name!r} is unknown; accepted: {', '.join(sorted(REGISTRY))}")
    if peer_python is not None and peer_python.absolute() != Path(sys.executable).absolute():
        raise typer.Exit(_elsewhere(peer_python))
    torch.set_num_threads(threads or torch.get_num_threads())
    settings = Settings(rounds, spread_limit, neighbour_limit, peers, quick, torch.get_num_threads())
    chosen = [(name, item) for name in names for item in benchmarks.cases(name) if case is None or case in item.name]
    if not chosen:
        raise ValueError(f"no benchmark case of {', '.join(names)} matches {case!r}")
    # With --json nothing else goes to stdout.
    console = Console(quiet=json_)
    if quick:
        console.print("Quick run: tiny sizes, not those that the titles name; nothing is judged.\n")
    measured: list[dict[str, Any]] = []
    for number, (name, item) in enumerate(chosen):
        at = f"{name}, {item.name}"
        with progress({at: len(chosen)}, hidden=json_) as advance:
            measured.append(measure(REGISTRY[name], item, settings, partial(_say, advance, at, number)))
        show(measured[-1], console)
        whole = results.assemble(machine(), asdict(settings), measured)
        if out is not None:  # after each case: a run that is ended leaves what it has measured
            results.write(whole, out)
        if report_file is not None:
            _write_page(report_file, [*before, whole])
    if plot_file is not None:
        plot.draw(whole, plot_file)
    if json_:
        print_json(whole)
    conclude(whole, console)


def _check_files(report_file: Path | None, history: list[Path] | None, run: bool, *others: Path | None) -> None:
    """What cannot be meant, and files that are not there, before anything is timed."""
    if report_file is None and (history or not run):
        raise ValueError("--history and --no-run are for the page: name it by --report")
    if not run and any(path is not None for path in others):
        raise ValueError("--out and --plot write what was timed; --no-run times nothing")
    if report_file is None:
        from anyfuse._saving import check_path
    else:
        from anyfuse.html import check_path  # the same, where what pages need is installed
    for path in (report_file, *others):
        if path is not None:
            check_path(path)
    for path in history or []:
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; accepted: a results file or a folder of them")


def _say(advance: Advance, at: str, number: int, text: str) -> None:
    advance(at, done=number, words=text)


def _write_page(path: Path, runs: list[dict[str, Any]]) -> None:
    from anyfuse.bench.page import write

    write(path, runs, shlex.join(["anyfuse", *sys.argv[1:]]))


def conclude(whole: dict[str, Any], console: Console) -> None:
    """Says what was not measured, and exits with 3 if the run allows no conclusion."""
    results = whole["results"]
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
    package = Path(__file__).parent.parent
    path = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
    return subprocess.run([str(python), "-m", "anyfuse", *given], env={**os.environ, "PYTHONPATH": path}).returncode


# ---- one case, for people ----


def show(result: dict[str, Any], console: Console) -> None:
    """One case: our line, the roofline, the peers, the goals."""
    table = Table(title=f"{result['operator']}: {result['case']}", title_justify="left", box=None, pad_edge=False)
    table.add_column("side", no_wrap=True)
    for heading in (f"a {result['unit']}", "spread", "first call", "GB/s", "time / ours"):
        table.add_column(heading, justify="right", no_wrap=True)
    ours, stream = result["ours"], result["stream"]
    table.add_row("[bold]anyfuse[/]", *_line(ours, ours["gb_per_s"]), "1.00")
    if stream is not None:
        table.add_row("[dim]memory alone[/]", *_line(stream, stream["gb_per_s"]), f"{stream['of_stream']:.2f}")
    for peer in result["peers"]:
        if peer["times"] is not None:
            table.add_row(peer["name"], *_line(peer["times"], None), f"{peer['ratio']['median']:.2f}")
    show_table(table, console)
    for peer in ({"name": "anyfuse", **result, "times": ours}, *result["peers"]):
        if peer["times"] is None:
            console.print(f"  [yellow]{peer['name']} {peer['status']}[/]")
        elif peer["accuracy"]:
            accuracy = ", ".join(f"{key} {_short(value)}" for key, value in peer["accuracy"].items())
            console.print(f"  {peer['name']}: {accuracy}")
    for goal in result["goals"]:
        console.print("  " + _goal(goal))
    if result["transient_kib"] is not None:
        console.print(f"  transient memory {result['transient_kib']:.0f} KiB")
    if result["noisy"]:
        console.print(f"  [red]inconclusive: too noisy ({', '.join(result['noisy'])}); run again on a quiet machine[/]")
    console.print()


def _line(times: dict[str, Any], rate: float | None) -> tuple[str, str, str, str]:
    from anyfuse._words import duration

    return (
        duration(times["ns_per_unit"]),
        f"{times['spread'] * 100:.0f} %",
        duration(times["first_call_s"] * 1e9),
        "" if rate is None else f"{rate:.1f}",
    )


def _goal(goal: dict[str, Any]) -> str:
    want = f"at least {goal['least']:g}" if goal["least"] is not None else f"at most {goal['most']:g}"
    aim = "" if goal["aim"] is None else f", aim {goal['aim']:g}"
    got = "none" if goal["got"] is None else f"{goal['got']:.3g}"
    color = {"met": "green", "aim met": "green", "missed": "red"}.get(goal["verdict"], "yellow")
    return f"{goal['figure']}: {got} ({want}{aim}): [{color}]{goal['verdict']}[/]"


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
