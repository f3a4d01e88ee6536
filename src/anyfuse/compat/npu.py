"""`torch.npu` and `torch_npu.npu`: what scripts ask of the device, answered by the one that stands in for it.

What a CPU has nothing to do for does nothing; what would mean something and is not here is refused (`REASONS`).
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from .._products import ANY
from .._soc import product
from ._device import index_of, is_npu, stand_in, translated

_GRAPH = "a graph replays launches, and a CPU has none; call the functions themselves, or compile them (torch.compile)"

#: Why a name is not provided.
REASONS: Mapping[str, str] = {
    **dict.fromkeys(("NPUGraph", "graph", "make_graphed_callables", "graph_pool_handle"), _GRAPH),
    **dict.fromkeys(
        ("get_npu_overflow_flag", "clear_npu_overflow_flag"),
        "a CPU keeps no flag of overflows; look at the results, or use torch.amp.GradScaler",
    ),
    "default_generators": "the generator is torch.default_generator, which torch.npu.manual_seed seeds",
    "utilization": "no NPU works",
}


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


# ---- devices ----


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


@contextmanager
def device(device: Any) -> Iterator[None]:
    """Chooses a device for a block."""
    before = current_device()
    if device is not None:
        set_device(device)
    try:
        yield
    finally:
        set_device(before)


def device_of(tensor: Any) -> Any:
    """Chooses a tensor's device for a block."""
    return device(tensor.device.index if _on_gpu() and tensor.is_cuda else None)


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    index, peer = _index(device), _index(peer_device)
    return torch.cuda.can_device_access_peer(index, peer) if _on_gpu() else False


def get_device_name(device: Any = None) -> str:
    """The product that calls are held to ("Ascend910B", by `ANYFUSE_SOC` or `anyfuse.soc`); without one, what stands in
    for the NPU."""
    index = _index(device)
    if product() != ANY:
        return product()
    return torch.cuda.get_device_name(index) if _on_gpu() else "CPU (no NPU is used)"


@dataclass(frozen=True)
class _Properties:
    name: str
    total_memory: int


def get_device_properties(device: Any = None) -> Any:
    """`name` and `total_memory` in bytes (the machine's, with the CPU standing in); a GPU's properties are torch's."""
    index = _index(device)
    if _on_gpu():
        return torch.cuda.get_device_properties(index)
    return _Properties(get_device_name(), mem_get_info()[1])


def get_device_capability(device: Any = None) -> None:
    """None, as torch_npu answers."""
    _index(device)


def is_bf16_supported() -> bool:
    return True


def synchronize(device: Any = None) -> None:
    """Waits for the device's work. On the CPU it is done when its call returns."""
    index = _index(device)
    if _on_gpu():
        torch.cuda.synchronize(index)


def _index(device: Any) -> int:
    """The number of an NPU; that of the current one for None and "npu"."""
    if device is None:
        return current_device()
    if not is_npu(device):
        raise RuntimeError(f"device is {device!r}; accepted: 'npu', 'npu:0', or a number")
    index = index_of(device)
    return current_device() if index is None else index


# ---- options of the NPU's compiler, which change no number here ----


class _Config:
    """`torch.npu.config`."""

    __slots__ = ("allow_internal_format",)

    def __init__(self) -> None:
        self.allow_internal_format = True


class _Precision:
    """`torch.npu.matmul`, `torch.npu.conv`: float32 stays float32 here, whatever is allowed."""

    __slots__ = ("allow_hf32",)

    def __init__(self) -> None:
        self.allow_hf32 = False


config, matmul, conv = _Config(), _Precision(), _Precision()
_options: dict[str, bool] = {"jit_compile": False, "mm_bmm_format_nd": True}


def set_compile_mode(jit_compile: bool = False) -> None:
    """Kept for `is_jit_compile_false`: there is nothing to compile."""
    _options["jit_compile"] = bool(jit_compile)


def is_jit_compile_false() -> bool:
    return not _options["jit_compile"]


def set_option(option: Mapping[str, Any]) -> None:
    """Options of the NPU's software, which is not used. TypeError for what is no dict."""
    if not isinstance(option, dict):
        raise TypeError(f"option is a {type(option).__name__}; accepted: a dict")


def set_mm_bmm_format_nd(is_nd: bool) -> None:
    _options["mm_bmm_format_nd"] = bool(is_nd)


def get_mm_bmm_format_nd() -> bool:
    return _options["mm_bmm_format_nd"]


