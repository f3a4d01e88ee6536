"""The form of the code is checked where it is tested, so that a clean run means a clean tree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NATIVE = sorted(str(path) for path in (ROOT / "csrc").rglob("*") if path.suffix in (".h", ".c", ".cpp"))
CHECKS = {
    "ruff check": ["-m", "ruff", "check", "."],
    "ruff format": ["-m", "ruff", "format", "--check", "."],
    "mypy": ["-m", "mypy"],
}


@pytest.mark.parametrize("name", CHECKS)
def test_python(name: str) -> None:
    result = subprocess.run([sys.executable, *CHECKS[name]], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


PROGRAMS = {"clang-format": ["--dry-run", "-Werror", *NATIVE], "typos": ["--format", "brief"]}


@pytest.mark.parametrize("name", PROGRAMS)
def test_files(name: str) -> None:
    program = Path(sys.executable).parent / name
    result = subprocess.run([str(program), *PROGRAMS[name]], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
