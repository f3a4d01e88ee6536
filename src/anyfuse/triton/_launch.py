"""What every GPU operator needs around its kernels: launches that can also be compiled without a GPU, tables of the
addresses of a list of tensors, and numbers that live on the device.

A launcher builds `Launch` objects from tensors; running one and compiling one ahead of time use the same arguments, so
that what is checked without a GPU is what runs on one. Under Triton's interpreter (`TRITON_INTERPRET=1`) the launchers
take CPU tensors: that proves a kernel's logic.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Kernels run in Python, on CPU tensors.
INTERPRETED = bool(triton.knobs.runtime.interpret)

#: Triton's name of a torch dtype.
NAMES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
}

#: Triton's dtype of a torch dtype, for kernels that read addresses from a table.
DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@dataclass(frozen=True)
class Launch:
    """One kernel with the arguments it runs with. Multiplications and additions are never contracted."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 3

    def run(self) -> None:
        if 0 in self.grid:
            return
        device = next(value.device for value in self.arguments.values() if isinstance(value, Tensor))
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            self.kernel[self.grid](**self.arguments, **self.options())

    def options(self) -> dict[str, Any]:
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": False}

    def compile(self, target: Any) -> Any:
        """The kernel compiled for a `GPUTarget`, as these arguments specialize it; needs no GPU."""
        signature, constants, attributes = {}, {}, {}
        for i, parameter in enumerate(self.kernel.params):
            value = self.arguments[parameter.name]
            kind, divisible = _kind(value)
            if parameter.is_constexpr or kind == "constexpr":
                signature[parameter.name], constants[parameter.name] = "constexpr", value
                continue
            signature[parameter.name] = kind
            if divisible:
                attributes[(i,)] = [["tt.divisibility", 16]]
        source = triton.compiler.ASTSource(self.kernel, signature, constants, attributes)
        return triton.compile(source, target=target, options=self.options())


@dataclass(frozen=True)
class Variant:
    """A launch to compile. `everywhere`: for all targets, otherwise for sm_90 only."""

    operator: str
    label: str
    launch: Launch
    everywhere: bool = False


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Something to compile a variant for."""
    return torch.ones(shape, dtype=dtype)


def _kind(value: Any) -> tuple[str, bool]:
    """The type of a kernel's argument and whether it is a multiple of 16, as Triton's launcher sees them."""
    if isinstance(value, Tensor):
        return "*" + NAMES[value.dtype], value.data_ptr() % 16 == 0
    if isinstance(value, int) and not isinstance(value, bool) and value != 1:
        return "i32" if -(2**31) <= value < 2**31 else "i64", value % 16 == 0
    return ("fp32", False) if isinstance(value, float) else ("constexpr", False)


# ---- lists of tensors ----

#: What a captured CUDA graph reads and no caller holds. The graph may be replayed at any time: it is never freed.
_captured: list[Tensor] = []


def capturing(device: torch.device) -> bool:
    """Whether what is launched now becomes part of a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def held(tensor: Tensor) -> Tensor:
    """A cached tensor for a launch; it stays where it is as long as a graph may read it."""
    if capturing(tensor.device):
        _captured.append(tensor)
    return tensor


def table(device: torch.device, *columns: Sequence[int]) -> Tensor:
    """int64 (columns, n) on the device. A list of the same tensors gets the same table again: a training loop copies
    it once, and a step that is captured after a first one copies nothing."""
    return held(_table(device, *map(tuple, columns)))


@lru_cache(maxsize=256)
def _table(device: torch.device, *columns: tuple[int, ...]) -> Tensor:
    return torch.tensor(columns, dtype=torch.int64).to(device)


def first_blocks(sizes: Sequence[int], block: int) -> tuple[list[int], int]:
    """The number of each tensor's first block when `sizes` are cut into blocks one after the other, and of all."""
    starts, total = [], 0
    for size in sizes:
        starts.append(total)
        total += -(-size // block)
    return starts, total


def by_dtypes(tensors: Sequence[Sequence[Tensor | None]]) -> dict[tuple[Any, ...], list[int]]:
    """The places of a list whose tensors have the same dtypes (None: no tensor): one launch each."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, each in enumerate(tensors):
        groups.setdefault(tuple(None if tensor is None else tensor.dtype for tensor in each), []).append(i)
    return groups


def columns(values: Tensor, places: Sequence[int]) -> Tensor:
    """Some columns of a tensor on the device, in order."""
    if len(places) == values.shape[-1]:
        return values
    return values.index_select(-1, table(values.device, places)[0])


def aligned(*addresses: Sequence[int]) -> bool:
    return all(address % 16 == 0 for column in addresses for address in column)


@triton.jit
def find(starts, count, block):
    """The tensor that a block belongs to: the last one that starts at or before it."""
    low = tl.full((), 0, tl.int32)
    high = low + count
    while high - low > 1:
        middle = (low + high) // 2
        at_or_before = tl.load(starts + middle) <= block
        low = tl.where(at_or_before, middle, low)
        high = tl.where(at_or_before, high, middle)
    return low


@triton.jit
def pointer(table, index, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """The address in a table's cell; ALIGNED: it is a multiple of 16, so that loads can be wide."""
    address = tl.load(table + index).to(tl.pointer_type(DTYPE))
    if ALIGNED:
        address = tl.multiple_of(address, 16)
    return address


# ---- numbers on the device ----


def number(value: float | Tensor, device: torch.device) -> Tensor:
    """A number as float32 (1,) on the device. A number of the host is filled in, which a CUDA graph can capture."""
    if isinstance(value, Tensor):
        return value.to(device=device, dtype=torch.float32).reshape(1)
    return torch.full((1,), value, dtype=torch.float32, device=device)


def numbers(values: Sequence[float], device: torch.device) -> Tensor:
    """Numbers of the host, one a tensor, as float32 on the device."""
    if len(set(values)) == 1:
        return torch.full((len(values),), values[0], dtype=torch.float32, device=device)
    return torch.tensor(values, dtype=torch.float32).to(device)


def on_host(values: Sequence[Tensor]) -> bool:
    return all(value.device.type == "cpu" for value in values)


def spread(values: Sequence[Tensor], count: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """One-element tensors, one for all or one for each of `count`, as one contiguous tensor on the device."""
    if on_host(values) and len({value.item() for value in values}) == 1:  # filled in, which a CUDA graph can capture
        return torch.full((count,), values[0].item(), dtype=dtype, device=device)
    each = torch.cat([value.to(device=device, dtype=dtype).reshape(1) for value in values])
    return each.expand(count).contiguous()


# ---- the fastest of several launches ----

_fastest: dict[Any, int] = {}


def fastest(key: Any, candidates: Sequence[Launch]) -> Launch:
    """The candidate that took the least time when a key was first seen. All give the same bits.

    In a stream that is being captured nothing can be measured: a key that was not seen before takes the first.
    """
    if INTERPRETED or len(candidates) == 1:
        return candidates[0]
    if key not in _fastest:
        if torch.cuda.is_current_stream_capturing():
            return candidates[0]
        times = [_time(launch) for launch in candidates]
        _fastest[key] = times.index(min(times))
    return candidates[_fastest[key]]


def _time(launch: Launch) -> float:
    try:
        return float(triton.testing.do_bench(launch.run, warmup=5, rep=20, return_mode="median"))
    except triton.runtime.errors.OutOfResources:  # more shared memory than this GPU has
        return float("inf")
