"""Every GPU kernel compiles ahead of time without spilled registers, its NVIDIA assembly holds no instruction that
rounds otherwise, and what moves much memory moves it 16 bytes an instruction."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

import anyfuse

pytest.importorskip("triton")  # absent only where the test extra is not installed

from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from anyfuse.triton import add_rms_norm_dynamic_quant, apply_fused_ema_adamw, lazy_adam, quant_matmul_dequant
from anyfuse.triton.ahead import TARGETS, Variant, resources, variants

VARIANTS = list(variants())
CASES = [
    pytest.param(variant, target, id=f"{variant.operator}: {variant.label}, {target}")
    for variant in VARIANTS
    for target in variant.targets
]

#: Fused multiply-adds, approximate divisions and roots, and subnormal numbers flushed to zero. (A fused bf16 or fp16
#: instruction may stand for one addition, whose sum is stored in that dtype alone: a·1 + b, rounded once.)
ROUNDS_OTHERWISE = re.compile(
    r"\b(fma\.rn\.(ftz\.)?f(32|64)|div\.(full|approx)|sqrt\.approx|rcp\.approx|\w+\.\w+\.ftz)\b"
)

#: Registers of a processor of an A100 or H200, and warps that it holds at most.
REGISTERS, WARPS = 65536, 64


@cache
def compiled(operator: str, label: str, gpu: str) -> Any:
    (variant,) = (v for v in VARIANTS if (v.operator, v.label) == (operator, label) and gpu in v.targets)
    return variant.launch.compile(TARGETS[gpu])


@pytest.mark.parametrize(("variant", "gpu"), CASES)
def test_a_kernel_compiles_and_rounds_every_operation(variant: Variant, gpu: str) -> None:
    kernel = compiled(variant.operator, variant.label, gpu)
    used = resources(kernel)
    print(f"{variant.operator}, {variant.label}, {gpu}: {used}")
    assert 0 < used.registers <= 512
    assert used.spilled_bytes == 0
    if gpu.startswith("sm_"):
        found = sorted({match[0] for match in ROUNDS_OTHERWISE.finditer(kernel.asm["ptx"])})
        assert not found, found


#: Loads and stores of 16 bytes of the path without a mask, or of all: streams times elements of a thread times their
#: size over 16. The codes of `apply_adam_w_quant` are 8 bytes a thread, which are one instruction each, too.
WIDE = [
    ("apply_fused_ema_adamw", "fp32", 5 * 2, 4 * 2),
    ("apply_fused_ema_adamw", "bf16, rounded by chance", 5, 4),
    ("apply_adam_w_quant", "fp32, blocks of 256", 2 * 2, 2),
    ("apply_adam_w_quant", "fp32 moments, fp32", 4 * 2, 3 * 2),
    ("add_rms_norm_dynamic_quant", "bf16, 4096 columns, two int8", 2 * 4 + 4 * 4, 4 + 2 * 2),
    ("add_rms_norm_dynamic_quant", "bf16, 40000 columns, float8", 5 * 2 * 4, 4 + 2),
    ("lazy_adam", "fp32, 64 columns", 4, 3),
    ("quant_matmul_dequant", "bf16 rows, dynamic", 2 + 4, 1),
]


@pytest.mark.parametrize(("operator", "label", "loads", "stores"), WIDE)
def test_streams_move_16_bytes_an_instruction(operator: str, label: str, loads: int, stores: int) -> None:
    kernel = compiled(operator, label, "sm_90")
    assert len(re.findall(r"ld\.global\.v4\.b32", kernel.asm["ptx"])) >= loads
    assert len(re.findall(r"st\.global\.v4\.b32", kernel.asm["ptx"])) >= stores
    warps = next(v.launch.num_warps for v in VARIANTS if (v.operator, v.label) == (operator, label))
    registers = -(-resources(kernel).registers // 8) * 8
    assert min(REGISTERS // (registers * 32 * warps) * warps, WARPS) >= 16  # of a processor, to hide the memory's time


def test_codes_move_8_bytes_an_instruction() -> None:
    assembly = compiled("apply_adam_w_quant", "fp32, blocks of 256", "sm_90").asm["ptx"]
    assert len(re.findall(r"ld\.global\.v2\.b32", assembly)) == len(re.findall(r"st\.global\.v2\.b32", assembly)) == 2


def test_amd_streams_move_16_bytes_an_instruction() -> None:
    assembly = compiled("add_rms_norm_dynamic_quant", "bf16, 4096 columns, two int8", "gfx942").asm["amdgcn"]
    assert len(re.findall(r"(global|buffer)_load_dwordx4", assembly)) >= 12


ONE_ROW = [v for v in VARIANTS if "one row, k split" in v.label and "sm_90" in v.targets]


@pytest.mark.parametrize("variant", ONE_ROW, ids=lambda variant: variant.label)
def test_the_weights_of_one_row_are_on_their_way_16_bytes_an_instruction(variant: Variant) -> None:
    assembly = compiled(variant.operator, variant.label, "sm_90").asm["ptx"]
    sizes = re.findall(r"cp\.async\.c[ag]\.shared\.global \[[^\]]+\], \[[^\]]+\], (0x\w+)", assembly)
    assert sizes and set(sizes) == {"0x10"}
    assert "ld.global" not in assembly
    # Three of four stages are on their way in each program; a processor holds 227 KiB of them.
    columns, depth = variant.launch.arguments["BN"], variant.launch.arguments["BK"]
    used = resources(compiled(variant.operator, variant.label, "sm_90"))
    programs = min(227 * 1024 // (used.shared_bytes + 1024), REGISTERS // (-(-used.registers // 8) * 8 * 128))
    assert programs * (variant.launch.num_stages - 1) * columns * depth >= 64 * 1024


@pytest.mark.parametrize(
    ("gpu", "instruction"), [("sm_80", "mma.sync"), ("sm_90", "wgmma.mma_async"), ("gfx942", "v_mfma_i32")]
)
def test_products_run_on_the_matrix_units(gpu: str, instruction: str) -> None:
    tiles = [v for v in VARIANTS if re.match(r"\(n, k\), (bias, )?tile", v.label) and gpu in v.targets]
    assert len(tiles) >= 5
    for variant in tiles:
        assembly = compiled(variant.operator, variant.label, gpu).asm
        text = assembly.get("ptx") or assembly["amdgcn"]
        assert re.search(rf"{instruction}\S*i(32|8)|{instruction}\S*s8", text), variant.label


def test_a_rows_count_is_read_by_all_before_one_writes_it() -> None:
    """Rows of 300 columns lie in two warps, which both read the row's count; no order is given but by a barrier."""
    assembly = compiled("lazy_adam", "fp32 on bf16, 300 columns, caught up, rounded by chance", "sm_90").asm["ptx"]
    assert "bar.sync" in assembly[: assembly.index("st.global")]


