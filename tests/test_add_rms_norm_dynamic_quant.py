"""add_rms_norm_dynamic_quant: the worked examples, the table of outputs, and what users of such operators hit."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import anyfuse
from anyfuse import _core
from anyfuse._bits import same_bits
from anyfuse.formats import decode_hifloat8, pack_int4, unpack_int4
from anyfuse.ops import _checks as checks
from anyfuse.ops import _numerics as numerics

quantize = anyfuse.add_rms_norm_dynamic_quant
NAN, INF = float("nan"), float("inf")
Y_DTYPES = (torch.int8, "int4", torch.float8_e4m3fn, torch.float8_e5m2, "hifloat8")


def half(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float16)


def unit_row(gamma: list[float], dtype: torch.dtype = torch.float32, rows: int = 1, **options: Any) -> list[Tensor]:
    """Quantizes the row `gamma` itself: ones have a root mean square of exactly 1 when epsilon is 0."""
    ones = torch.ones(rows, len(gamma), dtype=dtype)
    return list(quantize(ones, torch.zeros_like(ones), torch.tensor(gamma, dtype=dtype), epsilon=0.0, **options))


def assert_same(expected: tuple[Tensor, ...] | list[Tensor], got: tuple[Tensor, ...] | list[Tensor]) -> None:
    for name, a, b in zip("y1 y2 x scale1 scale2".split(), expected, got, strict=True):
        assert same_bits(a, b), f"{name}: {a} and {b}"


# ---- the worked examples of the operator ----

X1, X2, GAMMA = half(1, 2, 3, 4), half(1, 0, -1, 4), half(1, 1, 1, 1)[0]


def test_example_1_one_output() -> None:
    y1, y2, x, scale1, scale2 = quantize(X1, X2, GAMMA)
    assert x.tolist() == [[2, 2, 2, 8]]
    assert y1.tolist() == [[32, 32, 32, 127]]
    assert scale1.tolist() == pytest.approx([0.0144513845], abs=1e-9)
    assert y2.shape == scale2.shape == (0,)


def test_example_1_in_the_device_convention() -> None:
    y1, _, _, scale1, _ = quantize(X1, X2, GAMMA, convention="device")
    assert y1.tolist() == [[32, 32, 32, 127]]
    assert scale1.item() == numerics.f32(0.0144513836)
    assert scale1.item() < quantize(X1, X2, GAMMA)[3].item()


def test_example_2_beta_and_two_smooth_scales() -> None:
    y1, y2, _, scale1, scale2 = quantize(
        X1, X2, GAMMA, beta=half(0.5, 0, 0, -1)[0], smooth_scale1=half(1, 2, 1, 1)[0], smooth_scale2=GAMMA * 0.5
    )
    assert y1.tolist() == [[127, 122, 61, 111]]
    assert y2.tolist() == [[127, 61, 61, 111]]
    assert scale1.tolist() == pytest.approx([0.007549854], abs=1e-9)
    assert scale2.tolist() == pytest.approx([0.003774927], abs=1e-9)


def test_example_3_second_output_only() -> None:
    y1, y2, _, scale1, scale2 = quantize(X1, X2, GAMMA, output_mask=[False, True])
    assert y1.shape == scale1.shape == (0,)
    assert y2.tolist() == [[32, 32, 32, 127]]
    assert scale2.tolist() == pytest.approx([0.0144513845], abs=1e-9)


def test_example_4_int4() -> None:
    y1, _, _, scale1, _ = quantize(X1, X2, GAMMA, y_dtype="int4")
    assert y1.tolist() == [[0x22, 0x72]]
    assert scale1.item() == pytest.approx(0.262189418, abs=1e-8)


@pytest.mark.parametrize(
    ("y_dtype", "scale", "codes"),
    [
        (torch.float8_e4m3fn, 0.00409670966, [110, 110, 110, 126]),
        (torch.float8_e5m2, 3.20055442e-5, [115, 115, 115, 123]),
        ("hifloat8", 5.60096996e-5, [0x6A, 0x6A, 0x6A, 0x6E]),
    ],
)
def test_example_5_eight_bit_floats(y_dtype: Any, scale: float, codes: list[int]) -> None:
    y1, _, _, scale1, _ = quantize(X1, X2, GAMMA, y_dtype=y_dtype)
    assert y1.view(torch.uint8).tolist() == [codes]
    assert scale1.item() == pytest.approx(scale, rel=1e-7)


@pytest.mark.parametrize(
    ("dtype", "x1", "x2", "x", "y"),
    [
        (torch.float16, [2048.0, 1.0], [1.0, 0.0], [2048.0, 1.0], 0.000690196874),
        (torch.bfloat16, [256.0, 1.0], [1.0, 1.0], [256.0, 2.0], 0.01100522),
    ],
)
def test_example_6_the_sum_goes_on_unrounded(dtype: torch.dtype, x1: Any, x2: Any, x: Any, y: float) -> None:
    """Element 1 is the row's largest when the other one is weighed by 0: its scale shows its value."""
    gamma = torch.tensor([0.0, 1.0], dtype=dtype)
    result = quantize(torch.tensor([x1], dtype=dtype), torch.tensor([x2], dtype=dtype), gamma)
    assert result[2].tolist() == [x]
    assert result[3].item() * 127 == pytest.approx(y, rel=3e-7)


