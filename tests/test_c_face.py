"""The C face: programs against the installed headers and library, as a user builds them.

The checks themselves are in the programs under `tests/aclnn`; here they are compiled and run: plainly, with
AddressSanitizer on both sides, and under valgrind where it is installed. Numbers are compared with the Python operators
in `test_c_face_numbers.py`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

import anyfuse
from anyfuse import _core, acl_config
from anyfuse_cli.app import app

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "tests" / "aclnn"
PROGRAMS = sorted(path.name for path in SOURCES.iterdir() if path.suffix in (".c", ".cpp"))
MEMORY_PROGRAMS = ["all_entries.c", "lifecycle.cpp", "views.cpp"]
LEAKS = "definite,indirect,possible"
CHECKERS = {
    "plain": [],
    "valgrind": ["valgrind", "-q", "--error-exitcode=9", "--leak-check=full", f"--errors-for-leak-kinds={LEAKS}"],
}
WAYS = [(name, "plain") for name in PROGRAMS]
WAYS += [(name, "valgrind") for name in MEMORY_PROGRAMS if shutil.which("valgrind")]
INCLUDE = acl_config.PREFIX / "include"
HEADERS = sorted(str(path.relative_to(INCLUDE)) for path in INCLUDE.rglob("*.h"))
NAMES = sorted(path.name[3:-3] for path in (acl_config.PREFIX / "lib64").glob("lib*.so"))
#: Those that operator projects link.
LINKED = {"ascendcl", "acl_rt", "acl_op_compiler", "nnopbase", "opapi", "opapi_math", "opapi_nn", "opapi_cv"}
LINKED |= {"opapi_transformer", "cust_opapi", "hccl", "c_sec"}

C = [shutil.which("gcc") or "cc", "-std=c99"]
CPP = [shutil.which("g++") or "c++", "-std=c++17"]


def run(*command: str | Path, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ANYFUSE_", "LD_", "ASCEND_"))}
    result = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, env={**clean, **environment}, timeout=300
    )
    assert result.returncode == 0, f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}"
    return result.stdout + result.stderr


def build(source: Path, to: Path, *flags: str, link: list[str] | None = None) -> Path:
    program = to / source.stem
    libraries = [*acl_config.link_flags().split(), "-lanyfuse"] if link is None else link
    compiler = C if source.suffix == ".c" else CPP
    options = [
        "-g",
        "-O1",
        "-ffp-contract=off",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
        f"-I{ROOT / 'csrc' / 'include'}",
    ]
    run(*compiler, *options, *flags, source, *acl_config.compile_flags().split(), "-o", program, *libraries, "-lm")
    return program


def declared_functions() -> set[str]:
    text = "".join((acl_config.PREFIX / "include" / name).read_text() for name in HEADERS)
    return set(re.findall(r"\b((?:[aA]cl|Hccl)\w+)\(", re.sub(r"/\*.*?\*/|#define[^\n]*", "", text, flags=re.S)))


# ---- plain programs ----


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_program(name: str, way: str, tmp_path: Path) -> None:
    assert ": 0 failed" in run(*CHECKERS[way], build(SOURCES / name, tmp_path))


def test_one_thread_gives_the_same(tmp_path: Path) -> None:
    assert ": 0 failed" in run(build(SOURCES / "threads.cpp", tmp_path), ANYFUSE_NUM_THREADS="1")


def test_the_program_of_all_entries_leaves_none_out() -> None:
    text = (SOURCES / "all_entries.c").read_text()
    missing = {name for name in declared_functions() if name not in text and name != "aclAppLog"}
    assert not missing
    assert "ACL_APP_LOG" in text


def test_the_log_is_silent_unless_asked(tmp_path: Path) -> None:
    program = build(SOURCES / "all_entries.c", tmp_path)
    assert "checks failed so far" not in run(program)
    assert "checks failed so far" in run(program, ANYFUSE_ACL_LOG="info")
    assert "checks failed so far" not in run(program, ANYFUSE_ACL_LOG="error")


# ---- headers and symbols ----


@pytest.mark.parametrize("standard", ["c99", "c11", "c++11", "c++17"])
def test_headers_stand_alone(standard: str, tmp_path: Path) -> None:
    compiler, suffix = (CPP[0], "cpp") if "+" in standard else (C[0], "c")
    sources = []
    for index, header in enumerate(HEADERS):
        sources.append(tmp_path / f"{index}.{suffix}")
        sources[-1].write_text(f'#include "{header}"\nextern int its_own;\n')
    flags = [f"-std={standard}", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]
    run(compiler, *flags, "-Wno-unused-variable", f"-I{acl_config.PREFIX / 'include'}", *sources)


def exported(library: Path) -> set[str]:
    return {line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()}


def test_the_library_exports_what_the_headers_declare_and_nothing_else() -> None:
    assert exported(acl_config.LIBRARY) == declared_functions()


def test_every_name_that_projects_link_is_there() -> None:
    assert set(NAMES) >= LINKED


@pytest.mark.parametrize("name", NAMES)
def test_thin_names_are_one_library(name: str) -> None:
    library = acl_config.PREFIX / "lib64" / f"lib{name}.so"
    assert {
        line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()
    } == declared_functions()
    assert not library.is_symlink()
    code = f"""
