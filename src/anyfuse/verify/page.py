"""The page of `anyfuse verify`: equality, how far results are from exact ones, and what differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from markupsafe import Markup

from .._machine import machine
from .._opspec import REGISTRY
from .._words import percent
from ..html import save
from ..html.svg import Picture, Scale, power
from . import matrix
from .examine import Examined
from .precision import ERROR_ENDS, OURS, ULP_ENDS, UNFUSED, Counts, Precision

BOTH = "both"
LEAST = 1e-5  # of all elements: the lowest share that a histogram shows
LEFT, RIGHT, PANEL = 46.0, 352.0, 66.0


@dataclass(frozen=True)
class Line:
    """A row of a table of distances: whose, and for each bin its count and how dark it is, 0 to 100. `item` is there
    in the first row of an output."""

    side: str
    item: Precision | None
    cells: list[tuple[int, int]]
    counts: Counts


def write(
    path: Path,
    report: matrix.Report,
    precision: Sequence[Precision],
    examined: Sequence[Examined],
    *,
    samples: int,
    seed: int,
    product: str,
    command: str,
) -> None:
    """Writes the page. `command` is what was called."""
    operators = list(dict.fromkeys(row.operator for row in report.rows))
    ways = list(dict.fromkeys(row.way for row in report.rows))
    save(
        path,
        "verify.html",
        report=report,
        verdict=_verdict(report),
        rows={(row.operator, row.way): row for row in report.rows},
        operators=[REGISTRY[name] for name in operators],
        ways=ways,
        groups=_groups(ways),
        elements=sum(row.elements for row in report.rows),
        calls=sum(row.samples for row in report.rows),
        refused=sum(row.refused for row in report.rows),
        examined=examined,
        lines_of=lambda output: [Line("", None, _cells(output.counts), output.counts)],
        bins=ulp_names(),
        precision=[
            (REGISTRY[name], _table(items), _pictures(items), _worst(items))
            for name in operators
            if (items := [item for item in precision if item.operator == name])
        ],
        unfused=UNFUSED,
        ours=OURS,
        samples=samples,
        seed=seed,
        product=product,
        command=command,
        machine=machine(),
    )


def _verdict(report: matrix.Report) -> str:
    if not report.passed:
        return "Bits differ from the reference"
    return "Every call is refused" if all(row.samples == row.refused for row in report.rows) else "Every bit is equal"


def _groups(ways: Sequence[matrix.Way]) -> list[tuple[str, int]]:
    """Heads over the ways: backend and target, and over how many columns."""
    heads = [f"{way.backend} {way.target}" for way in ways]
    return [(head, heads.count(head)) for head in dict.fromkeys(heads)]


# ---- distances ----


def ulp_names() -> list[str]:
    names = [str(low + 1) if low + 1 == high else f"{low + 1}–{high}" for low, high in pairwise((-1, *ULP_ENDS))]
    return [*names, f">{ULP_ENDS[-1]}"]


def _cells(counts: Counts) -> list[tuple[int, int]]:
    """Counts and shades. A shade follows the logarithm: one element of a million still shows."""
    scale = Scale(LEAST, 1.0, 12, 100)
    return [(count, round(scale(count / counts.elements)) if count else 0) for count in counts.ulp]


def _table(items: Sequence[Precision]) -> list[Line]:
    """Two rows for an output, or one where both sides are exact everywhere. All dtypes of an output stand together."""
    order = list(dict.fromkeys(item.output for item in items))
    lines = []
    for item in sorted(items, key=lambda item: order.index(item.output)):
        exact = [counts.ulp[0] == counts.elements for counts in item.sides.values()]
        sides = item.sides if len(exact) < 2 or not all(exact) else {BOTH: item.sides[OURS]}
        for place, (side, counts) in enumerate(sides.items()):
            if counts.elements:
                lines.append(Line(side, None if place else item, _cells(counts), counts))
    return lines


def _worst(items: Sequence[Precision]) -> Precision | None:
    """The output of floats whose worst element is farthest from its golden, in relative error."""
    found = [item for item in items if item.worst is not None and not item.codes]
    return max(found, key=lambda item: item.sides[OURS].max_error, default=None)


# ---- histograms of errors ----


def _pictures(items: Sequence[Precision]) -> list[tuple[str, Markup]]:
    """One for each output of floats, with a panel for each dtype of the call."""
    names = dict.fromkeys(item.output for item in items if not item.codes)
    return [(name, histogram([item for item in items if item.output == name])) for name in names]


def histogram(items: Sequence[Precision]) -> Markup:
    first = items[0]
    kinds = ", ".join(f"{item.dtype}: {_exact(item.sides[OURS])} exact" for item in items)
    picture = Picture(
        360, len(items) * (PANEL + 26) + 26, f"Relative errors of {first.output}",
        f"Histogram of the relative errors of {first.operator}'s output {first.output}. {kinds}.",
    )  # fmt: skip
    for number, item in enumerate(items):
        _panel(picture, item, 18 + number * (PANEL + 26))
    _axis(picture, picture.height - 12)
    return picture.markup()


def _exact(counts: Counts) -> str:
    return percent(counts.ulp[0], counts.elements)


def _panel(picture: Picture, item: Precision, top: float) -> None:
    height = Scale(LEAST, 1.0, top + PANEL, top)
    picture.text(LEFT, top - 5, item.dtype if item.kind == item.dtype else f"{item.dtype} → {item.kind}", "head")
    picture.text(RIGHT, top - 5, f"{item.sides[OURS].elements:,} elements", "dim", "end")
    for share in height.decades(2):
        picture.line(LEFT, height(share), RIGHT, height(share), "grid")
        picture.text(LEFT - 5, height(share) + 3.5, f"{share * 100:g}%", "dim", "end")
    for side, counts in item.sides.items():
        shares = [count / counts.elements for count in counts.errors] if counts.elements else []
        if side == OURS:
            for place, share in enumerate(shares):
                if share:
                    x, y = _left(place), height(share)
                    tip = f"{error_names()[place]}: {percent(share)}"
                    picture.rect(x + 1, y, _left(place + 1) - x - 2, top + PANEL - y, "ours", tip)
        else:
            picture.path(_outline(shares, height), "peer")
    picture.line(LEFT, top + PANEL, RIGHT, top + PANEL, "axis")


def _outline(shares: Sequence[float], height: Scale) -> list[tuple[float, float]]:
    points = []
    for place, share in enumerate(shares):
        y = height(share) if share else height.start
        points += [(_left(place), y), (_left(place + 1), y)]
    return points


def _left(place: int) -> float:
    """Where a bin begins."""
    return LEFT + (RIGHT - LEFT) * place / (len(ERROR_ENDS) + 1)


def _axis(picture: Picture, y: float) -> None:
    picture.text((_left(0) + _left(1)) / 2, y, "0", "dim", "middle")
    for place, end in enumerate(ERROR_ENDS):
        if place % 4 == 1:
            picture.text(_left(place + 1), y, power(end), "dim", "middle")


def error_names() -> list[str]:
    bounds = [f"{low:.1e} to {high:.1e}" for low, high in pairwise(ERROR_ENDS)]
    return ["no error", *bounds, f"more than {ERROR_ENDS[-1]:g}"]
