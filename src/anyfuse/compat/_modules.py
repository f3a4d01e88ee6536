"""Modules with official names: they are made of what is given, found on import, and say what they do not have."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: What modules hold: names of modules, and of each its names and values, or the name of a module that it is, too.
Contents = Mapping[str, Mapping[str, Any] | str]

_FEW = 20  # so many names are listed in an error; of more the page tells


class NotProvidedError(AttributeError, NotImplementedError):
    """A name of torch_npu, MindSpeed or mxRec that has no stand-in. An AttributeError, so that `hasattr` says False."""


def _words(name: str, provided: Sequence[str]) -> str:
    return f"{name} is not provided by anyfuse, and no NPU is used; " + (
        _reasons.get(name)
        or (f"provided: {', '.join(provided)}" if len(provided) <= _FEW else "docs/migration-ascend.md lists what is")
    )


@contextmanager
def runtime_errors() -> Iterator[None]:
    """Raises what an operator refuses as RuntimeError, as torch_npu and MindSpeed do."""
    try:
        yield
    except (TypeError, ValueError, IndexError) as error:
        raise RuntimeError(str(error)) from error


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules, as a file would be found: parents are imported first, be they real ones, and get the module as
    an attribute. Names what is missing when a script imports a module below one of them."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name in _modules:
            return ModuleSpec(name, self, is_package=True)
        if name.rpartition(".")[0] in _modules:
            root = name.partition(".")[0]
            provided = sorted(known for known in _modules if known.partition(".")[0] == root)
            raise ModuleNotFoundError(_words(name, provided), name=name)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to do."""


_finder = _Finder()
_modules: dict[str, ModuleType] = {}
_reasons: dict[str, str] = {}


def install(always: Contents, absent: Contents, reasons: Mapping[str, str]) -> None:
    """Makes the modules importable.

    `always`: those that take the place of real ones. `absent`: those that are made only where the package they belong
    to is not installed. `reasons`: why a name is not provided, and what to do instead, for its error.
    """
    roots = {name.partition(".")[0] for name in absent}
    missing = {root for root in roots if importlib.util.find_spec(root) is None}
    _reasons.update(reasons)
    made = {**always, **{name: values for name, values in absent.items() if name.partition(".")[0] in missing}}
    for name, values in made.items():
        _modules[name] = _modules[values] if isinstance(values, str) else _make(name, values)
    for name, module in _modules.items():
        parent, _, child = name.rpartition(".")
        if parent in _modules:
            setattr(_modules[parent], child, module)
    sys.meta_path.insert(0, _finder)


def uninstall() -> None:
    sys.meta_path.remove(_finder)
    for name, module in _modules.items():
        sys.modules.pop(name, None)
        parent, _, child = name.rpartition(".")
        if vars(sys.modules.get(parent, module)).get(child) is module:  # a real package, which was given it
            delattr(sys.modules[parent], child)
    _modules.clear()
    _reasons.clear()


def _make(name: str, values: Mapping[str, Any]) -> ModuleType:
    module = ModuleType(name, f"anyfuse's stand-in for {name}.")
    module.__spec__ = ModuleSpec(name, _finder, is_package=True)
    module.__path__ = []
    module.__dict__.update(values)

    def missing(attribute: str) -> Any:
        if attribute.startswith("__"):  # Python looks them up by itself
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        raise NotProvidedError(_words(f"{name}.{attribute}", [key for key in vars(module) if not key.startswith("__")]))

    vars(module)["__getattr__"] = missing
    return module
