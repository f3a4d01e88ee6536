"""Writers: whole or not at all, one at a time, and what a killed one left is swept."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from endings import started
from test_process_life import files_of, largest_file

from anyfuse import _saving
from anyfuse._files import Folder
from anyfuse._saving import FOLDER_LOCK, saving, write_file
from anyfuse.verify import cases

PATHS = os.pathsep.join(map(os.path.abspath, sys.path))
COMMAND = [sys.executable, "-m", "anyfuse"]


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob(".*"))


def save(folder: Path, letter: str, pause: Callable[[], object] = lambda: None) -> None:
    with saving(folder, last="last") as waiting:
        for name in ("a", "b", "last"):
            (waiting / name).write_text(letter)
            pause()


# ---- one file ----


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.json"
    write_file(path, b"old")

    def failing(file: Any) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(path, failing)
    assert path.read_bytes() == b"old" and leftovers(tmp_path) == []
    link = tmp_path / "link"
    link.symlink_to(path)
    write_file(link, lambda file: file.write(b"new"))
    assert path.read_bytes() == b"new" and link.is_symlink()
    for other in (tmp_path, Path("/dev/null")):
        with pytest.raises(OSError, match="is no regular file; accepted: a file or a new name"):
            write_file(other, b"")


def test_leftovers_of_killed_writers_are_swept_by_the_next(tmp_path: Path) -> None:
    """Those of this file or folder, and nothing else."""
    (tmp_path / ".x.json.0123.part").write_text("half")
    (tmp_path / ".x.json.lock").write_text("")
    (tmp_path / ".y.json.0123.part").write_text("of another")
    write_file(tmp_path / "x.json", b"whole")
    assert leftovers(tmp_path) == [".y.json.0123.part"]
    (tmp_path / ".saving-killed").mkdir()
    (tmp_path / ".saving-killed" / "a").write_text("half")
    (tmp_path / FOLDER_LOCK).write_text("")
    save(tmp_path, "1")
    assert leftovers(tmp_path) == [".y.json.0123.part"]
    assert [(tmp_path / name).read_text() for name in ("a", "b", "last")] == ["1"] * 3


# ---- one writer at a time ----


def hold_file(folder: Path, pause: Callable[[], object]) -> None:
    write_file(folder / "x", lambda file: (file.write(b"1"), pause()))


def hold_folder(folder: Path, pause: Callable[[], object]) -> None:
    save(folder, "1", pause)


@pytest.mark.parametrize("work, name", [(hold_file, ".x.lock"), (hold_folder, FOLDER_LOCK)])
def test_the_second_writer_waits_and_then_names_the_lock(
    work: Callable[..., None], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds, lets_go, order = threading.Event(), threading.Event(), []

    def pause() -> None:
        holds.set()
        assert lets_go.wait(60)
        order.append("first")

    thread = threading.Thread(target=work, args=(tmp_path, pause))
    thread.start()
    try:
        assert holds.wait(60)
        monkeypatch.setattr(_saving, "PATIENCE", 0.1)
        with pytest.raises(TimeoutError, match=rf"{name} is locked for 0 s: another process writes here"):
            work(tmp_path, lambda: None)
        monkeypatch.setattr(_saving, "PATIENCE", 60.0)
        threading.Timer(0.2, lets_go.set).start()
        work(tmp_path, lambda: order.append("second"))
    finally:
        lets_go.set()
        thread.join()
    assert order == sorted(order) and "second" in order and leftovers(tmp_path) == []


TWO = """
import sys, time
from pathlib import Path
from test_saving import save
folder, letter = Path(sys.argv[1]), sys.argv[2]
for _ in range(60):
    save(folder, letter, lambda: time.sleep(0.0005))
"""


def test_two_processes_in_one_folder_leave_files_of_one(tmp_path: Path) -> None:
    """Looked at while they write: what `last` says is what all files say."""
    environment = {**os.environ, "PYTHONPATH": PATHS}
    both = [subprocess.Popen([sys.executable, "-c", TWO, str(tmp_path), x], env=environment) for x in "12"]
    assert [process.wait(300) for process in both] == [0, 0]
    assert len({(tmp_path / name).read_text() for name in ("a", "b", "last")}) == 1
    assert leftovers(tmp_path) == []


CASES = """
import sys
from anyfuse.verify import cases
for seed in range(12):
    cases.generate("lazy_adam", sys.argv[1], sizes=(20, 4, 7 + int(sys.argv[2])), seed=seed, overwrite=True)
