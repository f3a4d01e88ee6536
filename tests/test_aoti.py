"""Packages of AOTInductor that hold the operators: compiled once, run from Python and by a program without Python."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor, nn

import anyfuse
from anyfuse import _core
from anyfuse.nn import AddRMSNormQuant, QuantLinear

ROOT = Path(__file__).parents[1]
TORCH = Path(torch.__file__).parent
COLS, OUT = 64, 48
COMPILER = shutil.which("g++")


class Model(nn.Module):
    """A norm and a linear, and a step of two weights in place."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = AddRMSNormQuant(torch.rand(COLS) + 0.5)
        self.linear = QuantLinear.from_float(nn.Linear(COLS, OUT, bias=False))
        for name in ("grad", "var", "m", "v", "s"):
            self.register_buffer(name, torch.rand(2, 5))

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
        total, rows = self.norm(x, residual)
        lists = [list(getattr(self, name)) for name in ("grad", "var", "m", "v", "s")]
        anyfuse.apply_fused_ema_adamw_(*lists, step=3, lr=0.1)
        return total, self.linear(rows), self.var + 0


def inputs(rows: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(rows)
    return torch.randn(rows, COLS), torch.randn(rows, COLS)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if COMPILER is None:
        pytest.skip("inductor compiles with g++, which is not here")
    path = tmp_path_factory.mktemp("aoti") / "model.pt2"
    rows = {0: torch.export.Dim("rows", min=1, max=1000)}
    with torch.no_grad():
        program = torch.export.export(Model(), inputs(3), dynamic_shapes=(rows, rows))
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    return path


def test_a_package_gives_the_bits_of_eager_mode(package: Path) -> None:
    loaded, model = torch._inductor.aoti_load_package(str(package)), Model()
    for rows in (3, 1, 7):
        for got, expected in zip(loaded(*inputs(rows)), model(*inputs(rows)), strict=True):
            assert torch.equal(got, expected)


def test_a_program_without_python_runs_a_package(package: Path, tmp_path: Path) -> None:
    if not (TORCH / "include" / "torch" / "csrc" / "inductor" / "aoti_package").is_dir():
        pytest.skip("this torch comes without its headers")
    program, own = tmp_path / "run_package", _core.LIBRARY.parent
    libraries = [flag for folder in (TORCH / "lib", own) for flag in (f"-L{folder}", f"-Wl,-rpath,{folder}")]
    subprocess.run(
        [str(COMPILER), "-std=c++20", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
         *(f"-I{folder}" for folder in (ROOT / "csrc" / "include", TORCH / "include")),
         str(ROOT / "tests" / "aoti" / "run_package.cpp"), "-o", str(program),
         *libraries, "-ltorch_cpu", "-lc10", "-lanyfuse"],
        check=True,
    )  # fmt: skip
    given, expected = inputs(7), Model()(*inputs(7))
    files = [tmp_path / name for name in ("x", "residual", "total", "product", "var")]
    for tensor, file in zip(given, files, strict=False):
        tensor.numpy().tofile(file)
    ran = subprocess.run([program, package, *files[:2], "7", str(COLS), *files[2:]], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    for tensor, file in zip(expected, files[2:], strict=True):
        assert numpy.array_equal(numpy.fromfile(file, numpy.float32), tensor.numpy().ravel())
    assert ran.stdout == "anyfuse: without Python an operator takes dense, contiguous tensors on the CPU alone\n"


def test_registering_without_torch_says_what_is_missing() -> None:
    code = f"import ctypes; f = ctypes.CDLL({str(_core.LIBRARY)!r}).anyfuse_torch_register; f.restype = ctypes.c_char_p"
    ran = subprocess.run([sys.executable, "-c", f"{code}; print(f().decode())"], capture_output=True, text=True)
    assert ran.stdout == "torch is not in this process (no libtorch_cpu.so)\n"
    register = ctypes.CDLL(str(_core.LIBRARY)).anyfuse_torch_register
    register.restype = ctypes.c_char_p
    assert register() is None  # once is enough