import ctypes
thin, whole = ctypes.CDLL({str(library)!r}), ctypes.CDLL({str(acl_config.LIBRARY)!r})
address = lambda library: ctypes.cast(library.aclInit, ctypes.c_void_p).value
assert address(thin) == address(whole) and thin.aclInit(None) == 0 and whole.aclInit(None) == 100002
"""
    run(sys.executable, "-c", code)


def test_the_face_sees_nothing_of_the_core() -> None:
    for source in (ROOT / "csrc" / "aclnn").rglob("*"):
        if source.suffix in (".h", ".cpp"):
            assert "core/" not in "".join(re.findall(r"#include.*", source.read_text())), source


# ---- memory checkers ----


@pytest.fixture(scope="module")
def checked_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The face compiled with AddressSanitizer and with traps for undefined behaviour, over the installed core."""
    folder = tmp_path_factory.mktemp("asan")
    aclnn = ROOT / "csrc" / "aclnn"
    run(sys.executable, ROOT / "src" / "anyfuse" / "_products.py", folder / "products.inc")
    include = [f"-I{aclnn}", f"-I{aclnn / 'include'}", f"-I{folder}", f"-I{ROOT / 'csrc' / 'include'}"]
    # An enumeration that comes from C can hold any number; that is answered by a code.
    checks = ["-fsanitize=address,undefined", "-fno-sanitize=enum", "-fsanitize-undefined-trap-on-error"]
    flags = ["-std=gnu++17", "-O0", "-g1", "-fPIC", "-fvisibility=hidden", *checks]

    def compile_one(source: Path) -> Path:
        target = folder / f"{source.parent.name}_{source.stem}.o"
        run(CPP[0], *flags, "-c", source, *include, "-o", target)
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, sorted(aclnn.rglob("*.cpp"))))
    core = acl_config.LIBRARY_DIR
    names = f"-Wl,--version-script={aclnn / 'exports.map'}"
    options = ["-shared", "-static-libstdc++", *checks, names, f"-L{core}", f"-Wl,-rpath,{core}"]
    run(CPP[0], *options, *objects, "-lanyfuse", "-o", folder / "libanyfuse_acl.so")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", MEMORY_PROGRAMS)
def test_address_sanitizer(name: str, checked_library: Path, tmp_path: Path) -> None:
    link = [f"-L{checked_library}", "-lanyfuse_acl", f"-Wl,-rpath,{checked_library}"]
    program = build(SOURCES / name, tmp_path, "-fsanitize=address", link=link)
    # One check asks for more memory than there can be; the sanitizer is to answer like malloc.
    assert ": 0 failed" in run(program, ASAN_OPTIONS="detect_leaks=1:allocator_may_return_null=1")


# ---- building ----


def ask(*options: str) -> str:
    result = CliRunner().invoke(app, ["acl-config", *options])
    assert result.exit_code == 0, result.output
    return result.output.strip()


