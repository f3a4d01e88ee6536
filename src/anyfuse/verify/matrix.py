"""Every operator on every backend, instruction set and thread count, bit for bit against its reference, in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _core
from .._bits import clone_with_storage, same_bits
from .._checks import one_of
from .._opspec import REGISTRY, OpSpec
from .._settings import BACKENDS, backend
from .._soc import restricted, soc
from ..samples.draw import Draw
from ..samples.kinds import Sample
from . import plain
from .compare import compare

#: What can be held against the reference.
CANDIDATES = tuple(name for name in BACKENDS if name not in ("auto", "reference"))


@dataclass(frozen=True)
class Way:
    """One way to run an operator; 0 threads and no target: those in use."""

    backend: str
    target: str = ""
    threads: int = 0

    def __str__(self) -> str:
        return f"{self.backend} {self.target} ×{self.threads}"


#: The definition of the numbers, which knows no targets.
REFERENCE = Way("reference")


class Origin(NamedTuple):
    """What makes a sample again: its seed, or its number among the edge cases."""

    seed: int | None = None
    edge: int | None = None


@dataclass
class Row:
    """An operator on one way: samples tried, those a product refuses, those that differ, elements compared."""

    operator: str
    way: Way
    samples: int = 0
    refused: int = 0
    mismatches: int = 0
    elements: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Mismatch:
    """A sample whose result differs. `seed` makes it again, or `edge`, its number among the edge cases."""

    operator: str
    way: Way
    seed: int | None
    label: str
    what: str
    different: int = 0
    max_ulp: int = 0
    edge: int | None = None


@dataclass(frozen=True)
class Report:
    rows: list[Row]
    mismatches: list[Mismatch]

    @property
    def passed(self) -> bool:
        return not self.mismatches

    def worst(self, count: int) -> list[Mismatch]:
        """Those that raise an error first, then by distance."""
        return sorted(self.mismatches, key=lambda m: (m.different > 0, -m.max_ulp, -m.different))[:count]


def operators(names: Sequence[str]) -> list[OpSpec]:
    """Operators by stem or function name; all of them for none."""
    chosen = {plain.operator(name).name for name in names}
    return [spec for spec in REGISTRY.values() if not names or spec.name in chosen]


def ways(backends: Sequence[str], targets: Sequence[str], threads: Sequence[int]) -> list[Way]:
    """The matrix: what is given, or everything that this machine has. ValueError for what it has not."""
    counts = list(threads) or sorted({1, torch.get_num_threads()})
    available = _core.available_targets()
    for name in backends:
        one_of("backend", name, CANDIDATES)
    for name in targets:
        one_of("target", name, available)
    for count in counts:
        if count < 1:
            raise ValueError(f"threads is {count}; accepted: 1 and more")
    chosen = list(backends) or list(CANDIDATES)
    return [Way(b, t, n) for b in chosen for t in (targets or available) for n in counts]


def verify(
    specs: Sequence[OpSpec],
    matrix: Sequence[Way],
    *,
    samples: int,
    seed: int = 0,
    product: str | None = None,
    progress: Callable[[str], None] = lambda operator: None,
) -> Report:
    """Draws `samples` calls of each operator (seeds seed, seed + 1, …), adds its edge cases, and compares each way with
    the reference: results, in-place arguments and all memory around them. `progress` is called after each sample."""
    report = Report([], [])
    with soc(product) if product is not None else nullcontext():
        for spec in specs:
            rows = [Row(spec.name, way) for way in matrix]
            report.rows.extend(rows)
            for number, sample in _samples(spec, samples, seed):
                expected = outcome(spec, sample.arguments, REFERENCE)
                for row in rows:
                    report.mismatches.extend(_try(spec, number, sample, expected, row))
                progress(spec.name)
    return report


def count_edges(spec: OpSpec) -> int:
    return len(list(spec.samples.edges()))


def sample(operator: str, *, seed: int | None = None, edge: int | None = None) -> Sample:
    """A call that `anyfuse verify` makes: the random one of a seed, or an edge case by its number."""
    (spec,) = operators([operator])
    if (seed is None) == (edge is None):
        raise ValueError(f"seed is {seed}, edge is {edge}; accepted: one of both")
    if edge is None:
        return spec.samples.draw(Draw(seed or 0))
    edges = list(spec.samples.edges())
    if not 0 <= edge < len(edges):
        raise ValueError(f"edge is {edge}; accepted: 0 to {len(edges) - 1} for {operator}")
    return edges[edge]


def results(operator: str, arguments: Mapping[str, Any], way: Way = REFERENCE) -> dict[str, Tensor]:
    """All that a call returns or may write, by name, computed on one way from copies of its arguments."""
    (spec,) = operators([operator])
    found = outcome(spec, arguments, way)
    if isinstance(found, Exception):
        raise found
    return found


def _samples(spec: OpSpec, samples: int, seed: int) -> Iterator[tuple[Origin, Sample]]:
    for edge, sample in enumerate(spec.samples.edges()):
        yield Origin(edge=edge), sample
    for number in range(seed, seed + samples):
        yield Origin(number), spec.samples.draw(Draw(number))


def _try(spec: OpSpec, origin: Origin, sample: Sample, expected: Any, row: Row) -> Iterator[Mismatch]:
    """Runs a sample on the row's way, adds to the row, and yields what differs."""
    start = time.perf_counter()
    got = outcome(spec, sample.arguments, row.way)
    row.seconds += time.perf_counter() - start
    row.samples += 1
    if isinstance(expected, Exception) or isinstance(got, Exception):
        if restricted() and str(expected) == str(got) and type(expected) is type(got):
            row.refused += 1
            return
        row.mismatches += 1
        words = ", ".join(
            f"{name}: {_words(value)}" for name, value in ((row.way.backend, got), ("reference", expected))
        )
        yield Mismatch(spec.name, row.way, origin.seed, sample.label, words, edge=origin.edge)
        return
    differing = [name for name in expected if not same_bits(got[name], expected[name])]
    row.elements += sum(tensor.numel() for tensor in expected.values())
    if differing:
        row.mismatches += 1
    for name in differing:
        distance = compare(name, got[name], expected[name])
        words = (
            distance.reason
            if not distance.different
            else f"{distance.different} of {distance.elements} elements differ"
        )
        what = f"{name}: {words}"
        yield Mismatch(
            spec.name, row.way, origin.seed, sample.label, what, distance.different, distance.max_ulp, origin.edge
        )


