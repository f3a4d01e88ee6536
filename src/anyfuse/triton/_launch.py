"""What every GPU operator needs around its kernels: launches that can also be compiled without a GPU, tables of the
addresses of a list of tensors, and numbers that live on the device.

A launcher builds `Launch` objects from tensors; running one and compiling one ahead of time use the same arguments, so
that what is checked without a GPU is what runs on one. Under Triton's interpreter (`TRITON_INTERPRET=1`) the launchers
take CPU tensors: that proves a kernel's logic.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
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
    """One kernel with the arguments it runs with, on the current device and stream. Multiplications and additions are
    never contracted. Grids have one dimension: another one has at most 65 535 programs."""

    kernel: Any
    grid: tuple[int]
    arguments: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 3

    def run(self) -> None:
        if 0 in self.grid:
            return
        self.kernel[self.grid](**self.arguments, **self.options())

    def options(self) -> dict[str, Any]:
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": False}

    def compile(self, target: Any) -> Any:
        """The kernel compiled for a `GPUTarget`, as these arguments specialize it; needs no GPU."""
        signature, constants, attributes = {}, {}, {}
        for i, parameter in enumerate(self.kernel.params):
            value = self.arguments[parameter.name]
            whole = parameter.do_not_specialize and isinstance(value, int)
            kind, divisible = (_integer(value), False) if whole else _kind(value)
            divisible = divisible and not parameter.do_not_specialize_on_alignment
            if parameter.is_constexpr or kind == "constexpr":
                signature[parameter.name], constants[parameter.name] = "constexpr", value
                continue
            signature[parameter.name] = kind
            if divisible:
                attributes[(i,)] = [["tt.divisibility", 16]]
        source = triton.compiler.ASTSource(self.kernel, signature, constants, attributes)
        return triton.compile(source, target=target, options=self.options())


#: Launches one after the other.
Plan = tuple[Launch, ...]

#: Architectures that kernels are compiled for ahead of time, and whose tiles are told apart.
EVERYWHERE = ("sm_80", "sm_90", "gfx942")


@dataclass(frozen=True)
class Variant:
    """A launch to compile, and the architectures that the tests compile it for."""

    operator: str
    label: str
    launch: Launch
    targets: tuple[str, ...] = ("sm_90",)


def architecture(device: torch.device) -> str:
    """The one of EVERYWHERE whose tiles a GPU takes: AMD's, those with `wgmma`, or the rest of NVIDIA's."""
    if torch.version.hip is not None:
        return "gfx942"
    wgmma = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9
    return "sm_90" if wgmma else "sm_80"


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Something to compile a variant for."""
    return torch.ones(shape, dtype=dtype)


def _kind(value: Any) -> tuple[str, bool]:
    """The type of a kernel's argument and whether it is a multiple of 16, as Triton's launcher sees them."""
    if isinstance(value, Tensor):
        return "*" + NAMES[value.dtype], value.data_ptr() % 16 == 0
    if isinstance(value, int) and not isinstance(value, bool) and value != 1:
        return _integer(value), value % 16 == 0
    return ("fp32", False) if isinstance(value, float) else ("constexpr", False)


def _integer(value: int) -> str:
    return "i32" if -(2**31) <= value < 2**31 else "i64"


# ---- lists of tensors ----

#: What a captured CUDA graph reads and no caller holds. The graph may be replayed at any time: it is never freed.
_captured: list[Tensor] = []


def capturing(device: torch.device) -> bool:
    """Whether what is launched now on the current device becomes part of a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def held(tensor: Tensor) -> Tensor:
    """A cached tensor for a launch. It stays where it is as long as a graph may read it, or the current stream, which
    need not be the one it was made on: a cache may drop it before a kernel has read it."""
    if capturing(tensor.device):
        _captured.append(tensor)
    elif tensor.device.type == "cuda":
        tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return tensor


def sent(values: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers of the host on the device. Those of a graph lie in pinned memory, from which each replay copies them."""
    on_host = torch.tensor(values, dtype=dtype)
    if not capturing(device):
        return on_host.to(device)
    _captured.append(on_host.pin_memory())
    return _captured[-1].to(device, non_blocking=True)


#: Tables by device and columns, the ones used last at the end, and how many are kept.
_tables: OrderedDict[Any, Tensor] = OrderedDict()
TABLES = 256


def table(device: torch.device, *columns: Sequence[int]) -> Tensor:
    """int64 (columns, n) on the device. A list of the same tensors gets the same table again: a training loop copies
    it once, and a step that is captured after a first one copies nothing."""
    key = device, *map(tuple, columns)
    if key not in _tables:
        made = sent(key[1:], torch.int64, device)
        if capturing(device):  # filled when the graph is replayed: of use to nobody else
            return made
        _tables[key] = made
        if len(_tables) > TABLES:
            _tables.popitem(last=False)
    _tables.move_to_end(key)
    return held(_tables[key])


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
    return values.index_select(-1, table(values.device, places).view(-1))


def aligned(*addresses: Sequence[int]) -> bool:
    return all(address % 16 == 0 for column in addresses for address in column)


@triton.jit
def find(starts, count, block):
    """The tensor that a block belongs to: the last one that starts at or before it. A program waits for memory at each
    step, so that there are few of them: one for up to 32 tensors, two for up to 1024."""
    low = tl.full((), 0, tl.int32)
    size = low + count
    while size > 1:
        stride = (size + 31) // 32
        ahead = tl.arange(0, 32) * stride
        first = tl.load(starts + low + ahead, ahead < size, other=0)
        chosen = (tl.sum(((first <= block) & (ahead < size)).to(tl.int32), 0) - 1) * stride
        low += chosen
        size = tl.minimum(stride, size - chosen)
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
    return sent(values, torch.float32, device)


def on_host(values: Sequence[Tensor]) -> bool:
    return all(value.device.type == "cpu" for value in values)


def spread(values: Sequence[Tensor], count: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """One-element tensors, one for all or one for each of `count`, as one contiguous tensor on the device."""
    if on_host(values):
        given = [value.item() for value in values]
        if len(set(given)) == 1:
            return torch.full((count,), given[0], dtype=dtype, device=device)
        return sent(given, dtype, device)
    each = torch.cat([value.to(device).reshape(1) for value in values]).to(dtype)
    return each if len(values) == count else each.repeat(count)


# ---- the fastest of several plans ----

_fastest: dict[Any, int] = {}


def fastest(key: Any, candidates: Sequence[Plan]) -> Plan:
    """The candidate that took the least time when a key was first seen. All give the same bits, and none reads what it
    wrote: measuring leaves nothing that matters.

    Nothing is measured, and the first one taken, in a stream that is being captured, and where there is no memory left
    to measure with (a buffer as large as the L2 cache): the next call with that key tries again.
    """
    if INTERPRETED or len(candidates) == 1:
        return candidates[0]
    if key not in _fastest:
        if torch.cuda.is_current_stream_capturing():
            return candidates[0]
        try:
            times = [_time(plan) for plan in candidates]
        except torch.OutOfMemoryError:
            return candidates[0]
        _fastest[key] = times.index(min(times))
    return candidates[_fastest[key]]


def _time(plan: Plan) -> float:
    def run() -> None:
        for launch in plan:
            launch.run()

    try:
        return float(triton.testing.do_bench(run, warmup=5, rep=20, return_mode="median"))
    except (triton.runtime.errors.OutOfResources, triton.runtime.errors.PTXASError):  # more than this GPU has
        return float("inf")
