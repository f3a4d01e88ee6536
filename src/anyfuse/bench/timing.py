"""Times that can be compared: all sides in turn, round after round, medians and spread; and when not to conclude."""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles

from .case import Runner

Clock = Callable[[], float]

#: A sample shorter than this repeats the call, so that the clock and the first touch of a cold cache do not count.
SAMPLE_SECONDS = 2e-3


@dataclass(frozen=True)
class Timing:
    """Seconds a call: the first one apart (it compiles, allocates, loads), then one figure a round."""

    first: float
    times: list[float]
    repeats: int = 1

    @property
    def median(self) -> float:
        return median(self.times)

    @property
    def spread(self) -> float:
        """The middle half of the rounds, as a share of the median."""
        return spread(self.times)


def spread(values: list[float]) -> float:
    if len(values) < 3:
        return 0.0
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


def once(runner: Runner, repeats: int = 1, clock: Clock = time.perf_counter) -> float:
    """Seconds of one call, as the mean of `repeats` in a row (one by one where each needs its own preparation)."""
    if runner.prepare is not None:
        total = 0.0
        for _ in range(repeats):
            runner.prepare()
            start = clock()
            runner.run()
            total += clock() - start
        return total / repeats
    start = clock()
    for _ in range(repeats):
        runner.run()
    return (clock() - start) / repeats


def interleave(
    runners: Mapping[str, Runner], first: Mapping[str, float], rounds: int, clock: Clock = time.perf_counter
) -> dict[str, Timing]:
    """Runs every side once a round, each round beginning with another one, after a warm-up that sets the repeats.

    What disturbs the machine for a while then disturbs all sides, and ratios are taken within a round.
    """
    names = list(runners)
    repeats = {}
    for name in names:
        warm = min(once(runners[name], clock=clock) for _ in range(2))
        repeats[name] = max(1, min(10_000, math.ceil(SAMPLE_SECONDS / max(warm, 1e-9))))
    times: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                times[name].append(once(runners[name], repeats[name], clock))
    finally:
        if collecting:
            gc.enable()
    return {name: Timing(first[name], times[name], repeats[name]) for name in names}


class Neighbours:
    """How much of the machine's processors other processes took between the two ends of a `with` block.

    A neighbour that takes a core all the time slows every round alike and shows in no spread. `share` is None where the
    system does not tell (no Linux /proc).
    """

    share: float | None = None

    def __enter__(self) -> Neighbours:
        self._start = self._read()
        return self

    def __exit__(self, *error: object) -> None:
        end = self._read()
        if self._start is not None and end is not None and end[1] > self._start[1]:
            busy, total, own = (after - before for before, after in zip(self._start, end, strict=True))
            self.share = min(max(0.0, (busy - own) / total), 1.0)

    @staticmethod
    def _read() -> tuple[float, float, float] | None:
        """Seconds, summed over the processors: busy, in all, busy with this process and its ended children."""
        try:
            with open("/proc/stat") as lines:
                ticks = [int(field) for field in lines.readline().split()[1:9]]
        except OSError:
            return None
        second, used = os.sysconf("SC_CLK_TCK"), os.times()
        idle = ticks[3] + ticks[4]
        own = used.user + used.system + used.children_user + used.children_system
        return (sum(ticks) - idle) / second, sum(ticks) / second, own


def ratios(ours: Timing, other: Timing, units: float = 1.0) -> list[float]:
    """How much longer the other takes in each round. `units`: our amount of work over the other's."""
    return [units * b / a for a, b in zip(ours.times, other.times, strict=True)]


def noisy(timings: Mapping[str, Timing], limit: float) -> list[str]:
    """The sides whose rounds scatter too much to conclude anything from."""
    return [name for name, timing in timings.items() if timing.spread > limit]
