"""Results files: one schema, written whole or not at all, read with its fields checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .._saving import write_file

SCHEMA_NAME = "anyfuse-bench/1"

Run = dict[str, Any]  # a results file, or a run that is not yet one

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
    write_file(path, (json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read(paths: Iterable[Path], say: Callable[[str], None]) -> list[Run]:
    """Results files, and those in folders. ValueError for a file that is none; `say` names those that a folder holds
    beside them."""
    runs = []
    for path in paths:
        names = sorted(path.glob("*.json")) if path.is_dir() else [path]
        for name in names:
            try:
                content = json.loads(name.read_text(encoding="utf-8"))
                if not isinstance(content, dict) or content.get("schema") != SCHEMA_NAME:
                    raise ValueError(f"its schema is not {SCHEMA_NAME}")
                validate(content)
                runs.append(content)
            except ValueError as error:
                if not path.is_dir():
                    raise ValueError(f"{name} is no results file of `anyfuse bench`: {error}") from None
                say(f"{name} is left out: {error}")
    return runs
