"""The pages that test_report.py and test_site.py read and test_browser.py opens."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from typer.testing import CliRunner

from anyfuse._opspec import REGISTRY
from anyfuse._settings import use_reference
from anyfuse.bench.results import SCHEMA_NAME
from anyfuse.samples.draw import Draw
from anyfuse.samples.kinds import Sample
from anyfuse_cli.app import app

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
FILES = [path for path in sorted(RESULTS.glob("*.json")) if json.loads(path.read_text()).get("schema") == SCHEMA_NAME]


def invoke(*words: str) -> Any:
    return CliRunner().invoke(app, words)


def wrong_bits(arguments: dict[str, Any]) -> None:
    """Moves two elements of v, by 2 and by 5 representable values."""
    bits = arguments["v"].view(torch.int32)
    bits[0, 1] += 2
    bits[2, 4] += 5


@contextmanager
def damaged(name: str, damage: Callable[[dict[str, Any]], None] = wrong_bits) -> Iterator[None]:
    """An operator of five tensors whose native results are damaged, on random calls of one shape."""
    spec = REGISTRY[name]

    @functools.wraps(spec.function)
    def function(**arguments: Any) -> Any:
        results = spec.function(**arguments)
        if not use_reference() and arguments["v"].shape == (3, 5):
            damage(arguments)
        return results

    def draw(source: Draw) -> Sample:
        tensors = {name: source.normal((3, 5)).abs() for name in ("grad", "var", "m", "v", "s")}
        return Sample("three rows of five", {**tensors, "step": 1})

    samples = dataclasses.replace(spec.samples, draw=draw, edges=tuple)
    REGISTRY[name] = dataclasses.replace(spec, function=function, load=lambda name: samples)
    try:
        yield
    finally:
        REGISTRY[name] = spec


def verify_page(directory: Path, *words: str, status: int = 0) -> Path:
    page = directory / "verify.html"
    options = ("--samples", "2", "--seed", "3", "--threads", "1", "--target", "base", "--report", str(page), *words)
    run = invoke("verify", "apply_fused_ema_adamw", "lazy_adam", *options)
    assert run.exit_code == status, run.output
    return page


def bench_page(directory: Path) -> Path:
    """Of the results files of this repository, an older run of the first one, and one of another machine."""
    for name, date, cpu in (("old", "2026-01-02", None), ("other", "2026-01-03", "Another CPU")):
        run = json.loads(FILES[0].read_text())
        run["date"] = f"{date}T00:00:00+00:00"
        run["machine"]["cpu"] = cpu or run["machine"]["cpu"]
        (directory / f"{name}.json").write_text(json.dumps(run))
    page = directory / "bench.html"
    history = [word for path in (*FILES, directory) for word in ("--history", str(path))]
    run = invoke("bench", "--no-run", "--report", str(page), *history)
    assert run.exit_code == 0, run.output
    return page


def built_site(folder: Path) -> Path:
    """The documentation site, built as `mkdocs build --strict` does."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    level = logging.getLogger("mkdocs").level
    config = load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(folder))
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    logging.getLogger("mkdocs").setLevel(level)
    return folder