def _words(outcome: Any) -> str:
    return f"{type(outcome).__name__}({outcome})" if isinstance(outcome, Exception) else "a result"


def outcome(spec: OpSpec, given: Mapping[str, Any], way: Way) -> dict[str, Tensor] | Exception:
    """All that a call returns or may write, by name; or the exception that it raises."""
    arguments = {name: clone_with_storage(value) for name, value in given.items()}
    try:
        with _running_on(way), backend(way.backend):
            returned = spec.function(**arguments)
    except Exception as error:
        return error
    named = dict(zip(spec.outputs, returned if isinstance(returned, tuple) else (returned,), strict=True))
    named |= {f"memory of {name}": _memory(arguments.get(name)) for name in spec.in_place}
    flat: dict[str, Tensor] = {}
    for name, value in named.items():
        items = value if isinstance(value, (list, tuple)) else [value]
        flat |= {name if len(items) == 1 else f"{name}[{i}]": item for i, item in enumerate(items) if item is not None}
    return flat


def _memory(value: Any) -> Any:
    """The whole storage behind a tensor, elements outside its view too."""
    if isinstance(value, (list, tuple)):
        return [_memory(item) for item in value]
    if not isinstance(value, Tensor):
        return None
    return torch.empty(0, dtype=value.dtype, device=value.device).set_(value.untyped_storage())


@contextmanager
def _running_on(way: Way) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(way.threads or threads)
    try:
        with _core.target(way.target or _core.current_target()):
            yield
    finally:
        torch.set_num_threads(threads)
