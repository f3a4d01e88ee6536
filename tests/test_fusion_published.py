"""Norms and quantizations as public code writes them: each is fused, with right values, or the report tells why not.

The forms are those of their sources' arithmetic; where a source rounds to 16 bits, float32 tensors show the form and
bfloat16 tensors the reason.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fusing import COLS, close, compiled, inputs
from torch import Tensor
from torch.nn import functional as F

from anyfuse import fusion

NORM = "add_rms_norm_dynamic_quant"
EPSILON = 1e-6

Norm = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # of x, residual and gamma: (normed, new residual)


def llama(x: Tensor, residual: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """Transformers' LlamaRMSNorm, and Mistral's, Qwen's, DeepSeek's."""
    residual = residual + x
    wide = residual.to(torch.float32)
    variance = wide.pow(2).mean(-1, keepdim=True)
    wide = wide * torch.rsqrt(variance + EPSILON)
    return gamma * wide.to(residual.dtype), residual


def vllm(x: Tensor, residual: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """vLLM's forward_native: the sum is normalized unrounded and kept rounded."""
    dtype = x.dtype
    x = x.to(torch.float32) + residual.to(torch.float32)
    residual = x.to(dtype)
    x = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + EPSILON)
    return x.to(dtype) * gamma, residual


def torchtune(x: Tensor, residual: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    residual = residual + x
    wide = residual.float()
    normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON)).type_as(residual)
    return normed * gamma, residual


