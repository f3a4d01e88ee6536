"""The fusion pass: which written forms it replaces, what it refuses, and that values stay right.

The pass runs on the graphs that inductor gives it, whose decompositions are used here; what remains is run by torch
itself, so that no C++ is compiled. One test goes through inductor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from fusing import COLS, close, compiled, inputs, quantize
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table
from torch.nn import functional as F

import anyfuse
from anyfuse import fusion
from anyfuse.fusion import _hooks, _kept_weights, _matmul, _norm_quant

NORM, MATMUL = "add_rms_norm_dynamic_quant", "quant_matmul_dequant"


# ---- the norm ----

NORMS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "F.rms_norm": lambda x, g, eps: F.rms_norm(x, (COLS,), g, eps),
    "rsqrt": lambda x, g, eps: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * g,
    "gamma first": lambda x, g, eps: g * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)),
    "sqrt": lambda x, g, eps: x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps) * g,
    "1 / sqrt": lambda x, g, eps: x * (1 / torch.sqrt((x**2).mean(-1, keepdim=True) + eps)) * g,
    "power -0.5": lambda x, g, eps: x * ((x**2).mean(-1, keepdim=True) + eps) ** -0.5 * g,
    "power 0.5": lambda x, g, eps: x / ((x**2).mean(-1, keepdim=True) + eps) ** 0.5 * g,
    "sum / n": lambda x, g, eps: x * torch.rsqrt((x * x).sum(-1, keepdim=True) / x.shape[-1] + eps) * g,
    "casts": lambda x, g, eps: g * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype),
}

QUANTS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "amax": quantize,
    "max": lambda v: _by(v, v.abs().max(dim=-1).values.unsqueeze(-1) / 127.0),
    "flat scale": lambda v: _flat(v, v.abs().amax(-1) / 127),
    "times 1/127": lambda v: _by(v, v.abs().amax(-1, keepdim=True) * (1 / 127)),
    "reciprocal of scale": lambda v: _times(v, 1 / (v.abs().amax(-1, keepdim=True) / 127)),
    "127 / absmax": lambda v: _times(v, 127 / v.abs().amax(-1, keepdim=True)),
    "vector_norm": lambda v: _by(v, torch.linalg.vector_norm(v, float("inf"), dim=-1, keepdim=True) / 127),
    "clamp, then round": lambda v: _clamped_first(v, v.abs().amax(-1, keepdim=True) / 127),
    "no clamp": lambda v: _unclamped(v, v.abs().amax(-1, keepdim=True) / 127),
}


def _by(v: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    return torch.round(v / scale).clamp(-127, 127).to(torch.int8), scale


def _flat(v: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    return torch.round(v / scale.unsqueeze(-1)).clamp(-127, 127).to(torch.int8), scale


def _times(v: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    return torch.round(v * factor).clamp(-128, 127).to(torch.int8), 1 / factor


def _clamped_first(v: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    return torch.clamp(v / scale, -128, 127).round().to(torch.int8), scale


def _unclamped(v: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    return (v / scale).round().to(torch.int8), scale


@pytest.mark.parametrize("form", NORMS)
def test_case_q45_forms_of_the_norm(form: str) -> None:
    def model(x1: Tensor, x2: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        x = x1 + x2
        return *quantize(NORMS[form](x, g, 1e-6)), x

    got = compiled(model)(*inputs())
    assert fusion.report().fused[NORM] == 1, fusion.report()
    assert fusion.report().kept == 0
    close(model(*inputs()), got)


@pytest.mark.parametrize("form", QUANTS)
def test_case_q45_forms_of_the_quantization(form: str) -> None:
    def model(x1: Tensor, x2: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        x = x1 + x2
        return *QUANTS[form](NORMS["rsqrt"](x, g, 1e-6)), x

    got = compiled(model)(*inputs())
    assert fusion.report().fused[NORM] == 1, fusion.report()
    assert fusion.report().kept == 0
    close(model(*inputs()), got)


def test_the_first_quantization_of_a_model_has_no_residual() -> None:
    def model(x: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        return quantize(F.rms_norm(x, (COLS,), g, 1e-6))

    x, _, g = inputs()
    got = compiled(model)(x, g)
    assert fusion.report().fused[NORM] == 1
    close(model(x, g), got)


def test_a_norm_without_gamma() -> None:
    def model(x1: Tensor, x2: Tensor) -> tuple[Tensor, ...]:
        return quantize(F.rms_norm(x1 + x2, (COLS,), None, 1e-6))

    x1, x2, _ = inputs()
    got = compiled(model)(x1, x2)
    assert fusion.report().fused[NORM] == 1
    close(model(x1, x2), got)


def test_case_q39_inputs_stay_and_results_are_new() -> None:
    def model(x1: Tensor, x2: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        x = x1 + x2
        return *quantize(NORMS["rsqrt"](x, g, 1e-6)), x

    x, _, g = inputs()
    before = x.clone()
    got = compiled(model)(x, x, g)
    assert fusion.report().fused[NORM] == 1
    assert torch.equal(x, before)
    assert torch.equal(got[2], 2 * x)
    assert got[2].data_ptr() != x.data_ptr()
    close(model(x, x, g), got)


@pytest.mark.parametrize("gamma", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_case_q40_gamma_of_another_dtype_is_widened(dtype: torch.dtype, gamma: torch.dtype) -> None:
    def model(x1: Tensor, x2: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        x = x1.float() + x2.float()
        return *quantize(NORMS["rsqrt"](x, g.float(), 1e-6)), x.to(x1.dtype)

    x1, x2, g = inputs(dtype)
    got = compiled(model)(x1, x2, g.to(gamma))
    assert fusion.report().fused[NORM] == 1
    expected = anyfuse.add_rms_norm_dynamic_quant(x1, x2, g.to(gamma).float(), epsilon=1e-6)
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[3].unsqueeze(-1))
    assert torch.equal(got[2], expected[2])
    close(model(x1, x2, g.to(gamma)), got)


@pytest.mark.parametrize("with_beta", [False, True])
def test_case_q41_with_and_without_beta(with_beta: bool) -> None:
    def model(x1: Tensor, x2: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
        v = NORMS["rsqrt"](x1 + x2, g, 1e-6)
        return quantize(v + beta if with_beta else v)

    beta = torch.linspace(-1, 1, COLS)
    got = compiled(model)(*inputs(), beta)
    assert fusion.report().fused[NORM] == 1
    expected = anyfuse.add_rms_norm_dynamic_quant(*inputs(), beta=beta if with_beta else None)
    assert torch.equal(got[0], expected[0])
    close(model(*inputs(), beta), got)


@pytest.mark.parametrize("epsilon", [1e-6, 1e-5, 1e-3, 0.0])
@pytest.mark.parametrize("form", ["F.rms_norm", "rsqrt", "sqrt"])
def test_case_q42_any_epsilon_and_the_one_written(form: str, epsilon: float) -> None:
    def model(x1: Tensor, x2: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        return quantize(NORMS[form](x1 + x2, g, epsilon))

    given = inputs(scale=1e-3)
    got = compiled(model)(*given)
    assert fusion.report().fused[NORM] == 1
    close(model(*given), got)


def test_case_q46_one_graph_for_all_numbers_of_rows() -> None:
    def model(x1: Tensor, x2: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        x = x1 + x2
        return *quantize(NORMS["sum / n"](x, g, 1e-6)), x

    fused = compiled(model, dynamic=True)
    g = inputs()[2]
    for rows in (2, 4, 5, 1, 3):
        x1, x2 = torch.randn(rows, COLS), torch.randn(rows, COLS)
        close(model(x1, x2, g), fused(x1, x2, g))
        x1[-1] = x2[-1] = 0
        codes, scale, x = fused(x1, x2, g)
        assert not codes[-1].any() and scale[-1] == 0 and not x[-1].any()
    assert fusion.report().graphs <= 2
    assert fusion.report().fused[NORM] == fusion.report().graphs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cols", [1, 64, 100, 16500])
def test_calls_without_x2_are_the_operators_with_zeros(cols: int, dtype: torch.dtype) -> None:
    x1, gamma, smooth = torch.randn(3, cols).to(dtype), torch.rand(cols), torch.rand(cols)
    for two in (False, True):
        for backend in ("native", "reference"):
            with anyfuse.backend(backend):
                given = {"smooth_scale1": smooth, "output_mask": (True, two)}
                got = anyfuse.add_rms_norm_dynamic_quant(x1, None, gamma, **given)
                want = anyfuse.add_rms_norm_dynamic_quant(x1, torch.zeros_like(x1), gamma, **given)
            assert got[2].shape == (0,)
            for i in (0, 1, 3, 4):
                assert torch.equal(got[i], want[i])


# ---- several quantizations of a norm ----


@pytest.mark.parametrize("count", [1, 2, 3])
def test_smooth_scales_share_a_call_in_pairs(count: int) -> None:
    def model(x1: Tensor, x2: Tensor, g: Tensor, smooth: Tensor) -> list[Tensor]:
        v = NORMS["rsqrt"](x1 + x2, g, 1e-6)
        return [t for i in range(count) for t in quantize(v * smooth[i])]

    smooth = torch.rand(3, COLS) + 0.5
    got = compiled(model)(*inputs(), smooth)
    assert fusion.report().quantizations == count
    close(tuple(model(*inputs(), smooth)), tuple(got))


def test_weights_given_as_they_are_make_one_call_of_two() -> None:
    def model(x1: Tensor, x2: Tensor, g: Tensor, s1: Tensor, s2: Tensor) -> list[Tensor]:
        v = NORMS["rsqrt"](x1 + x2, g, 1e-6)
        return [*quantize(v * s1), *quantize(v * s2), *quantize(v * s1)]

    got = compiled(model)(*inputs(), torch.rand(COLS) + 0.5, torch.rand(COLS) + 0.5)
    report = fusion.report()
    assert (report.fused[NORM], report.quantizations) == (1, 3)
    assert torch.equal(got[0], got[4])


def test_a_norm_that_is_also_used_unquantized_stays_right() -> None:
    def model(x1: Tensor, x2: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        v = NORMS["rsqrt"](x1 + x2, g, 1e-6)
        return *quantize(v), v

    got = compiled(model)(*inputs())
    assert (fusion.report().fused[NORM], fusion.report().kept) == (1, 1)
    assert torch.equal(got[2], model(*inputs())[2])
    close(model(*inputs()), got)


def test_gradients_of_the_code_around_are_those_of_the_unfused_code() -> None:
    def model(x1: Tensor, x2: Tensor, g: Tensor) -> Tensor:
        x = x1 + x2
        codes, scale = quantize(NORMS["rsqrt"](x, g, 1e-6))
        return (x * x).sum() + (codes.float() * scale).sum()

    def gradients(function: Callable[..., Tensor]) -> list[Tensor]:
        leaves = [t.requires_grad_() for t in inputs()]
        function(*leaves).backward()
        return [t.grad for t in leaves]

    fused = gradients(compiled(model))
    assert fusion.report().fused[NORM] == 1
    for a, b in zip(gradients(model), fused, strict=True):
        torch.testing.assert_close(a, b)


# ---- what is refused ----


def refused(model: Callable[..., Any], *given: Tensor, accept: tuple[str, ...] = ()) -> str:
    """The reason why nothing is fused; the results are those of the code as it is written."""
    got = compiled(model, accept)(*given)
    report = fusion.report()
    assert not report.fused[NORM] and not report.fused[MATMUL], report
    for a, b in zip(model(*given), got, strict=True):
        assert torch.equal(a, b)
    (miss,) = report.misses
    assert "test_fusion.py:" in miss.where or "fusing.py:" in miss.where
    return miss.reason


def normed(then: Callable[[Tensor], Any]) -> Callable[..., Any]:
    return lambda x1, x2, g: then(NORMS["rsqrt"](x1 + x2, g, 1e-6))


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "clamped scale": (lambda v: _by(v, (v.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-5)), "below 1e-05"),
    "clamped absmax": (lambda v: _by(v, v.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127), "below 1e-05"),
    "scale + eps": (lambda v: _by(v, v.abs().amax(-1, keepdim=True) / 127 + 1e-8), "1e-08 is added"),
    "absmax / 128": (lambda v: _by(v, v.abs().amax(-1, keepdim=True) / 128), "absmax / 128"),
    "whole tensor": (lambda v: _by(v, v.abs().amax(keepdim=True) / 127), "each row"),
    "absmax of others": (lambda v: _by(v, (v * 2).abs().amax(-1, keepdim=True) / 127), "absmax is not that"),
    "narrow clamp": (
        lambda v: [(v / (v.abs().amax(-1, keepdim=True) / 127)).round().clamp(-7, 7).to(torch.int8)],
        "clamped to -7 ... 7",
    ),
    "three factors": (lambda v: quantize(v * v.new_ones(COLS) * v.new_ones(COLS)), "more factors"),
    "no norm": (lambda v: quantize(torch.sigmoid(v)), "no RMSNorm"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_case_q45_near_misses_tell_why(name: str) -> None:
    then, reason = REFUSED[name]
    assert reason in refused(normed(then), *inputs())


@pytest.mark.parametrize("factor", [0.05, 20.0])
def test_case_q45_a_static_scale_is_no_dynamic_quantization(factor: float) -> None:
    quotient = (lambda v: v / factor) if factor < 1 else (lambda v: v * factor)
    model = normed(lambda v: [quotient(v).round().clamp(-128, 127).to(torch.int8)])
    got = compiled(model)(*inputs())
    assert not fusion.report().fused[NORM]
    assert torch.equal(got[0], model(*inputs())[0])


def rounded_norm(x1: Tensor, x2: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    x = x1 + x2
    return *quantize(NORMS["casts"](x, g, 1e-6)), x


def test_a_norm_rounded_to_16_bits_is_refused_unless_accepted() -> None:
    given = inputs(torch.bfloat16)
    assert "rounded to bfloat16" in refused(rounded_norm, *given)
    got = compiled(rounded_norm, ("rounding",))(*given)
    assert fusion.report().fused[NORM] == 1
    assert fusion.report().accepted["rounding"] == 1
    expected = anyfuse.add_rms_norm_dynamic_quant(*given)
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[3].unsqueeze(-1).bfloat16())
    assert torch.equal(got[2], expected[2])


def test_a_rounded_residual_is_matched_exactly() -> None:
    """The sum in bfloat16 is rounded before the norm; the operator's own sum would not be."""

    def model(x1: Tensor, x2: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        x = x1 + x2
        return *quantize(NORMS["rsqrt"](x.float(), g.float(), 1e-6)), x

    given = inputs(torch.bfloat16)
    got = compiled(model)(*given)
    assert fusion.report().fused[NORM] == 1
    x = given[0] + given[1]
    expected = anyfuse.add_rms_norm_dynamic_quant(x, torch.zeros_like(x), given[2])
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[3].unsqueeze(-1))
    assert torch.equal(got[2], x)


