"""The kernels compiled ahead of time, without a GPU: `python -m anyfuse.triton.ahead` prints registers and spills.

A representative set of variants of each operator, as its launcher would specialize them; `--offered`: every tile of the
matrix products, for every layout of the weight, instead, which takes a quarter of an hour of processor time.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

from .._opspec import REGISTRY
from . import quant_grouped_matmul_dequant, quant_matmul_dequant
from ._launch import Variant

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


def variants() -> Iterator[Variant]:
    """Those of every operator."""
    for name in REGISTRY:
        yield from import_module(f"{__package__}.{name}").variants()


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


def main(arguments: list[str]) -> None:
    every = variants()
    if arguments == ["--offered"]:
        every = chain(quant_matmul_dequant.offered(), quant_grouped_matmul_dequant.offered())
    print("| operator | variant | target | registers | spilled bytes | shared bytes |\n|---|---|---|--:|--:|--:|")
    for variant in every:
        for name in variant.targets:
            used = resources(variant.launch.compile(TARGETS[name]))
            numbers = f"{used.registers} | {used.spilled_bytes} | {used.shared_bytes}"
            print(f"| {variant.operator} | {variant.label} | {name} | {numbers} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