def test_acl_config_builds_a_program(tmp_path: Path) -> None:
    program = tmp_path / "all_entries"
    run(*C, SOURCES / "all_entries.c", "-o", program, *ask("--cflags", "--libs").split(), "-lm")
    assert ": 0 failed" in run(program)
    assert Path(ask("--root")) == acl_config.PREFIX
    assert (Path(ask("--cmake")) / "AnyfuseAclConfig.cmake").exists()
    assert f"root: {acl_config.PREFIX}" in ask().splitlines()


def cmake_build(source: Path, to: Path, *options: str, **environment: str) -> None:
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert cmake is not None
    run(cmake, "-S", source, "-B", to, "-DCMAKE_BUILD_TYPE=Release", *options, **environment)
    run(cmake, "--build", to, **environment)


TOOLKIT_PROJECT = """
cmake_minimum_required(VERSION 3.14)
project(operator_test)
add_compile_options(-std=c++11)
if(NOT "$ENV{{{variable}}}" STREQUAL "")
  set(ASCEND_PATH $ENV{{{variable}}})
else()
  set(ASCEND_PATH "/usr/local/Ascend/ascend-toolkit/latest")
endif()
include_directories(${{ASCEND_PATH}}/include ${{ASCEND_PATH}}/include/aclnn)
add_executable(operator_test operator_test.cpp)
target_link_libraries(operator_test PRIVATE {libraries})
"""
TOOLKIT_PROGRAM = """
#include "acl/acl.h"
#include "acl_meta.h"
#include "aclnnop/aclnn_quant_matmul_dequant.h"
#include "aclnnop/aclnn_add_rms_norm_dynamic_quant.h"
int main() {
  uint64_t size = 0;
  aclOpExecutor *executor = nullptr;
  char mode[] = "pertoken";
  if (aclInit(nullptr) != ACL_SUCCESS || aclrtSetDevice(0) != ACL_SUCCESS) return 1;
  auto status = aclnnQuantMatmulDequantGetWorkspaceSize(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                                                        mode, true, nullptr, &size, &executor);
  return status == ACLNN_ERR_PARAM_NULLPTR && aclrtResetDevice(0) == 0 && aclFinalize() == 0 ? 0 : 1;
}
"""


