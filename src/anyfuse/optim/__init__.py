"""Optimizers on the fused operators: `torch.optim.Optimizer` subclasses with one native call a group and step."""

from ._sharding import rows_held as rows_held
from .adamw8bit import AdamW8bit as AdamW8bit
from .convert import export_state as export_state
from .convert import import_state as import_state
from .ema_adamw import EMAAdamW as EMAAdamW
from .lazy_adam import LazyAdam as LazyAdam
