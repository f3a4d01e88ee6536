"""Fused operators for low-precision training and inference, with one numeric contract on every machine."""

import typing as _typing

from . import npu as npu
from . import ops as ops
from ._core import version as _version
from ._opspec import REGISTRY as _REGISTRY  # noqa: F401
from ._settings import backend as backend
from ._soc import soc as soc
from .models import load_quantized as load_quantized
from .models import quantize_ as quantize_
from .models import save_quantized as save_quantized
from .ops.add_rms_norm_dynamic_quant import add_rms_norm_dynamic_quant as add_rms_norm_dynamic_quant
from .ops.apply_adam_w_quant import apply_adam_w_quant_ as apply_adam_w_quant_
from .ops.apply_fused_ema_adamw import apply_fused_ema_adamw_ as apply_fused_ema_adamw_
from .ops.lazy_adam import lazy_adam_ as lazy_adam_
from .ops.quant_grouped_matmul_dequant import quant_grouped_matmul_dequant as quant_grouped_matmul_dequant
from .ops.quant_matmul_dequant import quant_matmul_dequant as quant_matmul_dequant
from .packed import PackedWeight as PackedWeight
from .packed import pack_weight as pack_weight

__version__ = _version()

if _typing.TYPE_CHECKING:
    from . import fusion as fusion
    from . import optim as optim
else:

    def __getattr__(name: str) -> _typing.Any:
        if name in ("fusion", "optim"):  # imported when they are asked for
            import importlib

            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
