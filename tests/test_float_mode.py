"""Operators give the same bits in whatever floating-point mode the caller, or a thread of the pool, is."""

from __future__ import annotations

import contextlib
import ctypes
import platform
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import operators
import pytest
import torch
from torch import Tensor

import anyfuse
from anyfuse._bits import clone_with_storage
from anyfuse._opspec import OpSpec

LIBM = ctypes.CDLL(None)
ROUNDINGS = {"x86_64": (0, 0x400, 0x800, 0xC00), "aarch64": (0, 0x800000, 0x400000, 0xC00000)}
NEAREST, DOWN, UP, TO_ZERO = ROUNDINGS.get(platform.machine(), (0, 0, 0, 0))
#: Magnitudes at which a sum of squares, a moment, a scale or the values themselves are subnormal numbers.
MAGNITUDES = (1.0, 2.0**-63, 2.0**-100, 2.0**-130)


@contextlib.contextmanager
def rounding(mode: int) -> Iterator[None]:
    assert LIBM.fesetround(mode) == 0
    try:
        yield
        left = LIBM.fegetround()
    finally:
        LIBM.fesetround(NEAREST)
    assert left == mode, "a call changed the caller's mode"


@contextlib.contextmanager
def flushed() -> Iterator[None]:
    assert torch.set_flush_denormal(True), "this processor cannot flush to zero"
    try:
        yield
        left = bool(torch.full((1,), 1e-40).item() * torch.ones(1) == 0)
    finally:
        torch.set_flush_denormal(False)
    assert left, "a call changed the caller's mode"


MODES = {
    "flush": flushed,
    "nearest": lambda: rounding(NEAREST),
    "down": lambda: rounding(DOWN),
    "up": lambda: rounding(UP),
    "to zero": lambda: rounding(TO_ZERO),
}


def scaled(value: Any, by: float) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(scaled(item, by) for item in value)
    if isinstance(value, Tensor) and value.dtype in (torch.float32, torch.bfloat16):
        return value * by
    return value


@cache
def calls(spec: OpSpec) -> list[tuple[dict[str, Any], list[Tensor]]]:
    """The operator's last edge, which is large enough for several threads, at several magnitudes, with what the
    reference gives in the default mode."""
    found = []
    for magnitude in MAGNITUDES:
        arguments = {name: scaled(value, magnitude) for name, value in list(spec.samples.edges())[-1].arguments.items()}
        with anyfuse.backend("reference"):
            found.append((arguments, operators.run(spec, arguments)[0]))
    return found


@pytest.fixture(autouse=True)
def threads_as_they_were() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("mode", MODES)
def test_the_callers_mode_changes_nothing_and_stays(spec: OpSpec, mode: str) -> None:
    if mode != "flush" and platform.machine() not in ROUNDINGS:
        pytest.skip("the numbers of this processor's rounding modes are not known")
    for arguments, expected in calls(spec):
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            given = clone_with_storage(arguments)
            with MODES[mode]():
                results = spec.function(**given)
            problem = operators.difference(expected, operators.with_changed(spec, results, given))
            assert problem is None, f"{mode}, {threads} threads: {problem}"


POOL = """
import sys
sys.path.insert(0, {tests!r})
import torch, operators, anyfuse
from test_float_mode import calls

spec = anyfuse._REGISTRY[{name!r}]
torch.set_num_threads(4)
assert torch.set_flush_denormal(True)
sample = list(spec.samples.edges())[-1]
operators.run(spec, sample.arguments)  # makes the threads, which keep the mode
torch.set_flush_denormal(False)
torch.set_num_threads(1)
samples = calls(spec)  # by the calling thread alone, which flushes nothing now
for threads in (4, 2, 1):
    torch.set_num_threads(threads)
    for arguments, expected in samples:
        for _ in range(3):
            problem = operators.difference(expected, operators.run(spec, arguments)[0])
            assert problem is None, f"{{threads}} threads: {{problem}}"
"""


def test_a_pool_made_under_flush_changes_nothing(spec: OpSpec) -> None:
    code = POOL.format(tests=str(Path(__file__).parent), name=spec.name)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
