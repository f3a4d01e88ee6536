"""Numbers and facts as people read them, in the terminal and on pages."""

from __future__ import annotations


def short(count: int) -> str:
    """A count in few characters: 12.3M."""
    value, unit = float(count), ""
    for larger in ("k", "M", "G", "T"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f}{unit}" if unit else str(count)


def duration(ns: float) -> str:
    """A time in three digits: 1.07 ms."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.3g} ns"


def percent(part: float, whole: float = 1.0) -> str:
    """A share in few characters, of which none is a false 0 or 100: "<0.01 %", "99.98 %"."""
    share = 100 * part / whole if whole else 0.0
    if share in (0.0, 100.0):
        return f"{share:.0f} %"
    if share < 0.01:
        return "<0.01 %"
    if share > 99.99:
        return ">99.99 %"
    return f"{share:.2f} %" if share < 1 or share > 99 else f"{share:.1f} %"


def words(value: object) -> str:
    """A fact of `_machine`, for people."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "none" if value is None else str(value)
