"""Processes that are ended while they save, for the tests of what they leave behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

PATIENCE = 20.0  # seconds that an ended process has to be gone


def end_while(work: Callable[[], object], number: int, delay: float) -> None:
    """Forks a child that does the work over and over, and ends it some seconds after it has done it once."""
    begun, begins = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            work()
            os.write(begins, b"b")
            while True:
                work()
        finally:  # an error leaves the loop too: the parent looks for its traces
            os._exit(1)
    os.close(begins)
    os.read(begun, 1)  # the signal would otherwise meet the parent's code in the child, and run its handlers
    os.close(begun)
    time.sleep(delay)
    _end(child, number)


def _end(child: int, number: int) -> None:
    """Sends the signal again where Python lost it: an exception that leaves a destructor is only printed."""
    for _ in range(int(PATIENCE)):
        os.kill(child, number)
        until = time.monotonic() + 1
        while time.monotonic() < until:
            if os.waitpid(child, os.WNOHANG)[0]:
                return
            time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError(f"a process goes on {PATIENCE:.0f} s after signal {number}")


def delays(count: int, least: float, most: float) -> list[float]:
    """The same ones in every run."""
    source = random.Random(0)
    return [source.uniform(least, most) for _ in range(count)]


@contextlib.contextmanager
def started(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that hears Ctrl-C, also where the tests run in the background and do not; gone when the block ends."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a handler, unlike SIG_IGN, is not inherited
    try:
        process = subprocess.Popen(command, text=True, stderr=subprocess.PIPE, **options)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        try:
            yield process
        finally:
            process.kill()