def gpt_fast(x: Tensor, residual: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """gpt-fast's, and Meta's own of Llama but for x * x."""
    residual = residual + x
    wide = residual.float()
    normed = wide * torch.rsqrt(torch.mean(wide * wide, dim=-1, keepdim=True) + EPSILON)
    return normed.type_as(residual) * gamma, residual


def gemma(x: Tensor, residual: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    residual = residual + x
    wide = residual.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON)
    return (normed * (1.0 + gamma.float())).type_as(residual), residual


def t5(x: Tensor, residual: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    residual = residual + x
    variance = residual.to(torch.float32).pow(2).mean(-1, keepdim=True)
    normed = residual * torch.rsqrt(variance + EPSILON)
    if gamma.dtype in (torch.float16, torch.bfloat16):
        normed = normed.to(gamma.dtype)
    return gamma * normed, residual


def pytorch(x: Tensor, residual: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """nn.RMSNorm."""
    residual = residual + x
    return F.rms_norm(residual, (COLS,), gamma, EPSILON), residual


NORMS: list[Norm] = [llama, vllm, torchtune, gpt_fast, gemma, t5, pytorch]

Quantize = Callable[[Tensor], tuple[Tensor, Tensor]]


def smoothquant(t: Tensor) -> tuple[Tensor, Tensor]:
    """quantize_activation_per_token_absmax of torch-int and SmoothQuant, codes kept."""
    shape = t.shape
    t = t.view(-1, shape[-1]).clone()
    scales = t.abs().max(dim=-1, keepdim=True)[0]
    scales.clamp_(min=1e-5).div_(127)
    t.div_(scales).round_()
    return t.to(torch.int8).view(shape), scales.view(*shape[:-1], 1)


def torchao(t: Tensor) -> tuple[Tensor, Tensor]:
    """_quantize_activation_per_token_absmax by choose_qparams_affine and quantize_affine."""
    low, high = torch.amin(t, dim=[-1], keepdim=False), torch.amax(t, dim=[-1], keepdim=False)
    low, high = torch.min(low, torch.zeros_like(low)), torch.max(high, torch.zeros_like(high))
    scale = torch.max(-low, high) / (float(127 - -127) / 2)
    zero_point = torch.full_like(scale, int((127 - 127 + 1) / 2)).to(torch.int32)
    scale = torch.clamp(scale, min=1e-5).unsqueeze(-1)
    codes = torch.clamp(torch.round(t * (1.0 / scale)) + zero_point.unsqueeze(-1), -127, 127)
    return codes.to(torch.int8), scale


def decomposed(t: Tensor) -> tuple[Tensor, Tensor]:
    """choose_qparams_per_token and quantize_per_token of torch.ao."""
    scales = t.abs().amax(dim=-1, keepdim=True)
    scales = scales.clamp(min=1e-5).div(127)
    zero_points = torch.zeros_like(scales)
    return t.mul(1.0 / scales).add(zero_points).round().clamp(-128, 127).to(torch.int8), scales


def bitsandbytes(t: Tensor) -> tuple[Tensor, Tensor]:
    """int8_vectorwise_quant without a threshold."""
    stats = t.abs().max(dim=-1).values
    return torch.round(t * (127.0 / stats.unsqueeze(-1))).to(torch.int8), stats / 127


def clamped(t: Tensor) -> tuple[Tensor, Tensor]:
    """With a clamp: in bfloat16, a code may come out as 128."""
    stats = t.abs().max(dim=-1).values
    return torch.round(t * (127.0 / stats.unsqueeze(-1))).clamp(-127, 127).to(torch.int8), stats / 127


def vllm_reference(t: Tensor) -> tuple[Tensor, Tensor]:
    absmax, _ = t.abs().max(dim=-1)
    largest = torch.as_tensor([127], dtype=torch.float32)
    scales = (absmax.to(torch.float32) / largest)[..., None]
    return (t.to(torch.float32) * (largest / absmax)[..., None]).round().clamp(-128, 127).to(torch.int8), scales


def bitnet(t: Tensor) -> tuple[Tensor, Tensor]:
    """BitNet's activation_quant, which divides by the factor again."""
    scale = 127.0 / t.abs().max(dim=-1, keepdim=True).values.clamp_(min=1e-5)
    return (t * scale).round().clamp_(-128, 127), scale


def jetstream(t: Tensor) -> tuple[Tensor, Tensor]:
    """Cut off instead of rounded."""
    scale = torch.amax(t.abs(), dim=-1, keepdim=True) / 127
    return (t / scale).to(torch.int8), scale


def after(norm: Norm, quantize: Quantize) -> Callable[..., tuple[Tensor, ...]]:
    def model(x: Tensor, residual: Tensor, gamma: Tensor) -> tuple[Tensor, ...]:
        normed, residual = norm(x, residual, gamma)
        return *quantize(normed), residual

    return model


@pytest.mark.parametrize(
    ("norm", "quantize"), [*((norm, smoothquant) for norm in NORMS), (llama, torchao), (gemma, decomposed)]
)
def test_published_norms_with_clamped_scales(norm: Norm, quantize: Quantize) -> None:
    model = after(norm, quantize)
    expected = model(*inputs())
    got = compiled(model)(*inputs())
    assert not fusion.report().fused
    (miss,) = fusion.report().misses
    assert miss.operator == NORM and "is not let below 1e-05" in miss.reason
    assert all(map(torch.equal, expected, got))
    close(expected, compiled(model, ("clamp",))(*inputs()))
    assert fusion.report().fused[NORM] == 1
    assert fusion.report().kept == 0


@pytest.mark.parametrize(("norm", "quantize"), [*((norm, bitsandbytes) for norm in NORMS), (vllm, vllm_reference)])
def test_published_norms_with_plain_scales(norm: Norm, quantize: Quantize) -> None:
    model = after(norm, quantize)
    got = compiled(model)(*inputs())
    assert fusion.report().fused[NORM] == 1, fusion.report()
    close(model(*inputs()), got)


@pytest.mark.parametrize("norm", NORMS)
def test_published_norms_in_bfloat16(norm: Norm) -> None:
    model = after(norm, clamped)
    given = inputs(torch.bfloat16)
    expected, got = model(*given), compiled(model)(*given)
    assert not fusion.report().fused
    (miss,) = fusion.report().misses
    assert "rounded to bfloat16" in miss.reason
    assert all(map(torch.equal, expected, got))
    codes, scale, residual = compiled(model, ("rounding",))(*given)
    assert fusion.report().fused[NORM] == 1
    assert torch.equal(residual, expected[2])
    # Values that the code rounds twice and the operator not at all: two codes of 127, and two roundings of the scale.
    assert (codes.int() - expected[0].int()).abs().max() <= 2
    torch.testing.assert_close(scale, expected[1], rtol=2.0**-7, atol=0)


REASONS: dict[Quantize, str] = {
    bitnet: "the codes are not stored in int8",
    jetstream: "the codes are cut off; the operator rounds them",
}


@pytest.mark.parametrize("quantize", REASONS)
def test_published_quantizations_that_are_another_formula(quantize: Quantize) -> None:
    model = after(llama, quantize)
    expected = model(*inputs())
    got = compiled(model, ("clamp",))(*inputs())
    assert not fusion.report().fused
    (miss,) = fusion.report().misses
    assert REASONS[quantize] in miss.reason
    assert all(map(torch.equal, expected, got))


def outside(x: Tensor, gamma: Tensor) -> Tensor:
    """RMSNorm as its authors published it: epsilon is added to the root."""
    return gamma * (x / (x.norm(2, dim=-1, keepdim=True) * COLS**-0.5 + EPSILON))


def by_length(x: Tensor, gamma: Tensor) -> Tensor:
    """x-transformers': a vector of length 1, its length bounded from below."""
    return F.normalize(x, dim=-1) * COLS**0.5 * gamma


@pytest.mark.parametrize("norm", [outside, by_length])
def test_norms_by_a_rows_length_tell_why(norm: Callable[[Tensor, Tensor], Tensor]) -> None:
    x, _, gamma = inputs()
    got = compiled(lambda x, gamma: bitsandbytes(norm(x, gamma)))(x, gamma)
    assert not fusion.report().fused
    (miss,) = fusion.report().misses
    assert "the rows are divided by their length" in miss.reason
    close(bitsandbytes(norm(x, gamma)), got)  # inductor's graphs have another sum of squares


def test_rows_without_their_outliers_are_another_tensor() -> None:
    """LLM.int8: values beyond a threshold are left out before a row is quantized."""

    def model(x: Tensor, residual: Tensor, gamma: Tensor) -> tuple[Tensor, ...]:
        normed, _ = llama(x, residual, gamma)
        return bitsandbytes(normed.masked_fill(normed.abs() > 2.0, 0.0))

    got = compiled(model)(*inputs())
    assert not fusion.report().fused
    assert "no RMSNorm" in fusion.report().misses[0].reason
    assert all(map(torch.equal, model(*inputs()), got))