def enable_deterministic_with_backward(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor: anyfuse's operators give the same bits at each call."""
    return tensor


def disable_deterministic_with_backward(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Nothing waits on a CPU that could be reported."""


def get_sync_debug_mode() -> int:
    return 0


# ---- random numbers ----


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


def seed() -> None:
    """Seeds by a random number."""
    if _on_gpu():
        torch.cuda.seed()
    else:
        torch.default_generator.seed()


def seed_all() -> None:
    if _on_gpu():
        torch.cuda.seed_all()
    else:
        torch.default_generator.seed()


def initial_seed() -> int:
    return torch.cuda.initial_seed() if _on_gpu() else torch.default_generator.initial_seed()


def get_rng_state(device: Any = "npu") -> torch.Tensor:
    """The state of the generator, a ByteTensor on the CPU."""
    index = _index(device)
    return torch.cuda.get_rng_state(index) if _on_gpu() else torch.default_generator.get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "npu") -> None:
    index = _index(device)
    if _on_gpu():
        torch.cuda.set_rng_state(new_state, index)
    else:
        torch.default_generator.set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


# ---- memory: torch has no allocator of its own on the CPU, so that it holds 0 bytes there ----


def _of_allocator(name: str, on_cpu: Callable[[], Any]) -> Callable[..., Any]:
    """torch.cuda's function of that name; with the CPU standing in, `on_cpu()`."""

    def ask(device: Any = None) -> Any:
        index = _index(device)
        return getattr(torch.cuda, name)(index) if _on_gpu() else on_cpu()

    ask.__name__ = ask.__qualname__ = name
    return ask


memory_allocated = _of_allocator("memory_allocated", int)
max_memory_allocated = _of_allocator("max_memory_allocated", int)
memory_reserved = memory_cached = _of_allocator("memory_reserved", int)
max_memory_reserved = max_memory_cached = _of_allocator("max_memory_reserved", int)
memory_stats = _of_allocator("memory_stats", Counter)
memory_stats_as_nested_dict = _of_allocator("memory_stats_as_nested_dict", dict)
memory_summary = _of_allocator("memory_summary", lambda: "the CPU stands in for the NPU, and torch caches none of it")
memory_snapshot = _of_allocator("memory_snapshot", list)
reset_accumulated_memory_stats = _of_allocator("reset_accumulated_memory_stats", lambda: None)
reset_peak_memory_stats = _of_allocator("reset_peak_memory_stats", lambda: None)
reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total memory in bytes; the machine's, with the CPU standing in."""
    index = _index(device)
    if _on_gpu():
        return torch.cuda.mem_get_info(index)
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """A limit of the device's allocator; the CPU's has none."""
    index = _index(device)
    if _on_gpu():
        torch.cuda.set_per_process_memory_fraction(fraction, index)


def empty_cache() -> None:
    """Gives cached memory back; the CPU's allocator keeps none for torch."""
    if _on_gpu():
        torch.cuda.empty_cache()


def ipc_collect() -> None:
    if _on_gpu():
        torch.cuda.ipc_collect()


# ---- autocast ----


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def is_autocast_enabled() -> bool:
    return torch.is_autocast_enabled(stand_in().type)


def set_autocast_enabled(enable: bool) -> None:
    torch.set_autocast_enabled(stand_in().type, enable)


def get_autocast_dtype() -> torch.dtype:
    return torch.get_autocast_dtype(stand_in().type)


def set_autocast_dtype(dtype: torch.dtype) -> None:
    torch.set_autocast_dtype(stand_in().type, dtype)


# ---- streams and events ----


class Stream:
    """A queue of work. On the CPU work is done in the order of its calls, so that there is nothing to wait for."""

    def __new__(cls, device: Any = None, priority: int = 0) -> Any:
        return torch.cuda.Stream(translated(device), priority=priority) if _on_gpu() else super().__new__(cls)

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


StreamContext = stream


def set_stream(stream: Any) -> None:
    """Gives the work from here on to a stream."""
    if _on_gpu():
        torch.cuda.set_stream(stream)


def is_current_stream_capturing() -> bool:
    """False: graphs are not provided."""
    return False


#: What torch.npu has. torch itself asks for `_is_in_bad_fork`.
CONTENTS = {
    name: value
    for name, value in globals().items()
    if name == "_is_in_bad_fork"
    or name in ("config", "matmul", "conv")
    or (name[0] != "_" and getattr(value, "__module__", None) == __name__)
}
