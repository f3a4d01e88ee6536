"""Folders of models that anyone may have written: nothing of them runs, leads elsewhere or grows beyond its file."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz.readers import FILES, make_float, make_quantized, parts_of, read_float, replaced, watched, with_header
from hypothesis import event, given
from hypothesis import strategies as st
from longer import search
from test_fuzz_manifest import VALUES, places

import anyfuse
from anyfuse.models import ADAPTERS, Adapter
from anyfuse.models.command import open_model
from anyfuse.models.kinds import KINDS, config_of

transformers = pytest.importorskip("transformers", reason="extra hf is not installed")
pytest.importorskip("gguf", reason="extra hf is not installed")

Opener = Callable[[Path], Any]
OPENERS: dict[str, Opener] = {"quantized": anyfuse.load_quantized, "float": open_model}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Good ones; what reading them needs is loaded and imported."""
    result = {}
    for name, make in (("quantized", make_quantized), ("float", make_float)):
        result[name] = tmp_path_factory.mktemp(name) / "model"
        result[name].mkdir()
        make(result[name])
        OPENERS[name](result[name])
    return result


def changed(folder: Path, target: Path, name: str = "config.json", **changes: Any) -> Path:
    """A copy of a folder whose file of that name says something else."""
    shutil.copytree(folder, target)
    path = target / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return target


# ---- what is not read ----