def test_a_clamp_is_left_out_where_it_is_accepted() -> None:
    model = normed(REFUSED["clamped scale"][0])
    got = compiled(model, ("clamp",))(*inputs())
    assert fusion.report().fused[NORM] == 1
    assert fusion.report().accepted["clamp"] == 1
    close(model(*inputs()), got)


# ---- matmul ----


def matmul_inputs(lead: tuple[int, ...] = (18,)) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(-128, 128, (*lead, 32), generator=generator, dtype=torch.int8)
    weight = torch.randint(-128, 128, (24, 32), generator=generator, dtype=torch.int8)
    bias = torch.randint(-500, 500, (24,), generator=generator, dtype=torch.int32)
    return codes, weight, torch.rand(24, generator=generator), torch.rand((*lead, 1), generator=generator), bias


def flat(codes: Tensor) -> Tensor:
    return codes.reshape(-1, codes.shape[-1])


MATMULS: dict[str, Callable[..., Tensor]] = {
    "_int_mm": lambda q, w, s, r, b: torch._int_mm(q, w.t()).float() * s * r,
    "other order": lambda q, w, s, r, b: torch._int_mm(q, w.t()).float() * r * s,
    "product of scales": lambda q, w, s, r, b: torch._int_mm(q, w.t()) * (s * r),
    "no transpose": lambda q, w, s, r, b: torch._int_mm(q, w.reshape(32, 24)).float() * s * r,
    "bias": lambda q, w, s, r, b: (torch._int_mm(q, w.t()) + b) * s * r,
    "int32 matmul": lambda q, w, s, r, b: torch.matmul(q.int(), w.t().int()) * s * r,
    "bfloat16": lambda q, w, s, r, b: (torch._int_mm(q, w.t()) * s * r).bfloat16(),
}


