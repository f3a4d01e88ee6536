"""A mismatch looked at again: where its outputs differ, by how much, on which inputs, and how to make it again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._bits import different_bits
from .._checks import dtype_name
from .._products import ANY
from .._soc import soc
from . import matrix
from .compare import distances
from .element import Element, element, tensors
from .precision import Counts

OUTPUTS, ELEMENTS = 3, 5


@dataclass(frozen=True)
class Output:
    """An output that differs: how many elements, by how much, and the worst of them. `reason` where it cannot be
    compared element by element."""

    name: str
    kind: str
    elements: int
    counts: Counts
    worst: list[Element]
    reason: str = ""


@dataclass(frozen=True)
class Examined:
    """`outputs` holds those that are farthest apart, and none where the sample raises an error on a side or did not
    differ when it was run again; `more` names the others."""

    mismatch: matrix.Mismatch
    command: str
    code: str
    arguments: list[tuple[str, str]]
    outputs: list[Output]
    more: list[str]
    error: str = ""


def examine(mismatches: Sequence[matrix.Mismatch], product: str, limit: int) -> list[Examined]:
    """The samples of the first mismatches (one may have several), each run again and looked at."""
    samples = {(item.operator, item.way, item.seed, item.edge): item for item in reversed(mismatches)}
    chosen = [item for item in mismatches if samples[item.operator, item.way, item.seed, item.edge] is item]
    with soc(product):
        return [_examine(item, product) for item in chosen[:limit]]


def _examine(item: matrix.Mismatch, product: str) -> Examined:
    call = matrix.sample(item.operator, seed=item.seed, edge=item.edge).arguments
    (spec,) = matrix.operators([item.operator])
    expected, got = (matrix.outcome(spec, call, way) for way in (matrix.REFERENCE, item.way))
    arguments = [(name, _describe(value)) for name, value in call.items()]
    outputs: list[Output] = []
    error = ""
    if isinstance(expected, Exception) or isinstance(got, Exception):
        error = item.what
    else:
        outputs = _without_repetition([_output(name, got[name], expected[name], call) for name in expected])
    outputs.sort(key=lambda output: (not output.reason, -output.counts.max_ulp, -output.counts.elements))
    more = [output.name for output in outputs[OUTPUTS:]]
    code = snippet(item, product)
    return Examined(item, reproduce(item, product), code, arguments, outputs[:OUTPUTS], more, error)


def _without_repetition(outputs: list[Output]) -> list[Output]:
    """Those that differ; the memory of an argument only where more of it differs than the argument."""
    counts = {output.name: output.counts.elements for output in outputs}

    def more(output: Output) -> bool:
        _, memory, argument = output.name.partition("memory of ")
        return output.counts.elements > (counts.get(argument, 0) if memory else 0)

    return [output for output in outputs if output.reason or more(output)]


def _output(name: str, got: Tensor, expected: Tensor, call: Mapping[str, Any]) -> Output:
    kind = dtype_name(expected.dtype)
    if got.dtype != expected.dtype or got.shape != expected.shape:
        sides = " and ".join(f"{dtype_name(side.dtype)} of shape {tuple(side.shape)}" for side in (got, expected))
        return Output(name, kind, expected.numel(), Counts(), [], f"{sides} are no equals")
    counts, worst = Counts(), []
    flat, golden = got.detach().reshape(-1), expected.detach().reshape(-1)
    places = different_bits(flat, golden).nonzero().flatten()
    if places.numel():
        counts.add(flat[places], golden[places], None)
        apart = distances(flat[places], golden[places])
        size = torch.where(apart.numbers, apart.ulp.double(), torch.inf)
        for i in size.argsort(descending=True)[:ELEMENTS].tolist():
            ulp = int(apart.ulp[i]) if bool(apart.numbers[i]) else None
            worst.append(element(call, tuple(expected.shape), int(places[i]), flat, golden, ulp))
    return Output(name, kind, expected.numel(), counts, worst)


def _describe(value: Any) -> str:
    items = value if isinstance(value, (list, tuple)) else [value]
    if any(isinstance(item, Tensor) for item in items):
        found = [
            f"{dtype_name(item.dtype)} {tuple(item.shape)}"
            + ("" if item.is_contiguous() else f", strides {item.stride()}, offset {item.storage_offset()}")
            for _, item in tensors({"": value})
        ]
        return "; ".join(found[:4]) + (f"; … {len(found)} in all" if len(found) > 4 else "")
    return str(value) if len(str(value)) < 200 else f"a {type(value).__name__}"


def reproduce(item: matrix.Mismatch, product: str) -> str:
    """The command that shows a mismatch again. Edge cases belong to every run."""
    words = ["anyfuse", "verify", item.operator, "--backend", item.way.backend, "--target", item.way.target]
    words += ["--threads", str(item.way.threads), "--samples", "1", "--seed", str(item.seed or 0)]
    return shlex.join(words + (["--soc", product] if product != ANY else []))


def snippet(item: matrix.Mismatch, product: str) -> str:
    """Python that makes a mismatch's inputs, runs both sides and prints how far they are apart."""
    origin = f"seed={item.seed}" if item.edge is None else f"edge={item.edge}"
    way = f'Way("{item.way.backend}", "{item.way.target}", {item.way.threads})'
    lines = [
        "import anyfuse",
        "from anyfuse.verify.compare import compare",
        "from anyfuse.verify.matrix import Way, results, sample",
        "",
        f'inputs = sample("{item.operator}", {origin}).arguments',
        f'with anyfuse.soc("{product}"):',
        f'    expected = results("{item.operator}", inputs)',
        f'    got = results("{item.operator}", inputs, {way})',
        "for name in expected:",
        "    print(compare(name, got[name], expected[name]))",
    ]
    return "\n".join(lines) + "\n"
