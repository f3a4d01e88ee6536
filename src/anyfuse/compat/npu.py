"""`torch.npu` and `torch_npu.npu`: what scripts ask of the device, answered by the one that stands in for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ._device import is_npu, stand_in
from ._modules import not_provided


def is_available() -> bool:
    """True: scripts that ask go on, on the stand-in device."""
    return True


def is_initialized() -> bool:
    return True


def init() -> None:
    """Nothing is left to do."""


def _is_in_bad_fork() -> bool:
    return False


def _on_gpu() -> bool:
    return stand_in().type == "cuda"


def device_count() -> int:
    """1, or the number of GPUs where they stand in."""
    return torch.cuda.device_count() if _on_gpu() else 1


def current_device() -> int:
    return torch.cuda.current_device() if _on_gpu() else 0


def set_device(device: Any) -> None:
    """Chooses a device by "npu:0", a torch.device or a number. RuntimeError where there is no such device."""
    index = _index(device)
    if _on_gpu():
        torch.cuda.set_device(index)


def get_device_name(device: Any = None) -> str:
    _index(0 if device is None else device)
    return torch.cuda.get_device_name() if _on_gpu() else "CPU (no NPU is used)"


def is_bf16_supported() -> bool:
    return True


def synchronize(device: Any = None) -> None:
    """Waits for the device's work. On the CPU it is done when its call returns."""
    if _on_gpu():
        torch.cuda.synchronize(None if device is None else _index(device))


def manual_seed(seed: int) -> None:
    """Seeds the stand-in device's generator; with the CPU standing in, the one that `torch.manual_seed` seeds."""
    if _on_gpu():
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """As `manual_seed`, on all devices. torch.manual_seed calls it."""
    if _on_gpu():
        torch.cuda.manual_seed_all(seed)
    else:
        torch.default_generator.manual_seed(int(seed))


def empty_cache() -> None:
    """Gives cached memory back; the CPU's allocator keeps none for torch."""
    if _on_gpu():
        torch.cuda.empty_cache()


def _index(device: Any) -> int:
    if not is_npu(device):
        raise RuntimeError(f"device is {device!r}; accepted: 'npu', 'npu:0', or a number")
    index = device if isinstance(device, int) else torch.device(device).index or 0
    if not 0 <= index < device_count():
        raise RuntimeError(
            f"device is {device!r}; accepted: 0 to {device_count() - 1}, as {device_count()} can be used"
        )
    return index


# ---- streams and events ----


class Stream:
    """A queue of work. On the CPU work is done in the order of its calls, so that there is nothing to wait for."""

    def __new__(cls, device: Any = None, priority: int = 0) -> Any:
        return torch.cuda.Stream(device=device, priority=priority) if _on_gpu() else super().__new__(cls)

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device, self.priority = stand_in(), priority

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event


class Event:
    """A mark in a stream. On the CPU it is reached when it is recorded."""

    def __new__(cls, enable_timing: bool = False, **options: Any) -> Any:
        return torch.cuda.Event(enable_timing=enable_timing, **options) if _on_gpu() else super().__new__(cls)

    def __init__(self, enable_timing: bool = False, **options: Any) -> None:
        self.time: float | None = None

    def record(self, stream: Any = None) -> None:
        self.time = time.perf_counter()

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds between two recorded events. RuntimeError where one has not been recorded."""
        if self.time is None or end_event.time is None:
            raise RuntimeError("elapsed_time: both events must be recorded first")
        return (end_event.time - self.time) * 1e3


_default: Any = None


def default_stream(device: Any = None) -> Any:
    global _default
    if _on_gpu():
        return torch.cuda.default_stream()
    _default = Stream() if _default is None else _default
    return _default


def current_stream(device: Any = None) -> Any:
    return torch.cuda.current_stream() if _on_gpu() else default_stream()


@contextmanager
def stream(stream: Any) -> Iterator[None]:
    """Gives the block's work to a stream."""
    if _on_gpu() and stream is not None:
        with torch.cuda.stream(stream):
            yield
    else:
        yield


def __getattr__(name: str) -> Any:
    raise not_provided("torch.npu", name, [key for key in globals() if not key.startswith("_") and key in _PROVIDED])


_PROVIDED = (
    "Event Stream current_device current_stream default_stream device_count empty_cache get_device_name init "
    "is_available is_bf16_supported is_initialized manual_seed manual_seed_all set_device stream synchronize"
).split()
