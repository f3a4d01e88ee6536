"""The documents tell what is: their code runs, their figures agree, their links lead somewhere."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import blocks
import pytest
import typer

import anyfuse
from anyfuse._opspec import REGISTRY, OpSpec
from anyfuse_cli.app import app

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
READMES = {"en": ROOT / "README.md", "zh": ROOT / "README.zh-CN.md"}
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
PAGES = sorted({*DOCS.rglob("*.md"), *READMES.values(), *ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md"})


def site_module(name: str) -> ModuleType:
    """A module of docs/_site, as mkdocs imports it: its folder is on the path meanwhile."""
    sys.path.insert(0, str(DOCS / "_site"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


# ---- code ----


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_every_block_of_a_tutorial_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.stem == "w8a8-model":
        pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    assert blocks.run(page, tmp_path) >= 2


@pytest.mark.parametrize("language", READMES)
def test_readme_examples_run(language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert blocks.run(READMES[language], tmp_path, every=False, python=True) >= 2


MARKED = [page for page in PAGES if page not in TUTORIALS and "<!-- run -->" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", MARKED, ids=lambda page: page.stem)
def test_marked_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert blocks.run(page, tmp_path, every=False) >= 1


def test_blocks_fail_where_a_page_is_wrong(tmp_path: Path) -> None:
    for text in ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "```bash\nanyfuse case run .\n```\n", "```js\n```\n"):
        page = tmp_path / "page.md"
        page.write_text(text)
        with pytest.raises(AssertionError):
            blocks.run(page, tmp_path)


def public_modules() -> Iterator[ModuleType]:
    """The package's modules, but private ones and those that need a GPU's compiler."""
    for module in pkgutil.walk_packages(anyfuse.__path__, "anyfuse."):
        if "._" not in module.name and not module.name.startswith("anyfuse.triton"):
            yield importlib.import_module(module.name)


def test_examples_of_docstrings() -> None:
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    with_examples = set()
    for module in public_modules():
        for test in finder.find(module):
            if test.examples:
                runner.run(test)
                with_examples.add(test.name.rpartition(".")[2])
    assert runner.failures == 0
    assert {spec.function.__name__ for spec in REGISTRY.values()} <= with_examples


def test_docstrings_describe_every_argument(spec: OpSpec) -> None:
    docstring = inspect.getdoc(spec.function)
    assert docstring is not None
    section = re.search(r"^Args:\n(.*?)\n\n", docstring, re.DOTALL | re.MULTILINE)
    assert section is not None
    described = re.findall(r"^    (\w+(?:, \w+)*): ", section[1], re.MULTILINE)
    names = [name for group in described for name in group.split(", ")]
    assert sorted(names) == sorted(inspect.signature(spec.function).parameters)


# ---- names ----

FILES = ("anyfuse.h", "anyfuse.safetensors")
NAME = re.compile(r"(?<![\w/.-])anyfuse(?:\.[A-Za-z_]\w*)+")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_on_pages_exist(page: Path) -> None:
    for name in NAME.findall(page.read_text(encoding="utf-8")):
        if name in FILES or name.startswith("anyfuse.triton."):  # which only imports beside its compiler
            continue
        owner: Any = importlib.import_module("anyfuse")
        parts = name.split(".")[1:]
        for i, part in enumerate(parts):
            module = ".".join(["anyfuse", *parts[: i + 1]])
            owner = getattr(owner, part) if hasattr(owner, part) else importlib.import_module(module)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_on_pages_exist(page: Path) -> None:
    """Commands and their options, in blocks and in running text."""
    text = page.read_text(encoding="utf-8")
    written = [block.code for block in blocks.blocks(text) if block.language == "bash"]
    written += re.findall(r"`(anyfuse [^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    for words in re.findall(r"(?<![\w/.-])anyfuse ([a-z][^\n#&|)]*)", "\n".join(written)):
        command: Any = typer.main.get_command(app)
        for word in words.split():
            if word in getattr(command, "commands", {}):
                command = command.commands[word]
        assert command.name in words.split(), words
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        if not command.context_settings.get("ignore_unknown_options"):  # sizes of a case, options of a script
            assert set(re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", words)) <= {*known, "--help"}, words


# ---- figures ----


def numbers(text: str) -> list[str]:
    """Those of a figure, but not those in names of things (`7-bit` counts, `fp32` does not)."""
    return re.findall(r"(?<![\w.])\d+(?:\.\d+)*", re.sub(r"`[^`]*`", "", text))


def test_figures_stand_in_both_readmes() -> None:
    figures = site_module("site_figures")
    for language, path in READMES.items():
        text = path.read_text(encoding="utf-8")
        assert figures.filled(text, language) == text, "run: python docs/_site/site_figures.py"
        assert figures.table(language) in text


def test_figures_are_those_of_the_measured_facts() -> None:
    facts: dict[str, list[str]] = defaultdict(list)
    text = (DOCS / "measured-facts.md").read_text(encoding="utf-8")
    for name, figures in re.findall(r"^\| (.+?) \| (.+) \|$", text, re.MULTILINE):
        facts[name] += numbers(figures)
    for row in site_module("site_figures").SOURCE["rows"]:
        assert row["operator"] in REGISTRY
        assert sorted(numbers(row["figure"]["en"])) == sorted(numbers(row["figure"]["zh"]))
        assert set(numbers(row["figure"]["en"])) <= {*numbers(row["fact"]), *facts[row["fact"]]}, row["fact"]


@pytest.mark.parametrize("language", READMES)
def test_readme_shows_every_operator(language: str, spec: OpSpec) -> None:
    text = READMES[language].read_text(encoding="utf-8")
    name = spec.function.__name__
    assert re.search(rf"^\| `{name}` \|", text, re.MULTILINE)
    assert any(f"anyfuse.{name}(" in block.code for block in blocks.blocks(text) if block.language == "python")


def test_readmes_have_the_same_parts() -> None:
    """The same code but for its comments, links to the same places, as many headings and rows."""
    english, chinese = (path.read_text(encoding="utf-8") for path in READMES.values())

    def code(text: str) -> list[str]:
        return [re.sub(r" *#.*", "", block.code) for block in blocks.blocks(text)]

    assert code(english) == code(chinese)
    between = {"README.md", "README.zh-CN.md"}
    assert sorted(set(links(english)) - between) == sorted(set(links(chinese)) - between)
    for start in ("#", "|", "- "):
        count = [sum(line.startswith(start) for line in text.splitlines()) for text in (english, chinese)]
        assert count[0] == count[1], start


# ---- links ----


def links(text: str) -> list[str]:
    plain = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", plain) if "://" not in target]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    """On the page as it lies in the repository; the same links on the site are checked there."""
    for target in links(page.read_text(encoding="utf-8")):
        assert (page.parent / target.partition("#")[0]).exists(), target


# ---- the cases that users met ----

CASE_ROW = re.compile(r"^\| ([OQ]\d+) \| .+ \((.+)\) \| `(test_\w+\.py)::(test_\w+)` \|$", re.MULTILINE)


def test_cases_have_their_tests_and_tests_their_cases() -> None:
    """Each case of docs/cases.md names a test that there is; every case in a test's name stands there once."""
    rows = CASE_ROW.findall((DOCS / "cases.md").read_text(encoding="utf-8"))
    cases = [case for case, *_ in rows]
    assert len(cases) == len(set(cases)) > 60
    found: dict[str, set[str]] = defaultdict(set)
    numbered = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        for name in re.findall(r"^def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE):
            found[path.name].add(name)
            assert not re.search(r"case_\d", name), f"{name}: of which list?"
            numbered |= {number.upper() for number in re.findall(r"(?<=_)[oq]\d+(?=_)", name) if "_case_" in name}
    assert numbered <= set(cases)
    for case, source, file, name in rows:
        assert name in found[file], f"{case}: {file}::{name}"
        assert "](https://github.com/" in source or source.startswith("derived"), case
        if "_case_" in name:
            assert f"_{case.lower()}_" in name, case


def test_case_numbers_on_pages_are_cases() -> None:
    known = {case for case, *_ in CASE_ROW.findall((DOCS / "cases.md").read_text(encoding="utf-8"))}
    for page in PAGES:
        assert set(re.findall(r"\b[OQ]\d+\b", page.read_text(encoding="utf-8"))) <= known, page.name
