"""A script for an NPU, run as it is on this machine."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
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
        return runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = argv, path
