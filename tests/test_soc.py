"""Product profiles: what each product takes and refuses, as a table of calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import anyfuse
from anyfuse._products import PRODUCTS, Limits, product_of
from anyfuse._soc import product
from anyfuse.formats import create_codebook
from anyfuse_cli.app import app

EMA, LAZY, NORM = "apply_fused_ema_adamw", "lazy_adam", "add_rms_norm_dynamic_quant"
ADAM8, MATMUL, GROUPED = "apply_adam_w_quant", "quant_matmul_dequant", "quant_grouped_matmul_dequant"
F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
A2, A3, A5, P310, X90, K9030, ANY = (
    "Ascend910B",
    "Ascend910_93",
    "Ascend950",
    "Ascend310P",
    "KirinX90",
    "Kirin9030",
    "any",
)


def ema(dtype: torch.dtype = F32, shape: tuple[int, ...] = (2, 8), **changes: Any) -> dict[str, Any]:
    tensors = {name: torch.ones(shape, dtype=dtype) for name in ("grad", "var", "m", "v", "s")}
    return {**tensors, "step": 1, **changes}


def lazy(dim: int = 8, **changes: Any) -> dict[str, Any]:
    tables = {name: torch.ones(4, dim) for name in ("m", "v", "var")}
    indices = torch.tensor([2, 0], dtype=torch.int32)
    return {"gradient": torch.ones(2, dim), "indices": indices, **tables, "lr": 0.1, **changes}


def norm(dtype: torch.dtype = F16, shape: tuple[int, ...] = (2, 8), **changes: Any) -> dict[str, Any]:
    rows = {name: torch.ones(shape, dtype=dtype) for name in ("x1", "x2")}
    return {**rows, "gamma": torch.ones(shape[-1], dtype=dtype), **changes}


def adam8(dtype: torch.dtype = F32, shape: tuple[int, ...] = (2, 8), blocks: int = 1, **changes: Any) -> dict[str, Any]:
    floats = {name: torch.ones(shape, dtype=dtype) for name in ("var", "grad")}
    codes = {name: torch.zeros(shape, dtype=torch.uint8) for name in ("m", "v")}
    maps = {f"qmap_{name}": create_codebook("linear", signed=name == "m") for name in "mv"}
    scales = {name: torch.zeros(blocks) for name in ("absmax_m", "absmax_v")}
    return {**floats, **codes, **maps, **scales, "step": 1, "lr": 0.1, **changes}


BY_ROW = {"decay_mode": "catch_up", "step": 1}
FP32_MOMENTS = {"m": torch.ones(2, 8), "v": torch.ones(2, 8), "absmax_m": torch.ones(0), "absmax_v": torch.ones(0)}


def matmul(dtype: torch.dtype = F16, n: int = 16, k: int = 32, **changes: Any) -> dict[str, Any]:
    weight = torch.ones(n, k, dtype=torch.int8)
    return {"x": torch.ones(2, k, dtype=dtype), "weight": weight, "weight_scale": torch.ones(n), **changes}


def grouped(dtype: torch.dtype = F16, n: int = 16, k: int = 32, **changes: Any) -> dict[str, Any]:
    given = matmul(dtype, n, k)
    weights = {name: torch.stack([given[name]] * 2) for name in ("weight", "weight_scale")}
    return {**given, **weights, "group_list": torch.tensor([1, 2]), **changes}


def per_tensor(scale: torch.Tensor, **changes: Any) -> dict[str, Any]:
    return matmul(x_scale=scale, quant_mode="pertensor", **changes)


INT64_SCALE = torch.full((16,), 0x3E800000)


def ones(count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(count, dtype=dtype)


#: (operator, product, what, call, None where it is accepted or the exception, the argument that the message names)
ROWS: list[tuple[str, str, str, dict[str, Any], type[Exception] | None, str]] = [
    *((EMA, p, f"{t}", ema(t), None, "") for p in (A2, A3, A5, ANY) for t in (F32, F16, BF16)),
    *((EMA, p, "the operator", ema(), ValueError, EMA) for p in (P310, X90, K9030)),
    (EMA, A2, "grad in another dtype", ema(BF16, grad=torch.ones(2, 8)), TypeError, "grad"),
    (EMA, A3, "fp32 moments of bf16", ema(BF16, m=torch.ones(2, 8)), TypeError, "m has"),
    (EMA, A5, "fp32 v of fp16", ema(F16, v=torch.ones(2, 8)), TypeError, "v has"),
    (EMA, A2, "fp32 EMA of bf16", ema(BF16, s=torch.ones(2, 8)), TypeError, "s has"),
    (EMA, ANY, "fp32 EMA of bf16", ema(BF16, s=torch.ones(2, 8)), None, ""),
    (EMA, A2, "8 dimensions", ema(shape=(1,) * 8), None, ""),
    (EMA, A2, "9 dimensions", ema(shape=(1,) * 9), ValueError, "var"),
    (EMA, A2, "0 dimensions", ema(shape=()), ValueError, "var"),
    (EMA, A2, "step of shape (1,)", ema(step=torch.tensor([3])), None, ""),
    (EMA, A2, "step of shape ()", ema(step=torch.tensor(3)), None, ""),
    (EMA, A3, "maximize", ema(maximize=True), ValueError, "maximize"),
    (EMA, A2, "grad_scale", ema(grad_scale=torch.ones(1)), ValueError, "grad_scale"),
    (EMA, A2, "found_inf", ema(found_inf=torch.zeros(1)), ValueError, "found_inf"),
    (EMA, A2, "stochastic rounding", ema(BF16, stochastic_rounding=1), ValueError, "stochastic_rounding"),
    (EMA, A2, "a group", {k: [v] if isinstance(v, torch.Tensor) else v for k, v in ema().items()}, None, ""),
    *((LAZY, p, "fp32", lazy(), None, "") for p in (A2, ANY)),
    (LAZY, A2, "a mask", lazy(gradient=torch.ones(4, 8), indices=torch.ones(4) > 0), TypeError, "indices has"),
    (LAZY, A2, "all rows", lazy(gradient=torch.ones(4, 8), indices=None), TypeError, "indices has"),
    *((LAZY, p, "the operator", lazy(), ValueError, LAZY) for p in (A3, A5, P310, X90, K9030)),
    (LAZY, A2, "dim 16", lazy(16), None, ""),
    (LAZY, A2, "dim 12", lazy(12), ValueError, "dim"),
    (LAZY, A2, "dim 1", lazy(1), ValueError, "dim"),
    (LAZY, ANY, "dim 1", lazy(1), None, ""),
    (LAZY, A2, "int64 ids", lazy(indices=torch.tensor([2, 0])), TypeError, "indices"),
    (LAZY, ANY, "int64 ids", lazy(indices=torch.tensor([2, 0])), None, ""),
    (LAZY, A2, "bf16 gradient", lazy(gradient=torch.ones(2, 8, dtype=BF16)), TypeError, "gradient"),
    (LAZY, A2, "fp16 table", lazy(var=torch.ones(4, 8, dtype=F16)), TypeError, "var"),
    (LAZY, A2, "bias correction", lazy(bias_correction="global", step=1), ValueError, "bias_correction"),
    (LAZY, A2, "weight decay", lazy(weight_decay=0.1), ValueError, "weight_decay"),
    (LAZY, A2, "maximize", lazy(maximize=True), ValueError, "maximize"),
    (LAZY, A2, "refused ids", lazy(refuse_negative=True), ValueError, "refuse_negative"),
    (LAZY, A2, "grad_scale", lazy(grad_scale=torch.ones(1)), ValueError, "grad_scale"),
    (LAZY, A2, "found_inf", lazy(found_inf=torch.zeros(1)), ValueError, "found_inf"),
    (LAZY, A2, "stochastic rounding", lazy(stochastic_rounding=1, step=1), ValueError, "stochastic_rounding"),
    (LAZY, A2, "counts", lazy(row_step=torch.zeros(4, dtype=torch.int32), **BY_ROW), ValueError, "row_step"),
    (LAZY, ANY, "weight decay", lazy(weight_decay=0.1), None, ""),
    *((NORM, p, f"{t}", norm(t), None, "") for p in (A2, A3, A5, ANY) for t in (F16, BF16)),
    *((NORM, p, "fp16", norm(), None, "") for p in (X90, K9030)),
    *((NORM, p, "bf16", norm(BF16), TypeError, "x1") for p in (X90, K9030)),
    (NORM, P310, "the operator", norm(), ValueError, NORM),
    *((NORM, p, "fp32", norm(F32), TypeError, "x1") for p in (A2, A3, A5, X90)),
    (NORM, ANY, "fp32", norm(F32), None, ""),
    (NORM, A2, "fp32 gamma", norm(gamma=torch.ones(8)), TypeError, "gamma"),
    (NORM, A2, "fp32 beta", norm(beta=torch.ones(8)), TypeError, "beta"),
    (NORM, A2, "fp32 smooth_scale1", norm(smooth_scale1=ones(8, F32)), TypeError, "smooth_scale1"),
    (
        NORM,
        A5,
        "fp32 smooth_scale2",
        norm(smooth_scale1=ones(8, F16), smooth_scale2=ones(8, F32)),
        TypeError,
        "smooth_scale2",
    ),
    (NORM, A2, "both smooth scales", norm(smooth_scale1=ones(8, F16), smooth_scale2=ones(8, F16)), None, ""),
    *((NORM, p, "int4", norm(y_dtype="int4"), None, "") for p in (A2, A3)),
    *((NORM, p, "int4", norm(y_dtype="int4"), TypeError, "y_dtype") for p in (A5, X90, K9030)),
    *((NORM, p, "hifloat8", norm(y_dtype="hifloat8"), TypeError, "y_dtype") for p in (A2, A3, X90)),
    *((NORM, A5, f"{y}", norm(y_dtype=y), None, "") for y in ("hifloat8", torch.float8_e5m2, torch.float8_e4m3fn)),
    (NORM, A2, "float8_e5m2", norm(y_dtype=torch.float8_e5m2), TypeError, "y_dtype"),
    (NORM, K9030, "float8_e4m3fn", norm(y_dtype=torch.float8_e4m3fn), TypeError, "y_dtype"),
    (NORM, A2, "a mask", norm(output_mask=[False, True]), None, ""),
    (NORM, X90, "a mask", norm(output_mask=[True, True]), None, ""),
    (NORM, A5, "a mask", norm(output_mask=[False, True]), ValueError, "output_mask"),
    (NORM, A5, "a mask of what is produced anyway", norm(output_mask=[True, False]), ValueError, "output_mask"),
    (NORM, A5, "an empty mask", norm(output_mask=[]), None, ""),
    (NORM, A2, "1 dimension", norm(shape=(8,)), ValueError, "x1"),
    (NORM, A2, "9 dimensions", norm(shape=(1,) * 8 + (8,)), ValueError, "x1"),
    (NORM, ANY, "1 dimension", norm(shape=(8,)), None, ""),
    (NORM, A2, "epsilon 0", norm(epsilon=0.0), ValueError, "epsilon"),
    (NORM, ANY, "epsilon 0", norm(epsilon=0.0), None, ""),
    *((ADAM8, p, f"{t}", adam8(t), None, "") for p in (A2, A3, ANY) for t in (F32, F16, BF16)),
    *((ADAM8, p, "the operator", adam8(), ValueError, ADAM8) for p in (A5, P310, X90, K9030)),
    (ADAM8, A2, "fp32 gradient of bf16", adam8(BF16, grad=torch.ones(2, 8)), TypeError, "grad"),
    (ADAM8, ANY, "fp32 gradient of bf16", adam8(BF16, grad=torch.ones(2, 8)), None, ""),
    (ADAM8, A2, "blocks of 64", adam8(block_size=64), ValueError, "block_size"),
    (ADAM8, A3, "blocks of 2048", adam8(block_size=2048), ValueError, "block_size"),
    (ADAM8, ANY, "blocks of 64", adam8(block_size=64), None, ""),
    (ADAM8, A3, "257 elements", adam8(shape=(257,), blocks=2), None, ""),
    (ADAM8, A2, "9 dimensions", adam8(shape=(1,) * 9), ValueError, "var"),
    (ADAM8, A2, "step of shape ()", adam8(step=torch.tensor(1)), ValueError, "step"),
    (ADAM8, A3, "skip_nonfinite", adam8(skip_nonfinite=True), ValueError, "skip_nonfinite"),
    (ADAM8, A3, "nonzero_v", adam8(nonzero_v=True), ValueError, "nonzero_v"),
    (ADAM8, A3, "maximize", adam8(maximize=True), ValueError, "maximize"),
    (ADAM8, A2, "grad_scale", adam8(grad_scale=torch.ones(1)), ValueError, "grad_scale"),
    (ADAM8, A2, "found_inf", adam8(found_inf=torch.zeros(1)), ValueError, "found_inf"),
    (ADAM8, A2, "fp32 moments", adam8(**FP32_MOMENTS), TypeError, "m has"),
    (ADAM8, ANY, "fp32 moments", adam8(**FP32_MOMENTS), None, ""),
    (ADAM8, A3, "an EMA", adam8(s=torch.ones(2, 8)), ValueError, "s is"),
    (ADAM8, A3, "stochastic rounding", adam8(BF16, stochastic_rounding=1), ValueError, "stochastic_rounding"),
    (ADAM8, A2, "device convention", adam8(convention="device"), None, ""),
    *((MATMUL, p, "fp16", matmul(), None, "") for p in (P310, ANY)),
    *((MATMUL, p, "the operator", matmul(), ValueError, MATMUL) for p in (A2, A3, A5, X90, K9030)),
    *((MATMUL, P310, f"{t}", matmul(t), TypeError, "x has") for t in (BF16, F32)),
    (MATMUL, P310, "float32 output", matmul(out_dtype=F32), TypeError, "out_dtype"),
    (MATMUL, P310, "bf16 smooth_scale", matmul(smooth_scale=ones(32, BF16)), TypeError, "smooth_scale"),
    (MATMUL, P310, "fp16 smooth_scale", matmul(smooth_scale=ones(32, F16)), None, ""),
    (MATMUL, P310, "bias", matmul(bias=ones(16, torch.int32)), ValueError, "bias"),
    (MATMUL, ANY, "bias", matmul(bias=ones(16, torch.int32)), None, ""),
    (MATMUL, P310, "n 24", matmul(n=24), ValueError, "n is 24"),
    (MATMUL, P310, "k 40", matmul(k=40), ValueError, "k is 40"),
    (MATMUL, P310, "k 48", matmul(k=48), None, ""),
    (MATMUL, ANY, "k 40", matmul(k=40), None, ""),
    (MATMUL, P310, "FRACTAL_NZ", matmul(weight=torch.ones(1, 1, 16, 32, dtype=torch.int8)), None, ""),
    (MATMUL, P310, "(k, n)", matmul(n=32, transpose_weight=False), ValueError, "transpose_weight"),
    (MATMUL, P310, "3 dimensions", matmul(x=torch.ones(1, 2, 32, dtype=F16)), ValueError, "x has"),
    (MATMUL, P310, "weight_scale (1, n)", matmul(weight_scale=torch.ones(1, 16)), ValueError, "weight_scale"),
    (MATMUL, P310, "x_scale (m, 1)", matmul(x_scale=torch.ones(2, 1)), ValueError, "x_scale"),
    (MATMUL, P310, "x_scale (m,)", matmul(x_scale=torch.ones(2)), None, ""),
    (MATMUL, P310, "x_scale ()", per_tensor(torch.ones(())), None, ""),
    (MATMUL, P310, "int64 scales", per_tensor(ones(1, F16), weight_scale=INT64_SCALE), None, ""),
    *((GROUPED, p, "fp16", grouped(), None, "") for p in (P310, ANY)),
    *((GROUPED, p, "the operator", grouped(), ValueError, GROUPED) for p in (A2, A3, A5, X90, K9030)),
    *((GROUPED, P310, f"{t}", grouped(t), TypeError, "x has") for t in (BF16, F32)),
    (GROUPED, P310, "float32 output", grouped(out_dtype=F32), TypeError, "out_dtype"),
    (GROUPED, P310, "bf16 smooth_scale", grouped(smooth_scale=ones(32, BF16)), TypeError, "smooth_scale"),
    (GROUPED, P310, "one smooth_scale", grouped(smooth_scale=ones(32, F16)), None, ""),
    (
        GROUPED,
        P310,
        "two smooth_scales",
        grouped(smooth_scale=torch.ones(2, 32, dtype=F16)),
        ValueError,
        "smooth_scale",
    ),
    (GROUPED, P310, "bias", grouped(bias=torch.ones(2, 16, dtype=torch.int32)), ValueError, "bias"),
    (GROUPED, P310, "n 24", grouped(n=24), ValueError, "n is 24"),
    (GROUPED, P310, "k 40", grouped(k=40), ValueError, "k is 40"),
    (GROUPED, P310, "k 48", grouped(k=48), None, ""),
    (GROUPED, P310, "FRACTAL_NZ", grouped(weight=torch.ones(2, 1, 1, 16, 32, dtype=torch.int8)), None, ""),
    (GROUPED, P310, "(k, n)", grouped(n=32, transpose_weight=False), ValueError, "transpose_weight"),
    (GROUPED, P310, "3 dimensions", grouped(x=torch.ones(1, 2, 32, dtype=F16)), ValueError, "x has"),
    (GROUPED, P310, "x_scale (m, 1)", grouped(x_scale=torch.ones(2, 1)), ValueError, "x_scale"),
    (GROUPED, P310, "x_scale (m,)", grouped(x_scale=torch.ones(2)), None, ""),
]


def spec_of(name: str) -> Any:
    return anyfuse._REGISTRY[name]


@pytest.mark.parametrize(
    ("operator", "on", "what", "call", "error", "names"),
    ROWS,
    ids=[f"{r[0]}-{r[1]}-{r[2]}".replace(" ", "_") for r in ROWS],
)
def test_row(
    operator: str, on: str, what: str, call: dict[str, Any], error: type[Exception] | None, names: str
) -> None:
    """What a product takes runs; what it refuses raises and writes nothing, and runs where no product limits it."""
    function = spec_of(operator).function
    before = {key: value.clone() for key, value in call.items() if isinstance(value, torch.Tensor)}
    with anyfuse.soc(on):
        if error is None:
            function(**call)
            return
        with pytest.raises(error) as caught:
            function(**call)
    message = str(caught.value)
    assert names in message and on in message and "accepted: " in message, message
    assert all(torch.equal(value, call[key]) for key, value in before.items())
    function(**call)


def test_the_table_is_large_and_covers_every_rule() -> None:
    assert len(ROWS) >= 60
    refused = {(row[0], row[5].split()[0]) for row in ROWS if row[4] is not None}
    for spec in anyfuse._REGISTRY.values():
        assert spec.profiles is not None, f"{spec.name} has no product profile"
        every = {rule for limits in spec.profiles.limits.values() for rule in rules(limits)}
        assert {(spec.name, rule) for rule in (spec.name, *every)} <= refused, spec.name


def rules(limits: Limits) -> set[str]:
    """The arguments that a profile can refuse."""
    by_name = (limits.dtypes, limits.ranks, limits.shapes, limits.multiples, limits.values)
    return {*(name for group in by_name for name in group), *limits.one_dtype[1:], *limits.positive, *limits.absent}


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_both_backends_refuse(backend: str) -> None:
    with anyfuse.backend(backend), anyfuse.soc(A2), pytest.raises(ValueError, match="dim is 12 on Ascend910B"):
        anyfuse.lazy_adam_(**lazy(12))


def test_a_compiled_graph_looks_at_the_product_when_it_runs() -> None:
    compiled = torch.compile(lambda call: anyfuse.lazy_adam_(**call), fullgraph=True, backend="aot_eager")
    compiled(lazy(12))
    with anyfuse.soc(A2), pytest.raises(ValueError, match="dim is 12"):
        compiled(lazy(12))


def test_soc_nests_and_ends_with_its_block() -> None:
    assert product() == os.environ.get("ANYFUSE_SOC", "any")
    with anyfuse.soc(A2):
        with anyfuse.soc("any"):
            anyfuse.lazy_adam_(**lazy(12))
        with pytest.raises(ValueError, match="dim"):
            anyfuse.lazy_adam_(**lazy(12))
    anyfuse.lazy_adam_(**lazy(12))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Ascend810", "'Ascend810'; accepted: 'any', 'Ascend910B'"),
        ("Ascend910", r"'Ascend910' \(Atlas training series: no profile\); accepted: 'any'"),
        ("Ascend910ProB", r"'Ascend910ProB' \(Atlas training series"),
        ("Ascend310B4", r"'Ascend310B4' \(Atlas 200I/500 A2: no profile\)"),
        ("Ascend310PX", "'Ascend310PX'; accepted"),
        (910, "910; accepted"),
        ("", "''; accepted"),
    ],
)
def test_unknown_product(name: Any, says: str) -> None:
    with pytest.raises(ValueError, match=f"soc is {says}"), anyfuse.soc(name):
        pass


def test_environment_sets_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "import anyfuse._soc as s; print(s.product(), s.restricted())"]
    monkeypatch.setenv("ANYFUSE_SOC", "kirinx90")
    assert subprocess.run(command, capture_output=True, text=True).stdout == "KirinX90 True\n"
    monkeypatch.setenv("ANYFUSE_SOC", "x")
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode != 0 and "ANYFUSE_SOC is 'x'; accepted: 'any'" in result.stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("ascend910b", A2),
        ("Ascend910B3", A2),
        ("Ascend910B4-1", A2),
        ("Ascend910_9391", A3),
        ("ascend910C", A3),
        ("Ascend950PR_9599", A5),
        ("Ascend910_95", A5),
        ("Ascend310P3", P310),
        ("kirinx90", X90),
        ("ANY", ANY),
        ("Ascend910", None),  # the training series, which is no product here
        ("Ascend310B", None),
        ("Ascend910B 3", None),
        ("anything", None),
    ],
)
def test_products_as_people_type_them(typed: str, meant: str | None) -> None:
    assert product_of(typed) == meant
    if meant is not None:
        with anyfuse.soc(typed):
            assert product() == meant


def test_the_table_is_read_without_torch() -> None:
    code = "import runpy, sys; runpy.run_path(sys.argv[1]); print('torch' in sys.modules)"
    path = anyfuse._products.__file__
    result = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert result.stdout == "False\n", result.stderr


def test_info_prints_what_a_product_takes() -> None:
    result = CliRunner().invoke(app, ["info", "--soc", "Ascend950", "--json"])
    content = json.loads(result.stdout)
    assert content["product"] == PRODUCTS["Ascend950"]
    assert content["operators"][EMA]["grad_scale"] == "not available" and content["operators"][LAZY] is None
    assert content["operators"][NORM]["output_mask"] == "None"
    result = CliRunner().invoke(app, ["info", "--soc", "KirinX90"])
    assert "KirinX90: Kirin X90" in result.stdout and "not available" in result.stdout
    result = CliRunner().invoke(app, ["info", "--soc", "any"])
    assert "no limits" in result.stdout
    assert isinstance(CliRunner().invoke(app, ["info", "--soc", "x"]).exception, ValueError)
