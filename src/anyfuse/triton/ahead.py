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
    def launch(dtypes: tuple[torch.dtype, ...], **changes: Any) -> Launch:
        sizes = (4096,) if changes.get("convention") == "device" else (4096, 100)  # one: specialized on its length
        lists: list[Any] = [[_ones(size, dtype=dtype) for size in sizes] for dtype in dtypes]
        numbers: dict[str, Any] = dict(
            step=[torch.tensor([1])], lr=0.1, ema_decay=0.999, beta1=0.9, beta2=0.999, eps=1e-8, adam_mode=1,
            bias_correction=True, weight_decay=0.01, convention="formula", lr_tensor=None, grad_scale=None,
            found_inf=None, maximize=False, stochastic_rounding=None,
        )  # fmt: skip
        call = ops.apply_fused_ema_adamw.Call(*lists, **(numbers | changes))
        return apply_fused_ema_adamw.launches(call)[0]

    name, half = "apply_fused_ema_adamw", (torch.bfloat16, torch.bfloat16, *(torch.float32,) * 3)
    yield Variant(name, "fp32", launch((torch.float32,) * 5))
    yield Variant(name, "bf16 with fp32 state", launch(half, adam_mode=0, found_inf=_ones(1)))
    yield Variant(name, "bf16, rounded by chance", launch((torch.bfloat16,) * 5, stochastic_rounding=[1, 2]), True)
    chance = launch((torch.float16,) * 5, convention="device", stochastic_rounding=[1])
    yield Variant(name, "fp16, rounded by chance, device", chance)


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
    guide = _ones(apply_adam_w_quant.GUIDE, dtype=torch.uint8)

    def launch(
        dtypes: tuple[torch.dtype, ...], block_size: int, state: torch.dtype = torch.uint8, **changes: Any
    ) -> Launch:
        sizes = (4096,) if changes.get("convention") == "device" else (4096, 100)  # one: specialized on its length
        var, grad, *ema = ([_ones(size, dtype=dtype) for size in sizes] for dtype in dtypes)
        moments: list[Any] = [[_ones(size, dtype=state) for size in sizes] for _ in range(2)]
        maps: list[Any] = [_ones(256) for _ in range(2)]
        blocks = [-(-size // block_size) if state == torch.uint8 else 0 for size in sizes]
        scales: list[Any] = [[_ones(count) for count in blocks] for _ in range(2)]
        numbers: dict[str, Any] = dict(
            step=[torch.tensor([1])], lr=0.1, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8, gnorm_scale=1.0,
            block_size=block_size, convention="formula", skip_nonfinite=False, nonzero_v=False, lr_tensor=None,
            grad_scale=None, found_inf=None, maximize=False, s=ema[0] if ema else [], ema_decay=0.999,
            stochastic_rounding=None,
        )  # fmt: skip
        call = ops.apply_adam_w_quant.Call(var, grad, *moments, *maps, *scales, **(numbers | changes))
        return apply_adam_w_quant.launches(call, guide, guide)[0]

    name, full = "apply_adam_w_quant", (torch.float32,) * 2
    yield Variant(name, "guide of a map", apply_adam_w_quant.guide_launch(_ones(256), guide), True)
    yield Variant(name, "fp32, blocks of 256", launch(full, 256), True)
    everything: dict[str, Any] = {"skip_nonfinite": True, "nonzero_v": True, "found_inf": _ones(1)}
    everything |= {"stochastic_rounding": [1, 2]}
    guarded = launch((torch.bfloat16, torch.float32, torch.bfloat16), 64, **everything)
    yield Variant(name, "bf16 with EMA, blocks of 64, guarded, rounded by chance", guarded)
    mixed = (torch.float16, torch.bfloat16, torch.float16)
    chance = launch(mixed, 2048, convention="device", stochastic_rounding=[1])
    yield Variant(name, "fp16 with EMA, blocks of 2048, rounded by chance, device", chance)
    yield Variant(name, "fp32 moments, fp32", launch(full, 256, torch.float32))
    state = launch((torch.bfloat16, torch.float32, torch.float32), 64, torch.float32, **everything)
    yield Variant(name, "fp32 moments, bf16 with EMA, guarded, rounded by chance", state, True)


def _lazy() -> Iterator[Variant]:
    name, watch = "lazy_adam", lazy_adam._watch(torch.device("cpu"))

    def launches(
        dim: int, dtypes: tuple[torch.dtype, torch.dtype], indices: Tensor | None, **changes: Any
    ) -> tuple[list[Launch], Launch, Launch]:
        rows = 64
        tables: list[Any] = [[_ones(rows, dim)], [_ones(rows, dim)], [_ones(rows, dim, dtype=dtypes[1])]]
        numbers: dict[str, Any] = dict(
            row_step=[], lr=[_ones(1)], step=[], grad_scale=None, found_inf=None,
            beta1=0.9, beta2=0.999, epsilon=1e-8, assume_unique=False, convention="formula", bias_correction="none",
            eps_mode="inside", weight_decay=0.0, decay_mode="touched", refuse_negative=False, padding_idx=None,
            maximize=False, stochastic_rounding=None,
        )  # fmt: skip
        call = ops.lazy_adam.Call([_ones(rows, dim, dtype=dtypes[0])], [indices], *tables, **(numbers | changes))
        of_call = lazy_adam.Numbers(call)
        (group,) = lazy_adam.groups(call, watch, of_call)
        rates, result = _ones(1, dtype=torch.float64), _ones(3, 1)
        scalars = of_call.launch(call, rates, result)
        return (
            [scalars, group.keys_launch()],
            group.launch(group.keys, torch.arange(64)),
            group.launch(group.keys, None),
        )

    full, half = (torch.float32,) * 2, (torch.float32, torch.bfloat16)
    ids, step = torch.arange(64, dtype=torch.int32), [torch.tensor([7])]
    (_, keys), summed, _ = launches(64, full, ids)
    yield Variant(name, "keys, int32 ids", keys)
    yield Variant(name, "fp32, 64 columns", summed)
    _, summed, _ = launches(50, (torch.bfloat16, torch.float16), ids.long())
    yield Variant(name, "bf16 on fp16, 50 columns", summed)
    _, summed, _ = launches(1, (torch.float16, torch.bfloat16), ids.long())
    yield Variant(name, "fp16 on bf16, one column", summed)
    (scalars, keys), summed, _ = launches(
        64, half, ids.long(), bias_correction="global", eps_mode="outside", weight_decay=0.1, step=step,
        grad_scale=_ones(1), found_inf=_ones(1), refuse_negative=True, padding_idx=0, stochastic_rounding=[3],
    )  # fmt: skip
    yield Variant(name, "numbers of the tables, corrected", scalars, True)
    yield Variant(name, "keys, int64 ids, negative refused", keys, True)
    yield Variant(name, "fp32 on bf16, rounded by chance", summed)
    (_, keys), _, unique = launches(64, (torch.float32, torch.float16), None, step=step, stochastic_rounding=[3])
    yield Variant(name, "keys, all rows", keys)
    yield Variant(name, "fp32 on fp16, all rows, rounded by chance", unique)
    counts = [torch.ones(64, dtype=torch.int32)]
    (_, keys), _, unique = launches(
        64, full, ids > 0, bias_correction="row", eps_mode="outside", row_step=counts
    )  # fmt: skip
    yield Variant(name, "keys, a mask", keys)
    yield Variant(name, "fp32, a mask, corrected by row", unique)
    late: dict[str, Any] = {"decay_mode": "catch_up", "row_step": counts, "step": step, "weight_decay": 0.1}
    _, summed, _ = launches(64, full, ids, bias_correction="global", eps_mode="outside", **late)
    yield Variant(name, "fp32, caught up, corrected", summed, True)
    _, summed, _ = launches(300, half, ids, stochastic_rounding=[3], **late)
    yield Variant(name, "fp32 on bf16, 300 columns, caught up, rounded by chance", summed)


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
