"""Results: one schema for every file, a table for people."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .._console import duration
from .._console import show as show_table

SCHEMA_NAME = "anyfuse-bench/1"

_NUMBER = (int, float)
_MAYBE = (int, float, type(None))
_TIMES = {
    "median_s": _NUMBER,
    "best_s": _NUMBER,
    "spread": _NUMBER,
    "first_call_s": _NUMBER,
    "rounds": int,
    "calls_a_round": int,
    "ns_per_unit": _NUMBER,
}
_GOAL = {"figure": str, "least": _MAYBE, "most": _MAYBE, "aim": _MAYBE, "got": _MAYBE, "verdict": str}
_PEER = {
    "name": str, "package": str, "version": (str, type(None)), "status": str, "times": (_TIMES, None),
    "ratio": ({"median": _NUMBER, "spread": _NUMBER}, None), "accuracy": (dict, type(None)),
}  # fmt: skip
#: Field -> type, tuple of types, a nested schema, [schema of each item], or (schema, None) for one that may be null.
SCHEMA: dict[str, Any] = {
    "schema": str,
    "date": str,
    "machine": dict,
    "settings": {
        "rounds": int, "threads": int, "spread_limit": _NUMBER, "neighbour_limit": _NUMBER,
        "peers": bool, "quick": bool,
    },
    "conclusive": bool,
    "results": [
        {
            "operator": str, "case": str, "unit": str, "units": int, "equality": str,
            "accuracy": (dict, type(None)), "bytes": _MAYBE,
            "ours": {**_TIMES, "gb_per_s": _MAYBE},
            "stream": ({"variant": str, **_TIMES, "gb_per_s": _NUMBER, "of_stream": _NUMBER}, None),
            "transient_kib": _MAYBE, "neighbours": _MAYBE, "peers": [_PEER], "goals": [_GOAL],
            "noisy": [str], "conclusive": bool,
        }
    ],
}  # fmt: skip


def validate(value: Any, schema: Any = SCHEMA, where: str = "report") -> None:
    """ValueError, naming the place, unless the value has exactly the fields and types of the schema."""
    if isinstance(schema, tuple) and isinstance(schema[0], dict):
        if value is not None:
            validate(value, schema[0], where)
    elif isinstance(schema, dict):
        if not isinstance(value, dict) or value.keys() != schema.keys():
            raise ValueError(
                f"{where} has {sorted(value) if isinstance(value, dict) else value!r}; accepted: {sorted(schema)}"
            )
        for name, inner in schema.items():
            validate(value[name], inner, f"{where}.{name}")
    elif isinstance(schema, list):
        if not isinstance(value, list):
            raise ValueError(f"{where} is a {type(value).__name__}; accepted: a list")
        for i, item in enumerate(value):
            validate(item, schema[0], f"{where}[{i}]")
    elif not isinstance(value, schema) or (isinstance(value, bool) and schema is not bool):
        raise ValueError(f"{where} is {value!r}; accepted: {schema}")


def assemble(machine: Mapping[str, Any], settings: Mapping[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    report = {
        "schema": SCHEMA_NAME,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": dict(machine),
        "settings": dict(settings),
        "conclusive": all(result["conclusive"] for result in results),
        "results": results,
    }
    validate(report)
    return report


def write(report: dict[str, Any], path: Path) -> None:
    """Writes a results file, whole or not at all."""
    validate(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    beside.write_text(json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    os.replace(beside, path)


# ---- for people ----


def show(result: dict[str, Any], console: Console) -> None:
    """One case: our line, the roofline, the peers, the goals."""
    table = Table(title=f"{result['operator']}: {result['case']}", title_justify="left", box=None, pad_edge=False)
    table.add_column("side", no_wrap=True)
    for heading in (f"a {result['unit']}", "spread", "first call", "GB/s", "time / ours"):
        table.add_column(heading, justify="right", no_wrap=True)
    ours, stream = result["ours"], result["stream"]
    table.add_row("[bold]anyfuse[/]", *_line(ours, ours["gb_per_s"]), "1.00")
    if stream is not None:
        table.add_row("[dim]memory alone[/]", *_line(stream, stream["gb_per_s"]), f"{stream['of_stream']:.2f}")
    for peer in result["peers"]:
        if peer["times"] is not None:
            table.add_row(peer["name"], *_line(peer["times"], None), f"{peer['ratio']['median']:.2f}")
    show_table(table, console)
    for peer in ({"name": "anyfuse", **result, "times": ours}, *result["peers"]):
        if peer["times"] is None:
            console.print(f"  [yellow]{peer['name']} {peer['status']}[/]")
        elif peer["accuracy"]:
            accuracy = ", ".join(f"{key} {_short(value)}" for key, value in peer["accuracy"].items())
            console.print(f"  {peer['name']}: {accuracy}")
    for goal in result["goals"]:
        console.print("  " + _goal(goal))
    if result["transient_kib"] is not None:
        console.print(f"  transient memory {result['transient_kib']:.0f} KiB")
    if result["noisy"]:
        console.print(f"  [red]inconclusive: too noisy ({', '.join(result['noisy'])}); run again on a quiet machine[/]")
    console.print()


def _line(times: dict[str, Any], rate: float | None) -> tuple[str, str, str, str]:
    return (
        duration(times["ns_per_unit"]),
        f"{times['spread'] * 100:.0f} %",
        duration(times["first_call_s"] * 1e9),
        "" if rate is None else f"{rate:.1f}",
    )


def _goal(goal: dict[str, Any]) -> str:
    want = f"at least {goal['least']:g}" if goal["least"] is not None else f"at most {goal['most']:g}"
    aim = "" if goal["aim"] is None else f", aim {goal['aim']:g}"
    got = "none" if goal["got"] is None else f"{goal['got']:.3g}"
    color = {"met": "green", "aim met": "green", "missed": "red"}.get(goal["verdict"], "yellow")
    return f"{goal['figure']}: {got} ({want}{aim}): [{color}]{goal['verdict']}[/]"


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
