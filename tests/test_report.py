"""The pages of `anyfuse verify` and `anyfuse bench`: what stands in them. tests/test_browser.py opens them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from pages import FILES, bench_page, damaged, invoke, verify_page

from anyfuse._opspec import REGISTRY, OpSpec
from anyfuse._words import percent
from anyfuse.html.svg import Scale, power
from anyfuse.verify import matrix, plain, precision
from anyfuse.verify.element import number
from anyfuse.verify.examine import examine, snippet
from anyfuse.verify.page import error_names, ulp_names

EMA = "apply_fused_ema_adamw"
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Reads a page; notes its text, its ids, what it refers to, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.names: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.names.append(tag)
        if values.get("id"):
            self.ids.append(str(values["id"]))
        self.links += [str(values[key]) for key in ("href", "src", "srcset", "action") if key in values]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)


@pytest.fixture(scope="module")
def equal(tmp_path_factory: pytest.TempPathFactory) -> str:
    return verify_page(tmp_path_factory.mktemp("verify")).read_text()


@pytest.fixture(scope="module")
def different(tmp_path_factory: pytest.TempPathFactory) -> str:
    with damaged(EMA):
        return verify_page(tmp_path_factory.mktemp("verify"), status=1).read_text()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> str:
    return bench_page(tmp_path_factory.mktemp("bench")).read_text()


@pytest.mark.parametrize("name", ["equal", "different", "measured"])
def test_a_page_needs_nothing_else(name: str, request: pytest.FixtureRequest) -> None:
    text = request.getfixturevalue(name)
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert all(link == "data:," or (link[0] == "#" and link[1:] in page.ids) for link in page.links), page.links
    assert not re.search(r"@import|url\(|<script|\son\w+=", text)
    assert '<meta name="viewport"' in text and "prefers-color-scheme: dark" in text and "@media print" in text
    pictures = re.findall(r"<svg .*?</svg>", text, re.S)
    assert pictures and all('role="img"' in item and "<title>" in item and "<desc>" in item for item in pictures)
    assert len(text) < 1_000_000


# ---- verify ----


def test_equality_and_its_extent(equal: str) -> None:
    text = Page(equal).text
    assert "Every bit is equal" in text and "What differs" not in text
    assert "2 operators" in text and "✓ equal" in text and "✗" not in text
    assert "anyfuse" in text and torch.__version__ in text and "matmul target" in text


def test_distances_from_float64_are_shown(equal: str) -> None:
    (row,) = [item for item in precision.measure(REGISTRY[EMA]) if (item.dtype, item.output) == ("float32", "v")]
    counts = row.sides[precision.OURS]
    assert counts.elements > 20_000 and counts.ulp[0] + counts.ulp[1] > 0.99 * counts.elements
    assert f"{counts.ulp[1]:,} of {counts.elements:,}" in equal
    assert percent(counts.ulp[0], counts.elements) in Page(equal).text


def test_what_differs_can_be_copied(different: str) -> None:
    page = Page(different)
    assert "Bits differ" in page.text and "What differs" in page.text and "5 ulp" in page.text
    assert f"anyfuse verify {EMA} --backend native --target base --threads 1 --samples 1 --seed 3" in page.text
    assert "from anyfuse.verify.matrix import Way, results, sample" in page.text


def test_the_worst_elements_come_with_their_inputs(tmp_path: Path) -> None:
    with damaged(EMA):
        report = matrix.verify([REGISTRY[EMA]], matrix.ways([], ["base"], [1]), samples=1, seed=3)
        (found,) = examine(report.worst(9), "any", 9)
        call = matrix.sample(EMA, seed=3).arguments
        expected = matrix.results(EMA, call)
        got = matrix.results(EMA, call, report.rows[0].way)
    (output,) = found.outputs  # the memory of v says nothing more
    assert output.name == "v" and output.counts.max_ulp == 5 and output.counts.elements == 2
    worst = output.worst[0]
    assert worst.ulp == 5 and set(worst.given) == {"grad", "var", "m", "v", "s"}
    assert worst.expected == number(expected["v"][worst.index]) and worst.got == number(got["v"][worst.index])
    assert worst.given["grad"] == number(call["grad"][worst.index])


def test_the_python_of_a_mismatch_runs(different: str) -> None:
    """As it stands in the page, in a process of its own, where nothing is damaged and so nothing differs."""
    item = matrix.Mismatch(EMA, matrix.Way("native", "base", 1), 3, "", "")
    code = snippet(item, "any")
    assert f"<code>{code}</code>".replace('"', "&#34;") in different
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("bit_equal=True") == run.stdout.count("Comparison(") >= 8


def test_an_error_and_a_result_that_changes_are_told(tmp_path: Path) -> None:
    def fails(arguments: dict[str, Any]) -> None:
        raise RuntimeError("a <b>bold</b> error")

    with damaged(EMA, fails):
        text = verify_page(tmp_path, status=1).read_text()
        assert "a &lt;b&gt;bold&lt;/b&gt; error" in text and "<b>bold" not in text
    mismatch = matrix.Mismatch(EMA, matrix.Way("native", "base", 1), 3, "", "v: 1 of 9 elements differ", 1, 1)
    (found,) = examine([mismatch], "any", 1)
    assert found.outputs == [] and found.error == ""


def test_edge_cases_are_named_by_number(tmp_path: Path) -> None:
    assert matrix.sample(EMA, edge=1).label == list(REGISTRY[EMA].samples.edges())[1].label
    for arguments in ({}, {"seed": 1, "edge": 1}, {"edge": 999}):
        with pytest.raises(ValueError, match="accepted"):
            matrix.sample(EMA, **arguments)


def test_refused_calls_are_counted_apart(tmp_path: Path) -> None:
    text = Page(verify_page(tmp_path, "--soc", "KirinX90").read_text()).text
    assert "Every call is refused" in text and "Calls that KirinX90 refuses" in text and "✓ equal" not in text
    with damaged(EMA):
        report = matrix.verify([REGISTRY[EMA]], matrix.ways([], ["base"], [1]), samples=1, product="Ascend910B")
        (found,) = examine(report.worst(9), "Ascend910B", 9)
    assert found.command.endswith("--soc Ascend910B") and 'anyfuse.soc("Ascend910B")' in found.code


def test_unfused_calls_are_the_same_rule(spec: OpSpec) -> None:
    """Written another way, so not the same bits: everything within a thousandth of the exact result's largest value.
    An operator that rounds to codes may fall to the next code of a few elements."""
    function = spec.samples.unfused
    if function is None:
        return
    call = plain.everyday(spec, torch.float32, 0)
    expected = plain.call(spec, call)
    for name, got in zip(spec.outputs, function(dict(call)), strict=True):
        if expected[name].numel():
            apart = (got.double() - expected[name].double()).abs()
            limit = (
                1.0 if expected[name].dtype in (torch.int8, torch.uint8) else 1e-3 * float(expected[name].abs().max())
            )
            assert float(apart.max()) <= limit, name


def test_counts_of_distances() -> None:
    counts = precision.Counts()
    golden = torch.tensor([1.0, 1.0, 2.0, 2.0])
    out = torch.tensor([1.0, 1.0 + 2**-23, 2.0 + 5 * 2**-22, 4.0])
    counts.add(out, golden, None)
    assert counts.ulp == [1, 1, 0, 0, 1, 0, 0, 0, 1] and counts.max_ulp == 2**23 and counts.elements == 4
    assert counts.errors[0] == 1 and sum(counts.errors) == 4 and counts.max_error == pytest.approx(0.5)
    assert len(counts.ulp) == len(ulp_names()) and len(counts.errors) == len(error_names())


def test_numbers_are_given_with_their_bits() -> None:
    assert number(torch.tensor(0.1)) == "0.1 (0x3dcccccd)"
    assert number(torch.tensor(-1.0, dtype=torch.bfloat16)) == "-1.0 (0xbf80)"
    assert number(torch.tensor(-3, dtype=torch.int8)) == "-3" and number(torch.tensor(True)) == "True"


def test_no_share_is_a_false_zero_or_hundred() -> None:
    assert [percent(n, 10**6) for n in (0, 1, 10**6 - 1, 10**6, 5000, 123456)] == [
        "0 %", "<0.01 %", ">99.99 %", "100 %", "0.50 %", "12.3 %"
    ]  # fmt: skip


def test_scales_and_their_ticks() -> None:
    scale = Scale(1.0, 1000.0, 0.0, 30.0)
    assert [round(scale(v), 9) for v in (0.0, 1.0, 10.0, 1000.0, 1e9)] == [0.0, 0.0, 10.0, 30.0, 30.0]
    assert scale.ticks() == pytest.approx([1.0, 10.0, 100.0, 1000.0])
    assert Scale(0.6, 3.0, 0, 1).ticks() == pytest.approx([1.0, 2.0])
    assert power(1e-8) == "10⁻⁸"


# ---- bench ----


def test_bars_goals_and_machine(measured: str) -> None:
    text = Page(measured).text
    for result in [result for file in FILES for result in json.loads(file.read_text())["results"]]:
        assert result["case"] in text and all(peer["name"] in text for peer in result["peers"])
    assert "goals met" in text and "at least" in text and "GB/s" in text and "thread pool" in text


def test_the_roofline_has_every_case_with_a_stream(measured: str) -> None:
    results = [result for file in FILES for result in json.loads(file.read_text())["results"]]
    streams = [result for result in results if result["stream"] is not None]
    (picture,) = re.findall(r"<svg [^>]*><title>Roofline.*?</svg>", measured, re.S)
    assert picture.count('<circle class="ours"') == picture.count('<circle class="hollow"') == len(streams)


def test_the_history_joins_runs_of_one_machine(measured: str) -> None:
    """bench_page adds an older run of the first file, and one of another machine."""
    text = Page(measured).text
    assert "2026-01-02" in text and "Another CPU" in text
    results = json.loads(FILES[0].read_text())["results"]
    pictures = re.findall(r"<svg [^>]*><title>History.*?</svg>", measured, re.S)
    assert len(pictures) == len(results)
    assert pictures[0].count('<circle class="ours"') == 2


def test_a_run_and_its_history(tmp_path: Path) -> None:
    words = (
        EMA,
        "--quick",
        "--case",
        "16 elements",
        "--rounds",
        "3",
        "--spread-limit",
        "1e9",
        "--neighbour-limit",
        "1",
    )
    first, page = tmp_path / "first.json", tmp_path / "page.html"
    assert invoke("bench", *words, "--out", str(first)).exit_code == 0
    run = invoke("bench", *words, "--report", str(page), "--history", str(first), "--json")
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["results"][0]["case"] == "16 elements"
    text = Page(page.read_text()).text
    assert "2 runs" in text and "The newest run was a quick one" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.json", "page.html"]


def test_files_that_are_no_results(tmp_path: Path) -> None:
    page = str(tmp_path / "page.html")
    (tmp_path / "other.json").write_text('{"schema": "other"}')
    (tmp_path / "empty").mkdir()
    run = invoke("bench", "--no-run", "--report", page, "--history", str(tmp_path / "empty"))
    assert "empty holds none" in str(run.exception)
    run = invoke("bench", "--no-run", "--report", page, "--history", str(tmp_path / "other.json"))
    assert isinstance(run.exception, ValueError) and "other.json is no results file" in str(run.exception)
    (tmp_path / "good.json").write_bytes(FILES[0].read_bytes())
    run = invoke("bench", "--no-run", "--report", page, "--history", str(tmp_path))
    assert run.exit_code == 0 and "other.json is left out" in run.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--no-run",), "name it by --report"),
        (("--history", "x"), "name it by --report"),
        (("--no-run", "--report", "r.html"), "needs results"),
        (("--no-run", "--report", "r.html", "--out", "o.json"), "times nothing"),
        (("--report", "r.html", "--history", "nowhere"), "nowhere does not exist"),
    ],
)
def test_what_cannot_be_meant(words: tuple[str, ...], message: str) -> None:
    run = invoke("bench", *words)
    assert run.exception is not None and message in str(run.exception)


@pytest.mark.parametrize("command", [("verify", "lazy_adam"), ("bench", "lazy_adam")])
def test_a_page_that_cannot_be_written_is_refused_first(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*arguments: Any, **options: Any) -> None:
        raise AssertionError("the work began")

    replaced: tuple[tuple[str, Callable[..., Any]], ...] = (
        ("anyfuse.verify.matrix.verify", unreachable),
        ("anyfuse.bench.measure.measure", unreachable),
    )
    for name, function in replaced:
        monkeypatch.setattr(name, function)
    run = invoke(*command, "--report", str(tmp_path))
    assert isinstance(run.exception, IsADirectoryError)
