"""The page of `anyfuse bench`: bars beside the peers, the roofline, and how figures went from file to file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from markupsafe import Markup

from .._words import duration
from ..html import save
from ..html.svg import Picture, Scale, around
from .results import Run

Key = tuple[str, str]
Place = tuple[float, float]
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Bar:
    """One side of a case; `length` is a share of the longest side, in percent."""

    name: str
    ours: bool
    noisy: bool
    time: str
    ratio: str
    spread: str
    first: str
    length: float
    note: str


@dataclass(frozen=True)
class CaseView:
    """A case as it is shown: its newest result, the run it is from, and all that there are, oldest first. `roof` is the
    time of the memory traffic alone, as a share of the longest side, in percent."""

    result: dict[str, Any]
    run: Run
    bars: list[Bar]
    roof: float | None
    history: list[tuple[Run, dict[str, Any]]]
    picture: Markup | None
    lines: list[str]


def write(path: Path, runs: Sequence[Run], command: str) -> None:
    """Writes the page on runs, of which the newest result of each case is shown and the others are its history."""
    runs = sorted(runs, key=lambda run: run["date"])
    found: dict[Key, list[tuple[Run, dict[str, Any]]]] = {}
    for run in runs:
        for result in run["results"]:
            found.setdefault((result["operator"], result["case"]), []).append((run, result))
    views = [_view(history) for _, history in sorted(found.items(), key=lambda item: item[0][0])]
    shown = [view.run for view in views]
    verdicts = [goal["verdict"] for view in views for goal in view.result["goals"]]
    roofs = [view for view in views if view.result["stream"] is not None and view.result["bytes"]]
    save(
        path,
        "bench.html",
        operators={name: [view for view in views if view.result["operator"] == name] for name in _names(views)},
        cases=len(views),
        ratios=_ratios(views),
        median=median,
        goals=verdicts,
        noisy=sum(not view.result["conclusive"] for view in views),
        roofs=roofs,
        roofline=roofline(roofs) if roofs else None,
        runs=list(reversed(runs)),
        machines=_machines(shown),
        command=command,
        machine=shown[-1]["machine"],
    )


def _names(views: Sequence[CaseView]) -> list[str]:
    return list(dict.fromkeys(view.result["operator"] for view in views))


def _ratios(views: Sequence[CaseView]) -> list[float]:
    """The peers' times over ours, of the cases that allow a conclusion, in order."""
    return sorted(
        peer["ratio"]["median"]
        for view in views
        if view.result["conclusive"]
        for peer in view.result["peers"]
        if peer["ratio"] is not None and peer["package"] != "anyfuse"
    )


