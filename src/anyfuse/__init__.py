"""Fused operators for low-precision training and inference, with one numeric contract on every machine."""

import typing as _typing

from . import npu as npu
from . import ops as ops
from ._core import version as _version
from ._opspec import REGISTRY as _REGISTRY
from ._settings import backend as backend
from ._soc import soc as soc
from .models import load_quantized as load_quantized
from .models import quantize_ as quantize_
from .models import save_quantized as save_quantized
from .packed import PackedWeight as PackedWeight
from .packed import pack_weight as pack_weight

__version__ = _version()

# Every registered operator under its own name: `anyfuse.apply_fused_ema_adamw_`, ...
for _spec in _REGISTRY.values():
    globals()[_spec.function.__name__] = _spec.function


def __getattr__(name: str) -> _typing.Any:
    # These are imported when they are asked for. (Type checkers need this, too: they do not see the loop above.)
    if name in ("fusion", "optim"):
        import importlib

        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
