"""The `anyfuse` command. Each subcommand lives in the module that does its work; here they are only hung up."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.table import Table

import anyfuse

from ._complete import products
from ._console import Json, plain_output, print_json, show, table
from ._machine import machine, words
from ._opspec import REGISTRY
from ._products import PRODUCTS, product_of
from ._soc import limits_on
from .acl_config import acl_config
from .bench.command import bench
from .demo.command import demo
from .models.command import eval_, quantize
from .run import run
from .verify.command import cases_app, verify

app = typer.Typer(
    name="anyfuse",
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


@dataclass
class Given:
    """What stood before the command."""

    debug: bool = False


given = Given()


def _version(asked: bool) -> None:
    if asked:
        print(f"anyfuse {anyfuse.__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", envvar="ANYFUSE_DEBUG", help="Show an error's traceback.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Fused operators for low-precision training and inference.

    \b
    Examples:
    $ anyfuse info
    $ anyfuse verify --samples 20
    $ anyfuse --debug case run DIR
    $ anyfuse --install-completion

    Every command but run prints JSON with --json, and writes only where it is told to.

    Exit status: 0 done, 1 the verdict of a command that judges is no, 2 an error or wrong usage.
    """
    given.debug = debug


@app.command()
def info(
    soc: Annotated[
        str | None,
        typer.Option("--soc", autocompletion=products, help="Show what a product takes of each operator instead."),
    ] = None,
    json_: Json = False,
) -> None:
    """Show versions, instruction sets, threads and operators: what a bug report needs.

    \b
    Examples:
    $ anyfuse info
    $ anyfuse info --json
    $ anyfuse info --soc Ascend950

    Exit status: 0 done, 2 an error or wrong usage.
    """
    if soc is not None:
        show_product(soc, json_)
        return
    facts = machine()
    if json_:
        print_json(facts)
        return
    lines = Table(show_header=False, box=None)
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    for name, value in facts.items():
        lines.add_row(name.replace("_", " "), words(value))
    show(lines)


def show_product(name: str, json_: bool) -> None:
    """Prints each operator's limits on a product, from the tables that calls are checked with."""
    name = product_of(name) or name
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
    show(lines)


app.command()(bench)


def main() -> None:
    """Runs the command; an error is one line on stderr and exit status 2, unless --debug asks for its traceback."""
    plain_output()
    try:
        app(prog_name="anyfuse")
    except Exception as error:
        if given.debug:
            raise
        print(f"anyfuse: {_line(error)}", file=sys.stderr)
        raise SystemExit(2) from None


#: Errors that tell the user something. Any other is a fault of anyfuse.
EXPECTED = (ValueError, TypeError, OSError, RuntimeError, IndexError, MemoryError, ImportError)


def _line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    words = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, EXPECTED):
        return words
    return f"unexpected {type(error).__name__}: {words} (a fault of anyfuse; `anyfuse --debug ...` shows where)"
