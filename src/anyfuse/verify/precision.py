"""How far results are from exact ones: the distances of plain calls from their float64 goldens, counted.

That native results equal the reference says nothing of the error which both have. Here it stands, beside the error of
the same call written with PyTorch's own operators, one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .._bits import clone_with_storage
from .._checks import dtype_name
from .._opspec import OpSpec
from .._settings import backend, float64_reference
from . import plain
from .compare import distances, unpacked
from .element import Element, element

OURS, UNFUSED = "anyfuse", "unfused PyTorch"
SEEDS = 3

#: The largest distance of each bin; the last bin has no end.
ULP_ENDS = (0, 1, 2, 4, 8, 16, 64, 1024)
#: The same of relative errors, two bins to a decade; the first bin is for errors of 0.
ERROR_ENDS = (0.0, *(10.0 ** (half / 2) for half in range(-16, 1)))


@dataclass
class Counts:
    """Elements by distance from the golden (`ulp`: representable values between, or steps of a code) and by relative
    error, the largest of each, and how many elements there are."""

    elements: int = 0
    ulp: list[int] = field(default_factory=lambda: [0] * (len(ULP_ENDS) + 1))
    errors: list[int] = field(default_factory=lambda: [0] * (len(ERROR_ENDS) + 1))
    max_ulp: int = 0
    max_error: float = 0.0

    def add(self, out: Tensor, golden: Tensor, encoding: str | None) -> None:
        apart = distances(out, golden, encoding)
        ulp = apart.ulp[apart.numbers]
        self.elements += out.numel()
        for counts, values, ends in ((self.ulp, ulp, ULP_ENDS), (self.errors, apart.relative, ERROR_ENDS)):
            found = torch.bucketize(values, torch.tensor(ends, dtype=values.dtype)).bincount(minlength=len(counts))
            counts[:] = [before + int(more) for before, more in zip(counts, found, strict=True)]
        self.max_ulp = max(self.max_ulp, int(ulp.max()) if ulp.numel() else 0)
        self.max_error = max(self.max_error, float(apart.relative.max()) if out.numel() else 0.0)


@dataclass(frozen=True)
class Worst:
    """The element of ours that is farthest from its golden, and the seed of its call."""

    seed: int
    element: Element


@dataclass
class Precision:
    """An output of plain calls in one dtype. `kind` is the dtype (or encoding) of the output itself; `codes` says that
    distances are steps; `sides` holds ours and, where there is one, the unfused call's."""

    operator: str
    dtype: str
    output: str
    kind: str
    codes: bool
    sides: dict[str, Counts]
    worst: Worst | None = None


def measure(
    spec: OpSpec, seeds: range = range(SEEDS), progress: Callable[[str], None] = lambda operator: None
) -> list[Precision]:
    """The precision of each output in each dtype, over the plain calls of `seeds`. Elements of an in-place argument
    that the call leaves alone are not counted."""
    found: dict[tuple[str, str], Precision] = {}
    for dtype in spec.samples.case.dtypes:
        for seed in seeds:
            arguments = plain.everyday(spec, dtype, seed)
            for name, golden, encoding, sides in _outputs(spec, arguments):
                kind = encoding or dtype_name(golden.dtype)
                codes = encoding is not None or not golden.dtype.is_floating_point
                entry = Precision(spec.name, dtype_name(dtype), name, kind, codes, {side: Counts() for side in sides})
                entry = found.setdefault((entry.dtype, name), entry)
                before = entry.sides[OURS].max_ulp
                kept = _touched(arguments.get(name) if name in spec.in_place else None, golden)
                flat = _flat(golden, encoding)
                for side, out in sides.items():
                    entry.sides[side].add(_flat(out, encoding)[kept], flat[kept], encoding)
                if entry.sides[OURS].max_ulp > before:
                    entry.worst = Worst(seed, _worst(arguments, sides[OURS], golden, encoding))
            progress(spec.name)
    return list(found.values())


def count(spec: OpSpec, seeds: range = range(SEEDS)) -> int:
    """How often `measure` reports progress."""
    return len(seeds) * len(spec.samples.case.dtypes)


def _outputs(spec: OpSpec, arguments: Mapping[str, Any]) -> Iterator[tuple[str, Tensor, str | None, dict[str, Tensor]]]:
    """Name, golden, encoding and each side's result of every output that has elements."""
    with float64_reference():
        goldens = plain.call(spec, arguments)
    with backend("native"):
        sides = {OURS: plain.call(spec, arguments)}
    if spec.samples.unfused is not None:
        with torch.no_grad():
            sides[UNFUSED] = dict(
                zip(spec.outputs, spec.samples.unfused(clone_with_storage(dict(arguments))), strict=True)
            )
    encodings = spec.samples.case.encodings(arguments)
    for name, golden in goldens.items():
        if golden.numel():
            yield name, golden, encodings.get(name), {side: results[name] for side, results in sides.items()}


def _touched(before: Tensor | None, golden: Tensor) -> Any:
    """Which elements, in row-major order, count."""
    return slice(None) if before is None else (before != golden).flatten()


def _flat(tensor: Tensor, encoding: str | None) -> Tensor:
    return unpacked(tensor.detach(), encoding).flatten()


def _worst(arguments: Mapping[str, Any], out: Tensor, golden: Tensor, encoding: str | None) -> Element:
    values, expected = _flat(out, encoding), _flat(golden, encoding)
    apart = distances(values, expected, encoding)
    ulp = torch.where(apart.numbers, apart.ulp, -1)
    place = int(ulp.argmax())
    shape = tuple(golden.shape) if values.numel() == golden.numel() else (values.numel(),)
    return element(arguments, shape, place, values, expected, int(ulp[place]))