@pytest.mark.parametrize("beta", [None, half(0.5, 0, -0.25, 1)[0]])
def test_example_7_a_zero_row(beta: Tensor | None) -> None:
    y1, _, x, scale1, _ = quantize(X1, -X1, GAMMA, beta=beta)
    assert x.tolist() == [[0, 0, 0, 0]]
    assert y1.tolist() == ([[0, 0, 0, 0]] if beta is None else [[64, 0, -32, 127]])
    assert scale1.item() == (0.0 if beta is None else numerics.f32(1 / 127))


def test_example_8_ties_depend_on_the_convention() -> None:
    row = [2.091796875, 1.0458984375]
    assert unit_row(row)[0].tolist() == [[127, 63]]
    assert unit_row(row, convention="device")[0].tolist() == [[127, 64]]
    assert unit_row([0.685546875, 0.3427734375])[0].tolist() == [[127, 63]]


# ---- the table of outputs ----


@pytest.mark.parametrize("mask", [None, (True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("smooth1", [False, True])
@pytest.mark.parametrize("smooth2", [False, True])
def test_case_q35_masks_and_smooth_scales(mask: Any, smooth1: bool, smooth2: bool) -> None:
    x1, x2, gamma, s1, s2 = (torch.randn(shape) for shape in ((3, 8), (3, 8), (8,), (8,), (8,)))
    options = {"smooth_scale1": s1 if smooth1 else None, "smooth_scale2": s2 if smooth2 else None}
    if mask is None:
        refused = smooth2 and not smooth1
        first, second = True, smooth1 and smooth2
    else:
        first, second = mask
        refused = not any(mask) or (smooth1 and not first) or (smooth2 and not second)
    if refused:
        with pytest.raises(ValueError, match="smooth_scale2" if mask is None else "output_mask"):
            quantize(x1, x2, gamma, output_mask=mask, **options)
        return
    y1, y2, x, scale1, scale2 = quantize(x1, x2, gamma, output_mask=mask, **options)
    assert y1.shape == ((3, 8) if first else (0,))
    assert scale1.shape == ((3,) if first else (0,))
    assert y2.shape == ((3, 8) if second else (0,))
    assert scale2.shape == ((3,) if second else (0,))
    plain = quantize(x1, x2, gamma)
    for wanted, smooth, y, scale in ((first, smooth1, y1, scale1), (second, smooth2, y2, scale2)):
        if wanted and not smooth:
            assert same_bits(y, plain[0])
            assert same_bits(scale, plain[3])
    assert same_bits(x, plain[2])


def test_a_branch_equals_the_call_that_produces_it_alone() -> None:
    x1, x2, gamma, s1, s2 = (torch.randn(shape) for shape in ((5, 200), (5, 200), (200,), (200,), (200,)))
    both = quantize(x1, x2, gamma, smooth_scale1=s1, smooth_scale2=s2)
    first = quantize(x1, x2, gamma, smooth_scale1=s1, output_mask=[True, False])
    second = quantize(x1, x2, gamma, smooth_scale2=s2, output_mask=[False, True])
    assert_same(both, (first[0], second[1], first[2], first[3], second[4]))


# ---- numbers ----


@pytest.mark.parametrize("y_dtype", Y_DTYPES)
def test_case_q1_a_zero_row_touches_no_other(y_dtype: Any) -> None:
    torch.manual_seed(0)
    x1, x2 = torch.randn(4, 64).bfloat16(), torch.randn(4, 64).bfloat16()
    gamma = torch.randn(64).bfloat16()
    x2[2] = -x1[2]
    y, _, _, scale, _ = quantize(x1, x2, gamma, y_dtype=y_dtype)
    assert scale[2].item() == 0
    assert not y[2].view(torch.uint8).any()
    others = [0, 1, 3]
    alone = quantize(x1[others], x2[others], gamma, y_dtype=y_dtype)
    assert same_bits(y.view(torch.uint8)[others], alone[0].view(torch.uint8))
    assert same_bits(scale[others], alone[3])


@pytest.mark.parametrize("dtype", checks.FLOATS)
def test_case_q4_no_floor_under_the_scale(dtype: torch.dtype) -> None:
    row = [1e-6, 5e-7, 0.0, -1e-6]
    y, _, _, scale, _ = unit_row(row, dtype)
    assert y[:, [0, 2, 3]].tolist() == [[127, 0, -127]]
    assert abs(y[0, 1] - 63.5) <= (4 if dtype == torch.float16 else 1)  # fp16 has 17 steps up to 1e-6
    assert 0 < scale.item() < 1e-8


def test_case_q9_smooth_scale_with_zero_infinity_and_nan() -> None:
    x1, x2, gamma = torch.ones(2, 8), torch.zeros(2, 8), torch.ones(8)
    smooth = torch.ones(8)
    smooth[3] = 0
    y, _, _, scale, _ = quantize(x1, x2, gamma, smooth_scale1=smooth)
    assert y[:, 3].tolist() == [0, 0]
    assert scale.isfinite().all()
    smooth[3] = INF
    x1[0, 3] = 0  # 0 · inf in row 0 only
    y, _, _, scale, _ = quantize(x1, x2, gamma, smooth_scale1=smooth)
    assert scale[0].isnan()
    assert scale[1] == INF
    assert not y.any()
    y, _, _, scale, _ = quantize(x1, x2, gamma, smooth_scale1=smooth, y_dtype=torch.float8_e4m3fn)
    assert (y[0].view(torch.uint8) == 0x7F).all()
    assert y[1].view(torch.uint8).tolist() == [0, 0, 0, 0x7F, 0, 0, 0, 0]
    y = quantize(x1, x2, gamma, smooth_scale1=smooth, y_dtype="hifloat8")[0]
    assert y[0].tolist() == [0x80] * 8
    assert y[1].tolist() == [0, 0, 0, 0x80, 0, 0, 0, 0]


@pytest.mark.parametrize("bad", [INF, -INF, NAN])
@pytest.mark.parametrize("y_dtype", Y_DTYPES)
def test_infinity_and_nan_in_x_spoil_their_row_only(bad: float, y_dtype: Any) -> None:
    x1, x2, gamma = torch.randn(3, 70), torch.randn(3, 70), torch.randn(70)
    clean = quantize(x1, x2, gamma, y_dtype=y_dtype)
    x1[1, 66] = bad
    y, _, _, scale, _ = quantize(x1, x2, gamma, y_dtype=y_dtype)
    assert scale[1].isnan()
    code = {torch.int8: 0, "int4": 0, "hifloat8": 0x80}.get(y_dtype, 0x7F)
    assert (y[1].view(torch.uint8) == code).all()
    for row in (0, 2):
        assert same_bits(y[row], clean[0][row])
        assert same_bits(scale[row], clean[3][row])


@pytest.mark.parametrize("cols", [8, 9, 31, 64, 200])
def test_case_q10_q12_ties_to_even_in_every_place(cols: int, target: str) -> None:
    row = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]
    expected = [127, 0, 2, 2, 0, -2, -2, 126]
    gamma = (row * (cols // 8 + 1))[:cols]
    with _core.target(target):
        y, _, _, scale, _ = unit_row(gamma, rows=2)
    assert scale.tolist() == [1, 1]
    assert y.tolist() == [(expected * (cols // 8 + 1))[:cols]] * 2


def test_every_near_tie_has_the_code_of_the_division(target: str) -> None:
    """The kernel multiplies by 1/scale where that cannot matter: here values lie within a few ulp of every tie."""
    torch.manual_seed(3)
    ties = torch.arange(-126.5, 127.0).repeat(40)
    scales = torch.rand(50) * 2 - 1 + torch.logspace(-12, 12, 50)
    with _core.target(target):
        for scale in scales.abs():
            values = ties * scale
            steps = torch.randint(-3, 4, values.shape, dtype=torch.int32)  # ulp
            values = (values.view(torch.int32) + steps).view(torch.float32)
            gamma = torch.cat([values, (scale * 127).reshape(1)])
            y, _, _, got, _ = unit_row(gamma.tolist())
            expected = (gamma / got).round().clamp(-127, 127)
            assert torch.equal(y[0].float(), expected)


def test_case_q23_sums_beyond_fp16() -> None:
    gamma = torch.randn(64).half()
    expected = unit_row(gamma.tolist(), torch.float16)
    for value, x in ((300.0, 600.0), (40000.0, INF)):
        row = torch.full((2, 64), value, dtype=torch.float16)
        y, _, got_x, scale, _ = quantize(row, row, gamma, epsilon=0.0)
        assert (got_x == x).all()
        assert torch.equal(y[0], expected[0][0])
        assert scale[0] == expected[3]


@pytest.mark.parametrize("cols", [1, 7, 31, 33, 63, 65, 1027, 2880])
def test_case_q26_any_number_of_columns(cols: int) -> None:
    """Against float64: a code is at most half a step from the exact quotient, and the roundings of fp32 (< 1e-4)."""
    torch.manual_seed(cols)
    x1, x2, gamma = torch.randn(4, cols).bfloat16(), torch.randn(4, cols).bfloat16(), torch.randn(cols).bfloat16()
    y, _, _, scale, _ = quantize(x1, x2, gamma)
    x = x1.double() + x2.double()
    norm = x / ((x * x).mean(-1, keepdim=True) + 1e-6).sqrt() * gamma.double()
    absmax = norm.abs().amax(-1, keepdim=True)
    assert torch.allclose(scale.double(), absmax.squeeze(-1) / 127, rtol=1e-6)
    assert ((y - norm * 127 / absmax).abs() <= 0.5001).all()


@pytest.mark.parametrize("y_dtype", Y_DTYPES)
@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8), (3, 0), (0,), (0, 0)])
def test_case_q27_nothing(shape: tuple[int, ...], y_dtype: Any) -> None:
    x1, gamma = torch.ones(shape), torch.ones(shape[-1])
    y1, y2, x, scale1, scale2 = quantize(x1, x1, gamma, output_mask=[True, True], y_dtype=y_dtype)
    codes = (*shape[:-1], shape[-1] // 2) if y_dtype == "int4" else shape
    assert y1.shape == y2.shape == codes
    assert x.shape == shape
    assert scale1.shape == scale2.shape == shape[:-1]
    assert not scale1.any()


def test_case_q28_strides() -> None:
    torch.manual_seed(0)
    wide, weights = torch.randn(8, 200), torch.randn(7, 128)
    views = {
        "columns of a buffer": (wide[:, :64], wide[:, 100:164]),
        "transposed": (torch.randn(64, 8).T, wide[:, 3:67]),
        "split": (wide.view(2, 4, 200).split(64, dim=-1)[1], wide.view(2, 4, 200).split(64, dim=-1)[0]),
        "stepped": (wide[:, 1:129:2], wide[:, 0:128:2]),
        "flipped": (wide[:, torch.arange(63, -1, -1)], wide[torch.arange(7, -1, -1), :64]),
        "expanded": (wide[:1, :64].expand(8, 64), wide[:, :1].expand(8, 64)),
    }
    gamma, beta = weights[0, ::2], torch.randn(64, 7)[:, 3]
    for x1, x2 in views.values():
        expected = quantize(x1.contiguous(), x2.contiguous(), gamma.contiguous(), beta=beta.contiguous())
        got = quantize(x1, x2, gamma, beta=beta)
        assert_same(expected, got)
        assert all(tensor.is_contiguous() for tensor in got)


@pytest.mark.parametrize("cols", [1, 64, 100, 16384, 16385, 50_000])
def test_the_same_row_alone_and_among_others(cols: int) -> None:
    torch.manual_seed(1)
    x1, x2, gamma = torch.randn(17, cols), torch.randn(17, cols), torch.randn(cols)
    y, _, x, scale, _ = quantize(x1, x2, gamma)
    for row in (0, 16):
        alone = quantize(x1[row], x2[row], gamma)
        assert same_bits(alone[0], y[row])
        assert same_bits(alone[2], x[row])
        assert same_bits(alone[3], scale[row])


def test_leading_dimensions_only_shape_the_result() -> None:
    x1, x2, gamma = torch.randn(24, 32), torch.randn(24, 32), torch.randn(32)
    flat = quantize(x1, x2, gamma)
    deep = quantize(x1.view(1, 2, 3, 1, 4, 1, 1, 32), x2.view(1, 2, 3, 1, 4, 1, 1, 32), gamma)
    assert deep[3].shape == (1, 2, 3, 1, 4, 1, 1)
    assert same_bits(deep[0].view(24, 32), flat[0])
    assert same_bits(deep[3].view(24), flat[3])


# ---- formats ----


def test_case_q37_int4_words() -> None:
    row = [7, -7, 6, -6, 5, -5, 4, -4, 3, -3, 2, -2, 1, -1, 0, 7]
    y, _, _, scale, _ = unit_row(row, y_dtype="int4")
    assert scale.item() == 1
    assert same_bits(y[0].view(torch.int32), pack_int4(torch.tensor(row), torch.int32))
    assert unpack_int4(y).tolist() == [row]
    assert unpack_int4(unit_row(row[:12], y_dtype="int4")[0]).tolist() == [row[:12]]
    with pytest.raises(ValueError, match="even last dimension"):
        unit_row(row[:7], y_dtype="int4")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, "hifloat8"])
def test_kernels_know_every_code_and_midpoint(dtype: Any, target: str) -> None:
    """Scale exactly 1: the codes are those of the values, their midpoints and the numbers next to both."""
    codes = torch.arange(256, dtype=torch.uint8)
    values = (decode_hifloat8(codes) if dtype == "hifloat8" else codes.view(dtype).float()).sort().values
    values = values[values.isfinite()]
    row = torch.cat([values, (values[1:] + values[:-1]) / 2])
    row = torch.cat([row, *(torch.nextafter(row, torch.tensor(side)) for side in (INF, -INF))])
    row = row[row.abs() <= values.max()].tolist()
    with _core.target(target):
        native = unit_row(row, y_dtype=dtype)
    with anyfuse.backend("reference"):
        assert_same(unit_row(row, y_dtype=dtype), native)
    assert native[3].item() == 1


@pytest.mark.parametrize("y_dtype", Y_DTYPES)
def test_codes_times_scale_are_close_to_the_norm(y_dtype: Any) -> None:
    """To half a step: of 1 scale for integers; else 2^-4, 2^-3, 2^-2 relative, or the format's smallest step."""
    torch.manual_seed(0)
    x1, x2, gamma = torch.randn(16, 256), torch.randn(16, 256), torch.rand(256) + 0.5
    y, _, x, scale, _ = quantize(x1, x2, gamma, y_dtype=y_dtype)
    codes = {"int4": unpack_int4, "hifloat8": decode_hifloat8}.get(y_dtype, Tensor.float)(y)
    norm = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * gamma
    error = (codes * scale.unsqueeze(-1) - norm).abs()
    relative = {torch.float8_e4m3fn: 2**-4, torch.float8_e5m2: 2**-3, "hifloat8": 2**-2}.get(y_dtype, 0.0)
    absolute = 0.5 if relative == 0.0 else 2.0**-10
    assert (error <= norm.abs() * relative * 1.001 + scale.unsqueeze(-1) * absolute * 1.001).all()


# ---- the call ----


def test_case_q39_inputs_stay_and_results_are_new() -> None:
    x, gamma = torch.randn(3, 16), torch.randn(16)
    before = x.clone()
    _, _, total, _, _ = result = quantize(x, x, gamma)
    assert same_bits(x, before)
    assert same_bits(total, 2 * x)
    assert len({tensor.untyped_storage().data_ptr() for tensor in (x, gamma, *result) if tensor.numel()}) == 5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_case_q40_weights_in_fp32_beside_16_bits(dtype: torch.dtype) -> None:
    """Each weight for itself in x's dtype or in fp32; values that x's dtype holds give the same numbers."""
    x1, x2 = torch.randn(3, 100).to(dtype), torch.randn(3, 100).to(dtype)
    names = ("gamma", "smooth_scale1", "smooth_scale2", "beta")
    weights = {name: torch.randn(100).to(dtype) for name in names}
    expected = quantize(x1, x2, **weights)
    for wide in itertools.product((False, True), repeat=4):
        mixed = {name: weights[name].float() if w else weights[name] for name, w in zip(names, wide, strict=True)}
        assert_same(expected, quantize(x1, x2, **mixed))
    other = torch.bfloat16 if dtype == torch.float16 else torch.float16
    for name in names:
        with pytest.raises(TypeError, match=name):
            quantize(x1, x2, **{**weights, name: weights[name].to(other)})


@pytest.mark.parametrize("epsilon", [1e-6, 1e-5, 1e-3])
def test_case_q42_epsilon_counts_for_small_rows(epsilon: float) -> None:
    x = torch.full((1, 64), 5e-4)
    scale = quantize(x, x, torch.ones(64), epsilon=epsilon)[3].item()
    assert scale == pytest.approx(1e-3 / (1e-6 + epsilon) ** 0.5 / 127, rel=1e-5)


def test_case_q46_one_compiled_graph_for_any_number_of_rows() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(quantize, backend="aot_eager", fullgraph=True, dynamic=True)
    gamma = torch.randn(32)

    def compare(rows: int) -> None:
        x1, x2 = torch.randn(rows, 32), torch.randn(rows, 32)
        x2[0] = -x1[0]
        assert_same(quantize(x1, x2, gamma), compiled(x1, x2, gamma))

    compare(2)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (4, 5, 300, 3):
            compare(rows)
    compare(1)  # one row is a graph of its own, as everywhere in torch.compile
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (1, 2, 7):
            compare(rows)


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_pass_through_the_sum_and_nothing_else(compiled: bool) -> None:
    torch._dynamo.reset()
    call = torch.compile(quantize, backend="aot_eager", fullgraph=True) if compiled else quantize
    x1, x2 = torch.randn(3, 8, requires_grad=True), torch.randn(3, 8, requires_grad=True)
    gamma = torch.nn.Parameter(torch.ones(8))
    y, _, x, scale, _ = call(x1, x2, gamma, y_dtype=torch.float8_e4m3fn)
    assert [tensor.requires_grad for tensor in (y, x, scale)] == [False, True, False]
    (x * x).sum().backward()
    assert torch.equal(x1.grad, 2 * x.detach())
    assert torch.equal(x2.grad, x1.grad)
    assert gamma.grad is None


@pytest.mark.parametrize("shape", [(96,), (3, 96)])
@pytest.mark.parametrize("convention", ["formula", "device"])
def test_the_reference_does_not_depend_on_the_default_dtype(shape: tuple[int, ...], convention: str) -> None:
    x, gamma = torch.randn(shape), torch.rand(96)
    expected = anyfuse.add_rms_norm_dynamic_quant(x, x, gamma, convention=convention)
    torch.set_default_dtype(torch.float64)
    try:
        with anyfuse.backend("reference"):
            found = anyfuse.add_rms_norm_dynamic_quant(x, x, gamma, convention=convention)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("dtype", checks.FLOATS)
@pytest.mark.parametrize("y_dtype", ["int8", "float8_e4m3fn"])
def test_without_x2_nothing_is_added_and_no_sum_is_given(target: str, dtype: torch.dtype, y_dtype: str) -> None:
    """For whole blocks, tails, several segments; as with zeros, by the reference too."""
    codes = getattr(torch, y_dtype)
    for cols in (1, 63, 64, 130, 20000):
        x1, gamma = torch.randn(3, cols).add(3).to(dtype), torch.rand(cols).to(dtype)
        with _core.target(target):
            expected = anyfuse.add_rms_norm_dynamic_quant(x1, torch.zeros_like(x1), gamma, y_dtype=codes)
            found = anyfuse.add_rms_norm_dynamic_quant(x1, None, gamma, y_dtype=codes)
        with anyfuse.backend("reference"):
            defined = anyfuse.add_rms_norm_dynamic_quant(x1, None, gamma, y_dtype=codes)
        for y, _, x, scale, _ in (found, defined):
            assert torch.equal(y.view(torch.uint8), expected[0].view(torch.uint8)) and torch.equal(scale, expected[3])
            assert x.shape == (0,) and x.dtype == dtype
