"""The command `anyfuse`, outside the package: what answers without an operator does not wait for torch.

Modules here import `anyfuse` where a command does its work, never at their top.
"""

from __future__ import annotations

import sys

from .extra import lacking


def main() -> None:
    """Runs the command. Without what it needs it says in one line what to install; exit status 2."""
    try:
        from .app import run
    except ModuleNotFoundError as error:
        words = lacking(error)
        if words is None:
            raise
        print(f"anyfuse: {words}", file=sys.stderr)
        raise SystemExit(2) from None
    run()
