"""An operator in a process that has other things to do: threads, memory, files that cannot be written, sudden ends."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import operators
import pytest
import torch
from endings import delays, end_while, started
from torch import Tensor

import anyfuse
from anyfuse._bits import clone_with_storage
from anyfuse._files import Folder
from anyfuse.optim import AdamW8bit
from anyfuse.samples.draw import Draw
from anyfuse.verify import cases

# 10^5 calls of each operator: ANYFUSE_TEST_CALLS=100000 python -m pytest tests/test_process_life.py -k leak
CALLS = int(os.environ.get("ANYFUSE_TEST_CALLS", "1000"))

SPECS = list(anyfuse._REGISTRY.values())


@contextlib.contextmanager
def threads_restored() -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


# ---- threads ----


def test_eight_threads_call_different_operators_while_the_number_of_threads_changes() -> None:
    work = []
    for i in range(8):
        spec = SPECS[i % len(SPECS)]
        sample = list(spec.samples.edges())[-1] if i < len(SPECS) else spec.samples.draw(Draw(i))
        expected, _ = operators.run(spec, sample.arguments)
        work.append((spec, sample.arguments, expected))
    problems: list[str] = []
    start = threading.Barrier(len(work))

    def caller(index: int) -> None:
        spec, arguments, expected = work[index]
        start.wait()
        for turn in range(6):
            torch.set_num_threads(1 + (index + turn) % 4)
            got, _ = operators.run(spec, arguments)
            if (problem := operators.difference(expected, got)) is not None:
                problems.append(f"{spec.name}: {problem}")

    with threads_restored():
        team = [threading.Thread(target=caller, args=(i,)) for i in range(len(work))]
        for thread in team:
            thread.start()
        for thread in team:
            thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in team), "a call hangs"
    assert not problems, problems[0]


def train(threads: int) -> list[Tensor]:
    """A short training whose gradients do not depend on the number of threads; its state is the operators' own."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(size, generator=generator).requires_grad_() for size in (70_001, 300, 1)]
    optimizer = AdamW8bit(weights, lr=0.01)
    for _ in range(3):
        for weight in weights:
            weight.grad = weight.detach() * torch.rand(weight.shape, generator=generator)
        optimizer.step()
    states = [value for weight in weights for value in optimizer.state[weight].values() if isinstance(value, Tensor)]
    return [*(weight.detach() for weight in weights), *states]


def test_a_training_repeats_itself_on_any_number_of_threads() -> None:
    with threads_restored():
        first, *others = (train(threads) for threads in (1, 1, 2, 2))
    for other in others:
        assert operators.difference(first, other) is None


# ---- memory ----


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("name", [spec.name for spec in SPECS])
def test_calls_leak_nothing(name: str) -> None:
    """Neither Python objects nor memory: both counts are flat once warm."""
    spec = anyfuse._REGISTRY[name]
    arguments = next(
        sample.arguments
        for sample in map(spec.samples.draw, map(Draw, range(500)))
        if 0 < max(tensor.numel() for tensor in operators.tensors_of(list(sample.arguments.values()))) <= 1000
    )
    given = clone_with_storage(arguments)

    def repeat(count: int) -> tuple[int, int]:
        for _ in range(count):
            spec.function(**given)
        gc.collect()
        return sys.getallocatedblocks(), resident_bytes()

    repeat(300)
    blocks, resident = repeat(100)
    more_blocks, more_resident = repeat(CALLS)
    assert more_blocks - blocks < 200, f"{more_blocks - blocks} objects more after {CALLS} calls"
    assert more_resident - resident < 2 << 20, f"{more_resident - resident} bytes more after {CALLS} calls"


# ---- files ----


