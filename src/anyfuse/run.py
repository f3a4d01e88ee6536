"""A script for an NPU, run as it is on this machine."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


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
