"""What the command may ask of the package without torch, which `import anyfuse` loads to register the operators."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

_BARE = f"{__package__}.bare"


def folder() -> Path:
    """Where the package lies."""
    spec = find_spec("anyfuse")
    assert spec is not None and spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


def module(name: str) -> ModuleType:
    """A module of the package that needs no torch. Where the package has not been imported it is loaded under another
    name, below an empty package of the same folder; both share the one native library."""
    if "anyfuse" in sys.modules:
        return import_module(f"anyfuse.{name}")
    if _BARE not in sys.modules:
        bare = ModuleType(_BARE)
        bare.__path__ = [str(folder())]
        sys.modules[_BARE] = bare
    return import_module(f"{_BARE}.{name}")
