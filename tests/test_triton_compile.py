"""Every GPU kernel compiles ahead of time, and its NVIDIA assembly holds no instruction that rounds otherwise."""

from __future__ import annotations

import re

import pytest

import anyfuse

pytest.importorskip("triton")  # absent only where the test extra is not installed

from anyfuse.triton.ahead import TARGETS, Variant, resources, variants

VARIANTS = list(variants())
CASES = [
    pytest.param(variant, target, id=f"{variant.operator}: {variant.label}, {target}")
    for variant in VARIANTS
    for target in TARGETS
    if target in variant.targets
]

#: Fused multiply-adds, approximate divisions and roots, and subnormal numbers flushed to zero. (A fused bf16 or fp16
#: instruction may stand for one addition, whose sum is stored in that dtype alone: a·1 + b, rounded once.)
ROUNDS_OTHERWISE = re.compile(
    r"\b(fma\.rn\.(ftz\.)?f(32|64)|div\.(full|approx)|sqrt\.approx|rcp\.approx|\w+\.\w+\.ftz)\b"
)

#: Bytes of stack that are no spilled registers: the rare path of a correctly rounded division is a call.
FRAME = 16


@pytest.mark.parametrize(("variant", "gpu"), CASES)
def test_a_kernel_compiles_and_rounds_every_operation(variant: Variant, gpu: str) -> None:
    compiled = variant.launch.compile(TARGETS[gpu])
    used = resources(compiled)
    print(f"{variant.operator}, {variant.label}, {gpu}: {used}")
    assert 0 < used.registers <= 512
    assert used.spilled_bytes <= FRAME
    if gpu.startswith("sm_"):
        found = sorted({match[0] for match in ROUNDS_OTHERWISE.finditer(compiled.asm["ptx"])})
        assert not found, found


def test_products_run_on_the_matrix_units() -> None:
    tiles = next(variant for variant in VARIANTS if "tile 128×128×64" in variant.label)
    for gpu, instruction in (("sm_80", "mma.sync"), ("sm_90", "wgmma.mma_async"), ("gfx942", "v_mfma_i32")):
        assembly = tiles.launch.compile(TARGETS[gpu]).asm
        text = assembly.get("ptx") or assembly["amdgcn"]
        assert re.search(rf"{instruction}\S*i(32|8)|{instruction}\S*s8", text), gpu


def test_every_operator_has_variants() -> None:
    assert {variant.operator for variant in VARIANTS} == set(anyfuse._REGISTRY)


def test_the_check_knows_what_it_looks_for() -> None:
    for bad in ("fma.rn.f32", "div.full.f32", "div.approx.f32", "sqrt.approx.ftz.f32", "add.rn.ftz.f32"):
        assert ROUNDS_OTHERWISE.search(f"\t{bad} %r1, %r2, %r3;"), bad
    for good in ("mul.rn.f32", "div.rn.f32", "sqrt.rn.f32", "add.rn.f32"):
        assert not ROUNDS_OTHERWISE.search(f"\t{good} %r1, %r2, %r3;"), good
