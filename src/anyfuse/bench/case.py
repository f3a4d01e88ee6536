"""What an operator's benchmark says about itself: cases and peers as data, with small functions that set them up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .._core import CONSTANTS

READ, UPDATE, WRITE = (CONSTANTS[f"ANYFUSE_STREAM_{access}"] for access in ("READ", "UPDATE", "WRITE"))


@dataclass(frozen=True)
class Array:
    """One array that an algorithm has to pass through: bytes a unit, and whether they are read, updated or written.

    `rows` says that the units lie in rows picked by an index instead of side by side.
    """

    width: int
    access: int
    rows: bool = False

    @property
    def bytes(self) -> int:
        return self.width * (2 if self.access == UPDATE else 1)


@dataclass(frozen=True)
class Traffic:
    """The memory an algorithm cannot avoid to move: its arrays, the units of each, the rows that an index picks.

    `calls`: how many of our calls move that much, where each takes data of its own so as to find it outside the caches.
    """

    arrays: tuple[Array, ...]
    units: int
    index: Tensor | None = None
    table_rows: int = 0
    calls: int = 1

    @property
    def bytes(self) -> int:
        return self.units * sum(array.bytes for array in self.arrays)


@dataclass(frozen=True)
class Runner:
    """One side of a comparison, set up: `run` is timed, `prepare` runs before it untimed.

    `units` is given where this side does another amount of work than the case; ratios are then taken per unit.
    """

    run: Callable[[], Any]
    prepare: Callable[[], Any] | None = None
    units: int | None = None


@dataclass(frozen=True)
class Peer:
    """What one could use instead. `start` imports and sets it up (an ImportError makes it a missing peer).

    `accuracy` gives figures of its error against our reference on a small problem.
    """

    name: str
    start: Callable[[], Runner]
    package: str = "torch"
    accuracy: Callable[[], Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Work:
    """A case, set up. `sample` is a small call of the public function whose results must equal the reference's.

    `accuracy`: our own figures, where an operator loses something by its definition and not by its arithmetic.
    """

    ours: Runner
    units: int
    unit: str
    sample: dict[str, Any]
    traffic: Traffic | None = None
    peers: tuple[Peer, ...] = ()
    accuracy: Callable[[], Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Goal:
    """What a figure of a case should reach: at least, or at most, and what is aimed at.

    Figures: "ratio PEER" (its time over ours, per unit), "excess PEER" (our microseconds a unit beyond it), "of stream"
    (our rate over the stream's), "us a call", "transient KiB".
    """

    figure: str
    least: float | None = None
    most: float | None = None
    aim: float | None = None


@dataclass(frozen=True)
class Case:
    """`work(quick)` sets it up; quick: as small as shows that everything runs. `memory`: measure transient memory."""

    name: str
    work: Callable[[bool], Work]
    goals: tuple[Goal, ...] = ()
    memory: bool = False
