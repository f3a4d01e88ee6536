"""The kernels compiled ahead of time, without a GPU: `python -m anyfuse.triton.ahead` prints registers and spills.

A representative set of variants of each operator, as its launcher would specialize them.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget

from .. import ops
from .._opspec import REGISTRY
from ..ops.add_rms_norm_dynamic_quant import _outputs
from . import (
    add_rms_norm_dynamic_quant,
    apply_adam_w_quant,
    apply_fused_ema_adamw,
    lazy_adam,
)
from ._launch import Launch, Variant

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}


@dataclass(frozen=True)
class Resources:
    registers: int
    spilled_bytes: int
    shared_bytes: int


def _ones(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape, dtype=dtype)


def _ema() -> Iterator[Variant]:
    def launch(dtypes: tuple[torch.dtype, ...], mode: int, convention: str, found_inf: Tensor | None) -> Launch:
        sizes = (4096,) if convention == "device" else (4096, 100)  # a list of one is specialized on its length
        lists: list[Any] = [[_ones(size, dtype=dtype) for size in sizes] for dtype in dtypes]
        numbers: dict[str, Any] = dict(
            step=[torch.tensor([1])], lr=0.1, ema_decay=0.999, beta1=0.9, beta2=0.999, eps=1e-8, adam_mode=mode,
            bias_correction=True, weight_decay=0.01, convention=convention, lr_tensor=None, grad_scale=None,
            found_inf=found_inf, maximize=False, stochastic_rounding=None,
        )  # fmt: skip
        call = ops.apply_fused_ema_adamw.Call(*lists, **numbers)
        return apply_fused_ema_adamw.launches(call)[0]

    full, half = (torch.float32,) * 5, (torch.bfloat16, torch.bfloat16, *(torch.float32,) * 3)
    yield Variant("apply_fused_ema_adamw", "fp32", launch(full, 1, "formula", None), True)
    yield Variant("apply_fused_ema_adamw", "bf16 with fp32 state", launch(half, 0, "formula", _ones(1)))
    yield Variant("apply_fused_ema_adamw", "fp16, device", launch((torch.float16,) * 5, 1, "device", None))


def _norm() -> Iterator[Variant]:
    def launch(cols: int, dtype: torch.dtype, y_dtype: str, two: bool, convention: str = "formula") -> Launch:
        x, weight = _ones(8, cols, dtype=dtype), _ones(cols, dtype=dtype)
        smooth = weight if two else None
        call = ops.add_rms_norm_dynamic_quant.Call(
            x, x, weight, smooth, smooth, beta=weight, epsilon=1e-6, output1=True, output2=two, y_dtype=y_dtype,
            convention=convention,
        )  # fmt: skip
        return add_rms_norm_dynamic_quant.launches(call, _outputs(call))[0]

    name = "add_rms_norm_dynamic_quant"
    yield Variant(name, "bf16, 4096 columns, two int8", launch(4096, torch.bfloat16, "int8", True), True)
    yield Variant(name, "fp16, 1000 columns, int4, device", launch(1000, torch.float16, "int4", False, "device"))
    yield Variant(name, "fp32, 16384 columns, hifloat8", launch(16384, torch.float32, "hifloat8", False))
    yield Variant(name, "fp32, one element, device", launch(1, torch.float32, "float8_e5m2", False, "device"))
    yield Variant(name, "bf16, 40000 columns, float8", launch(40000, torch.bfloat16, "float8_e4m3fn", False))


def _adam8() -> Iterator[Variant]:
    def launch(dtypes: tuple[torch.dtype, ...], block_size: int, convention: str, guarded: bool) -> Launch:
        sizes = (4096,) if convention == "device" else (4096, 100)  # a list of one is specialized on its length
        floats: list[Any] = [[_ones(size, dtype=dtype) for size in sizes] for dtype in dtypes]
        codes: list[Any] = [[_ones(size, dtype=torch.uint8) for size in sizes] for _ in range(2)]
        maps: list[Any] = [_ones(256) for _ in range(2)]
        scales: list[Any] = [[_ones(-(-size // block_size)) for size in sizes] for _ in range(2)]
        numbers: dict[str, Any] = dict(
            step=[torch.tensor([1])], lr=0.1, beta1=0.9, beta2=0.999,
            weight_decay=0.01, eps=1e-8, gnorm_scale=1.0, block_size=block_size, convention=convention,
            skip_nonfinite=guarded, nonzero_v=guarded, lr_tensor=None, grad_scale=None, found_inf=None, maximize=False,
            s=[], ema_decay=0.0, stochastic_rounding=None,
        )  # fmt: skip
        call = ops.apply_adam_w_quant.Call(*floats, *codes, *maps, *scales, **numbers)
        return apply_adam_w_quant.launches(call)[0]

    name = "apply_adam_w_quant"
    yield Variant(name, "fp32, blocks of 256", launch((torch.float32,) * 2, 256, "formula", False), True)
    mixed = (torch.bfloat16, torch.float32)
    yield Variant(name, "bf16, blocks of 64, guarded", launch(mixed, 64, "formula", True))
    yield Variant(name, "fp16, blocks of 2048, device", launch((torch.float16,) * 2, 2048, "device", False))


def _lazy() -> Iterator[Variant]:
    def launches(dim: int, dtypes: tuple[torch.dtype, torch.dtype], ids: torch.dtype) -> tuple[Launch, Launch, Launch]:
        gradient, indices = _ones(64, dim, dtype=dtypes[0]), torch.arange(64, dtype=ids)
        tables: list[Any] = [[_ones(100, dim)], [_ones(100, dim)], [_ones(100, dim, dtype=dtypes[1])]]
        watch = lazy_adam._watch(torch.device("cpu"))
        numbers: dict[str, Any] = dict(
            row_step=[], lr=[_ones(1)], step=[], grad_scale=None, found_inf=None,
            beta1=0.9, beta2=0.999, epsilon=1e-8, assume_unique=False, convention="formula", bias_correction="none",
            eps_mode="inside", weight_decay=0.0, decay_mode="touched", refuse_negative=False, padding_idx=None,
            maximize=False, stochastic_rounding=None,
        )  # fmt: skip
        call = ops.lazy_adam.Call([gradient], [indices], *tables, **numbers)
        (group,) = lazy_adam.groups(call, watch)
        order = torch.arange(64)
        return group.keys_launch(), group.launch(group.keys, order), group.launch(group.keys, None)

    keys, summed, unique = launches(64, (torch.float32, torch.float32), torch.int32)
    yield Variant("lazy_adam", "keys, int32 ids", keys, True)
    yield Variant("lazy_adam", "fp32, 64 columns", summed, True)
    yield Variant("lazy_adam", "fp32, 64 columns, unique", unique)
    _, summed, _ = launches(50, (torch.bfloat16, torch.float16), torch.int64)
    yield Variant("lazy_adam", "bf16 on fp16, 50 columns", summed)
    _, summed, _ = launches(1, (torch.float16, torch.bfloat16), torch.int64)
    yield Variant("lazy_adam", "fp16 on bf16, one column", summed)


#: Operators whose variants stand here; the others' are `variants` of their own modules.
_HERE = {
    "apply_fused_ema_adamw": _ema,
    "add_rms_norm_dynamic_quant": _norm,
    "apply_adam_w_quant": _adam8,
    "lazy_adam": _lazy,
}


def variants() -> Iterator[Variant]:
    for name in REGISTRY:
        own = _HERE.get(name)
        yield from import_module(f"{__package__}.{name}").variants() if own is None else own()


def resources(compiled: Any) -> Resources:
    """Registers and spilled bytes of a thread, shared bytes of a program."""
    shared = int(compiled.metadata.shared)
    if "cubin" not in compiled.asm:
        found = re.search(r"\.vgpr_count: +(\d+)\s+\.vgpr_spill_count: +(\d+)", compiled.asm["amdgcn"])
        if found is None:
            raise RuntimeError("the assembly says nothing of registers")
        return Resources(int(found[1]), 4 * int(found[2]), shared)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    if found is None:
        raise RuntimeError(f"cuobjdump said nothing of registers: {text!r}")
    return Resources(int(found[1]), int(found[2]), shared)


def main() -> None:
    print("| operator | variant | target | registers | spilled bytes | shared bytes |\n|---|---|---|--:|--:|--:|")
    for variant in variants():
        for name, target in TARGETS.items():
            used = resources(variant.launch.compile(target))
            numbers = f"{used.registers} | {used.spilled_bytes} | {used.shared_bytes}"
            print(f"| {variant.operator} | {variant.label} | {name} | {numbers} |")


if __name__ == "__main__":
    main()
