"""The command `anyfuse`, outside the package: what answers without an operator does not wait for torch.

Modules here import `anyfuse` where a command does its work, never at their top.
"""

from __future__ import annotations

import sys

#: What the command and its pages need beyond the package: the extra `cli`.
_EXTRA = ("typer", "click", "shellingham", "rich", "jinja2", "markupsafe")


def lacking(error: Exception) -> str | None:
    """What to install, where an import failed for want of the extra."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return f"{name} is missing: pip install 'anyfuse[cli]'" if name in _EXTRA else None


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
