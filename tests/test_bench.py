"""The benchmark command: it runs, its files keep to their schema, and it concludes nothing from noise."""

from __future__ import annotations

import copy
import json
import runpy
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

import anyfuse
from anyfuse import bench
from anyfuse.bench import results as files
from anyfuse.bench import stream
from anyfuse.bench.case import READ, UPDATE, WRITE, Array, Case, Goal, Peer, Runner, Traffic, Work
from anyfuse.bench.measure import OURS, Settings, check_equal, conclude, measure, start
from anyfuse.bench.timing import Neighbours, Timing, interleave, ratios, spread
from anyfuse_cli.app import app

EMA = anyfuse._REGISTRY["apply_fused_ema_adamw"]
ANY_SPREAD = ["--spread-limit", "1e9", "--neighbour-limit", "1"]


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["bench", *arguments], catch_exceptions=False)


def lacking() -> Runner:
    raise ModuleNotFoundError("No module named 'nothing_like_it'")


def broken() -> Runner:
    raise OSError("no compiler\nsecond line")


def case_of(timings: dict[str, Timing], goals: tuple[Goal, ...], **settings: Any) -> dict[str, Any]:
    """What is concluded from given timings of us and of a peer."""
    peer = Peer("peer", lambda: Runner(lambda: None))
    work = Work(ours=Runner(lambda: None), units=100, unit="row", sample={}, peers=(peer,))
    case = Case("case", lambda quick: work, goals)
    return conclude("operator", case, work, [(peer, peer.start())], timings, Settings(**settings))


# ---- timing ----


def test_spread_is_the_middle_half_over_the_median() -> None:
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2.0 / 3.0)
    assert spread([2.0] * 9) == 0.0
    assert spread([1.0] * 8 + [50.0]) == 0.0  # one disturbed round is no noise


def test_rounds_take_all_sides_in_turn_and_do_not_time_the_preparation() -> None:
    now = [0.0]
    log: list[str] = []

    def side(name: str, seconds: float) -> None:
        log.append(name)
        now[0] += seconds

    def prepare() -> None:
        now[0] += 1000.0

    runners = {"a": Runner(partial(side, "a", 0.5)), "b": Runner(partial(side, "b", 2.0), prepare=prepare)}
    timings = interleave(runners, {"a": 9.0, "b": 8.0}, rounds=3, clock=lambda: now[0])
    assert timings["a"].times == [0.5] * 3 and timings["b"].times == [2.0] * 3
    assert timings["a"].first == 9.0
    assert log == [*"aabb", *"ab", *"ba", *"ab"]
    assert ratios(timings["a"], timings["b"]) == [4.0] * 3


def test_short_calls_are_repeated_within_a_sample() -> None:
    now = [0.0]

    def tick() -> None:
        now[0] += 1e-5

    timing = interleave({"a": Runner(tick)}, {"a": 0.0}, rounds=2, clock=lambda: now[0])["a"]
    assert timing.repeats in (200, 201)
    assert timing.times == pytest.approx([1e-5] * 2)


# ---- conclusions ----

STEADY = {OURS: Timing(0.1, [1.0] * 7), "peer": Timing(0.2, [3.0] * 7)}
SCATTERED = {OURS: Timing(0.1, [1.0] * 7), "peer": Timing(0.2, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])}
RATIO = Goal("ratio peer", least=2.0, aim=4.0)


def test_a_quiet_run_judges_its_goals() -> None:
    goals = (RATIO, Goal("ratio peer", least=5.0), Goal("ratio peer", least=1.0, aim=2.5), Goal("us a call", most=2e6))
    result = case_of(STEADY, goals)
    assert [goal["verdict"] for goal in result["goals"]] == ["met", "missed", "aim met", "met"]
    assert result["conclusive"] and result["peers"][0]["ratio"] == {"median": 3.0, "spread": 0.0}
    assert result["ours"]["ns_per_unit"] == 1e9 / 100


