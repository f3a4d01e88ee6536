"""The commands `anyfuse verify` and `anyfuse case`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from .. import _complete as complete
from .. import _core
from .._console import Json, print_json, progress, short, show, table
from .._opspec import OpSpec
from .._products import ANY
from .._settings import backend
from .._soc import product
from ..report import check_path
from ..report.verify import write as write_page
from . import cases, matrix, precision
from .compare import COUNT_LOSS, Comparison, name_of
from .examine import examine, reproduce

WORST = 10

cases_app = typer.Typer(
    help="""Make, run and judge test cases as files, the way single-operator tests of an NPU do.

    \b
    Examples:
    $ anyfuse case gen lazy_adam DIR
    $ anyfuse case run DIR
    $ anyfuse case compare DIR

    Exit status: 0 done, 1 an output fails, 2 an error or wrong usage.
    """,
    no_args_is_help=True,
)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the case.")]
Target = Annotated[
    str | None,
    typer.Option(autocompletion=complete.targets, help="Instruction set; see `anyfuse info`. Default: the best one."),
]


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
    specs = matrix.operators(operators or [])
    ways = matrix.ways(backends or [], targets or [], threads or [])
    if report_file is not None:
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
    with progress({f"precision of {spec.name}": precision.count(spec) for spec in specs}, hidden) as advance:
        found = [
            item
            for spec in specs
            for item in precision.measure(spec, progress=lambda name: advance(f"precision of {name}"))
        ]
    examined = examine(report.worst(len(report.mismatches)), product, WORST)
    write_page(
        path, report, found, examined, samples=samples, seed=seed, product=product,
        command=shlex.join(["anyfuse", *sys.argv[1:]]),
    )  # fmt: skip


def _verify_json(report: matrix.Report, samples: int, seed: int, product: str) -> dict[str, Any]:
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


# ---- case ----


@cases_app.command("gen", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def gen(
    context: typer.Context,
    operator: Annotated[
        str,
        typer.Argument(
            metavar="OP", autocompletion=complete.operators, help="Operator; `anyfuse case options` lists them."
        ),
    ],
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
    """Write the inputs, goldens and manifest of one call. Named sizes are options too, as --rows 1000.

    \b
    Examples:
    $ anyfuse case gen lazy_adam DIR --rows 1000 --n 50
    $ anyfuse case gen lazy_adam DIR --preset official --overwrite
    $ anyfuse case gen apply_fused_ema_adamw DIR --shape 128,64 --set lr=0.1
    $ anyfuse case gen quant_matmul_dequant DIR --with bias --golden float64

    Exit status: 0 done, 2 an error or wrong usage.
    """
    with progress({"inputs and goldens": None}, hidden=json_):
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
    show(lines, console)
    console.print(
        "attributes: " + ", ".join(f"{name}={value}" for name, value in case.attributes.items()), markup=False
    )


@cases_app.command("run")
def run(
    directory: Directory,
    backend_: Annotated[
        str, typer.Option("--backend", autocompletion=complete.backends, help="native or reference.")
    ] = "native",
    target: Target = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Number of threads. Default: all.")] = None,
    json_: Json = False,
) -> None:
    """Execute a case and write its outputs.

    \b
    Examples:
    $ anyfuse case run DIR
    $ anyfuse case run DIR --target base --threads 1
    $ anyfuse case run DIR --backend reference --json

    Exit status: 0 done, 2 an error or wrong usage.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    waiting = progress({"running": None}, hidden=json_)
    with waiting, backend(backend_), _core.target(target or _core.current_target()):
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
    """Judge the outputs of a case by its goldens.

    \b
    Examples:
    $ anyfuse case compare DIR
    $ anyfuse case compare DIR --loss 1e-4 --count-loss 1e-3
    $ anyfuse case compare DIR --lsb 1 --json

    Exit status: 0 every output passes, 1 one fails, 2 an error or wrong usage.
    """
    with progress({"comparing": None}, hidden=json_):
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
    operator: Annotated[
        str | None,
        typer.Argument(metavar="OP", autocompletion=complete.operators, help="Operator; default: list them."),
    ] = None,
    json_: Json = False,
) -> None:
    """Show what case gen takes for an operator: sizes, dtypes, attributes, optional tensors, presets.

    \b
    Examples:
    $ anyfuse case options
    $ anyfuse case options lazy_adam
    $ anyfuse case options lazy_adam --json

    Exit status: 0 done, 2 an error or wrong usage.
    """
    facts = cases.describe(operator) if operator else {"operators": cases.known()}
    if json_:
        print_json(facts)
        return
    lines = table("", "name", "value", wrap=("value",))
    lines.show_header = False
    for name, value in facts.items():
        items = [f"{key}={item}" for key, item in value.items()] if isinstance(value, dict) else value
        lines.add_row(name, items if isinstance(items, str) else ", ".join(items) or "none")
    show(lines)


def _print_comparisons(results: list[Comparison]) -> None:
    numbers = ("elements", "max abs", "max rel", "beyond", "ulp", "differ")
    lines = table("Outputs against goldens", "output", *numbers, "verdict", numbers=numbers)
    for item in results:
        verdict = "[green]pass[/green]" if item.passed else "[red]FAIL[/red]"
        beyond = [short(item.beyond_abs)] + ([short(item.beyond_rel)] if item.loss is not None else [])
        errors = (f"{item.max_abs:.2g}", f"{item.max_rel:.2g}", ", ".join(beyond))
        lines.add_row(item.name, short(item.elements), *errors, short(item.max_ulp), short(item.different), verdict)
    console = Console()
    show(lines, console)
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
            given = " ".join((name, value)).strip()
            raise ValueError(
                f"{given!r} is no option; accepted: see --help and `case options OP`, sizes as whole numbers"
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
