"""Programs written as the vendor's samples are run as they stand, over the installed prefix: `tests/clients`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from anyfuse import acl_config

CLIENTS = Path(__file__).parent / "clients"
NAMES = sorted(path.parent.name for path in CLIENTS.glob("*/run.sh"))


def environment(**variables: str) -> dict[str, str]:
    """A user's: the toolkit's place, the tools, and nothing else of ours."""
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    pc = str(acl_config.pkg_config_dir())
    return {"PATH": tools, "ASCEND_INSTALL_PATH": str(acl_config.PREFIX), "PKG_CONFIG_PATH": pc, **variables}


def start(name: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    shutil.copytree(CLIENTS, folder, dirs_exist_ok=True)
    script = folder / name / "run.sh"
    shell = script.read_text().splitlines()[0].removeprefix("#!")
    command = ["dash" if shell == "/bin/sh" and shutil.which("dash") else shell, script]
    variables = environment(**variables)
    return subprocess.run(command, cwd=script.parent, env=variables, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("name", NAMES)
def test_client_builds_and_runs_unedited(name: str, tmp_path: Path) -> None:
    if name == "plain_c" and shutil.which("pkg-config") is None:
        pytest.skip("no pkg-config here")
    result = start(name, tmp_path)
    expected = (CLIENTS / name / "expected.txt").read_text()
    assert result.returncode == 0 and result.stdout.endswith(expected), result.stdout + result.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("norm_sample", "scale1Out reaches 8 bytes behind its address; its allocation has 4 left"),
        ("matmul_sample", "2048 bytes at dst; its allocation has 1024 left"),
    ],
)
def test_strict_mode_finds_what_they_allocate_too_little_of(name: str, message: str, tmp_path: Path) -> None:
    result = start(name, tmp_path, ANYFUSE_ACL_STRICT="1")
    assert result.returncode != 0 and message in result.stdout, result.stdout + result.stderr


def test_a_product_refuses_a_program(tmp_path: Path) -> None:
    """Under 950, whose document has no operator of this name, the same program gets a code and words."""
    result = start("adam_sample", tmp_path, ANYFUSE_SOC="Ascend950")
    assert result.returncode != 0 and "161002" in result.stdout and "does not have this operator" in result.stdout
