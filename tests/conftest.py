import importlib
import os
from collections.abc import Iterator
from typing import Any

import longer
import pytest

import anyfuse
from anyfuse import _core, compat

# Long runs of the same tests: ANYFUSE_TEST_DRAWS=100000 python -m pytest tests/test_all_ops.py
DRAWS = int(os.environ.get("ANYFUSE_TEST_DRAWS", "2000"))
if os.environ.keys() & {"ANYFUSE_TEST_DRAWS", "ANYFUSE_TEST_CALLS", "ANYFUSE_TEST_HUGE", "ANYFUSE_PROPERTIES"}:
    os.environ.setdefault("PYTEST_TIMEOUT", "0")  # what takes hours was asked for


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`spec` loops over the registered operators, `target` over the instruction sets that this CPU runs."""
    if "spec" in metafunc.fixturenames:
        specs = list(anyfuse._REGISTRY.values())
        metafunc.parametrize("spec", specs, ids=[spec.name for spec in specs])
    if "target" in metafunc.fixturenames:
        metafunc.parametrize("target", _core.available_targets())


@pytest.fixture(scope="session")
def draws() -> int:
    return DRAWS


@pytest.fixture(autouse=True)
def natively() -> None:
    """A test before may have used the reference, after which every call of the process goes by way of Python."""
    _core.go_generally(os.environ.get("ANYFUSE_BACKEND") == "reference")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if longer.EXAMPLES:
        terminalreporter.write_line(f"ANYFUSE_PROPERTIES={longer.EXAMPLES} ANYFUSE_SEED={longer.SEED}")


# ---- official names ----


@pytest.fixture
def names() -> Iterator[None]:
    """The official names, for one test."""
    compat.install()
    yield
    compat.uninstall()


@pytest.fixture
def torch_npu(names: None) -> Any:
    return importlib.import_module("torch_npu")


@pytest.fixture
def fused_ema_adamw(names: None) -> Any:
    return importlib.import_module("mindspeed.core.optimizer.fused_ema_adamw.fused_ema_adamw").FusedEmaAdamW


@pytest.fixture
def create_hash_optimizer(names: None) -> Any:
    return importlib.import_module("mx_rec.optimizers.lazy_adam").create_hash_optimizer
