"""The native library's borders: its header, its symbols, and what one target's code may leave visible."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from anyfuse import _core

ROOT = Path(__file__).parent.parent
INCLUDE = ROOT / "csrc" / "include"
HEADERS = ("anyfuse.h", "anyfuse_internal.h")
TEXT = re.sub(r"/\*.*?\*/", "", "".join((INCLUDE / name).read_text() for name in HEADERS), flags=re.S)
COMPILER = os.environ.get("CC", "cc")


def test_what_python_reads_from_the_headers_is_what_the_compiler_reads(tmp_path: Path) -> None:
    """Every constant, and every struct's size and the place and size of each field, from a C program."""
    structs = re.findall(r"typedef struct (\w+) \{", TEXT)
    assert set(re.findall(r"(ANYFUSE_\w+)\s*=", TEXT)) == _core.CONSTANTS.keys()
    expected = dict(_core.CONSTANTS)
    for name in structs:
        kind: Any = _core.struct(name)
        expected[f"sizeof({name})"] = ctypes.sizeof(kind)
        for field, *_ in kind._fields_:
            place = getattr(kind, field)
            expected[f"offsetof({name}, {field})"] = place.offset
            expected[f"sizeof((({name} *)0)->{field})"] = place.size
    lines = "".join(f'  printf("%d\\n", (int){expression});\n' for expression in expected)
    source = tmp_path / "read.c"
    source.write_text(f'#include <stdio.h>\n#include "anyfuse_internal.h"\nint main(void) {{\n{lines}  return 0;\n}}\n')
    program = tmp_path / "read"
    subprocess.run([COMPILER, f"-I{INCLUDE}", str(source), "-o", str(program)], check=True)
    listed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.split()
    assert dict(zip(expected, map(int, listed), strict=True)) == expected


def test_every_status_but_ok_has_an_exception() -> None:
    assert _core._ERRORS.keys() == set(_core.enum("anyfuse_status").values()) - {0}


def test_the_headers_beside_the_library_are_those_of_the_checkout() -> None:
    for path in _core.HEADERS:
        assert path.read_text() == (INCLUDE / path.name).read_text(), f"{path.name}: build again"


def symbols(path: Path, *options: str) -> list[tuple[str, str]]:
    """(type letter, name) of each symbol."""
    lines = subprocess.run(["nm", *options, str(path)], check=True, capture_output=True, text=True).stdout.splitlines()
    return [tuple(line.split()[-2:]) for line in lines if len(line.split()) >= 2]


def test_exported_symbols_are_the_prototypes_of_the_header() -> None:
    prototypes = set(re.findall(r"ANYFUSE_API [^;]*?\b(anyfuse_\w+)\(", TEXT))
    assert {name for _, name in symbols(_core.LIBRARY, "-D", "--defined-only")} == prototypes


