"""The modules with official names in `sys.modules`, and clear errors for those that are not provided."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class NotProvidedError(AttributeError, NotImplementedError):
    """A name of torch_npu, MindSpeed or mxRec that has no stand-in. An AttributeError, so that `hasattr` says False."""


def not_provided(module: str, name: str, provided: Sequence[str]) -> AttributeError:
    """What a module's `__getattr__` raises. Dunder names are looked up by Python itself and get the plain error."""
    if name.startswith("__"):
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    return NotProvidedError(
        f"{module}.{name} is not provided by anyfuse, and no NPU is used; provided: {', '.join(provided)}"
    )


@contextmanager
def runtime_errors() -> Iterator[None]:
    """Raises what an operator refuses as RuntimeError, as torch_npu and MindSpeed do."""
    try:
        yield
    except (TypeError, ValueError, IndexError) as error:
        raise RuntimeError(str(error)) from error


def _contents() -> dict[str, dict[str, Any]]:
    """What each module with an official name holds."""
    from . import mindspeed, mx_rec

    return {
        "mindspeed": {},
        "mindspeed.ops": {},
        "mindspeed.ops.npu_apply_fused_ema_adamw": {
            "npu_apply_fused_ema_adamw": mindspeed.npu_apply_fused_ema_adamw,
        },
        "mindspeed.core": {},
        "mindspeed.core.optimizer": {},
        "mindspeed.core.optimizer.fused_ema_adamw": {"FusedEmaAdamW": mindspeed.FusedEmaAdamW},
        "mx_rec": {},
        "mx_rec.optimizers": {},
        "mx_rec.optimizers.lazy_adam": {
            "create_hash_optimizer": mx_rec.create_hash_optimizer,
            "CustomizedLazyAdam": mx_rec.CustomizedLazyAdam,
        },
    }


class _Absent(importlib.abc.MetaPathFinder):
    """Names what is missing when a script imports a module that is not provided."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        root = name.partition(".")[0]
        if root in _roots:
            provided = sorted(known for known in _names if known.partition(".")[0] == root)
            raise ModuleNotFoundError(
                f"{name} is not provided by anyfuse, and no NPU is used; provided: {', '.join(provided)}", name=name
            )


_finder = _Absent()
_names: list[str] = []
_roots: set[str] = set()


def install() -> None:
    """Adds the modules. Of a real MindSpeed or mxRec that is installed, only those of the operators are replaced."""
    from . import torch_npu

    contents = _contents()
    real = {root for root in ("mindspeed", "mx_rec") if importlib.util.find_spec(root) is not None}
    modules: dict[str, ModuleType] = {"torch_npu": torch_npu, "torch_npu.npu": torch_npu.npu}
    for name, values in contents.items():
        if values or name.partition(".")[0] not in real:
            modules[name] = _make(name, values)
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if parent in modules:
            setattr(modules[parent], child, module)
        sys.modules[name] = module
    _names.extend(modules)
    _roots.update({name.partition(".")[0] for name in modules} - real)
    sys.meta_path.insert(0, _finder)


def uninstall() -> None:
    sys.meta_path.remove(_finder)
    for name in _names:
        del sys.modules[name]
    _names.clear()
    _roots.clear()


def _make(name: str, values: dict[str, Any]) -> ModuleType:
    module = ModuleType(name, f"anyfuse's stand-in for {name}.")
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    module.__dict__.update(values)

    def missing(attribute: str) -> Any:
        provided = [key for key in vars(module) if not key.startswith("__")]
        raise not_provided(name, attribute, provided)

    vars(module)["__getattr__"] = missing
    return module
