"""The device "npu" without an NPU: what is sent there, or made there, is on the stand-in device.

A copy between host and device is a copy here too: with the CPU standing in, `.npu()`, `.to("npu")`, `.cpu()` and
`.to("cpu")` give memory of their own, so that a script that changes one side in place does not change the other.
(Leaves that require a gradient stay themselves, or their gradient would be lost.)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_NPU = re.compile(r"npu(:\d+)?")
_stand_in: torch.device | None = None
_mode: TorchFunctionMode | None = None
_undo: list[Callable[[], None]] = []


def stand_in() -> torch.device:
    """The device that stands in for the NPU. RuntimeError where nothing is installed."""
    if _stand_in is None:
        raise RuntimeError("no device stands in for the NPU; call anyfuse.compat.install() first")
    return _stand_in


def is_npu(device: Any) -> bool:
    """True for "npu", "npu:0", such a torch.device, and a number, which is an NPU's to torch_npu."""
    if isinstance(device, str):
        return _NPU.fullmatch(device) is not None
    if isinstance(device, torch.device):
        return device.type == "npu"
    return isinstance(device, int) and not isinstance(device, bool)


def translated(device: Any) -> Any:
    """What stands in for a device that is an NPU; any other one as it is. RuntimeError where there is no such NPU."""
    return _standing_in_for(device) if is_npu(device) else device


def index_of(npu: Any) -> int | None:
    """The number of an NPU; None where it is "npu" alone. RuntimeError where there are not so many."""
    index = npu if isinstance(npu, int) else torch.device(npu).index
    count = torch.cuda.device_count() if stand_in().type == "cuda" else 1
    if index is not None and not 0 <= index < count:
        raise RuntimeError(f"device is {npu!r}; accepted: npu:0" + (f" to npu:{count - 1}" if count > 1 else ""))
    return index


def _standing_in_for(npu: Any) -> torch.device:
    index, device = index_of(npu), stand_in()
    return device if index is None or device.type == "cpu" else torch.device(device.type, index)


_PARSE = torch._C._nn._parse_to


class _StandIn(TorchFunctionMode):
    """Puts the stand-in device in the place of "npu" in factory calls, `Tensor.to` and `Module.to`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.to or func is Tensor.cpu or func is _PARSE:  # one by one, as torch.compile can trace that
            return _move(func, args, kwargs)
        if is_npu(kwargs.get("device")):
            kwargs = {**kwargs, "device": translated(kwargs["device"])}
        return func(*args, **kwargs)


def _move(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`to` and `cpu`. The device is the first argument after the tensor, or `device`."""
    at = 0 if func is _PARSE else 1
    named = args[at] if len(args) > at else kwargs.get("device")
    if is_npu(named):
        if len(args) > at:
            args = (*args[:at], translated(named), *args[at + 1 :])
        else:
            kwargs = {**kwargs, "device": translated(named)}
    result = func(*args, **kwargs)
    between_devices = func is Tensor.cpu or (func is Tensor.to and isinstance(named, (str, torch.device, int)))
    return own_memory(result, args[0]) if between_devices else result


def own_memory(result: Tensor, source: Tensor) -> Tensor:
    """The result of a copy between devices, in memory of its own."""
    if result is not source or (source.is_leaf and source.requires_grad):
        return result
    return result.clone()


# ---- methods that torch_npu adds ----


def _tensor_npu(
    self: Tensor,
    device: Any = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> Tensor:
    """The tensor on the device that stands in for the NPU."""
    if device is not None and not is_npu(device):
        raise RuntimeError(f"device is {device!r}; accepted: an NPU, as 'npu:0', or its number")
    moved = self.to(
        translated("npu" if device is None else device), non_blocking=non_blocking, memory_format=memory_format
    )
    return own_memory(moved, self)


def _is_npu(self: Tensor) -> bool:
    """True where the tensor is on the device that stands in for the NPU."""
    return self.device.type == stand_in().type


def _module_npu(self: torch.nn.Module, device: Any = None) -> torch.nn.Module:
    """Moves parameters and buffers to the device that stands in for the NPU."""
    self._apply(lambda tensor: _tensor_npu(tensor, device))
    return self


def install(device: torch.device, npu: ModuleType) -> None:
    """`npu` becomes torch.npu."""
    global _stand_in, _mode
    _name_device()
    _stand_in = device
    set_default_device = torch.set_default_device
    autocast, scaler = torch.amp.autocast_mode.autocast.__init__, torch.amp.GradScaler.__init__

    def new_autocast(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        autocast(self, stand_in().type if device_type == "npu" else device_type, *args, **kwargs)

    def new_scaler(self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        scaler(self, stand_in().type if device == "npu" else device, *args, **kwargs)

    _patch(Tensor, "npu", _tensor_npu)
    _patch(Tensor, "is_npu", property(_is_npu))
    _patch(torch.nn.Module, "npu", _module_npu)
    _patch(torch, "npu", npu)
    _patch(torch, "set_default_device", lambda device: set_default_device(translated(device)))
    _patch(torch.amp.autocast_mode.autocast, "__init__", new_autocast)
    _patch(torch.amp.GradScaler, "__init__", new_scaler)
    _mode = _StandIn()
    _mode.__enter__()  # type: ignore[no-untyped-call]


def uninstall() -> None:
    global _stand_in, _mode
    if _mode is not None:
        _mode.__exit__(None, None, None)
    while _undo:
        _undo.pop()()
    _stand_in = _mode = None


def _name_device() -> None:
    """Makes torch.device("npu") a device. torch keeps the name for good, and takes it for the sign of an accelerator,
    to which `torch.compile`, DataLoader and torch.distributed would then turn: they must be told that there is none."""
    if torch._C._get_privateuse1_backend_name() == "npu":
        return
    accelerator, core = torch.accelerator.current_accelerator(), torch._C._get_accelerator()
    torch.utils.backend_registration.rename_privateuse1_backend("npu")

    def current_accelerator(check_available: bool = False) -> torch.device | None:
        usable = accelerator is not None and (
            not check_available or torch.get_device_module(accelerator).is_available()
        )
        return accelerator if usable else None

    torch.accelerator.current_accelerator = current_accelerator
    torch._C._get_accelerator = lambda check=False: core


def _patch(owner: Any, name: str, value: Any) -> None:
    if name in vars(owner):
        before = vars(owner)[name]
        _undo.append(lambda: setattr(owner, name, before))
    else:
        _undo.append(lambda: delattr(owner, name))
    setattr(owner, name, value)


def _load(storage: Any, location: str) -> Any:
    """`torch.load`'s way to a device, for `map_location="npu"` and for files that were saved on an NPU."""
    if _stand_in is None or not isinstance(location, str) or not is_npu(location):
        return None
    device = translated(location)
    return storage if device.type == "cpu" else storage.cuda(device.index)


torch.serialization.register_package(5, lambda storage: None, _load)