@pytest.mark.parametrize("form", MATMULS)
def test_forms_of_the_matmul(form: str) -> None:
    given = matmul_inputs()
    got = compiled(MATMULS[form])(*given)
    assert fusion.report().fused[MATMUL] == 1, fusion.report()
    expected = MATMULS[form](*given)
    # Sums are exact; two products in another order differ by a rounding each.
    rtol = 2.0**-7 if expected.dtype == torch.bfloat16 else 2.0**-22
    torch.testing.assert_close(got, expected, rtol=rtol, atol=0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_matmul_of_batches(dynamic: bool) -> None:
    def model(q: Tensor, w: Tensor, s: Tensor, r: Tensor, b: Tensor) -> Tensor:
        return torch._int_mm(flat(q), w.t()).reshape(*q.shape[:-1], w.shape[0]).float() * s * r

    given = matmul_inputs((3, 7))
    got = compiled(model, dynamic=dynamic)(*given)
    assert fusion.report().fused[MATMUL] == 1, fusion.report()
    assert torch.equal(got, model(*given))


def test_matmuls_that_are_not_the_operator() -> None:
    codes, weight, scale, row_scale, _ = matmul_inputs()

    def shared(q: Tensor, w: Tensor, s: Tensor, r: Tensor) -> list[Tensor]:
        sums = torch._int_mm(q, w.t())
        return [sums * s * r, sums]

    def rounded(q: Tensor, w: Tensor, s: Tensor, r: Tensor) -> list[Tensor]:
        return [torch._int_mm(q, w.t()).bfloat16() * s * r]

    def one_scale(q: Tensor, w: Tensor, s: Tensor, r: Tensor) -> list[Tensor]:
        return [torch._int_mm(q, w.t()) * s * r[:1]]

    reasons = [refused(model, codes, weight, scale, row_scale) for model in (shared, rounded, one_scale)]
    assert "2 uses" in reasons[0]
    assert "16 bits" in reasons[1]
    assert "share scales" in reasons[2]


# ---- a model ----


class QuantizedLinear(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(out)
        weight = torch.randint(-127, 128, (out, width), generator=generator, dtype=torch.int8)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", torch.rand(out, generator=generator) * 1e-3)

    def forward(self, codes: Tensor, scale: Tensor) -> Tensor:
        return torch._int_mm(codes, self.weight.t()).float() * self.scale * scale


class Block(nn.Module):
    """A decoder block in plain PyTorch: two norms, attention, SwiGLU, seven int8 linears."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.RMSNorm(width, 1e-6), nn.RMSNorm(width, 1e-6)
        self.query, self.key, self.value, self.out = (QuantizedLinear(width, width) for _ in range(4))
        self.gate, self.up, self.down = (
            QuantizedLinear(width, 128),
            QuantizedLinear(width, 128),
            QuantizedLinear(128, width),
        )

    def forward(self, residual: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        residual = residual + delta
        rows = quantize(self.first(residual))
        heads = [f(*rows).unflatten(-1, (self.heads, -1)).transpose(0, 1) for f in (self.query, self.key, self.value)]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(0, 1).flatten(-2)
        residual = residual + self.out(*quantize(mixed))
        rows = quantize(self.second(residual))
        return residual, self.down(*quantize(F.silu(self.gate(*rows)) * self.up(*rows)))


def near(expected: tuple[Tensor, ...], got: tuple[Tensor, ...]) -> None:
    """A code on a tie moves an output by one code's worth of a weight: within 1e-3 of the largest output here."""
    for a, b in zip(expected, got, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=float(a.abs().max()) * 1e-3)


@torch.no_grad()
def test_a_decoder_block_in_plain_pytorch_is_fused_by_inductor() -> None:
    block = Block()
    given = torch.randn(18, 64), torch.randn(18, 64)
    expected = block(*given)
    torch._dynamo.reset()
    fusion.report(reset=True)
    with fusion.enabled(always=True):
        fused = torch.compile(block, fullgraph=True)
    near(expected, fused(*given))
    report = fusion.report()
    assert report.graphs == 1
    assert report.fused == {NORM: 2, MATMUL: 7}
    assert report.kept == 0
    assert [miss.reason for miss in report.misses] == ["what is quantized is no RMSNorm over the last dimension"] * 2
    assert f"{MATMUL}: 7" in str(report)


def test_the_sum_of_one_call_is_the_next_ones_input() -> None:
    """Otherwise inductor would compute it a second time."""

    def model(x1: Tensor, x2: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        x = x1 + x2
        codes, scale = quantize(NORMS["rsqrt"](x, g, 1e-6))
        x = x + codes * scale
        return *quantize(NORMS["rsqrt"](x, g, 1e-6)), x

    graphs: list[torch.fx.Graph] = []
    run = _hooks.make_pass(frozenset(), matmul=False, always=True)

    def inference(module: torch.fx.GraphModule, inputs: Any) -> Any:
        run(module.graph)
        graphs.append(module.graph)
        module.recompile()
        return make_boxed_func(module.forward)

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=inference, decompositions=select_decomp_table())
    got = torch.compile(model, backend=backend, fullgraph=True)(*inputs())
    (graph,) = graphs
    assert not [node for node in graph.nodes if node.target is torch.ops.aten.add.Tensor]
    torch.testing.assert_close(got[2], model(*inputs())[2])  # scales differ in their last bits


# ---- weights that are packed once ----


def keeping(q: Tensor, w: Tensor, s: Tensor, r: Tensor, b: Tensor) -> Tensor:
    return _kept_weights.multiply(q, w, s, b, r, True, torch.float32)


def test_a_weight_is_packed_when_it_comes_again_and_forgotten_with_it() -> None:
    q, w, s, r, b = matmul_inputs()
    expected = anyfuse.quant_matmul_dequant(q, w, s, bias=b, x_scale=r, out_dtype=torch.float32)
    before = len(_kept_weights._kept)
    for call in range(3):
        assert torch.equal(keeping(q, w, s, r, b), expected)
        assert (_kept_weights._kept[w].packed is None) == (call == 0)
    backwards = w.t().contiguous().t()
    for _ in range(2):
        assert torch.equal(keeping(q, backwards, s, r, b), expected)
        assert torch.equal(_kept_weights.multiply(q, w.t(), s, b, r, False, torch.float32), expected)
    del w, backwards
    assert len(_kept_weights._kept) == before


WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "in place": lambda w, other: w.copy_(other),
    "one element": lambda w, other: w[3, 5].add_(7),
    "a view": lambda w, other: w.view(-1)[5:9].fill_(3),
    "a loaded state": lambda w, other: holder(w).load_state_dict({"weight": other}),
    "past the version counter": lambda w, other: w.data.copy_(other),
    "NumPy": lambda w, other: w.numpy().__setitem__(slice(None), other.numpy()),
    "other memory": lambda w, other: setattr(w, "data", other.clone()),
    "another view of the memory": lambda w, other: setattr(w, "data", w.data.as_strided(w.shape, (1, w.shape[0]))),
}


def holder(w: Tensor) -> nn.Module:
    module = nn.Module()
    module.register_buffer("weight", w)
    return module


@pytest.mark.parametrize("write", WRITES)
def test_a_weight_that_changed_is_packed_anew(write: str) -> None:
    q, w, s, r, b = matmul_inputs()
    for _ in range(3):
        keeping(q, w, s, r, b)
    WRITES[write](w, w.flip(0))
    expected = anyfuse.quant_matmul_dequant(q, w, s, bias=b, x_scale=r, out_dtype=torch.float32)
    for _ in range(3):
        assert torch.equal(keeping(q, w, s, r, b), expected)


def test_calls_that_do_not_fit_a_kept_weight_are_refused() -> None:
    q, w, s, r, b = matmul_inputs()
    for _ in range(3):
        keeping(q, w, s, r, b)
    bad: list[tuple[tuple[Tensor, ...], str]] = [
        ((q[:, :16].contiguous(), w, s, r, b), "weight is packed for"),
        ((q, w, s[:3].clone(), r, b), "weight is packed for"),
        ((q, w, s, r.flatten()[:1].clone(), b), "x_scale has shape"),
        ((q, w, s, r.half(), b), "x_scale has dtype"),
        ((q, w, s, r, b[:3].clone()), "bias has shape"),
        ((q, w, s, r, b.float()), "bias has dtype"),
    ]
    for arguments, message in bad:
        with pytest.raises((TypeError, ValueError), match=message):
            keeping(*arguments)
    w.untyped_storage().resize_(0)
    with pytest.raises(TypeError, match="weight is a tensor whose memory has been released"):
        keeping(q, w, s, r, b)


def test_weights_without_a_version_counter_are_not_kept() -> None:
    with torch.inference_mode():
        q, w, s, r, b = matmul_inputs()
        for _ in range(3):
            assert torch.equal(keeping(q, w, s, r, b)[0, 0], keeping(q, w, s, r, b)[0, 0])
        assert w not in _kept_weights._kept


def test_a_weight_that_the_graph_computes_is_not_kept() -> None:
    q, w, s, r, _ = matmul_inputs()
    count = len(_kept_weights._kept)
    model = compiled(lambda q, w, s, r: torch._int_mm(q, (w // 2).t()).float() * s * r)
    for _ in range(2):
        torch.testing.assert_close(model(q, w, s, r), torch._int_mm(q, (w // 2).t()).float() * s * r)
    assert fusion.report().fused[MATMUL] == 1
    assert len(_kept_weights._kept) == count


def test_the_operator_of_kept_weights_is_a_proper_one() -> None:
    q, w, s, r, b = matmul_inputs()
    torch.library.opcheck(_kept_weights.multiply, (q, w, s, b, r, True, torch.float32))


# ---- what pays ----


@pytest.mark.parametrize("dynamic", [False, True])
def test_small_norms_stay_with_inductor_and_the_report_says_so(dynamic: bool) -> None:
    model = normed(quantize)
    small = compiled(model, dynamic=dynamic, always=False)
    small(*inputs())
    (miss,) = fusion.report().misses
    assert "values are too few to win by a call" in miss.reason and not fusion.report().fused
    x = torch.randn(-(-(torch.get_num_threads() + 1) * _norm_quant.THREAD_VALUES // COLS), COLS)
    compiled(model, dynamic=dynamic, always=False)(x, x, inputs()[2])
    assert fusion.report().fused[NORM] == 1


def test_a_norm_that_is_needed_anyway_stays_with_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_norm_quant, "THREAD_VALUES", 1)

    def model(x1: Tensor, x2: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        v = NORMS["rsqrt"](x1 + x2, g, 1e-6)
        return *quantize(v), v

    compiled(model, always=False)(*inputs())
    assert not fusion.report().fused
    assert "unquantized as well" in fusion.report().misses[0].reason
    compiled(normed(quantize), always=False)(*inputs())
    assert fusion.report().fused[NORM] == 1


@pytest.mark.parametrize(
    ("rows", "n", "k", "fast", "fused"),
    [
        (1, 1024, 1024, True, 0),
        (2, 1024, 1024, True, 1),
        (64, 1024, 1024, True, 1),
        (65, 1024, 1024, True, 0),
        (16, 512, 512, True, 0),
        (1, 64, 64, False, 1),
    ],
)
def test_matmuls_that_pay(rows: int, n: int, k: int, fast: bool, fused: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_matmul, "int8_is_fast", lambda: fast)
    given = torch.ones(rows, k).to(torch.int8), torch.ones(n, k).to(torch.int8), torch.ones(n), torch.ones(rows, 1)
    got = compiled(lambda q, w, s, r: torch._int_mm(q, w.t()).float() * s * r, always=False)(*given)
    assert fusion.report().fused[MATMUL] == fused
    assert torch.equal(got, torch.full((rows, n), float(k)))


# ---- switching it on ----


def test_an_unknown_torch_is_not_fused_and_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hooks, "TESTED", ("1.0",))
    fusion.report(reset=True)
    before = torch.compile
    with fusion.enabled():
        assert torch.compile is before
    assert "is not known to the pass" in fusion.report().misses[0].reason


def test_matmuls_stay_with_inductor_unless_asked_for() -> None:
    graph = torch.fx.Graph()
    fusion.report(reset=True)
    q, w = (graph.placeholder(name) for name in "qw")
    product = graph.call_function(torch.ops.aten._int_mm.default, (q, w))
    product.meta["val"] = torch.zeros(2, 2, dtype=torch.int32)
    q.meta["val"] = w.meta["val"] = torch.zeros(2, 2, dtype=torch.int8)
    graph.output((product, product))
    for matmul, misses in ((False, 0), (True, 1)):
        _hooks.make_pass(frozenset(), matmul, True)(graph)
        assert len(fusion.report().misses) == misses


def test_with_a_product_profile_nothing_is_fused() -> None:
    with anyfuse.soc("Ascend310P"):
        compiled(normed(quantize))(*inputs())
    assert not fusion.report().fused
    assert "product profile" in fusion.report().misses[0].reason


def test_enabled_puts_back_what_it_found_and_keeps_a_pass_that_is_set() -> None:
    from torch._inductor import config

    before, seen = torch.compile, []
    with config.patch(joint_custom_pre_pass=seen.append):
        with pytest.raises(RuntimeError, match="inside"), fusion.enabled():
            config.joint_custom_pre_pass(torch.fx.Graph())
            raise RuntimeError("inside")
        assert config.joint_custom_pre_pass == seen.append
    assert len(seen) == 1
    assert torch.compile is before


def test_an_unknown_difference_is_refused() -> None:
    with (
        pytest.raises(ValueError, match=r"accept holds \['speed'\]; accepted: rounding, clamp, order"),
        fusion.enabled(accept=("speed",)),
    ):
        pass