def test_a_noisy_run_is_refused() -> None:
    result = case_of(SCATTERED, (RATIO, Goal("us a call", most=2e6)))
    assert not result["conclusive"] and result["noisy"] == ["peer"]
    assert [goal["verdict"] for goal in result["goals"]] == ["inconclusive: too noisy", "met"]
    whole = files.assemble({"cpu": "x"}, asdict(Settings()), [result])
    assert whole["conclusive"] is False


def test_busy_neighbours_are_refused_however_steady_the_rounds() -> None:
    peer = Peer("peer", lambda: Runner(lambda: None))
    work = Work(ours=Runner(lambda: None), units=100, unit="row", sample={}, peers=(peer,))
    case = Case("case", lambda quick: work, (RATIO, Goal("transient KiB", most=1024)))
    judged = {
        share: conclude("operator", case, work, [(peer, peer.start())], STEADY, Settings(), 3.0, share)
        for share in (None, 0.05, 0.4)
    }
    assert judged[None]["conclusive"] and judged[0.05]["conclusive"] and not judged[0.4]["conclusive"]
    assert [goal["verdict"] for goal in judged[0.4]["goals"]] == ["inconclusive: too noisy", "met"]
    assert judged[0.4]["noisy"] == ["other processes took 40% of the processors"]


def test_the_share_of_other_processes_is_between_none_and_all() -> None:
    with Neighbours() as neighbours:
        time.sleep(0.05)
    assert neighbours.share is None or 0.0 <= neighbours.share <= 1.0


def test_the_spread_limit_decides_what_is_noisy() -> None:
    assert case_of(SCATTERED, (), spread_limit=0.8)["conclusive"]
    assert not case_of(SCATTERED, (), spread_limit=0.7)["conclusive"]


def test_a_quick_run_judges_nothing() -> None:
    assert case_of(STEADY, (RATIO,), quick=True)["goals"][0]["verdict"] == "not judged: quick run"


def test_a_noisy_run_ends_with_its_own_exit_status(tmp_path: Path) -> None:
    file = tmp_path / "noisy.json"
    run = invoke(
        EMA.name, "--quick", "--case", "16 elements", "--rounds", "4", "--spread-limit", "-1", "--out", str(file)
    )
    assert run.exit_code == 3 and "no conclusion" in run.output
    assert json.loads(file.read_text())["conclusive"] is False


# ---- peers ----


def test_missing_and_failing_peers_are_reported() -> None:
    assert start(Peer("x", lacking)) == "missing: ModuleNotFoundError: No module named 'nothing_like_it'"
    assert start(Peer("x", broken)) == "failed: OSError: no compiler"

    def late() -> None:
        raise RuntimeError("only when called")

    peers = (
        Peer("absent", lacking, "nothing-like-it"),
        Peer("late", lambda: Runner(late)),
        Peer("there", lambda: Runner(list)),
    )
    work = Work(ours=Runner(list), units=1, unit="call", sample=sample(), peers=peers)
    result = measure(EMA, Case("case", lambda quick: work), Settings(rounds=3, spread_limit=1e9, neighbour_limit=1))
    absent, failing, there = result["peers"]
    assert absent["status"].startswith("missing: ") and absent["times"] is None and absent["version"] is None
    assert failing["status"] == "failed: RuntimeError: only when called"
    assert there["status"] == "measured" and there["times"]["rounds"] == 3


# ---- equality before time ----


def sample() -> dict[str, Any]:
    tensors = {name: torch.rand(100) for name in ("grad", "var", "m", "v", "s")}
    return {**tensors, "step": 3}


def test_equality_with_the_reference_is_checked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    check_equal(EMA, sample())

    def wrong(**arguments: Any) -> Any:
        results = EMA.function(**arguments)
        if not anyfuse._settings.use_reference():
            arguments["s"][7] += 1
        return results

    spec = copy.copy(EMA)
    object.__setattr__(spec, "function", wrong)
    with pytest.raises(RuntimeError, match="differ from the reference"):
        check_equal(spec, sample())


# ---- the stream ----


