"""The acceptance rule, on arrays small enough to judge by hand, and the verification of backends."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import anyfuse
from anyfuse import _core
from anyfuse._opspec import REGISTRY, OpSpec
from anyfuse._settings import use_reference
from anyfuse.formats import encode_hifloat8, pack_int4
from anyfuse.samples.draw import Draw
from anyfuse.samples.kinds import Sample
from anyfuse.verify import compare as judge
from anyfuse.verify import matrix
from anyfuse.verify.compare import Comparison, compare
from anyfuse_cli.app import app

INF, NAN = math.inf, math.nan


def judged(out: list[float], golden: list[float], dtype: torch.dtype = torch.float32, **options: Any) -> Comparison:
    return compare("y", torch.tensor(out, dtype=dtype), torch.tensor(golden, dtype=dtype), **options)


# ---- every branch of the rule: loss 1/8, a quarter of the elements may be beyond it ----

RULE = {"loss": 0.125, "count_loss": 0.25}


def test_equal_bits_pass() -> None:
    result = judged([1, -2, NAN, INF], [1, -2, NAN, INF], **RULE)
    assert result.passed and result.bit_equal and result.reason == "bit-equal"
    assert (result.max_abs, result.max_rel, result.max_ulp, result.different) == (0, 0, 0, 0)


def test_every_absolute_error_within_passes() -> None:
    result = judged([1.0, 0.125], [1.0625, 0.0], **RULE)  # a = 1/16, 1/8; r of the second is nearly 1
    assert result.passed and result.reason == "every absolute error is within the loss"
    assert (result.max_abs, result.beyond_abs, result.beyond_rel) == (0.125, 0, 1)
    assert not result.bit_equal and result.different == 2


def test_every_relative_error_within_passes() -> None:
    result = judged([100.0, 8.0], [101.0, 9.0], **RULE)  # a = 1, 1; r = 1/101, 1/9
    assert result.passed and result.reason == "every relative error is within the loss"
    assert (result.beyond_abs, result.beyond_rel) == (2, 0)
    assert result.max_rel == pytest.approx(1 / 9, rel=1e-9)


@pytest.mark.parametrize(("beyond", "passed"), [(1, True), (2, True), (3, False), (8, False)])
def test_both_counts_beyond_fail(beyond: int, passed: bool) -> None:
    """Of 8 elements 2 may be beyond: a = 1 and r = 1/2 there."""
    result = judged([2.0] * beyond + [1.0] * (8 - beyond), [1.0] * 8, **RULE)
    assert (result.beyond_abs, result.beyond_rel, result.passed) == (beyond, beyond, passed)
    assert result.max_abs == 1.0
    expected = "no more than 2 elements are beyond the loss" if passed else "are beyond the loss of 0.125; 2 of each"
    assert expected in result.reason


@pytest.mark.parametrize(("out", "beyond"), [([101.0, 101.0, 101.0, 2.0], (4, 1)), ([0.01, 0.01, 0.01, 2.0], (1, 4))])
def test_one_count_beyond_is_not_enough(out: list[float], beyond: tuple[int, int]) -> None:
    """Of 4 elements 1 may be beyond. 101 for 100: only a is beyond. 0.01 for 0: only r is. 2 for 1: both are."""
    result = judged(out, [100.0 if out[0] > 1 else 0.0] * 3 + [1.0], **RULE)
    assert (result.beyond_abs, result.beyond_rel) == beyond
    assert result.passed


def test_denominator_of_the_relative_error() -> None:
    """r = 1e-9 / (1e-9 + 1e-9) beside a golden of 0."""
    assert judged([0.0], [1e-9], loss=0.0, count_loss=0.0).max_rel == pytest.approx(0.5, rel=1e-6)


def test_a_loss_of_zero_takes_equal_values_only() -> None:
    assert judged([0.0], [-0.0], loss=0.0, count_loss=0.0).passed
    assert not judged([1.0], [1.0000001], loss=0.0, count_loss=0.0).passed


@pytest.mark.parametrize(
    ("out", "golden", "passed"),
    [(NAN, NAN, True), (NAN, 1, False), (1, NAN, False), (NAN, INF, False), (INF, INF, True), (-INF, -INF, True),
     (INF, -INF, False), (INF, 1, False), (1, INF, False)],
)  # fmt: skip
def test_nan_and_infinity_are_near_themselves_only(out: float, golden: float, passed: bool) -> None:
    result = judged([out], [golden], loss=1e30, count_loss=0.0)
    assert result.passed is passed
    if not passed:
        assert (result.beyond_abs, result.beyond_rel, result.max_abs, result.max_rel) == (1, 1, INF, INF)
        assert result.nan_mismatches == (math.isnan(out) or math.isnan(golden))


def test_another_size_always_fails() -> None:
    result = compare("y", torch.ones(3), torch.ones(4), loss=1e30, count_loss=1.0)
    assert not result.passed and result.reason == "shape (3,), golden (4,)"
    assert not compare("y", torch.ones(4), torch.ones(2, 2), loss=1e30).passed
    assert not compare("y", torch.ones(0), torch.ones(1), loss=1e30, count_loss=1.0).passed


def test_another_dtype_always_fails() -> None:
    result = compare("y", torch.ones(4).half(), torch.ones(4), loss=1e30, count_loss=1.0)
    assert not result.passed and result.reason == "dtype float16, golden float32"


def test_nothing_equals_nothing() -> None:
    result = compare("y", torch.ones(0, 3), torch.ones(0, 3))
    assert result.passed and result.bit_equal and result.elements == 0


@pytest.mark.parametrize(
    ("dtype", "loss"), [(torch.float32, 1e-6), (torch.float16, 2**-10), (torch.bfloat16, 2**-7), (torch.float64, 1e-6)]
)
def test_default_losses(dtype: torch.dtype, loss: float) -> None:
    result = judged([1.0], [1.0], dtype)
    assert (result.loss, result.count_loss) == (loss, 1e-6)
    near, far = torch.tensor([256.0]), torch.tensor([256.0]) * (1 + 4 * loss)
    assert not compare("y", far.to(dtype), near.to(dtype)).passed


# ---- distances ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_ulp_counts_representable_values(dtype: torch.dtype) -> None:
    one = torch.ones(1, dtype=dtype)
    up = torch.nextafter(one, one * 2)
    tiny = torch.nextafter(one * 0, one)
    assert compare("y", up, one).max_ulp == 1
    assert compare("y", -up, one * -1).max_ulp == 1
    assert compare("y", torch.nextafter(up, one * 2), one).max_ulp == 2
    assert compare("y", tiny, -tiny).max_ulp == 2


def test_zeros_of_both_signs_differ_in_bits_and_not_in_distance() -> None:
    result = judged([0.0, 1.0], [-0.0, 1.0])
    assert (result.different, result.bit_equal, result.max_ulp, result.max_abs) == (1, False, 0, 0.0)
    assert result.passed


def test_statistics_do_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    golden = torch.randn(1000, generator=generator)
    out = golden + torch.randn(1000, generator=generator) * 1e-3
    whole = compare("y", out, golden)
    monkeypatch.setattr(judge, "CHUNK", 7)
    assert compare("y", out, golden) == whole
    assert whole.beyond_abs == int(((out.double() - golden.double()).abs() > 1e-6).sum())


# ---- codes ----


@pytest.mark.parametrize(("lsb", "passed"), [(0, False), (1, False), (2, True)])
def test_integer_codes(lsb: int, passed: bool) -> None:
    result = judged([5, -128, 7], [5, -126, 8], torch.int8, lsb=lsb)
    assert (result.passed, result.max_ulp, result.max_abs, result.different) == (passed, 2, 2.0, 2)
    assert result.beyond_abs == {0: 2, 1: 1, 2: 0}[lsb]
    assert result.loss is None and result.lsb == lsb


def test_uint8_and_int64_do_not_wrap() -> None:
    assert judged([0], [255], torch.uint8).max_ulp == 255
    big = 2**62
    result = compare("y", torch.tensor([big]), torch.tensor([big + 1]))
    assert result.max_ulp == 1 and not result.passed  # float64 could not tell them apart


@pytest.mark.parametrize("carrier", [torch.uint8, torch.int32])
def test_packed_int4_is_judged_code_by_code(carrier: torch.dtype) -> None:
    codes = torch.tensor([[1, -2, 3, -4, 5, -6, 7, -8]], dtype=torch.int8)
    other = codes.clone()
    other[0, 1], other[0, 4] = -3, 4
    packed, changed = (pack_int4(value, carrier) for value in (codes, other))
    result = compare("y", changed, packed, encoding="int4")
    assert (result.elements, result.different, result.max_ulp, result.passed) == (8, 2, 1, False)
    assert compare("y", changed, packed, encoding="int4", lsb=1).passed


def test_hifloat8_counts_steps_in_order_of_value() -> None:
    out, golden = (encode_hifloat8(torch.tensor(values)) for values in ([1.0, -24.0, NAN], [1.125, -16.0, NAN]))
    result = compare("y", out, golden, encoding="hifloat8")
    assert (result.max_ulp, result.max_abs, result.different) == (2, 8.0, 2)  # -16, -20, -24
    assert not compare("y", out, golden, encoding="hifloat8", lsb=1).passed
    assert compare("y", out, golden, encoding="hifloat8", lsb=2).passed
    assert not compare("y", golden[:1], golden[2:], encoding="hifloat8", lsb=255).passed  # a number for NaN


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_8_bit_floats_are_codes(dtype: torch.dtype) -> None:
    one, next_to_one = (torch.tensor([code], dtype=torch.uint8).view(dtype) for code in (0x38, 0x39))
    assert not compare("y", one, next_to_one).passed
    assert compare("y", one, next_to_one, lsb=1).passed
    nan, other_nan = (torch.tensor([code], dtype=torch.uint8).view(dtype) for code in (0x7F, 0xFF))
    assert compare("y", nan, other_nan).bit_equal
    assert not compare("y", one, nan, lsb=255).passed


# ---- verification of backends ----


@pytest.fixture
def ema() -> OpSpec:
    return REGISTRY["apply_fused_ema_adamw"]


def replaced(spec: OpSpec, damage: Callable[[dict[str, Any]], None], before: bool = False) -> OpSpec:
    """An operator whose native results are damaged."""

    def function(**arguments: Any) -> Any:
        if before and not use_reference():
            damage(arguments)
        results = spec.function(**arguments)
        if not before and not use_reference():
            damage(arguments)
        return results

    def draw(source: Draw) -> Sample:
        tensors = {name: source.normal((9,)).abs() for name in ("grad", "m", "v", "s")}
        var = source.normal((12,)).abs()[3:]
        return Sample("nine elements", {**tensors, "var": var, "step": 1})

    return dataclasses.replace(without_edges(spec, draw=draw), function=function)


def without_edges(spec: OpSpec, **changes: Any) -> OpSpec:
    samples = dataclasses.replace(spec.samples, edges=tuple, **changes)
    return dataclasses.replace(spec, load=lambda name: samples)


def one_way() -> list[matrix.Way]:
    return matrix.ways([], ["base"], [1])


def test_all_operators_on_all_ways() -> None:
    specs = matrix.operators([])
    ways = matrix.ways([], [], [1, 2])
    seen: list[str] = []
    small = [without_edges(spec) for spec in specs]
    report = matrix.verify(small, ways, samples=5, seed=11, progress=seen.append)
    assert report.passed
    assert [(row.operator, row.way) for row in report.rows] == [(spec.name, way) for spec in specs for way in ways]
    assert all(row.samples == 5 and row.refused == row.mismatches == 0 for row in report.rows)
    assert seen == [spec.name for spec in specs for _ in range(5)]


def test_edges_are_verified_too(ema: OpSpec) -> None:
    report = matrix.verify([ema], one_way(), samples=1)
    assert report.rows[0].samples == 1 + len(list(ema.samples.edges()))


def test_a_wrong_bit_is_found(ema: OpSpec) -> None:
    def damage(arguments: dict[str, Any]) -> None:
        arguments["v"].view(torch.int32)[4] += 3

    report = matrix.verify([replaced(ema, damage)], one_way(), samples=2, seed=40)
    assert not report.passed and report.rows[0].mismatches == 2
    found = report.mismatches[0]
    assert (found.seed, found.label, found.different, found.max_ulp) == (40, "nine elements", 1, 3)
    assert found.what == "v: 1 of 9 elements differ"


def test_a_write_outside_a_view_is_found(ema: OpSpec) -> None:
    def damage(arguments: dict[str, Any]) -> None:
        var: Tensor = arguments["var"]
        torch.as_strided(var, (1,), (1,), 0)[0] = 5.0

    report = matrix.verify([replaced(ema, damage)], one_way(), samples=1)
    assert [item.what for item in report.mismatches] == ["memory of var: 1 of 12 elements differ"]


def test_an_error_is_a_mismatch_and_comes_first(ema: OpSpec) -> None:
    def damage(arguments: dict[str, Any]) -> None:
        if arguments["var"][0] > 0.5:
            arguments["step"] = "x"
        else:
            arguments["grad"] = arguments["grad"] * 2

    report = matrix.verify([replaced(ema, damage, before=True)], one_way(), samples=20)
    assert report.rows[0].mismatches == 20
    assert "native: TypeError(step is a str" in report.worst(1)[0].what
    assert report.worst(100)[-1].different > 0


def test_a_call_that_both_refuse_is_a_mismatch_too(ema: OpSpec) -> None:
    """A drawn call is valid; that it is refused is an error of the operator's samples."""
    broken = without_edges(ema, draw=lambda draw: Sample("bad", {}))
    report = matrix.verify([broken], one_way(), samples=1)
    assert not report.passed and "reference: TypeError" in report.mismatches[0].what


