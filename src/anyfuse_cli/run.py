"""`anyfuse run`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer


def run(
    script: Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="The script.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="What the script finds in sys.argv.")] = None,
    device: Annotated[str, typer.Option("--device", help="What stands in for the NPU: cpu or cuda.")] = "cpu",
) -> None:
    """Run a script that uses names of torch_npu, MindSpeed or mxRec here, without an NPU.

    \b
    Examples:
    $ anyfuse run train.py --epochs 3
    $ anyfuse run --device cuda serve.py
    $ cat train.py | anyfuse run /dev/stdin

    Exit status: the script's, 1 after its traceback (130 after Ctrl-C), 2 an error or wrong usage.
    """
    from anyfuse.run import execute

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