def test_streams_touch_every_byte_of_their_pattern() -> None:
    traffic = Traffic((Array(4, READ), Array(2, UPDATE), Array(1, WRITE)), units=stream.GRANULE * 2)
    assert traffic.bytes == stream.GRANULE * 2 * (4 + 2 * 2 + 1)
    found = stream.variants(traffic)
    assert len(found) == 2 * len(stream.TILES)
    for runner in found.values():
        runner.run()
        read, updated, written = (tensor.view(torch.uint8) for tensor in runner.run.__defaults__[0][0])
        assert bool((read[: traffic.units * 4] == 1).all())
        assert bool((written[: traffic.units] == 0).all())  # the sum of equal lines, an even number of them
    words = updated[: traffic.units * 2].view(torch.int32)
    assert bool((words == words[0]).all()) and int(words[0]) in (0x01010101, 0x01010100)


def test_streams_of_rows_touch_the_rows_of_the_index_alone() -> None:
    index = torch.tensor([3, 0, 6])
    traffic = Traffic((Array(64, UPDATE, rows=True),), units=3, index=index, table_rows=8)
    (runner,) = stream.variants(traffic).values()
    runner.run()
    table = runner.run.__defaults__[0][0][0][: 8 * 64].view(torch.int32).view(8, 16)
    assert [bool((row == 0x01010100).all()) for row in table] == [i in (0, 3, 6) for i in range(8)]
    assert bool((table[[1, 2, 4, 5, 7]] == 0x01010101).all())


# ---- the command ----


def test_every_operator_has_cases() -> None:
    for operator in anyfuse._REGISTRY:
        names = [case.name for case in bench.cases(operator)]
        assert names and len(set(names)) == len(names), operator
    assert bench.cases("no_such_operator") == ()


def test_a_quick_run_writes_a_result_file_and_a_plot(tmp_path: Path) -> None:
    file, picture = tmp_path / "results" / "quick.json", tmp_path / "quick.png"
    run = invoke(
        EMA.name,
        "--quick",
        "--rounds",
        "3",
        "--threads",
        str(torch.get_num_threads()),
        *ANY_SPREAD,
        "--out",
        str(file),
        "--plot",
        str(picture),
    )
    assert run.exit_code == 0, run.output
    results = json.loads(file.read_text())
    files.validate(results)
    assert results["schema"] == files.SCHEMA_NAME and results["machine"]["anyfuse"] == anyfuse.__version__
    assert [result["case"] for result in results["results"]] == [case.name for case in bench.cases(EMA.name)]
    first = results["results"][0]
    assert first["stream"]["gb_per_s"] > 0 and first["transient_kib"] is not None
    assert {peer["name"] for peer in first["peers"]} == {
        peer.name for peer in bench.cases(EMA.name)[0].work(True).peers
    }
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_the_schema_refuses_other_reports(tmp_path: Path) -> None:
    file = tmp_path / "quick.json"
    invoke(EMA.name, "--quick", "--case", "16 elements", "--rounds", "3", *ANY_SPREAD, "--out", str(file))
    results = json.loads(file.read_text())
    for change, where in (
        (lambda r: r.pop("date"), "report has"),
        (lambda r: r["results"][0].update(more=1), r"results\[0\] has"),
        (lambda r: r["results"][0]["ours"].update(median_s="fast"), "median_s is 'fast'"),
        (lambda r: r["settings"].update(rounds=True), "rounds is True"),
        (lambda r: r.update(results={}), "results is a dict"),
    ):
        other = copy.deepcopy(results)
        change(other)
        with pytest.raises(ValueError, match=where):
            files.write(other, tmp_path / "other.json")
    assert not (tmp_path / "other.json").exists()


def test_unknown_operators_and_cases_are_errors() -> None:
    with pytest.raises(ValueError, match="'nothing' is unknown"):
        invoke("nothing")
    with pytest.raises(ValueError, match="no benchmark case"):
        invoke(EMA.name, "--case", "nothing")


SCRIPTS = sorted((Path(__file__).parent.parent / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_beside_the_package_begin(script: Path) -> None:
    """What they import is there, and their options are a command's."""
    main = runpy.run_path(str(script), run_name="imported")["main"]
    app = typer.Typer()
    app.command()(main)
    assert CliRunner().invoke(app, ["--help"]).exit_code == 0