def test_a_product_refuses_calls_and_is_left_again(ema: OpSpec) -> None:
    small = without_edges(ema)
    report = matrix.verify([small], one_way(), samples=30, product="Ascend910B")
    assert report.passed and 0 < report.rows[0].refused < 30
    report = matrix.verify([small], one_way(), samples=3, product="KirinX90")
    assert report.passed and report.rows[0].refused == 3
    assert anyfuse._soc.product() == "any"


def test_settings_are_put_back(ema: OpSpec) -> None:
    before = torch.get_num_threads(), _core.current_target()
    matrix.verify([without_edges(ema)], matrix.ways([], ["base"], [1, 3]), samples=1)
    assert (torch.get_num_threads(), _core.current_target()) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["reference"], [], []), "backend is 'reference'; accepted: 'native'"),
        (([], ["sse9"], []), "target is 'sse9'; accepted: 'base'"),
        (([], [], [0]), "threads is 0"),
    ],
)
def test_unknown_ways(arguments: tuple[list[str], list[str], list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        matrix.ways(*arguments)


def test_operators_by_either_name() -> None:
    assert [spec.name for spec in matrix.operators(["lazy_adam_", "lazy_adam"])] == ["lazy_adam"]
    with pytest.raises(ValueError, match="operator 'adam' is unknown; accepted: add_rms"):
        matrix.operators(["adam"])


# ---- the command ----


def invoke(*words: str) -> Any:
    return CliRunner().invoke(app, ["verify", *words])


def test_command_passes() -> None:
    result = invoke("lazy_adam", "--samples", "2", "--target", "base", "--threads", "1", "--json")
    content = json.loads(result.stdout)
    assert result.exit_code == 0 and content["passed"] and content["mismatches"] == []
    row = content["rows"][0]
    assert (row["operator"], row["backend"], row["target"], row["threads"]) == ("lazy_adam", "native", "base", 1)
    assert row["samples"] >= 2 and row["elements"] > 0 and content["soc"] == "any"


def test_command_reports_what_to_run_again(ema: OpSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    def damage(arguments: dict[str, Any]) -> None:
        if arguments["var"][0] > 0.4:  # some of the samples
            arguments["s"][2] = 9.0

    monkeypatch.setitem(REGISTRY, ema.name, replaced(ema, damage))
    result = invoke(ema.name, "--samples", "30", "--target", "base", "--threads", "1", "--json")
    content = json.loads(result.stdout)
    assert result.exit_code == 1 and not content["passed"]
    assert 0 < len(content["mismatches"]) < 60
    again = invoke(*content["mismatches"][0]["reproduce"].split()[2:], "--json")
    assert again.exit_code == 1
    assert json.loads(again.stdout)["mismatches"][0]["seed"] == content["mismatches"][0]["seed"]
    text = invoke(ema.name, "--samples", "30", "--target", "base", "--threads", "1")
    assert text.exit_code == 1
    assert (
        "differs: apply_fused_ema_adamw on native base ×1" in text.stdout
        and "more (all of them: --json)" in text.stdout
    )
    assert "anyfuse verify apply_fused_ema_adamw --backend native --target base --threads 1" in text.stdout


def test_command_with_a_product() -> None:
    result = invoke("lazy_adam", "--soc", "KirinX90", "--samples", "2", "--target", "base", "--threads", "1")
    assert result.exit_code == 0 and "refused" in result.stdout


@pytest.mark.parametrize("words", [("nothing",), ("--target", "x"), ("--soc", "x"), ("--backend", "x")])
def test_command_refuses(words: tuple[str, ...]) -> None:
    result = invoke(*words, "--samples", "1")
    assert result.exit_code == 1 and isinstance(result.exception, ValueError)
    assert "accepted: " in str(result.exception)
