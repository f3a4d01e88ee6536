"""Pictures for the pages. Classes, not colours, stand in them: the page's style gives those."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape


class Picture:
    """An SVG that grows with its place, and says what it shows to those who do not see it."""

    def __init__(self, width: float, height: float, title: str, description: str) -> None:
        self.width, self.height = width, height
        self.parts = [Markup("<title>{}</title><desc>{}</desc>").format(title, description)]

    def rect(self, x: float, y: float, width: float, height: float, kind: str, tip: str = "") -> None:
        inner = Markup("<title>{}</title>").format(tip) if tip else ""
        box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(height, 0):.1f}"'
        self.parts.append(Markup('<rect class="{}" ' + box + ' rx="1">{}</rect>').format(kind, inner))

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        self.parts.append(Markup('<line class="{}" ' + ends + "/>").format(kind))

    def path(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        steps = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(Markup('<path class="{}" d="{}"/>').format(kind, steps))

    def dot(self, x: float, y: float, kind: str, tip: str = "", radius: float = 4) -> None:
        inner = Markup("<title>{}</title>").format(tip) if tip else ""
        self.parts.append(
            Markup('<circle class="{}" cx="{}" cy="{}" r="{}">{}</circle>').format(
                kind, f"{x:.1f}", f"{y:.1f}", radius, inner
            )
        )

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        self.parts.append(
            Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>').format(
                kind, f"{x:.1f}", f"{y:.1f}", anchor, words
            )
        )

    def markup(self) -> Markup:
        head = Markup('<svg viewBox="0 0 {} {}" role="img" xmlns="http://www.w3.org/2000/svg">').format(
            f"{self.width:g}", f"{self.height:g}"
        )
        return head + Markup("").join(map(escape, self.parts)) + Markup("</svg>")


@dataclass(frozen=True)
class Scale:
    """A logarithmic axis: values `low` to `high` onto places `start` to `end`; what lies beyond is put at the end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low) if value > 0 else 0.0
        return self.start + (self.end - self.start) * min(max(share, 0.0), 1.0)

    def decades(self, least: int = 1) -> list[float]:
        """The powers of ten within; every `least`-th one."""
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        return [10.0**n for n in range(first, last + 1) if n % least == 0]

    def ticks(self) -> list[float]:
        """The powers of ten within or, where those are fewer than three, their multiples by 2 and 5, too."""
        decades = self.decades()
        if len(decades) > 2:
            return decades
        first = math.floor(math.log10(self.low))
        steps = [digit * 10.0**n for n in range(first, first + 4) for digit in (1, 2, 5)]
        return [step for step in steps if self.low <= step <= self.high]


def around(values: Sequence[float]) -> tuple[float, float]:
    """Whole decades that hold all of some positive values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def power(value: float) -> str:
    """A power of ten as it is written by hand: 10⁻³."""
    digits = str(round(math.log10(value))).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{digits}"
