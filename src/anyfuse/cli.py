"""The `anyfuse` command. Each subcommand lives in the module that does its work; here they are only hung up."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

import anyfuse

from . import _core
from ._console import Json, print_json, table
from ._opspec import REGISTRY
from ._soc import PRODUCTS, limits_on
from .acl_config import acl_config
from .bench.command import bench
from .demo.command import demo
from .models.command import eval_, quantize
from .run import run
from .verify.command import cases_app, verify

app = typer.Typer(
    name="anyfuse",
    help="Fused operators for low-precision training and inference.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

app.command()(verify)
app.command()(demo)
app.command("acl-config")(acl_config)
# What follows the script is the script's own, options too.
app.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(run)
app.command()(quantize)
app.command("eval")(eval_)
app.add_typer(cases_app, name="case")


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    os.environ["ANYFUSE_DEBUG"] = "1" if debug else os.environ.get("ANYFUSE_DEBUG", "")


def machine() -> dict[str, Any]:
    """What a bug report or a result file needs to know of this machine and installation."""
    return {
        "anyfuse": anyfuse.__version__,
        "torch": torch.__version__,
        "numpy": metadata.version("numpy"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "thread_pool": _core.thread_pool(),
        "target": _core.current_target(),
        "matmul_target": _core.operator_target("quant_matmul_dequant"),
        "targets_available": _core.available_targets(),
        "targets_compiled": _core.targets(),
        "backends": ["native", "reference"],
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "operators": sorted(REGISTRY),
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


@app.command()
def info(
    soc: Annotated[
        str | None, typer.Option("--soc", help="Show what a product takes of each operator instead.")
    ] = None,
    json_: Json = False,
) -> None:
    """Show versions, instruction sets, threads and operators: what a bug report needs."""
    if soc is not None:
        show_product(soc, json_)
        return
    facts = machine()
    if json_:
        print_json(facts)
        return
    lines = Table(show_header=False, box=None)
    for name, value in facts.items():
        lines.add_row(name.replace("_", " "), ", ".join(value) if isinstance(value, list) else str(value))
    Console().print(lines)


def show_product(name: str, json_: bool) -> None:
    """Prints each operator's limits on a product, from the tables that calls are checked with."""
    limits = {spec.name: limits_on(name, spec.profiles) for spec in REGISTRY.values()}
    if json_:
        print_json({"soc": name, "product": PRODUCTS[name], "operators": limits})
        return
    lines = table(f"{name}: {PRODUCTS[name]}", "operator", "argument", "accepted", wrap=("accepted",))
    for operator, rules in limits.items():
        if not rules:
            lines.add_row(operator, "", "not available" if rules is None else "no limits beyond the operator's own")
        for i, (argument, accepted) in enumerate((rules or {}).items()):
            lines.add_row("" if i else operator, argument, accepted)
        lines.add_section()
    Console().print(lines)


app.command()(bench)


def main() -> None:
    """Runs the command; an error is one line on stderr, unless --debug asks for its traceback."""
    try:
        app()
    except (ValueError, TypeError, OSError, RuntimeError, IndexError, MemoryError) as error:
        if os.environ.get("ANYFUSE_DEBUG"):
            raise
        print(f"anyfuse: {error}", file=sys.stderr)
        raise SystemExit(1) from None
