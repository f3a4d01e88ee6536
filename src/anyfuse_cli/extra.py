"""What the command and its pages need beyond the package: the extra `cli`."""

from __future__ import annotations

NAMES = ("typer", "click", "shellingham", "rich", "jinja2", "markupsafe")


def lacking(error: Exception) -> str | None:
    """What to install, where an import failed for want of the extra."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return f"{name} is missing: pip install 'anyfuse[cli]'" if name in NAMES else None