"""


def test_two_processes_that_make_cases_in_one_folder_leave_one_case(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": PATHS}
    both = [subprocess.Popen([sys.executable, "-c", CASES, str(tmp_path), x], env=environment) for x in "01"]
    assert [process.wait(300) for process in both] == [0, 0]
    cases.run(tmp_path)
    assert all(result.passed for result in cases.compare(tmp_path))


# ---- companions ----


def test_a_case_with_files_of_another_is_refused(tmp_path: Path) -> None:
    """Of the same sizes, which no length betrays. A manifest without digests, as others write it, is believed."""
    for seed in (1, 2):
        cases.generate("lazy_adam", tmp_path / str(seed), sizes=(20, 4, 7), seed=seed)
        cases.run(tmp_path / str(seed))
    golden = next((tmp_path / "1" / "output").glob("golden_*"))
    for name, step in (("input/var.bin", cases.run), (f"output/{golden.name}", cases.compare)):
        path, other = tmp_path / "1" / name, tmp_path / "2" / name
        good = path.read_bytes()
        path.write_bytes(other.read_bytes())
        with pytest.raises(ValueError, match=rf"{name}' in .* is not the file that the manifest describes; accepted: "):
            step(tmp_path / "1")
        manifest = tmp_path / "1" / cases.MANIFEST
        content = json.loads(manifest.read_text())
        for entry in (*content["inputs"], *content["outputs"]):
            entry.pop("sha256", None)
        with_digests = manifest.read_text()
        manifest.write_text(json.dumps(content))
        step(tmp_path / "1")
        manifest.write_text(with_digests)
        path.write_bytes(good)


def test_half_a_character_in_a_manifest_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is no file of .*: it is no text"):
        Folder(tmp_path).path("input/\ud800.bin")
    cases.generate("lazy_adam", tmp_path, sizes=(20, 4, 7))
    manifest = tmp_path / cases.MANIFEST
    manifest.write_text(manifest.read_text().replace("input/var.bin", "input/\\ud800.bin"))
    with pytest.raises(ValueError, match="it is no text") as caught:
        cases.run(tmp_path)
    assert type(caught.value) is ValueError


# ---- full disks ----


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """A disk of so many bytes in place of the folder, for root; elsewhere files may not be longer."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        if mounted:
            yield
        else:
            with largest_file(size):
                yield
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, 96 << 10):
        write_file(disk / "demo.json", b"good")
        save(disk / "m", "1")
        before = files_of(disk)
        with pytest.raises(OSError, match=r"(No space left on device|File too large): .*demo\.json"):
            write_file(disk / "demo.json", bytes(200 << 10))
        with pytest.raises(OSError, match=r"(No space left on device|File too large)"):
            save(disk / "m", "2" * (100 << 10))
        assert files_of(disk) == before


# ---- long runs ----


def test_a_killed_bench_leaves_what_it_has_measured(tmp_path: Path) -> None:
    from anyfuse.bench import results

    out, page = tmp_path / "out.json", tmp_path / "page.html"
    command = [*COMMAND, "bench", "lazy_adam", "quant_matmul_dequant", "--quick", "--rounds", "3", "--no-peers"]
    command += ["--spread-limit", "1e9", "--neighbour-limit", "1", "--out", str(out), "--report", str(page)]
    with started(command, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": PATHS}) as process:
        until = time.monotonic() + 240
        while not page.exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    assert process.returncode == -signal.SIGKILL, "it was over before it could be killed"
    whole = json.loads(out.read_text())
    results.validate(whole)
    assert whole["results"] and page.read_text().rstrip().endswith("</html>")


def test_a_file_of_bench_that_cannot_be_written_is_named_before_anything_is_timed(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from anyfuse_cli.app import app

    for option in ("--out", "--plot", "--report"):
        run = CliRunner().invoke(app, ["bench", "--quick", option, str(tmp_path)])
        assert isinstance(run.exception, IsADirectoryError), run.output


def test_pipes_get_lines_of_progress_on_stderr(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """Not what is over at once; with --json none."""
    from anyfuse_cli import console

    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    for hidden in (False, True):
        with console.progress({"load": None}, hidden, each=500) as advance:
            advance("load")
            for step in range(1, 401):
                now[0] += console.SILENCE / 100
                advance("torch AdamW", step, "loss 1.234")
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    shape = re.compile(r"anyfuse: torch AdamW: [1-4]\d\d of 500, loss 1\.234")
    assert 3 <= len(lines) <= 4 and all(map(shape.fullmatch, lines)), lines


def test_verify_into_a_pipe_tells_how_far_it_is() -> None:
    command = [*COMMAND, "verify", "lazy_adam", "--samples", "100000", "--threads", "1"]
    with started(command, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": PATHS}) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        process.kill()
    assert line.startswith("anyfuse: lazy_adam: ") and " of 100" in line, line