def test_the_library_needs_nothing_but_the_c_library() -> None:
    listed = subprocess.run(["readelf", "-d", str(_core.LIBRARY)], check=True, capture_output=True, text=True).stdout
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", listed))
    allowed = r"(libc|libm|libdl|libpthread|ld-linux.*)\.so.*"
    assert all(re.fullmatch(allowed, name) for name in needed), needed


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build of the checkout, for its object files."""
    directory = tmp_path_factory.mktemp("build")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    library = f"-DANYFUSE_LIBRARY_DIR={directory}"
    subprocess.run(
        ["cmake", "-S", str(ROOT), "-B", str(directory), *generator, library], check=True, capture_output=True
    )
    jobs = str(os.cpu_count() or 1)
    subprocess.run(
        ["cmake", "--build", str(directory), "-j", jobs, "--target", "anyfuse"], check=True, capture_output=True
    )
    return directory


def test_target_objects_define_one_symbol_a_kernel(build: Path) -> None:
    """A function that two targets share by name would be merged by the linker, and run where it must not."""
    defined = {
        path.stem: set(re.findall(r"^ANYFUSE_KERNEL\((\w+),", path.read_text(), flags=re.M))
        for path in (ROOT / "csrc" / "ops").glob("*.cpp")
    }
    assert any(defined.values())
    for target in _core.targets():
        objects = list(build.glob(f"**/anyfuse_ops_{target}.dir/**/*.o"))
        assert {path.name.partition(".")[0] for path in objects} == defined.keys()
        for path in objects:
            visible = [(kind, name) for kind, name in symbols(path, "--defined-only") if kind.isupper()]
            kernels = {f"anyfuse_kernel_{name}_{target}" for name in defined[path.name.partition(".")[0]]}
            assert {name for _, name in visible} == kernels, visible
            assert all(kind == "T" for kind, _ in visible), f"weak or common symbols in {path.name}: {visible}"


def test_target_objects_use_no_cxx_library(build: Path) -> None:
    allowed = re.compile(r"mem(cpy|set|move|cmp)|__stack_chk_fail|_GLOBAL_OFFSET_TABLE_")
    for path in build.glob("**/anyfuse_ops_*.dir/**/*.o"):
        for kind, name in symbols(path, "--undefined-only"):
            assert kind == "U" and allowed.fullmatch(name), f"{path.name} needs {name}"


INT8_DOT = {"avx512": r"\bvpdpbusd\b", "neon_dot": r"\b[su]dot\b"}


def test_targets_named_for_their_int8_dot_instruction_use_it(build: Path) -> None:
    """Read from the machine code, so that it holds on a CPU that cannot run it; the other targets must not have it."""
    for target in _core.targets():
        (path,) = build.glob(f"**/anyfuse_ops_{target}.dir/**/quant_matmul_dequant.cpp.o")
        code = subprocess.run(["objdump", "-d", str(path)], check=True, capture_output=True, text=True).stdout
        for owner, pattern in INT8_DOT.items():
            assert bool(re.search(pattern, code)) == (owner == target), f"{pattern} in {target}"


def test_kernel_passes_include_no_standard_templates() -> None:
    standard = {
        "algorithm",
        "vector",
        "cmath",
        "memory",
        "array",
        "functional",
        "utility",
        "limits",
        "string",
        "atomic",
    }
    for path in (ROOT / "csrc" / "ops").glob("*.cpp"):
        kernel_pass = path.read_text().partition("#else  // ---- the entry point")[0]
        assert standard.isdisjoint(re.findall(r"#include <(\w+)>", kernel_pass)), path.name
    core = ROOT / "csrc" / "core"
    headers = [
        *(core / "simd").glob("*.h"),
        *(core / f"{name}.h" for name in ("simd", "convert", "lane_sum", "tile", "dot")),
    ]
    for path in headers:
        assert standard.isdisjoint(re.findall(r"#include <(\w+)>", path.read_text())), path.name


def test_intrinsics_stay_in_the_files_of_the_instruction_sets() -> None:
    for path in (ROOT / "csrc").rglob("*"):
        if path.suffix in (".h", ".cpp") and path.parent.name != "simd":
            assert not re.search(r"\b_mm\d*_|immintrin|arm_neon|\bv\w+q_[fsu]\d+\(", path.read_text()), path


@pytest.mark.parametrize("header", HEADERS)
def test_c_compiler_takes_the_header(header: str, tmp_path: Path) -> None:
    source = tmp_path / "header.c"
    source.write_text(f'#include "{header}"\nint main(void) {{ return anyfuse_version() == 0; }}\n')
    flags = ["-std=c99", "-Wall", "-Werror", "-pedantic", f"-I{INCLUDE}"]
    subprocess.run([COMPILER, *flags, "-c", str(source)], check=True, cwd=tmp_path)


def test_results_are_the_noted_bits_on_every_target(tmp_path: Path) -> None:
    """The program that carries this library's numbers to processors without torch; here it must agree, too."""
    program = tmp_path / "golden"
    link = [f"-L{_core.LIBRARY_DIR}", "-lanyfuse", f"-Wl,-rpath,{_core.LIBRARY_DIR}"]
    source = str(ROOT / "tests" / "c" / "golden.c")
    subprocess.run(
        [
            COMPILER,
            "-std=c11",
            "-Wall",
            "-Werror",
            f"-I{INCLUDE}",
            source,
            "-o",
            str(program),
            *link,
        ],
        check=True,
    )
    result = subprocess.run([str(program)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == _core.available_targets()


def test_a_longer_struct_is_taken_only_while_its_unknown_fields_are_zero() -> None:
    """A caller with a newer header must learn that a field it sets is not known here, not be ignored."""
    Params, Row = (_core.struct(f"anyfuse_apply_fused_ema_adamw_{kind}") for kind in ("params", "row"))

    class Newer(ctypes.Structure):
        _fields_ = [("known", Params), ("unknown", ctypes.c_int64)]

    native = _core._library.anyfuse_apply_fused_ema_adamw
    argtypes, native.argtypes = native.argtypes, [ctypes.c_void_p]
    try:
        known = Params(size=ctypes.sizeof(Newer), row_size=ctypes.sizeof(Row), mode=1)
        assert native(ctypes.byref(Newer(known, 0))) == 0
        assert native(ctypes.byref(Newer(known, 1))) == 3
        assert native(None) == 1
        known.size = 4
        assert native(ctypes.byref(known)) == 3
    finally:
        native.argtypes = argtypes


def test_so_are_the_longer_structs_of_a_list() -> None:
    """A real call whose rows have eight bytes more each: refused with INVALID_SIZE, and nothing written, when the last
    row's are not zero; taken while they are."""
    kinds: list[Any] = [_core.struct(f"anyfuse_apply_fused_ema_adamw_{kind}") for kind in ("params", "row")]
    params, row = kinds
    tensors = {name: torch.ones(2, 5) for name in ("grad", "var", "m", "v", "s")}
    cut = [row(numel=5, step=1, **{name: tensor[i].data_ptr() for name, tensor in tensors.items()}) for i in range(2)]
    native = _core.function("apply_fused_ema_adamw", params)
    for tail in (1, 0):
        held = ctypes.create_string_buffer(bytes(cut[0]) + bytes(8) + bytes(cut[1]) + tail.to_bytes(8, "little"))
        call = params(
            size=ctypes.sizeof(params), row_size=ctypes.sizeof(row) + 8, rows=ctypes.addressof(held), count=2, mode=1,
            lr=0.1, threads=1,
        )  # fmt: skip
        if tail:
            with pytest.raises(ValueError, match="size"):
                native(call)
            assert all(bool((tensor == 1).all()) for tensor in tensors.values())
        else:
            native(call)
            assert bool((tensors["var"] != 1).all())


@pytest.mark.parametrize("name", ["apply_adam_w_quant", "lazy_adam"])
def test_rows_of_no_elements_may_have_longer_structs_too(name: str) -> None:
    kinds: list[Any] = [_core.struct(f"anyfuse_{name}_{kind}") for kind in ("params", "row")]
    params, row = kinds
    maps = (ctypes.c_float * 256)(*range(256))
    fields = {
        "apply_adam_w_quant": {"qmap_m": ctypes.addressof(maps), "qmap_v": ctypes.addressof(maps), "block_size": 256},
        "lazy_adam": {"epsilon": 1e-8},
    }[name]
    ids = {"indices_dtype": _core.DTYPES["int32"]} if name == "lazy_adam" else {}
    for tail, status in ((0, 0), (1, _core.CONSTANTS["ANYFUSE_INVALID_SIZE"])):
        held = ctypes.create_string_buffer((bytes(row(**ids)) + bytes(7) + tail.to_bytes(1, "little")) * 2)
        call = params(
            size=ctypes.sizeof(params), row_size=ctypes.sizeof(row) + 8, rows=ctypes.addressof(held), count=2, **fields
        )
        native = getattr(_core._library, f"anyfuse_{name}")
        native.argtypes = None
        assert native(ctypes.byref(call)) == status


def test_status_codes_become_exceptions() -> None:
    for status, error in _core._ERRORS.items():
        with pytest.raises(error, match="somewhere: "):
            _core.check(status, "somewhere")
    _core.check(0, "nowhere")


def test_importing_the_core_does_not_import_torch() -> None:
    code = (
        "import sys, types; p = types.ModuleType('anyfuse'); "
        f"p.__path__ = [{str(_core.LIBRARY_DIR.parent)!r}]; sys.modules['anyfuse'] = p; "
        "import anyfuse._core; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )

    subprocess.run([sys.executable, "-c", code], check=True)
