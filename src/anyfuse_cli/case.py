"""`anyfuse case`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from . import complete
from .console import Json, print_json, progress, show, table

if TYPE_CHECKING:
    from anyfuse.verify.compare import Comparison

cases = typer.Typer(
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


@cases.command("gen", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
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
    from anyfuse._checks import dtype_name
    from anyfuse.verify import cases as disk
    from anyfuse.verify.manifest import to_json

    with progress({"inputs and goldens": None}, hidden=json_):
        case = disk.generate(
        operator, directory,
        sizes=_sizes(shape), axes=_axes(context.args), dtype=dtype, settings=_settings(settings or []),
        optional=optional or [], preset=preset, seed=seed, golden=golden, overwrite=overwrite,
    )  # fmt: skip
    if json_:
        print_json({"directory": str(directory), **to_json(case)})
        return
    lines = table(f"{case.operator} in {directory}", "file", "dtype", "shape", "bytes", numbers=("bytes",))
    files = [(file.file, file) for file in case.inputs] + [(str(file.golden), file) for file in case.outputs]
    for name, file in files:
        lines.add_row(name, file.encoding or dtype_name(file.dtype), _shape(file.shape), f"{file.nbytes:,}")
    console = Console()
    show(lines, console)
    console.print(
        "attributes: " + ", ".join(f"{name}={value}" for name, value in case.attributes.items()), markup=False
    )


@cases.command("run")
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
    import torch

    from anyfuse import _core, backend
    from anyfuse.verify import cases as disk

    if threads is not None:
        torch.set_num_threads(threads)
    waiting = progress({"running": None}, hidden=json_)
    with waiting, backend(backend_), _core.target(target or _core.current_target()):
        case = disk.run(directory)
    files = [file.file for file in case.outputs]
    if json_:
        print_json({"directory": str(directory), "operator": case.operator, "backend": backend_, "outputs": files})
    else:
        Console().print(f"{case.operator}: wrote {', '.join(files)}", markup=False, highlight=False)


@cases.command("compare")
def compare(
    directory: Directory,
    loss: Annotated[
        float | None, typer.Option(min=0, help="Error allowed; default: 1e-6, for fp16 2^-10, for bf16 2^-7.")
    ] = None,
    count_loss: Annotated[
        float, typer.Option(min=0, max=1, help="Share of elements that may be beyond the loss.")
    ] = 1e-6,
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
    from anyfuse.verify import cases as disk

    with progress({"comparing": None}, hidden=json_):
        results = disk.compare(directory, loss=loss, count_loss=count_loss, lsb=lsb)
    passed = all(result.passed for result in results)
    if json_:
        print_json({"directory": str(directory), "passed": passed, "outputs": [asdict(result) for result in results]})
    else:
        _print_comparisons(results)
    if not passed:
        raise typer.Exit(1)


@cases.command("options")
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
    from anyfuse.verify import plain

    facts = plain.describe(operator) if operator else {"operators": plain.known()}
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
    from anyfuse._words import short

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
