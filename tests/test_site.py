"""The documentation site: it builds without a warning, holds what it should, and needs no network."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from pages import built_site

from anyfuse._opspec import REGISTRY, OpSpec

pytest.importorskip("mkdocs_autorefs", reason="mkdocs is in the extras docs and test")

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory.mktemp("site"))


class Page(HTMLParser):
    """What a built page refers to, loads by itself, and can be referred to by."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values: dict[str, Any] = dict(attrs)
        self.anchors |= {values[key] for key in ("id", "name") if values.get(key)}
        if values.get("href"):
            (self.loads if tag == "link" else self.links).append(values["href"])
        if values.get("src"):
            self.loads.append(values["src"])


def test_site_leads_nowhere_wrong(site: Path) -> None:
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    for path, page in pages.items():
        if path.name == "404.html":  # its links begin at the root of wherever the site lies
            continue
        for target in (*page.links, *page.loads):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = unquote(target).partition("#")
            file = (path.parent / name).resolve() if name else path
            assert file.exists(), f"{path.name}: {target}"
            if anchor and file in pages and not anchor.startswith("__"):
                assert anchor in pages[file].anchors, f"{path.name}: {target}"


def test_links_to_files_with_a_page_lead_to_it(site: Path) -> None:
    """Links of the repository's pages that leave docs: to an operator, a module, the benchmarks; others are words."""
    for page, target in (
        ("tutorials/8bit-training.html", "../operators/apply_adam_w_quant.html"),
        ("tutorials/aclnn-c.html", "../reference/anyfuse.aclnn.html"),
        ("index.html", "operators/index.html"),
        ("index.html", "benchmarks.html"),
    ):
        assert target in Page(site / page).links
    for path in site.rglob("*.html"):
        assert not [link for link in Page(path).links if re.match(r"[./]*(?:src|tests|csrc|examples)/", link)], (
            path.name
        )


def test_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert not [target for target in Page(path).loads if re.match(r"(https?:)?//", target)], path.name
    for path in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*['\"]?(?:https?:)?//", path.read_text("utf-8")), path.name
    assert list(site.glob("search/search_index.js*"))


def test_site_has_a_page_for_each_operator(site: Path, spec: OpSpec) -> None:
    page = Page(site / "operators" / f"{spec.name}.html")
    assert page.text.count('<table class="maths">') >= 1
    for name in inspect.signature(spec.function).parameters:
        assert name in page.text
    assert f"anyfuse_{spec.name}" in page.text


def test_site_has_every_command(site: Path) -> None:
    text = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    for name in ("verify", "demo", "acl-config", "run", "quantize", "eval", "info", "bench", "case gen"):
        assert f"anyfuse {name}" in text


def test_site_can_be_searched(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    pages = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {f"operators/{name}.html" for name in REGISTRY} <= pages


def test_formulas_are_set(spec: OpSpec) -> None:
    """The words of a docstring's formulas all stand in the typeset ones; letters, powers and roots are set."""
    sys.path.insert(0, str(ROOT / "docs" / "_site"))
    try:
        maths = importlib.import_module("site_maths")
    finally:
        sys.path.pop(0)
    module = inspect.getmodule(spec.function)
    assert module is not None and module.__doc__ is not None
    text = re.sub(r"<[^>]+>", "", maths.markdown(module.__doc__))
    for line in re.findall(r"^    \s*(.* = .*)$", module.__doc__, re.MULTILINE):
        for word in re.findall(r"\b(?:var|grad|lr|norm|scale|acc|moved)\b", line):
            assert word in text
    assert maths.typeset("beta1^t - sqrt(v')") == "β<sub>1</sub><sup>t</sup> − √(v′)"