def test_no_product_depends_on_an_order_of_programs() -> None:
    for variant in VARIANTS:
        if "matmul" in variant.operator and "sm_90" in variant.targets:
            assembly = compiled(variant.operator, variant.label, "sm_90").asm["ptx"]
            assert not re.search(r"\b(atom|red)\.", assembly), variant.label


def test_the_length_of_a_list_makes_no_other_kernel() -> None:
    """Numbers that say nothing about addresses: neither a multiple of 16 nor (but for one tensor) a 1 is special."""
    modules = (apply_fused_ema_adamw, lazy_adam, add_rms_norm_dynamic_quant, quant_matmul_dequant)
    names = [("kernel", "count"), ("kernel", "n"), ("kernel", "rows"), ("matmul_kernel", "m")]
    for module, (kernel, name) in zip(modules, names, strict=True):
        function = getattr(module, kernel)
        backend = make_backend(GPUTarget("cuda", 90, 32))
        bind = create_function_from_signature(function.signature, function.params, backend)
        special = []
        for value in (2, 16, 33, 4096):
            values = {parameter.name: 0.5 for parameter in function.params}
            _, specialization, _ = bind(**{**values, name: value}, debug=False)
            special.append(specialization)
        assert all(each == special[0] for each in special), (module.__name__, name)


def test_every_operator_has_variants() -> None:
    assert {variant.operator for variant in VARIANTS} == set(anyfuse._REGISTRY)


def test_the_check_knows_what_it_looks_for() -> None:
    for bad in ("fma.rn.f32", "div.full.f32", "div.approx.f32", "sqrt.approx.ftz.f32", "add.rn.ftz.f32"):
        assert ROUNDS_OTHERWISE.search(f"\t{bad} %r1, %r2, %r3;"), bad
    for good in ("mul.rn.f32", "div.rn.f32", "sqrt.rn.f32", "add.rn.f32"):
        assert not ROUNDS_OTHERWISE.search(f"\t{good} %r1, %r2, %r3;"), good
