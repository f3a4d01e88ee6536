"""What the pass did since the last reset, and what it left alone for which reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Miss:
    """Code that looks like an operator and was not replaced.

    Attributes:
        operator: which operator it looks like; "" where no graph was looked at.
        reason: what is different.
        where: the line of the user's code, or the graph's node where no line is known.
    """

    operator: str
    reason: str
    where: str


@dataclass
class Report:
    """Counts of graphs and replacements, and the near misses.

    Attributes:
        graphs: graphs that the pass has seen.
        fused: how many calls of each operator it has put in.
        quantizations: how many row quantizations those calls have taken the place of.
        accepted: how many replacements make use of each accepted difference.
        kept: fused norms that are also computed in plain code, as something else uses them.
        misses: what was not replaced.
    """

    graphs: int = 0
    fused: Counter[str] = field(default_factory=Counter)
    quantizations: int = 0
    accepted: Counter[str] = field(default_factory=Counter)
    kept: int = 0
    misses: list[Miss] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"graphs: {self.graphs}"]
        lines += [f"{operator}: {count}" for operator, count in sorted(self.fused.items())]
        lines += [f"row quantizations replaced: {self.quantizations}"] if self.quantizations else []
        lines += [f"accepted, {name}: {count}" for name, count in sorted(self.accepted.items())]
        lines += [f"norms also computed unfused: {self.kept}"] if self.kept else []
        for miss, count in Counter(self.misses).items():
            times = f" ({count} times)" if count > 1 else ""
            lines.append(f"not fused, {miss.operator} at {miss.where}: {miss.reason}{times}")
        return "\n".join(lines)


current = Report()


def report(*, reset: bool = False) -> Report:
    """What the pass did in this process since the last reset.

    Args:
        reset: start a new report; the one returned is complete and does not change any more.

    Returns:
        A `Report`; `str` gives it as text.
    """
    global current
    result = current
    if reset:
        current = Report()
    return result