def _machines(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Each machine and installation once, the newest first."""
    distinct: list[dict[str, Any]] = []
    for run in sorted(runs, key=lambda run: run["date"], reverse=True):
        if run["machine"] not in distinct:
            distinct.append(run["machine"])
    return distinct


# ---- a case ----


def _view(history: list[tuple[Run, dict[str, Any]]]) -> CaseView:
    run, result = history[-1]
    times = {"anyfuse": result["ours"]} | {p["name"]: p["times"] for p in result["peers"] if p["times"] is not None}
    longest = max(side["ns_per_unit"] for side in times.values())
    ratios = {peer["name"]: peer["ratio"]["median"] for peer in result["peers"] if peer["ratio"] is not None}
    notes = {peer["name"]: _accuracy(peer["accuracy"]) for peer in result["peers"]}
    notes["anyfuse"] = _accuracy(result["accuracy"])
    bars = [
        Bar(
            name, name == "anyfuse", name in result["noisy"], duration(side["ns_per_unit"]),
            f"{ratios.get(name, 1.0):.2f}×", f"{side['spread'] * 100:.0f} %", duration(side["first_call_s"] * 1e9),
            100 * side["ns_per_unit"] / longest, notes[name],
        )
        for name, side in times.items()
    ]  # fmt: skip
    stream = result["stream"]
    roof = None if stream is None else min(100.0, 100 * stream["ns_per_unit"] / longest)
    comparable = [(then, one) for then, one in history if _place(then) == _place(run)]
    picture, lines = _history_picture(comparable) if len(comparable) > 1 else (None, [])
    return CaseView(result, run, bars, roof, history, picture, lines)


def _place(run: Run) -> tuple[Any, ...]:
    """What has to agree before times can be compared."""
    return run["machine"]["cpu"], run["machine"]["target"], run["settings"]["threads"], run["settings"]["quick"]


def _accuracy(found: Mapping[str, Any] | None) -> str:
    values = (found or {}).items()
    return ", ".join(f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in values)


def _history_picture(history: Sequence[tuple[Run, dict[str, Any]]]) -> tuple[Markup, list[str]]:
    """Our time and each peer's, run by run, oldest first; and the peers, as the picture numbers them."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for place, (_, result) in enumerate(history):
        sides = [("anyfuse", result["ours"]), *((peer["name"], peer["times"]) for peer in result["peers"])]
        for name, times in sides:
            if times is not None:
                lines.setdefault(name, []).append((place, times["ns_per_unit"]))
    every = [value for line in lines.values() for _, value in line]
    low, high = min(every) / 1.6, max(every) * 1.6
    first, last = history[0][0]["date"][:10], history[-1][0]["date"][:10]
    said = f"Times of {len(history)} runs on one machine, from {first} to {last}: the figures stand in the table."
    picture = Picture(360, 190, f"History of {history[0][1]['case']}", said)
    height = Scale(low, high, 160, 14)
    for value in height.ticks():
        picture.line(52, height(value), 336, height(value), "grid")
        picture.text(47, height(value) + 4, duration(value), "dim", "end")
    ends: list[Box] = []
    for number, (name, line) in enumerate(lines.items()):
        kind = "ours" if name == "anyfuse" else "peer"
        points = [(60 + 268 * place / (len(history) - 1), height(value)) for place, value in line]
        picture.path(points, kind)
        if number:
            _name_line(picture, points[-1][1], str(number), ends)
        for (x, y), (place, value) in zip(points, line, strict=True):
            tip = f"{name}, {history[place][0]['date'][:10]}: {duration(value)}"
            picture.dot(x, y, "ours" if kind == "ours" else "theirs", tip, 3.5)
    picture.text(60, 178, first, "dim")
    picture.text(330, 178, last, "dim", "end")
    return picture.markup(), list(lines)[1:]


def _name_line(picture: Picture, y: float, words: str, taken: list[Box]) -> None:
    """A number at the end of a line, beside those that are there already."""
    boxes = [(x, y - 5, x + 7, y + 5) for x in (338.0, 346.0, 354.0)]
    box = next((box for box in boxes if not any(_overlap(box, other) for other in taken)), boxes[-1])
    taken.append(box)
    picture.text(box[0], y + 4, words, "label")


# ---- the roofline ----


def roofline(views: Sequence[CaseView]) -> Markup:
    """Time of a call over the bytes that it cannot avoid to move. The line is what the fastest stream of the machine
    moves in that time; a ring is the stream of the case's own pattern of reads and writes, the dot is ours."""
    sizes = [view.result["bytes"] for view in views]
    ours = [view.result["bytes"] / (view.result["ours"]["gb_per_s"] * 1e9) for view in views]
    alone = [view.result["bytes"] / (view.result["stream"]["gb_per_s"] * 1e9) for view in views]
    rate = max(view.result["stream"]["gb_per_s"] for view in views) * 1e9
    (left, right), (bottom, top) = around(sizes), around([*ours, *alone, min(sizes) / rate])
    said = f"{len(views)} cases; the line is {rate / 1e9:.1f} GB/s. The figures stand in the table below."
    picture = Picture(560, 360, "Roofline: time over bytes moved", said)
    x, y = Scale(left, right, 62, 540), Scale(bottom, top, 318, 14)
    for value in x.decades():
        picture.line(x(value), 14, x(value), 318, "grid")
        picture.text(x(value), 336, _bytes(value), "dim", "middle")
    for value in y.decades():
        picture.line(62, y(value), 540, y(value), "grid")
        picture.text(56, y(value) + 4, duration(value * 1e9), "dim", "end")
    picture.text(540, 354, "bytes that a call has to move", "dim", "end")
    start, end = max(left, bottom * rate), min(right, top * rate)
    picture.path([(x(start), y(start / rate)), (x(end), y(end / rate))], "roof")
    for view, size, time, stream in zip(views, sizes, ours, alone, strict=True):
        name = f"{view.result['operator']}, {view.result['case']}"
        picture.line(x(size), y(stream), x(size), y(time), "stem")
        picture.dot(x(size), y(stream), "hollow", f"{name}: memory alone {duration(stream * 1e9)}", 6)
        picture.dot(x(size), y(time), "ours", f"{name}: {duration(time * 1e9)}")
    places = [(x(size), y(time)) for size, time in zip(sizes, ours, strict=True)]
    _labels(picture, places, [(x(size), y(stream)) for size, stream in zip(sizes, alone, strict=True)])
    return picture.markup()


def _labels(picture: Picture, dots: Sequence[Place], rings: Sequence[Place]) -> None:
    """The dots' numbers, each where it covers no dot, ring or other number; dots on one place share one."""
    groups: list[tuple[Place, list[int]]] = []
    for number, (x, y) in enumerate(dots, 1):
        for (there_x, there_y), numbers in groups:
            if abs(there_x - x) < 5 and abs(there_y - y) < 5:
                numbers.append(number)
                break
        else:
            groups.append(((x, y), [number]))
    taken: list[Box] = [(x - 5, y - 5, x + 5, y + 5) for x, y in [*dots, *rings]]
    for (x, y), numbers in groups:
        words = ", ".join(map(str, numbers))
        width = 5.6 * len(words)
        boxes = [
            (left, y + down - 5, left + width, y + down + 5)
            for distance in (0, 12, 24)
            for left in (x + 8, x - 8 - width)
            for down in (-distance, distance)
        ]
        box = next((box for box in boxes if not any(_overlap(box, other) for other in taken)), boxes[0])
        taken.append(box)
        picture.text(box[0], box[3] - 1, words, "label")


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _bytes(value: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g} B"
