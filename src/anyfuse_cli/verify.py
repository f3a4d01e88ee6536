"""`anyfuse verify`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from . import complete
from .console import Json, print_json, progress, show, table

if TYPE_CHECKING:
    from anyfuse._opspec import OpSpec
    from anyfuse.verify import matrix

WORST = 10


def verify(
    operators: Annotated[
        list[str] | None,
        typer.Argument(metavar="OP", autocompletion=complete.operators, help="Operators; default: all."),
    ] = None,
    backends: Annotated[
        list[str] | None,
        typer.Option("--backend", autocompletion=complete.backends, help="Backend; repeatable. Default: all."),
    ] = None,
    targets: Annotated[
        list[str] | None,
        typer.Option(
            "--target", autocompletion=complete.targets, help="Instruction set; repeatable. Default: all this CPU has."
        ),
    ] = None,
    threads: Annotated[
        list[int] | None, typer.Option("--threads", help="Number of threads; repeatable. Default: 1 and all.")
    ] = None,
    soc_: Annotated[
        str | None,
        typer.Option(
            "--soc",
            autocompletion=complete.products,
            help="Product whose limits hold; calls that it refuses are counted apart.",
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Random calls for each operator.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first call; the next have the next seeds.")] = 0,
    report_file: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write a page (HTML) with figures and pictures.")
    ] = None,
    json_: Json = False,
) -> None:
    """Compare every backend with the reference, bit for bit, on random calls and edge cases.

    \b
    Examples:
    $ anyfuse verify
    $ anyfuse verify lazy_adam --target base --threads 1 --samples 5
    $ anyfuse verify --samples 20 --report out.html
    $ anyfuse verify lazy_adam --soc Ascend910B --samples 20 --json

    Exit status: 0 every bit is equal, 1 a bit differs, 2 an error or wrong usage.
    """
    from anyfuse._soc import product
    from anyfuse.verify import matrix

    specs = matrix.operators(operators or [])
    ways = matrix.ways(backends or [], targets or [], threads or [])
    if report_file is not None:
        from anyfuse.html import check_path

        check_path(report_file)
    totals: dict[str, int | None] = {spec.name: samples + matrix.count_edges(spec) for spec in specs}
    with progress(totals, hidden=json_) as advance:
        report = matrix.verify(specs, ways, samples=samples, seed=seed, product=soc_, progress=advance)
    chosen = product() if soc_ is None else soc_
    if report_file is not None:
        _write_report(report_file, specs, report, samples, seed, chosen, hidden=json_)
    if json_:
        print_json(_verify_json(report, samples, seed, chosen))
    else:
        _print_report(report, chosen)
    if not report.passed:
        raise typer.Exit(1)


def _write_report(
    path: Path, specs: list[OpSpec], report: matrix.Report, samples: int, seed: int, product: str, hidden: bool
) -> None:
    """The page. Beside what is reported it shows how far results are from exact ones, which takes some seconds."""
    from anyfuse.verify import page, precision
    from anyfuse.verify.examine import examine

    with progress({f"precision of {spec.name}": precision.count(spec) for spec in specs}, hidden) as advance:
        found = [
            item
            for spec in specs
            for item in precision.measure(spec, progress=lambda name: advance(f"precision of {name}"))
        ]
    examined = examine(report.worst(len(report.mismatches)), product, WORST)
    page.write(
        path, report, found, examined, samples=samples, seed=seed, product=product,
        command=shlex.join(["anyfuse", *sys.argv[1:]]),
    )  # fmt: skip


def _verify_json(report: matrix.Report, samples: int, seed: int, product: str) -> dict[str, Any]:
    from anyfuse.verify.examine import reproduce

    def flat(item: Any) -> dict[str, Any]:
        values = asdict(item)
        return {"operator": values.pop("operator"), **values.pop("way"), **values}

    mismatches = [
        {**flat(item), "reproduce": reproduce(item, product)} for item in report.worst(len(report.mismatches))
    ]
    return {
        "passed": report.passed,
        "samples": samples,
        "seed": seed,
        "soc": product,
        "rows": [flat(row) for row in report.rows],
        "mismatches": mismatches,
    }


def _print_report(report: matrix.Report, product: str) -> None:
    from anyfuse._products import ANY
    from anyfuse._words import short
    from anyfuse.verify.examine import reproduce

    console = Console()
    limited = product != ANY
    numbers = ("calls", "refused" if limited else "values", "differ")
    lines = table("Bit equality with the reference", "operator", "way", *numbers, "verdict", numbers=numbers)
    before = ""
    for row in report.rows:
        if before not in ("", row.operator):
            lines.add_section()
        name, before = "" if row.operator == before else row.operator, row.operator
        middle = f"{row.refused:,}" if limited else short(row.elements)
        lines.add_row(name, str(row.way), f"{row.samples:,}", middle, f"{row.mismatches:,}", _row_verdict(row))
    show(lines, console)
    for item in report.worst(WORST):
        console.print(f"[red]differs[/red]: {item.operator} on {item.way}", highlight=False)
        console.print(f"  {item.what}" + (f", up to {item.max_ulp:,} ulp" if item.max_ulp else ""), markup=False)
        console.print(f"  {item.label}", markup=False, highlight=False)
        console.print(f"  {reproduce(item, product)}", markup=False, highlight=False, soft_wrap=True)
    if len(report.mismatches) > WORST:
        console.print(f"... and {len(report.mismatches) - WORST} more (all of them: --json)")


def _row_verdict(row: matrix.Row) -> str:
    if row.mismatches:
        return "[red]differs[/red]"
    return "[yellow]refused[/yellow]" if row.samples == row.refused else "[green]equal[/green]"
