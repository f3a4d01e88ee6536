"""Fused operators for low-precision training and inference, with one numeric contract on every machine."""

import typing as _typing

from . import npu as npu
from . import ops as ops
from ._core import version as _version
from ._opspec import REGISTRY as _REGISTRY
from ._settings import backend as backend
from ._soc import soc as soc
from .packed import PackedWeight as PackedWeight
from .packed import pack_weight as pack_weight

__version__ = _version()

# Every registered operator under its own name: `anyfuse.apply_fused_ema_adamw_`, ...
for _spec in _REGISTRY.values():
    globals()[_spec.function.__name__] = _spec.function

if _typing.TYPE_CHECKING:
    # Type checkers do not see what the loop above binds.
    def __getattr__(name: str) -> _typing.Any: ...