@pytest.mark.parametrize("name", OPENERS)
@pytest.mark.parametrize("field", ["attn_implementation", "_attn_implementation", "experts_implementation"])
def test_a_kernel_of_the_hub_is_not_asked_for(
    name: str, field: str, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers would fetch it and import it, also under local_files_only."""
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("something is fetched"))
    folder = changed(folders[name], tmp_path / "m", **{field: "kernels-community/flash-attn"})
    opened = OPENERS[name](folder)
    model = opened[0] if isinstance(opened, tuple) else opened
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("name", OPENERS)
@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model_type": "detr", "use_timm_backbone": True, "backbone": "resnet50"}, "model_type in .* is 'detr'"),
        ({"model_type": "gptj", "n_positions": 400_000, "n_layer": 1}, "model_type in .* is 'gptj'"),
        ({"model_type": "bart", "decoder_layers": 10**9}, "model_type in .* is 'bart'"),
        ({"model_type": "encoder-decoder", "decoder": {"num_hidden_layers": 10**8}}, "model_type"),
        ({"model_type": {"llama": [[]]}}, "model_type in .* is a dict of 1; accepted: "),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers in .* is 1000000000; accepted: a whole number of 1 to 1024"),
        ({"num_hidden_layers": 1024, "layer_types": None}, "too (few|small) for 1024 layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers in .* is True; accepted: a whole number"),
        ({"head_dim": 10**9}, "head_dim in .* is 1000000000; accepted: a whole number of 1 to 4096"),
        ({"hidden_size": "wide"}, "hidden_size in .* is 'wide'; accepted: a whole number"),
        ({"hidden_act": "../act"}, "hidden_act in .*; accepted: silu, "),
        ({"rope_scaling": {"a": {"b": {"c": 1}}}}, "rope_scaling in .* is a dict of 1; accepted: up to 32 names"),
        ({"rope_scaling": {"rope_type": "other"}}, "."),
        ({"eos_token_id": list(range(10_000))}, "eos_token_id in .* is a list of 10000; accepted: "),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps in .* is nan; accepted: a number of 0 to 10"),
        ({"quantization_config": {"quant_method": "other"}}, "quantization_config in .*; accepted: float weights"),
        ({"per_layer_config": {"0": {"hidden_size": 10**9}}}, "per_layer_config in .*; accepted: layers of one shape"),
        ({"pad_token_id": 10**8}, "."),
        ({"num_attention_heads": 3}, "."),
        ({"intermediate_size": 1 << 20, "hidden_size": 1 << 17, "vocab_size": 1 << 22}, "too (few|small) for"),
    ],
)
def test_a_config_that_asks_for_more_is_refused_in_no_time_and_memory(
    name: str, changes: dict[str, Any], message: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = changed(folders[name], tmp_path / "m", **changes)
    begun = time.process_time()
    with watched(), pytest.raises(ValueError, match=message):
        OPENERS[name](folder)
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("name", OPENERS)
def test_configs_that_are_nested_huge_or_no_object(name: str, folders: dict[str, Path]) -> None:
    for content in (b"[" * 100_000, b'{"a":' * 50_000, b" " * (2 << 20), b"[]", b"\xff\xfe", b"", b"1" * 5000):
        path = folders[name] / "config.json"
        with replaced(path, content), watched(), pytest.raises(ValueError, match=r"config\.json"):
            OPENERS[name](folders[name])
    with pytest.raises(OSError, match="missing"):
        (folders[name] / "config.json").rename(folders[name] / "away")
        try:
            OPENERS[name](folders[name])
        finally:
            (folders[name] / "away").rename(folders[name] / "config.json")


@pytest.mark.parametrize("file", FILES[:4])
@search(25)
@given(data=st.data())
def test_a_float_model_with_a_few_values_changed(file: str, folders: dict[str, Path], data: st.DataObject) -> None:
    content = json.loads((folders["float"] / file).read_text())
    for _ in range(data.draw(st.integers(1, 2))):
        container, key = data.draw(st.sampled_from(places(content)))
        if isinstance(container, list) and key >= len(container):
            continue
        if data.draw(st.booleans()):
            container[key] = data.draw(VALUES)
        else:
            container.pop(key, None) if isinstance(container, dict) else container.pop(key)
    text = json.dumps(content).encode(errors="surrogatepass")
    read_float(folders["float"], bytes([FILES.index(file)]) + text, event)


# ---- what is read ----

PUBLISHED: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {
        "_name_or_path": "x", "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072,
        "mlp_bias": False, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
        "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
            "rope_type": "llama3"},
        "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
        "transformers_version": "4.45.0.dev0", "vocab_size": 128256, "is_llama_config": True, "rope_interleaved": False,
    },
    "MistralForCausalLM": {
        "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
        "sliding_window": None, "vocab_size": 32768, "head_dim": 128, "max_position_embeddings": 32768,
    },
    "Qwen2ForCausalLM": {
        "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14,
        "num_hidden_layers": 24, "num_key_value_heads": 2, "max_window_layers": 21, "sliding_window": 32768,
        "use_sliding_window": False, "use_mrope": False, "tie_word_embeddings": True, "vocab_size": 151936,
    },
    "Qwen3ForCausalLM": {
        "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16,
        "num_hidden_layers": 28, "num_key_value_heads": 8, "head_dim": 128, "rope_scaling": None, "rope_theta": 1000000,
        "sliding_window": None, "vocab_size": 151936, "attention_bias": False, "max_window_layers": 28,
    },
    "SmolLM3ForCausalLM": {
        "model_type": "smollm3", "hidden_size": 2048, "intermediate_size": 11008, "num_attention_heads": 16,
        "num_hidden_layers": 36, "num_key_value_heads": 4, "no_rope_layers": [1, 1, 1, 0] * 9, "rope_theta": 5000000.0,
        "no_rope_layer_interval": 4, "layer_types": ["full_attention"] * 36, "pad_token_id": 128004,
        "max_window_layers": 28, "vocab_size": 128256,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_a_config_as_published_means_the_same_as_to_transformers(name: str) -> None:
    """Old names of fields, an explicit null, and fields that nobody reads."""
    values = PUBLISHED[name]
    config = config_of(name, values, "config.json")
    expected = type(config)(**{key: value for key, value in values.items() if key in KINDS[name].fields})
    meant = getattr(transformers, name).config_class.from_dict(dict(values))
    for field in KINDS[name].fields.keys() & {field.name for field in dataclasses.fields(type(config))}:
        assert getattr(config, field) == getattr(expected, field) == getattr(meant, field), field
    assert config.architectures == [name]


def test_the_lists_name_every_field_of_their_kind() -> None:
    """Those that a class declares itself; a later release's new one is refused until it is listed."""
    assert list(ADAPTERS) == list(KINDS)
    base = {field.name for field in dataclasses.fields(transformers.PretrainedConfig)}
    for name, kind in KINDS.items():
        config_class = getattr(transformers, name).config_class
        assert config_class.model_type == kind.model_type
        assert {field.name for field in dataclasses.fields(config_class)} - base <= kind.fields.keys()


def test_a_field_that_came_after_the_list_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {key: rule for key, rule in KINDS["LlamaForCausalLM"].fields.items() if key != "mlp_bias"}
    monkeypatch.setitem(KINDS, "LlamaForCausalLM", dataclasses.replace(KINDS["LlamaForCausalLM"], fields=fields))
    with pytest.raises(ValueError, match=r"mlp_bias in config\.json is True; accepted: none of it yet"):
        config_of("LlamaForCausalLM", {"model_type": "llama", "mlp_bias": True}, "config.json")


def test_a_model_of_ones_own_class_is_loaded_by_that_class(tmp_path: Path) -> None:
    class Own(transformers.LlamaForCausalLM):  # type: ignore[misc, name-defined]
        pass

    make_quantized(tmp_path)
    parts = parts_of(tmp_path)
    header = json.loads(parts["header"])
    header["__metadata__"]["recipe"] = json.dumps({**json.loads(parts["recipe"]), "kind": "Own"})
    (tmp_path / "anyfuse.safetensors").write_bytes(with_header(parts["file"], json.dumps(header).encode()))
    with pytest.raises(ValueError, match=r"is of a 'Own'; accepted: LlamaForCausalLM, .*, or another with model_class"):
        anyfuse.load_quantized(tmp_path)
    with pytest.raises(ValueError, match="is of a 'Own'; accepted: Qwen2ForCausalLM"):
        anyfuse.load_quantized(tmp_path, model_class=transformers.Qwen2ForCausalLM)
    assert type(anyfuse.load_quantized(tmp_path, model_class=Own)) is Own
    assert Adapter() == ADAPTERS["LlamaForCausalLM"]


# ---- tokenizers, sampling, adapters, weights ----


def command(*arguments: object, given: str = "") -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(map(os.path.abspath, sys.path))
    return subprocess.run(
        [sys.executable, "-m", "anyfuse", *map(str, arguments)], input=given, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": paths}, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("name", OPENERS)
def test_code_of_a_tokenizer_is_neither_run_nor_asked_about(
    name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(folders[name], tmp_path / "m")
    (folder / "tok.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass X: pass\n")
    tokenizer = {"tokenizer_class": "X", "auto_map": {"AutoTokenizer": ["tok.X", "tok.X"]}}
    for changes, message in ((tokenizer, "tokenizer_class"), ({"auto_map": tokenizer["auto_map"]}, "auto_map")):
        (folder / "tokenizer_config.json").write_text(json.dumps(changes))
        text = tmp_path / "text.txt"
        text.write_text("words to judge")
        commands = [("eval", folder, text), ("quantize", folder, tmp_path / "out")][: 1 if name == "quantized" else 2]
        for arguments in commands:
            done = command(*arguments, given="y\ny\n")
            assert done.returncode == 2 and message in done.stderr, done.stderr
            assert "[y/N]" not in done.stdout + done.stderr and "fault of anyfuse" not in done.stderr
    assert not (tmp_path / "ran").exists() and not (tmp_path / "out").exists()


def test_a_tokenizer_is_saved_with_its_model_and_another_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some words to judge a model of nothing by " * 3)
    out = tmp_path / "out"
    done = command("quantize", folders["float"], out, "--json")
    assert done.returncode == 0, done.stderr
    done = command("eval", out, text, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["tokens"] == len(text.read_text()), done.stderr
    assert not list(out.glob(".*"))
    path = out / "tokenizer.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(ValueError, match=r"tokenizer\.json is not the one that anyfuse\.safetensors was saved with"):
        open_model(out)


def test_files_of_a_tokenizer_elsewhere_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = changed(folders["float"], tmp_path / "m", "tokenizer_config.json", fast_tokenizer_files=["../t.json"])
    with pytest.raises(ValueError, match=r"fast_tokenizer_files in .* is a list of 1"):
        open_model(folder)


def test_a_search_whose_code_lies_on_the_hub_is_not_taken_from_the_folder(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = changed(
        folders["float"], tmp_path / "m", "generation_config.json",
        penalty_alpha=0.6, top_k=4, num_beams=10**6, temperature=0.5, do_sample=True,
    )  # fmt: skip
    model, _ = open_model(folder)
    assert (model.generation_config.top_k, model.generation_config.temperature) == (4, 0.5)
    model.generate(torch.ones(1, 2, dtype=torch.long), max_new_tokens=2, do_sample=False, pad_token_id=0)


def test_an_adapter_of_a_model_elsewhere_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["float"], tmp_path / "m")
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere"}')
    with pytest.raises(ValueError, match="holds an adapter; accepted: a model that it has been merged into"):
        open_model(folder)


def test_missing_weights_are_not_drawn_by_chance(folders: dict[str, Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(folders["float"], tmp_path / "m")
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors.pop("model.norm.weight")
    save_file({**tensors, "other": torch.zeros(100)}, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks model\.norm\.weight \(1\)"):
        open_model(folder)


# ---- GGUF ----


def test_a_gguf_file_gives_the_folders_model(folders: dict[str, Path]) -> None:
    tokens = torch.tensor([[5, 6, 7]])
    (model, words), (other, _) = open_model(folders["float"]), open_model(folders["float"] / "model.gguf")
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, other(tokens).logits)
    assert words("ab").input_ids == [words.convert_tokens_to_ids("a"), words.convert_tokens_to_ids("b")]


def test_a_gguf_file_that_is_cut_gets_an_error_of_ours(folders: dict[str, Path], tmp_path: Path) -> None:
    content = (folders["float"] / "model.gguf").read_bytes()
    for length in (0, 3, 23, 24, 100, 1000, len(content) // 2, len(content) - 1):
        path = tmp_path / f"{length}.gguf"
        path.write_bytes(content[:length])
        with watched(), pytest.raises(ValueError, match=rf"{length}\.gguf"):
            open_model(path)
    done = command("eval", path, folders["float"] / "config.json")
    assert done.returncode == 2 and "fault of anyfuse" not in done.stderr, done.stderr


@pytest.mark.parametrize("count", [2**63, 2**40, 2**32 - 1])
def test_a_gguf_file_whose_counts_lie_gets_an_error_of_ours(
    count: int, folders: dict[str, Path], tmp_path: Path
) -> None:
    """Those of tensors and entries, a string's length, a list's: each is believed by the readers."""
    content = (folders["float"] / "model.gguf").read_bytes()
    tokens = content.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 8
    types = content.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 4
    lists_of_bytes = content[:types] + struct.pack("<IQ", 0, count) + content[types + 12 :]
    for i, changed_file in enumerate(
        [content[:at] + struct.pack("<Q", count) + content[at + 8 :] for at in (8, 16, 24, tokens)] + [lists_of_bytes]
    ):
        path = tmp_path / f"lie{i}.gguf"
        path.write_bytes(changed_file)
        with watched(), pytest.raises(ValueError, match=rf"lie{i}\.gguf is damaged"):
            open_model(path)