def write(folder: Folder, letter: bytes, size: int = 200_000) -> None:
    """A pretended case of one letter; its manifest tells which."""

    def writer(file: BinaryIO) -> None:
        for _ in range(size // 1000):
            file.write(letter * 1000)

    files: dict[str, Callable[[BinaryIO], Any]] = {f"input/{i}.bin": writer for i in range(3)}
    folder.write({**files, "manifest.json": lambda file: file.write(letter)}, "manifest.json")


def check_whole(folder: Folder, size: int = 200_000) -> bool:
    """Whole files of one letter each; all of the manifest's letter where there is a manifest."""
    contents = [path.read_bytes() for path in sorted(folder.root.glob("input/*.bin"))]
    for content in contents:
        assert len(content) == size and content == content[:1] * size, "part of a file"
    if folder.size("manifest.json") is None:
        return False
    manifest = folder.read("manifest.json", 10)
    assert [content[:1] for content in contents] == [manifest] * 3, "a manifest of other files"
    return True


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_ends_while_it_saves_leaves_whole_files(number: int, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    write(folder, b"a")
    for delay in delays(12, 0.005, 0.03):
        end_while(lambda: (write(folder, b"b"), write(folder, b"a")), number, delay)
        check_whole(folder)
        if number == signal.SIGINT:
            assert not list(tmp_path.rglob("*.part")), "a temporary file stays"
    write(folder, b"c")
    assert check_whole(folder)


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Files end there, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_full_disk_is_named_and_loses_nothing(tmp_path: Path) -> None:
    cases.generate("apply_fused_ema_adamw", tmp_path, sizes=(100, 100))
    cases.run(tmp_path)
    before = files_of(tmp_path)
    with largest_file(20_000), pytest.raises(OSError, match=r"File too large: .*input.*\.bin"):
        cases.generate("apply_fused_ema_adamw", tmp_path, sizes=(100, 101), overwrite=True)
    assert files_of(tmp_path) == before
    with largest_file(20_000), pytest.raises(OSError, match=r"File too large: .*output.*\.bin"):
        cases.run(tmp_path)
    assert files_of(tmp_path) == before
    assert all(result.passed for result in cases.compare(tmp_path))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "case", Path("/proc/anyfuse")):
        with pytest.raises(OSError, match=str(folder)):
            cases.generate("lazy_adam", folder)
    assert (tmp_path / "file").read_text() == ""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def used_seconds(process: int) -> float:
    """Processor time of another process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


INTERRUPTED = """
import sys
from anyfuse_cli.app import app
from anyfuse.verify import cases
arguments = ["case", "gen", "apply_fused_ema_adamw", sys.argv[1], "--shape", "300,300", "--overwrite"]
while True:
    try:
        app(arguments)
    except SystemExit as end:
        if end.code:
            raise
"""


def test_ctrl_c_in_case_gen_ends_it_and_leaves_whole_files_or_none(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    with started(command, stdout=subprocess.DEVNULL) as process:
        wait_until((tmp_path / cases.MANIFEST).exists)
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode not in (0, None), errors
    assert not list(tmp_path.rglob("*.part"))
    if (tmp_path / cases.MANIFEST).exists():
        cases.run(tmp_path)
        assert all(result.passed for result in cases.compare(tmp_path))


VERIFY = "from anyfuse_cli import main; main()"


def test_ctrl_c_in_a_long_verify_ends_it_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    command = [sys.executable, "-c", VERIFY, "verify", "lazy_adam", "--samples", "1000000", "--json"]
    paths = os.pathsep.join(map(os.path.abspath, sys.path))
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": paths}
    with started(command, stdout=subprocess.PIPE, cwd=tmp_path, env=environment) as process:
        maps = Path(f"/proc/{process.pid}/maps")
        wait_until(lambda: "libanyfuse.so" in maps.read_text() or process.poll() is not None)
        begun = used_seconds(process.pid)
        wait_until(lambda: used_seconds(process.pid) > begun + 1 or process.poll() is not None)  # beyond its imports
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert output == "" and "Traceback" not in errors
    assert not list(tmp_path.iterdir())
