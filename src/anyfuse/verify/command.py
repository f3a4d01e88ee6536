"""The commands `anyfuse verify` and `anyfuse case`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .. import _core
from .._console import Json, print_json, short, table
from .._settings import backend
from .._soc import ANY, product
from . import cases, matrix
from .compare import COUNT_LOSS, Comparison, name_of

WORST = 10

cases_app = typer.Typer(
    help="Make, run and judge test cases as files, the way single-operator tests of an NPU do.", no_args_is_help=True
)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the case.")]
Backend = Annotated[str, typer.Option(help="Implementation: native or reference.")]
Target = Annotated[str | None, typer.Option(help="Instruction set; see `anyfuse info`. Default: the best one.")]


def verify(
    operators: Annotated[list[str] | None, typer.Argument(metavar="[OP]...", help="Operators; default: all.")] = None,
    backends: Annotated[list[str] | None, typer.Option("--backend", help="Backend; repeatable. Default: all.")] = None,
    targets: Annotated[
        list[str] | None, typer.Option("--target", help="Instruction set; repeatable. Default: all this CPU has.")
    ] = None,
    threads: Annotated[
        list[int] | None, typer.Option("--threads", help="Number of threads; repeatable. Default: 1 and all.")
    ] = None,
    soc_: Annotated[
        str | None, typer.Option("--soc", help="Product whose limits hold; calls that it refuses are counted apart.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Random calls for each operator.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first call; the next have the next seeds.")] = 0,
    json_: Json = False,
) -> None:
    """Compare every backend with the reference, bit for bit, on random calls; exit with 1 if a bit differs."""
    specs = matrix.operators(operators or [])
    ways = matrix.ways(backends or [], targets or [], threads or [])
    totals = {spec.name: samples + matrix.count_edges(spec) for spec in specs}
    with _progress(totals, hidden=json_) as advance:
        report = matrix.verify(specs, ways, samples=samples, seed=seed, product=soc_, progress=advance)
    chosen = product() if soc_ is None else soc_
    if json_:
        print_json(_verify_json(report, samples, seed, chosen))
    else:
        _print_report(report, chosen)
    if not report.passed:
        raise typer.Exit(1)


@contextmanager
def _progress(totals: dict[str, int], hidden: bool) -> Iterator[Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as bars:
        tasks = {name: bars.add_task(name, total=total) for name, total in totals.items()}
        yield lambda name: bars.advance(tasks[name])


def _verify_json(report: matrix.Report, samples: int, seed: int, product: str) -> dict[str, Any]:
    def flat(item: Any) -> dict[str, Any]:
        values = asdict(item)
        return {"operator": values.pop("operator"), **values.pop("way"), **values}

    mismatches = [
        {**flat(item), "reproduce": _reproduce(item, product)} for item in report.worst(len(report.mismatches))
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
    console = Console()
    limited = product != ANY
    numbers = ("calls", "refused" if limited else "elements", "differ")
    lines = table("Bit equality with the reference", "operator", "way", *numbers, "verdict", numbers=numbers)
    before = ""
    for row in report.rows:
        if before not in ("", row.operator):
            lines.add_section()
        name, before = "" if row.operator == before else row.operator, row.operator
        middle = f"{row.refused:,}" if limited else short(row.elements)
        lines.add_row(name, _way(row.way), f"{row.samples:,}", middle, f"{row.mismatches:,}", _row_verdict(row))
    console.print(lines)
    for item in report.worst(WORST):
        console.print(f"[red]differs[/red]: {item.operator} on {_way(item.way)}", highlight=False)
        console.print(f"  {item.what}" + (f", up to {item.max_ulp:,} ulp" if item.max_ulp else ""), markup=False)
        console.print(f"  {item.label}", markup=False, highlight=False)
        console.print(f"  {_reproduce(item, product)}", markup=False, highlight=False, soft_wrap=True)
    if len(report.mismatches) > WORST:
        console.print(f"... and {len(report.mismatches) - WORST} more (all of them: --json)")


def _way(way: matrix.Way) -> str:
    return f"{way.backend} {way.target} ×{way.threads}"


def _row_verdict(row: matrix.Row) -> str:
    if row.mismatches:
        return "[red]differs[/red]"
    return "[yellow]refused[/yellow]" if row.samples == row.refused else "[green]equal[/green]"


def _reproduce(item: matrix.Mismatch, product: str) -> str:
    """The command that shows a mismatch again. Edge cases belong to every run."""
    words = ["anyfuse", "verify", item.operator, "--backend", item.way.backend, "--target", item.way.target]
    words += ["--threads", str(item.way.threads), "--samples", "1", "--seed", str(item.seed or 0)]
    return shlex.join(words + (["--soc", product] if product != ANY else []))


# ---- case ----


@cases_app.command("gen", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def gen(
    context: typer.Context,
    operator: Annotated[str, typer.Argument(metavar="OP", help="Operator; `anyfuse case options` lists them.")],
    directory: Directory,
    shape: Annotated[
        str | None, typer.Option(help="Sizes, as 128,64; what they mean: `anyfuse case options OP`.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Data type of the floating-point tensors.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="An attribute; repeatable.")
    ] = None,
    optional: Annotated[
        list[str] | None, typer.Option("--with", metavar="NAME", help="An optional tensor to include; repeatable.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="A known case with its own sizes and file names.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the inputs.")] = 0,
    golden: Annotated[
        str, typer.Option(help="Goldens from the fp32 reference, or the same computed in float64: reference, float64.")
    ] = "reference",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the case that DIR holds.")] = False,
    json_: Json = False,
) -> None:
    """Write the inputs, goldens and manifest of one call. Named sizes are options too, as `--rows 1000`."""
    case = cases.generate(
        operator, directory,
        sizes=_sizes(shape), axes=_axes(context.args), dtype=dtype, settings=_settings(settings or []),
        optional=optional or [], preset=preset, seed=seed, golden=golden, overwrite=overwrite,
    )  # fmt: skip
    if json_:
        print_json({"directory": str(directory), **cases.to_json(case)})
        return
    lines = table(f"{case.operator} in {directory}", "file", "dtype", "shape", "bytes", numbers=("bytes",))
    files = [(file.file, file) for file in case.inputs] + [(str(file.golden), file) for file in case.outputs]
    for name, file in files:
        lines.add_row(name, file.encoding or name_of(file.dtype), _shape(file.shape), f"{file.nbytes:,}")
    console = Console()
    console.print(lines)
    console.print(
        "attributes: " + ", ".join(f"{name}={value}" for name, value in case.attributes.items()), markup=False
    )


@cases_app.command("run")
def run(
    directory: Directory,
    backend_: Annotated[str, typer.Option("--backend", help="native or reference.")] = "native",
    target: Target = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Number of threads. Default: all.")] = None,
    json_: Json = False,
) -> None:
    """Execute a case and write its outputs."""
    if threads is not None:
        torch.set_num_threads(threads)
    with backend(backend_), _core.target(target or _core.current_target()):
        case = cases.run(directory)
    files = [file.file for file in case.outputs]
    if json_:
        print_json({"directory": str(directory), "operator": case.operator, "backend": backend_, "outputs": files})
    else:
        Console().print(f"{case.operator}: wrote {', '.join(files)}", markup=False, highlight=False)


@cases_app.command("compare")
def compare(
    directory: Directory,
    loss: Annotated[
        float | None, typer.Option(min=0, help="Error allowed; default: 1e-6, for fp16 2^-10, for bf16 2^-7.")
    ] = None,
    count_loss: Annotated[
        float, typer.Option(min=0, max=1, help="Share of elements that may be beyond the loss.")
    ] = COUNT_LOSS,
    lsb: Annotated[int, typer.Option(min=0, help="Steps that integers and 8-bit codes may be apart.")] = 0,
    json_: Json = False,
) -> None:
    """Judge the outputs of a case by its goldens; exit with 1 if one fails."""
    results = cases.compare(directory, loss=loss, count_loss=count_loss, lsb=lsb)
    passed = all(result.passed for result in results)
    if json_:
        print_json({"directory": str(directory), "passed": passed, "outputs": [asdict(result) for result in results]})
    else:
        _print_comparisons(results)
    if not passed:
        raise typer.Exit(1)


@cases_app.command("options")
def options(
    operator: Annotated[str | None, typer.Argument(metavar="[OP]", help="Operator; default: list them.")] = None,
    json_: Json = False,
) -> None:
    """Show what `case gen` takes for an operator: sizes, dtypes, attributes, optional tensors, presets."""
    facts = cases.describe(operator) if operator else {"operators": cases.known()}
    if json_:
        print_json(facts)
        return
    lines = table("", "name", "value", wrap=("value",))
    lines.show_header = False
    for name, value in facts.items():
        items = [f"{key}={item}" for key, item in value.items()] if isinstance(value, dict) else value
        lines.add_row(name, items if isinstance(items, str) else ", ".join(items) or "none")
    Console().print(lines)


def _print_comparisons(results: list[Comparison]) -> None:
    numbers = ("elements", "max abs", "max rel", "beyond", "ulp", "differ")
    lines = table("Outputs against goldens", "output", *numbers, "verdict", numbers=numbers)
    for item in results:
        verdict = "[green]pass[/green]" if item.passed else "[red]FAIL[/red]"
        beyond = [short(item.beyond_abs)] + ([short(item.beyond_rel)] if item.loss is not None else [])
        errors = (f"{item.max_abs:.2g}", f"{item.max_rel:.2g}", ", ".join(beyond))
        lines.add_row(item.name, short(item.elements), *errors, short(item.max_ulp), short(item.different), verdict)
    console = Console()
    console.print(lines)
    console.print("beyond: absolute, relative errors beyond the loss; differ: other bits", style="dim")
    for item in results:
        console.print(f"{item.name} ({item.dtype}): {item.reason}", markup=False, highlight=False)


def _sizes(text: str | None) -> list[int] | None:
    try:
        return None if text is None else [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(f"--shape is {text!r}; accepted: whole numbers with commas between, as 128,64") from None


def _axes(words: list[str]) -> dict[str, int]:
    """The sizes by name: `--rows 1000` or `--rows=1000`."""
    result = {}
    rest = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    for name, value in zip(rest[::2], [*rest[1::2], ""], strict=False):
        if not name.startswith("--") or not value.isdecimal():
            raise ValueError(
                f"{' '.join((name, value)).strip()!r} is no option; accepted: see --help and `case options OP`"
            )
        result[name.removeprefix("--")] = int(value)
    return result


def _settings(items: list[str]) -> dict[str, str]:
    for item in items:
        if "=" not in item:
            raise ValueError(f"--set is {item!r}; accepted: NAME=VALUE")
    return {name: value for name, _, value in (item.partition("=") for item in items)}


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "scalar"
