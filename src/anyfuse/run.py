"""`anyfuse run`: a script for an NPU, run as it is on this machine."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Annotated, Any

import typer


def execute(script: str, arguments: list[str], device: str = "cpu") -> dict[str, Any]:
    """Runs a script as `python script arguments` would, with the official names in place; returns its globals.

    The names stay in place afterwards: what the script has left running, or at exit, may need them.
    """
    from . import compat  # the rest of anyfuse does without

    compat.install(device)
    argv, path = sys.argv, list(sys.path)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        return runpy.run_path(script, run_name="__main__") if Path(script).is_file() else _run_stream(script)
    finally:
        sys.argv, sys.path[:] = argv, path


def _run_stream(script: str) -> dict[str, Any]:
    """Runs a script that can be read once alone, such as a pipe: `runpy` reads twice."""
    code = compile(Path(script).read_bytes(), script, "exec")
    before, main = sys.modules["__main__"], ModuleType("__main__")
    main.__file__ = script
    sys.modules["__main__"] = main
    try:
        exec(code, vars(main))
    finally:
        sys.modules["__main__"] = before
    return vars(main)


def run(
    script: Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="The script.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="What the script finds in sys.argv.")] = None,
    device: Annotated[str, typer.Option("--device", help="What stands in for the NPU: cpu or cuda.")] = "cpu",
) -> None:
    """Run a script written for torch_npu, MindSpeed or mxRec here, without an NPU.

    \b
    Examples:
    $ anyfuse run train.py --epochs 3
    $ anyfuse run --device cuda serve.py
    $ cat train.py | anyfuse run /dev/stdin

    Exit status: the script's, 1 after its traceback (130 after Ctrl-C), 2 an error or wrong usage.
    """
    try:
        execute(str(script), arguments or [], device)
    except SystemExit:
        raise
    except BaseException as error:
        traceback = _from_script(error.__traceback__, str(script))
        if traceback is None and not isinstance(error, SyntaxError):
            raise  # not the script's: the command was refused
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 1) from None


def _from_script(traceback: TracebackType | None, script: str) -> TracebackType | None:
    """The part of a traceback that begins in the script."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename != script:
        traceback = traceback.tb_next
    return traceback
