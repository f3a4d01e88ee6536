"""`torch.npu.amp`: autocast and gradient scaling on the device that stands in for the NPU."""

from __future__ import annotations

from typing import Any

import torch

from ._device import stand_in


class autocast(torch.amp.autocast_mode.autocast):
    """As torch.autocast("npu"); float16 where no dtype is given."""

    def __init__(
        self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool | None = True
    ) -> None:
        super().__init__(stand_in().type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """As torch.amp.GradScaler("npu"). `dynamic` must be True."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        dynamic: bool = True,
        enabled: bool = True,
    ) -> None:
        if not dynamic:
            raise RuntimeError("dynamic is False; accepted: True")
        super().__init__(stand_in().type, init_scale, growth_factor, backoff_factor, growth_interval, enabled)


def custom_fwd(fwd: Any = None, *, cast_inputs: torch.dtype | None = None) -> Any:
    """As torch.amp.custom_fwd, for the stand-in device."""
    return torch.amp.custom_fwd(fwd, device_type=stand_in().type, cast_inputs=cast_inputs)


def custom_bwd(bwd: Any = None) -> Any:
    """As torch.amp.custom_bwd, for the stand-in device."""
    return torch.amp.custom_bwd(bwd, device_type=stand_in().type)


CONTENTS = {cls.__name__: cls for cls in (autocast, GradScaler, custom_fwd, custom_bwd)}
