"""The command's parts, put together: each subcommand is a module here, named after it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from . import package
from .acl_config import acl_config
from .bench import bench
from .case import cases
from .console import plain_output
from .demo import demo
from .extra import lacking
from .info import info
from .models import eval_, quantize
from .run import run as run_script
from .verify import verify

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
app.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(run_script)
app.command()(quantize)
app.command("eval")(eval_)
app.add_typer(cases, name="case")
app.command()(info)
app.command()(bench)


@dataclass
class Given:
    """What stood before the command."""

    debug: bool = False


given = Given()


def _version(asked: bool) -> None:
    if asked:
        print(f"anyfuse {package.module('_core').version()}")
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


def run() -> None:
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
    words = lacking(error)
    if words is not None:
        return words
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    words = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, EXPECTED):
        return words
    return f"unexpected {type(error).__name__}: {words} (a fault of anyfuse; `anyfuse --debug ...` shows where)"