@pytest.mark.parametrize(
    ("variable", "libraries"),
    [
        (
            "ASCEND_HOME_PATH",
            " ".join(f"${{ASCEND_PATH}}/lib64/lib{name}.so" for name in ("ascendcl", "nnopbase", "opapi")),
        ),
        ("ASCEND_PATH", "-L${ASCEND_PATH}/lib64 ascendcl nnopbase opapi_nn opapi_math -Wl,--as-needed"),
        ("ASCEND_CUSTOM_PATH", "${ASCEND_PATH}/lib64/libascendcl.so ${ASCEND_PATH}/lib64/libcust_opapi.so"),
    ],
)
def test_a_project_written_for_a_toolkit_builds(variable: str, libraries: str, tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(TOOLKIT_PROJECT.format(variable=variable, libraries=libraries))
    (tmp_path / "operator_test.cpp").write_text(TOOLKIT_PROGRAM)
    script = f"source {acl_config.PREFIX}/set_env.sh && env"
    lines = run("bash", "-c", script).splitlines()
    environment = dict(line.partition("=")[::2] for line in lines if line.startswith((variable, "LD_LIBRARY_PATH")))
    assert environment[variable] == str(acl_config.PREFIX)
    cmake_build(tmp_path, tmp_path / "build", **environment)
    run(tmp_path / "build" / "operator_test", **environment)


@pytest.mark.parametrize("shell", ["bash", "dash", "zsh"])
@pytest.mark.parametrize("inside", ["{}", "( {} )", "set -eu; {}"])
def test_set_env_in_every_shell(shell: str, inside: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    script = inside.format(f". {acl_config.PREFIX}/set_env.sh && env")
    variables = dict(line.partition("=")[::2] for line in run(shell, "-c", script).splitlines())
    root = str(acl_config.PREFIX)
    assert {variables[name] for name in ("ASCEND_HOME_PATH", "ASCEND_INSTALL_PATH", "DDK_PATH")} == {root}
    assert variables["ASCEND_OPP_PATH"] == f"{root}/opp" and variables["LD_LIBRARY_PATH"].startswith(f"{root}/lib64")


CMAKE_PROJECT = """
cmake_minimum_required(VERSION 3.14)
project(found LANGUAGES CXX)
find_package(AnyfuseAcl {version} REQUIRED)
add_executable(operator_test operator_test.cpp)
target_link_libraries(operator_test PRIVATE AnyfuseAcl::acl)
"""


def test_find_package_by_prefix_and_version(tmp_path: Path) -> None:
    """CMAKE_PREFIX_PATH alone finds it, on systems whose CMake looks into lib/ only, too; versions are compared."""
    (tmp_path / "operator_test.cpp").write_text(TOOLKIT_PROGRAM)
    (tmp_path / "CMakeLists.txt").write_text(CMAKE_PROJECT.format(version="0.1"))
    cmake_build(tmp_path, tmp_path / "build", f"-DCMAKE_PREFIX_PATH={acl_config.PREFIX}")
    run(tmp_path / "build" / "operator_test")
    (tmp_path / "CMakeLists.txt").write_text(CMAKE_PROJECT.format(version="99"))
    with pytest.raises(AssertionError, match="compatible with requested version"):
        cmake_build(tmp_path, tmp_path / "other", f"-DCMAKE_PREFIX_PATH={acl_config.PREFIX}")


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="no pkg-config here")
def test_pkg_config_builds_a_program(tmp_path: Path) -> None:
    path = ask("--pkg-config")
    flags = run("pkg-config", "--cflags", "--libs", "anyfuse-acl", PKG_CONFIG_PATH=path).split()
    program = tmp_path / "all_entries"
    run(*C, SOURCES / "all_entries.c", "-o", program, *flags, "-lm")
    assert ": 0 failed" in run(program)
    for name in ("anyfuse", "anyfuse-acl"):
        assert run("pkg-config", "--modversion", name, PKG_CONFIG_PATH=path).strip() == _core.version()


def test_plain_flags_build_a_program_on_the_c_api(tmp_path: Path) -> None:
    source = ROOT / "tests" / "clients" / "plain_c" / "main.c"
    run(*C, source, "-o", tmp_path / "plain", *ask("--plain", "--cflags", "--libs").split())
    assert run(tmp_path / "plain") == "32 64 95 127\n"
    refused = CliRunner().invoke(app, ["acl-config", "--plain", "--root"])
    assert refused.exit_code == 2


# ---- examples ----


def test_the_examples_build_and_run(tmp_path: Path) -> None:
    source = ROOT / "examples" / "aclnn"
    cmake_build(source, tmp_path, f"-DAnyfuseAcl_DIR={acl_config.cmake_dir()}")
    programs = sorted(path.stem for path in source.glob("*.cpp"))
    assert programs == sorted(anyfuse._REGISTRY)
    for name in programs:
        assert run(tmp_path / name).endswith("as expected\n"), name


def test_the_flow_of_the_lazy_adam_document(tmp_path: Path) -> None:
    folder = tmp_path / "aclnn_lazy_adam"
    shutil.copytree(ROOT / "examples" / "aclnn_lazy_adam", folder)
    output = run("bash", folder / "run.sh", "--rows", "2000", "--dim", "16", "--count", "600", PYTHON=sys.executable)
    assert "test pass" in output
    for name in ("M", "V", "Var"):
        result = folder / "output" / f"output{name}.bin"
        assert result.stat().st_size == 2000 * 16 * 4
    changed = bytearray((folder / "output" / "outputVar.bin").read_bytes())
    changed[:6000] = bytes(6000)
    (folder / "output" / "outputVar.bin").write_bytes(changed)
    verdict = subprocess.run(
        [sys.executable, folder / "scripts" / "verify_result.py"], capture_output=True, text=True, cwd=folder
    )
    assert verdict.returncode == 1 and "test failed" in verdict.stdout
