"""The `anyfuse` command. Each subcommand lives in the module that does its work; here they are only hung up."""

from __future__ import annotations

import json
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
from .bench.command import bench

app = typer.Typer(
    name="anyfuse",
    help="Fused operators for low-precision training and inference.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text for people.")]


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
        "targets_available": _core.available_targets(),
        "targets_compiled": _core.targets(),
        "backends": ["native", "reference"],
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "operators": sorted(anyfuse._REGISTRY),
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


@app.command()
def info(json_: Json = False) -> None:
    """Show versions, instruction sets, threads and operators: what a bug report needs."""
    facts = machine()
    if json_:
        print(json.dumps(facts, indent=2))
        return
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), ", ".join(value) if isinstance(value, list) else str(value))
    Console().print(table)


app.command()(bench)


def main() -> None:
    """Runs the command; an error is one line on stderr, unless --debug asks for its traceback."""
    try:
        app()
    except (ValueError, TypeError, OSError, RuntimeError, IndexError) as error:
        if os.environ.get("ANYFUSE_DEBUG"):
            raise
        print(f"anyfuse: {error}", file=sys.stderr)
        raise SystemExit(1) from None
