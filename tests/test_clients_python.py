"""Scripts in the vendor's style (tests/clients/python), which know nothing of anyfuse, each in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import anyfuse

CLIENTS = Path(__file__).parent / "clients" / "python"


def run(name: str, *paths: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, (Path(anyfuse.__file__).parents[1], *paths)))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ANYFUSE_")}
    result = subprocess.run(
        [sys.executable, "-m", "anyfuse", "run", str(CLIENTS / f"{name}.py")],
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": path, **variables},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def test_no_client_knows_of_anyfuse() -> None:
    scripts = list(CLIENTS.rglob("*.py"))
    assert len(scripts) > 10 and not any("anyfuse" in script.read_text() for script in scripts)


@pytest.mark.parametrize(
    ("name", "product", "tests", "skipped"),
    [
        ("npu_quant_matmul_dequant", "any", 5, 0),
        ("npu_quant_matmul_dequant", "Ascend310P3", 5, 1),
        ("npu_add_rms_norm_dynamic_quant", "any", 8, 1),
        ("npu_add_rms_norm_dynamic_quant", "ascend910b", 8, 1),
    ],
)
def test_unittest_files(name: str, product: str, tests: int, skipped: int) -> None:
    words = run(name, ANYFUSE_SOC=product).stderr
    assert f"Ran {tests} tests" in words
    assert re.search(rf"^OK \(skipped={skipped}\)$" if skipped else "^OK$", words, re.MULTILINE), words


@pytest.mark.parametrize("name", ["ops_npu_compiled", "mixed_precision_training", "mxrec_class"])
def test_scripts(name: str) -> None:
    assert run(name).stdout.endswith("done\n")


def test_the_device_has_the_products_name() -> None:
    assert run("mixed_precision_training", ANYFUSE_SOC="Ascend910B3").stdout.startswith("Ascend910B ")


def test_mindspeeds_own_optimizer_and_ours_give_the_same_weights() -> None:
    """Over a tree like a real MindSpeed's, its own classes run on our operator; without one, ours stand in."""
    absent, real = run("mindspeed_optimizer"), run("mindspeed_optimizer", CLIENTS / "mindspeed_tree")
    assert absent.stdout.startswith("optimizer of anyfuse\n") and real.stdout.startswith("optimizer of mindspeed\n")
    assert absent.stdout.splitlines()[1] == real.stdout.splitlines()[1]


def test_the_rest_of_a_real_mindspeed_works() -> None:
    assert run("mindspeed_adaptor", CLIENTS / "mindspeed_tree").stdout == "done\n"
