"""Transient memory: what a call needs at its peak beyond what it leaves behind. Run in a process of its own.

There malloc is told to give every block of 64 KiB and more pages of its own (`MALLOC_MMAP_THRESHOLD_`), so that the
kernel's high-water mark of the resident set, reset before each call, shows them. Smaller blocks may hide in memory that
the process has already; the mark itself is exact to some 100 KiB.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from . import cases

TRIES = 5


def transient_kib(operator: str, case: str, quick: bool, threads: int) -> float | None:
    """KiB of the case's own call; None where the system does not tell (it needs Linux's /proc)."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    package = Path(__file__).parent.parent.parent
    path = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "PYTHONPATH": path}
    command = [sys.executable, "-m", "anyfuse.bench.memory", operator, case, str(int(quick)), str(threads)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"measuring the memory of {operator}, {case}: {done.stderr.strip().splitlines()[-1:]}")
    kib: float | None = json.loads(done.stdout)
    return kib


def _status(field: str) -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field))


def _resident() -> int:
    with open("/proc/self/smaps_rollup") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))


def _measure(operator: str, name: str, quick: bool) -> float | None:
    runner = next(case for case in cases(operator) if case.name == name).work(quick).ours
    for _ in range(2):
        runner.run()
    found = []
    for _ in range(TRIES):
        if runner.prepare is not None:
            runner.prepare()
        before = _resident()
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            return None
        results = runner.run()
        peak = _status("VmHWM:")
        found.append(peak - max(before, _resident()))
        del results
    return float(max(0, sorted(found)[TRIES // 2]))


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[4]))
    print(json.dumps(_measure(sys.argv[1], sys.argv[2], sys.argv[3] == "1")))
