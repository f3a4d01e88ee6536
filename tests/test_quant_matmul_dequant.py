"""quant_matmul_dequant: the worked examples, exactness against integers, and what users of such operators hit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from torch import Tensor

import anyfuse
from anyfuse import _core, pack_weight
from anyfuse.formats import nd_to_nz, pack_scale_int64
from anyfuse.ops.quant_matmul_dequant import quantize_rows

op = anyfuse.quant_matmul_dequant
HALF, INT8 = torch.float16, torch.int8
EVERY_WAY = pytest.mark.parametrize("backend", ["native", "reference"])


def codes(rows: int, k: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng([seed, rows, k]).integers(-128, 128, (rows, k), dtype=np.int8))


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# ---- the worked examples: k = n = 16, what is not named is 0 ----


def example(dtype: torch.dtype = HALF) -> dict[str, Any]:
    x, weight = torch.zeros(2, 16, dtype=dtype), torch.zeros(16, 16, dtype=INT8)
    x[0, :4] = torch.tensor([1, -2, 0.5, 0.25])
    weight[0, :4] = 1
    weight[1, :4] = torch.tensor([127, -128, 3, -4])
    return {"x": x, "weight": weight, "weight_scale": torch.full((16,), 0.5)}


SMOOTH = torch.ones(16, dtype=HALF)
SMOOTH[:2] = torch.tensor([2, 0.1])
INT64 = pack_scale_int64(torch.full((16,), 0.25))
EXAMPLES: dict[str, tuple[dict[str, Any], list[float]]] = {
    "E1 dynamic": ({}, [-0.11810303, 192.25]),
    "E2 static, per tensor": ({"x_scale": torch.tensor([0.01]), "quant_mode": "pertensor"}, [0.23498535, 145.625]),
    "E3 static, per token": ({"x_scale": torch.tensor([0.5, 0.25])}, [-0.25, 192.25]),
    "E4 int64 scales": (
        {"weight_scale": INT64, "x_scale": torch.tensor([0.5], dtype=HALF), "quant_mode": "pertensor"},
        [-0.25, 192.25],
    ),
    "E5 dynamic, smooth": ({"smooth_scale": SMOOTH}, [1.27539062, 140.375]),
}


@EVERY_WAY
@pytest.mark.parametrize("convention", ["formula", "device"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_worked_examples(name: str, convention: str, backend: str) -> None:
    changes, expected = EXAMPLES[name]
    with anyfuse.backend(backend):
        out = op(**{**example(), **changes}, convention=convention)
    assert out.dtype == HALF and out.shape == (2, 16)
    assert torch.equal(out[0, :2], torch.tensor(expected, dtype=HALF))
    assert not out[0, 2:].any() and not out[1].any()


@EVERY_WAY
def test_e6_a_true_division_gives_42_and_the_reciprocal_43(backend: str) -> None:
    x = torch.zeros(1, 16, dtype=HALF)
    x[0, :2] = torch.tensor([7.44140625, 2.490234375])
    weight = torch.zeros(1, 16, dtype=INT8)
    weight[0, 1] = 1
    scale = torch.tensor([7.44140625]) / torch.tensor([127.0])
    for convention, code in (("formula", 42.0), ("device", 43.0)):
        with anyfuse.backend(backend):
            out = op(x, weight, torch.ones(1), convention=convention, out_dtype=torch.float32)
        assert out.item() == (torch.tensor([code]) * scale).item()


@pytest.mark.parametrize("convention", ["formula", "device"])
def test_the_device_takes_the_maximum_of_the_rounded_product(convention: str) -> None:
    """0.1 in fp16, times 3, needs more than the 11 bits of fp16, so that the two maxima differ."""
    x, smooth = torch.tensor([[0.1, 0.0]], dtype=HALF), torch.tensor([3.0, 1.0], dtype=HALF)
    _, scale = quantize_rows(x, None, smooth, convention)
    product = x.float() * smooth.float()
    largest = product[0, 0] if convention == "formula" else product[0, 0].half().float()
    assert product[0, 0] != product[0, 0].half().float()
    assert scale.item() == (largest / torch.tensor(127.0)).item()


# ---- exact integers ----


def is_exact(x: Tensor, weight: Any, acc: np.ndarray) -> None:
    """The 32 bits of the sums: fp32 outputs round, so the exact sums of a row are taken off again as its bias."""
    ones_m, ones_n = torch.ones(x.shape[0]), torch.ones(acc.shape[1])
    out = op(x, weight, ones_n, x_scale=ones_m, out_dtype=torch.float32)
    assert np.array_equal(out.numpy(), acc.astype(np.float32))
    for row in {0, x.shape[0] // 2, x.shape[0] - 1}:
        bias = torch.from_numpy((-acc[row]).astype(np.int32))
        rest = op(x, weight, ones_n, x_scale=ones_m, bias=bias, out_dtype=torch.float32)
        assert not rest[row].any(), f"row {row}"


@pytest.mark.parametrize("k", [1, 2, 31, 32, 33, 1027, 131071])
def test_case_q16_q26_exact_against_int64(target: str, k: int) -> None:
    m, n = (3, 17) if k == 131071 else (13, 67)
    x, weight = codes(m, k), codes(n, k, seed=1)
    x[0], x[1] = -128, 127
    weight[0], weight[1], weight[n - 1] = -128, 127, -128
    acc = x.numpy().astype(np.int64) @ weight.numpy().astype(np.int64).T
    assert acc.max() == k * 128 * 128 < 2**31
    with _core.target(target):
        is_exact(x, weight, acc)
        is_exact(x, pack_weight(weight), acc)


@pytest.mark.parametrize("value, expected", [(127, 1_032_256), (-128, 1_048_576)])
def test_case_q16_all_extremes_of_k_64(target: str, value: int, expected: int) -> None:
    """Where products of bytes are added in 16 bits, 127 saturates to 8 160."""
    x, weight = torch.full((7, 64), value, dtype=INT8), torch.full((33, 64), value, dtype=INT8)
    with _core.target(target):
        out = op(x, weight, torch.ones(33), x_scale=torch.ones(7), out_dtype=torch.float32)
        quantized = op(x.float() / 2, weight, torch.ones(33), x_scale=torch.full((7,), 0.5))
    assert (out == expected).all()
    assert (quantized == expected / 2).all()


def test_case_q18_full_range_in_a_k_of_4(target: str) -> None:
    x = torch.tensor([[-128, 127, -1, 0], [127, -128, 1, 64], [0, 0, -128, 127], [-128] * 4], dtype=INT8)
    weight = torch.tensor([[127, 127, -128, -128], [-128, 127, 5, -7], [1, -1, 1, -1], [-128] * 4], dtype=INT8)
    with _core.target(target):
        is_exact(x, weight, x.numpy().astype(np.int64) @ weight.numpy().astype(np.int64).T)


def test_case_q21_ones_and_distinct_scales(target: str) -> None:
    ones = torch.ones(128, 128)
    with _core.target(target):
        assert (op(ones, ones.to(INT8), torch.ones(128), x_scale=ones[0]) == 128).all()
        x, weight = codes(130, 128), codes(70, 128, seed=1)
        scale, x_scale = torch.arange(1.0, 71) / 64, torch.arange(1.0, 131) / 128
        for dtype in (torch.float32, HALF, torch.bfloat16):
            out = op(x, weight, scale, x_scale=x_scale, out_dtype=dtype)
            acc = torch.from_numpy(x.numpy().astype(np.int64) @ weight.numpy().astype(np.int64).T)
            assert torch.equal(out, (acc.float() * scale * x_scale[:, None]).to(dtype))


def test_bias_is_added_in_64_bits(target: str) -> None:
    x, weight = torch.full((1, 4096), 127, dtype=INT8), torch.full((2, 4096), 127, dtype=INT8)
    bias = torch.tensor([2**31 - 1, -(2**31)], dtype=torch.int32)
    with _core.target(target):
        out = op(x, weight, torch.ones(2), x_scale=torch.ones(1), bias=bias, out_dtype=torch.float32)
    assert out[0].tolist() == [float(np.float32(4096 * 127 * 127 + b)) for b in bias.tolist()]


# ---- rows are on their own ----


@pytest.mark.parametrize("k", [7, 300])
def test_case_q24_a_row_alone_has_the_same_bits(target: str, k: int) -> None:
    x, weight, scale = normal(45, k), codes(130, k), normal(130).abs()
    packed, bias = pack_weight(weight, scale), torch.arange(130, dtype=torch.int32)
    with _core.target(target):
        alone = torch.cat([op(row[None], packed, bias=bias) for row in x])
        for m in (0, 1, 2, 5, 6, 7, 12, 13, 15, 16, 17, 31, 45):
            assert torch.equal(op(x[:m], packed, bias=bias), alone[:m]), m
            assert torch.equal(op(x[:m], weight, scale, bias=bias), alone[:m]), m


@EVERY_WAY
@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16, torch.float32])
def test_case_q1_a_zero_row_is_zero_and_changes_no_other(dtype: torch.dtype, backend: str) -> None:
    x, weight, scale = normal(4, 64, dtype=dtype), codes(24, 64), -normal(24).abs()
    with anyfuse.backend(backend):
        expected = op(x, weight, scale)
        x[2] = 0
        out = op(x, weight, scale, bias=None)
        biased = op(x, weight, scale, bias=torch.full((24,), 1000, dtype=torch.int32))
    assert torch.equal(out[[0, 1, 3]], expected[[0, 1, 3]])
    for row in (out[2], biased[2]):
        assert not row.any() and not row.signbit().any()


@EVERY_WAY
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_values_stay_in_their_row(bad: float, backend: str) -> None:
    x, weight, scale = normal(5, 33), codes(20, 33), torch.rand(20)
    static = {"x_scale": torch.tensor([0.02]), "quant_mode": "pertensor"}
    with anyfuse.backend(backend):
        clean, clean_static = op(x, weight, scale), op(x, weight, scale, **static)
        x[3, 7] = bad
        out, out_static = op(x, weight, scale), op(x, weight, scale, **static)
        x[3, 7] = math.copysign(1e30, bad)
        saturated = op(x, weight, scale, **static)
    others = [0, 1, 2, 4]
    assert torch.equal(out[others], clean[others]) and torch.equal(out_static[others], clean_static[others])
    assert out[3].isnan().all()
    assert out_static[3].isnan().all() if math.isnan(bad) else torch.equal(out_static[3], saturated[3])


# ---- scales ----


def test_case_q3_a_scale_below_fp16_keeps_the_ratios() -> None:
    x = torch.zeros(1, 32, dtype=HALF)
    x[0, :3] = torch.tensor([2e-6, 1e-6, -5e-7])
    q, scale = quantize_rows(x, None, None, "formula")
    assert q[0, :4].tolist() == [127, 64, -30, 0]  # 2e-6, 1e-6, -5e-7 are 34, 17, -8 units of 2^-24 in fp16: -8·127/34
    weight = torch.eye(32, dtype=INT8)
    assert torch.equal(op(x, weight, torch.ones(32), out_dtype=torch.float32), q * scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_case_q4_no_floor_under_the_scale(dtype: torch.dtype, target: str) -> None:
    x = torch.zeros(1, 16, dtype=dtype)
    x[0, :2] = torch.tensor([1e-6, -5e-7])
    with _core.target(target):
        out = op(x, torch.eye(16, dtype=INT8), torch.ones(16), out_dtype=torch.float32)
    scale = x[0, 0].float() / torch.tensor(127.0)
    assert out[0, 0] == 127 * scale and out[0, 1] == (x[0, 1].float() / scale).round() * scale


@EVERY_WAY
def test_case_q8_values_out_of_range_saturate(backend: str) -> None:
    x = torch.tensor([[math.inf, 0.0], [-math.inf, 0.0], [1e4, 0.0], [-1e4, 0.0]])
    with anyfuse.backend(backend):
        out = op(x, torch.tensor([[1, 0]], dtype=INT8), torch.ones(1), x_scale=torch.ones(1), quant_mode="pertensor")
    assert out.flatten().tolist() == [127, -128, 127, -128]


@EVERY_WAY
def test_case_q9_smooth_scales_of_zero_and_infinity(backend: str) -> None:
    x, weight, scale, smooth = normal(3, 16), codes(8, 16), torch.ones(8), torch.ones(16)
    x[1, 3] = 0
    without = x.clone()
    without[:, 3] = 0
    with anyfuse.backend(backend):
        smooth[3] = 0
        assert torch.equal(op(x, weight, scale, smooth_scale=smooth), op(without, weight, scale))
        smooth[3] = math.inf
        assert op(x, weight, scale, smooth_scale=smooth).isnan().all()  # row 1: 0·inf; the others: an infinite maximum
        static = {"x_scale": torch.ones(3), "smooth_scale": smooth}
        assert op(x, weight, scale, **static).isnan().all(1).tolist() == [False, True, False]


@EVERY_WAY
def test_case_q12_codes_round_half_to_even(backend: str) -> None:
    x = torch.tensor([[127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]])
    for k in (8, 9, 31, 64, 300):
        padded = torch.nn.functional.pad(x, (k - 8, 0))
        with anyfuse.backend(backend):
            out = op(padded, torch.eye(k, dtype=INT8), torch.ones(k))  # the scale is exactly 1
        assert out[0, k - 8 :].tolist() == [127, 0, 2, 2, 0, -2, -2, 126]


@EVERY_WAY
def test_case_q22_the_weight_scale_comes_before_the_cast(backend: str) -> None:
    x, weight = torch.full((2, 64), 127.0, dtype=HALF), torch.full((16, 64), 127, dtype=INT8)
    with anyfuse.backend(backend):
        assert (op(x, weight, torch.full((16,), 0.01)) == 10320).all()  # 10322.56; the sum alone overflows fp16


def test_case_q30_scales_of_rows_are_never_taken_for_columns() -> None:
    x, weight, scale = normal(8, 32), codes(8, 32), torch.arange(1.0, 9) / 100
    x_scale = torch.arange(1.0, 9) / 50
    expected = op(x, weight, scale, x_scale=x_scale)
    assert torch.equal(op(x, weight, scale, x_scale=x_scale[:, None]), expected)
    assert torch.equal(op(x, weight, scale[None], x_scale=x_scale), expected)
    for row in range(8):
        assert torch.equal(op(x[row : row + 1], weight, scale, x_scale=x_scale[row : row + 1])[0], expected[row])
    with pytest.raises(ValueError, match=r"x_scale has shape \(1, 8\); accepted: \(8,\) or \(8, 1\)"):
        op(x, weight, scale, x_scale=x_scale[None])
    with pytest.raises(ValueError, match=r"weight_scale has shape \(8, 1\)"):
        op(x, weight, scale[:, None], x_scale=x_scale)


@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16, torch.float64, torch.int32])
def test_case_q32_weight_scales_of_another_dtype(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=r"weight_scale has dtype .*; accepted: float32, int64"):
        op(normal(2, 16), codes(8, 16), torch.ones(8).to(dtype))


def test_int64_scales_equal_the_product_in_fp32(target: str) -> None:
    x, weight, scale = normal(9, 65, dtype=HALF), codes(33, 65), normal(33)
    x_scale = torch.tensor([0.03], dtype=HALF)
    packed = pack_scale_int64(scale, x_scale)
    with _core.target(target):
        out = op(x, weight, packed, x_scale=x_scale, quant_mode="pertensor", out_dtype=torch.float32)
    q, _ = quantize_rows(x, x_scale, None, "formula")
    acc = q.numpy().astype(np.int64) @ weight.numpy().astype(np.int64).T
    assert torch.equal(out, torch.from_numpy(acc).float() * (scale * x_scale.float()))
    zero = torch.zeros(1, dtype=HALF)
    assert not op(x, weight, packed, x_scale=zero, quant_mode="pertensor").any()


# ---- rows that are quantized already ----


def test_quantized_rows_give_what_their_floats_give(target: str) -> None:
    x, weight, scale = normal(7, 130), codes(40, 130), torch.rand(40)
    x[2], x[4, 5] = 0, math.nan
    q, x_scale = quantize_rows(x, None, None, "formula")
    with _core.target(target):
        expected = op(x, weight, scale)
        out = op(q.to(INT8), weight, scale, x_scale=x_scale, out_dtype=torch.float32)
    assert torch.equal(out.nan_to_num(7e7), expected.nan_to_num(7e7))
    assert expected[4].isnan().all() and not expected[2].any()


def test_a_norm_hands_its_codes_and_scales_over() -> None:
    x, gamma, weight, scale = normal(2, 3, 64), torch.ones(64), codes(24, 64), torch.rand(24)
    y, _, _, y_scale, _ = anyfuse.add_rms_norm_dynamic_quant(x, x, gamma)
    out = op(y, weight, scale, x_scale=y_scale, out_dtype=torch.bfloat16)
    assert out.shape == (2, 3, 24) and y_scale.shape == (2, 3)
    flat = op(y.reshape(6, 64), weight, scale, x_scale=y_scale.reshape(6), out_dtype=torch.bfloat16)
    assert torch.equal(out.reshape(6, 24), flat)


def test_case_q15_sixty_layers_stay_close_to_float64() -> None:
    """Each layer: norm of the residual, quantized, times a weight, added. Drift would pile up."""
    size, layers, rows = 256, 60, 4
    x, exact = normal(rows, size, dtype=torch.bfloat16), normal(rows, size, dtype=torch.bfloat16).double()
    branch, gamma = torch.zeros_like(x), torch.ones(size, dtype=torch.bfloat16)
    for layer in range(layers):
        weight = normal(size, size, seed=layer) / math.sqrt(size)
        scale = weight.abs().amax(1) / 127
        codes_of_weight = (weight / scale[:, None]).round().to(INT8)
        y, _, x, y_scale, _ = anyfuse.add_rms_norm_dynamic_quant(x, branch, gamma)
        branch = op(y, codes_of_weight, scale, x_scale=y_scale, out_dtype=torch.bfloat16)
        exact = exact + exact / exact.square().mean(1, keepdim=True).sqrt() @ weight.double().T
    cosine = torch.nn.functional.cosine_similarity((x + branch).double(), exact, dim=1)
    assert cosine.min() >= 0.995


# ---- shapes and layouts ----


@pytest.mark.parametrize("m, n, k", [(0, 8, 16), (3, 0, 16), (3, 8, 0), (0, 0, 0)])
@EVERY_WAY
def test_case_q27_empty(m: int, n: int, k: int, backend: str) -> None:
    with anyfuse.backend(backend):
        for weight in (codes(n, k), pack_weight(codes(n, k))):
            out = op(torch.ones(m, k, dtype=HALF), weight, torch.ones(n))
            assert out.shape == (m, n) and out.dtype == HALF and not out.any()
        bias = torch.full((n,), 3, dtype=torch.int32)
        static = op(torch.ones(m, k), codes(n, k) * 0, torch.ones(n), bias=bias, x_scale=torch.full((m,), 2.0))
    assert (static == 6).all()


def test_case_q28_any_strides() -> None:
    big, weight, scale = normal(16, 200), codes(24, 64), torch.rand(48)[::2]
    smooth = normal(128).abs()[::2]
    for x in (big[:, :64], big[::2, 10:138:2], big.t()[:64].t(), big[:1, :64].expand(5, 64)):
        expected = op(x.contiguous(), weight, scale.contiguous(), smooth_scale=smooth.contiguous())
        for strided in (weight, codes(24, 64).t().contiguous().t(), torch.cat([weight, weight], 1)[:, :64]):
            out = op(x, strided, scale, smooth_scale=smooth)
            assert out.is_contiguous() and torch.equal(out, expected)


def test_case_q31_the_orientation_of_a_square_weight() -> None:
    x, weight, scale = normal(5, 64), codes(64, 64), torch.rand(64)
    out = op(x, weight, scale)
    assert torch.equal(op(x, weight.t(), scale, transpose_weight=False), out)
    assert not torch.equal(op(x, weight.t().contiguous(), scale), out)
    with pytest.raises(ValueError, match=r"weight has shape \(64, 32\); accepted: \(32, 64\)"):
        op(x, codes(64, 32), torch.ones(32))


def test_case_q34_every_layout_gives_the_same_and_padding_is_not_used(target: str) -> None:
    for n, k in ((40, 48), (17, 33), (70, 300), (1, 1)):
        x, weight, scale = normal(7, k), codes(n, k), torch.rand(n)
        garbage = torch.full((-(-n // 32) * 32, -(-k // 32) * 32), 127, dtype=INT8)
        garbage[:n, :k] = weight
        n16, k16 = -(-n // 16) * 16, -(-k // 16) * 16
        with _core.target(target):
            expected = op(x, weight, scale)
            assert torch.equal(op(x, nd_to_nz(garbage[:n16]), scale), expected)
            assert torch.equal(op(x, nd_to_nz(garbage[:, :k16].t()), scale, transpose_weight=False), expected)
            assert torch.equal(op(x, weight.t().contiguous(), scale, transpose_weight=False), expected)
            assert torch.equal(op(x, pack_weight(weight), scale), expected)


def test_leading_dimensions_are_rows() -> None:
    x, weight, scale = normal(2, 3, 4, 20), codes(10, 20), torch.rand(10)
    expected = op(x.reshape(24, 20), weight, scale).reshape(2, 3, 4, 10)
    assert torch.equal(op(x, weight, scale), expected)
    x_scale = torch.rand(2, 3, 4) + 0.1
    given = op(x, weight, scale, x_scale=x_scale)
    assert torch.equal(given, op(x, weight, scale, x_scale=x_scale.reshape(24)))


def test_rows_taken_in_ranges_give_the_same(target: str) -> None:
    """Long inputs are quantized in ranges of rows that fit 64 MiB of codes: 256 rows at the largest k."""
    x, weight = torch.zeros(300, 131071, dtype=INT8), codes(3, 131071)
    x[::7], x[299] = codes(1, 131071), 1
    with _core.target(target):
        out = op(x, weight, torch.ones(3), x_scale=torch.arange(300.0), out_dtype=torch.float32)
        for row in (0, 7, 252, 259, 299):
            alone = op(
                x[row : row + 1], weight, torch.ones(3), x_scale=torch.tensor([float(row)]), out_dtype=torch.float32
            )
            assert torch.equal(out[row : row + 1], alone)
    assert not out[1].any() and not out[298].any()


# ---- graph mode, targets ----


def test_case_q46_one_graph_for_every_batch_size() -> None:
    torch._dynamo.reset()
    packed = pack_weight(codes(200, 40), torch.rand(200))  # 13 panels: no size that a batch has too
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda x: op(x, packed), fullgraph=True, dynamic=True, backend=counter)
    for m in (2, 4, 5, 1, 3, 17):
        x = normal(m, 40, seed=m)
        x[-1] = 0
        assert torch.equal(compiled(x), op(x, packed)), m
    assert counter.frame_count <= 2  # one more for m = 1


def test_every_target_answers_the_known_question_right(target: str) -> None:
    with _core.target(target):
        assert _core.operator_target("quant_matmul_dequant") == target
