"""What a model's folder may ask for: lists that configs of other people are checked against before anything is built.

A field that no list names is not read: nothing else of a `config.json` reaches transformers, which would follow names
of kernels, backbones and code to where they lead.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIG_LIMIT, TOKENIZER_LIMIT = 1 << 20, 1 << 24  # bytes of a file
LAYERS = 1024


@dataclass(frozen=True)
class Rule:
    """What one field accepts: in words, and as a question. None is accepted everywhere."""

    words: str
    fits: Callable[[Any], bool]


def whole(least: int, most: int) -> Rule:
    return Rule(f"a whole number of {least} to {most}", lambda value: type(value) is int and least <= value <= most)


def number(least: float, most: float) -> Rule:
    return Rule(
        f"a number of {least:g} to {most:g}", lambda value: type(value) in (int, float) and least <= value <= most
    )


def word(*accepted: str) -> Rule:
    return Rule(", ".join(accepted), lambda value: isinstance(value, str) and value in accepted)


def each(rule: Rule, most: int) -> Rule:
    return Rule(
        f"a list of at most {most}, each {rule.words}",
        lambda value: isinstance(value, list) and len(value) <= most and all(map(rule.fits, value)),
    )


def either(*rules: Rule) -> Rule:
    return Rule("; or ".join(rule.words for rule in rules), lambda value: any(rule.fits(value) for rule in rules))


def _is_rotation(value: Any, nested: bool = True) -> bool:
    """Numbers and words by name, or such a mapping for each type of layers."""
    if not isinstance(value, dict) or len(value) > 32:
        return False
    return all(_is_part(item) or (nested and _is_rotation(item, nested=False)) for item in value.values())


def _is_part(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= 4096 and all(type(item) in (int, float) and math.isfinite(item) for item in value)
    if isinstance(value, str):
        return len(value) <= 64
    return value is None or isinstance(value, bool) or (type(value) in (int, float) and abs(value) <= 1e15)


FLAG = Rule("true or false", lambda value: isinstance(value, bool))
ID = whole(-1, (1 << 31) - 1)  # some configs say -1 for none
IDS = either(ID, each(ID, 256))
DTYPE = word("float32", "float16", "bfloat16", "float64")
ROTATION = Rule("up to 32 names of numbers, short words and lists of numbers, one level deep", _is_rotation)

#: What decoders of the Llama shape share.
DECODER: dict[str, Rule] = {
    "vocab_size": whole(1, 1 << 22),
    "hidden_size": whole(1, 1 << 17),
    "intermediate_size": whole(1, 1 << 20),
    "num_hidden_layers": whole(1, LAYERS),
    "num_attention_heads": whole(1, 4096),
    "num_key_value_heads": whole(1, 4096),
    "head_dim": whole(1, 4096),
    "hidden_act": word(
        "silu", "swish", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu", "relu", "relu2", "sigmoid",
        "tanh", "mish",
    ),
    "max_position_embeddings": whole(1, 1 << 30),
    "initializer_range": number(0, 1),
    "rms_norm_eps": number(0, 10),
    "attention_dropout": number(0, 1),
    "use_cache": FLAG,
    "tie_word_embeddings": FLAG,
    "pad_token_id": IDS,
    "bos_token_id": IDS,
    "eos_token_id": IDS,
    "rope_parameters": ROTATION,
    "rope_scaling": ROTATION,
    "rope_theta": number(0, 1e15),
    "partial_rotary_factor": number(0, 1),
    "dtype": DTYPE,
    "torch_dtype": DTYPE,
}  # fmt: skip
BIASES = {"attention_bias": FLAG, "mlp_bias": FLAG}
WINDOWS = {
    "use_sliding_window": FLAG,
    "sliding_window": whole(1, 1 << 30),
    "max_window_layers": whole(0, LAYERS),
    "layer_types": each(word("full_attention", "sliding_attention"), LAYERS),
}

#: What asks transformers for other modules or other weights than a kind's own, so that leaving it out is no answer.
REFUSED = {
    "quantization_config": "float weights",
    "per_layer_config": "layers of one shape",
}


@dataclass(frozen=True)
class Kind:
    """A model that is converted: `model_type` as its config calls it, and the fields that it reads."""

    model_type: str
    fields: Mapping[str, Rule]


#: By the names of transformers' classes. What `quantize_` learns to convert gets its line here.
KINDS = {
    "LlamaForCausalLM": Kind("llama", {**DECODER, **BIASES, "pretraining_tp": whole(1, 4096)}),  # SmolLM, SmolLM2 too
    "MistralForCausalLM": Kind("mistral", {**DECODER, "sliding_window": WINDOWS["sliding_window"]}),
    "Qwen2ForCausalLM": Kind("qwen2", {**DECODER, **WINDOWS}),
    "Qwen3ForCausalLM": Kind("qwen3", {**DECODER, **WINDOWS, "attention_bias": FLAG}),
    "SmolLM3ForCausalLM": Kind(
        "smollm3",
        {
            **DECODER, **BIASES, **WINDOWS,
            "no_rope_layers": each(whole(0, 1), LAYERS), "no_rope_layer_interval": whole(1, LAYERS),
        },
    ),
}  # fmt: skip

#: What a `generation_config.json` sets for sampling. Searches that transformers fetches code for are not among it.
GENERATION: dict[str, Rule] = {
    "bos_token_id": IDS,
    "eos_token_id": IDS,
    "pad_token_id": IDS,
    "do_sample": FLAG,
    "temperature": number(0, 1e6),
    "top_k": whole(0, 1 << 22),
    "top_p": number(0, 1),
    "min_p": number(0, 1),
    "typical_p": number(0, 1),
    "repetition_penalty": number(0, 1e6),
    "max_length": whole(1, 1 << 30),
    "max_new_tokens": whole(1, 1 << 30),
    "min_length": whole(0, 1 << 30),
}

#: Classes of transformers that read a tokenizer's files and no code.
TOKENIZERS = word(
    "TokenizersBackend", "PreTrainedTokenizerFast", "LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer",
    "CodeLlamaTokenizerFast", "GPT2Tokenizer", "GPT2TokenizerFast", "Qwen2Tokenizer", "Qwen2TokenizerFast",
)  # fmt: skip


def read_json(path: Path, limit: int) -> dict[str, Any]:
    """A small JSON file that holds an object. OSError where there is none, ValueError for anything else."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing")
    with open(path, "rb") as file:
        text = file.read(limit + 1)
    if len(text) > limit:
        raise ValueError(f"{path} has more than {limit} bytes; accepted: at most those")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not readable as JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}; accepted: a JSON object")
    return value


def listed(values: Mapping[str, Any], rules: Mapping[str, Rule], where: object) -> dict[str, Any]:
    """Those of the values that the rules name. ValueError for one that does not fit its rule."""
    found = {name: values[name] for name in rules if name in values}
    for name, value in found.items():
        if value is not None and not rules[name].fits(value):
            raise ValueError(f"{name} in {where} is {short(value)}; accepted: {rules[name].words}")
    return found


def short(value: Any) -> str:
    """A value in a message; it may be a long or deeply nested one."""
    if isinstance(value, (dict, list)):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def kind_of(values: Mapping[str, Any], where: object) -> str:
    """The class in `KINDS` of a config. ValueError for another one."""
    found = values.get("model_type")
    for name, kind in KINDS.items():
        if kind.model_type == found:
            return name
    accepted = ", ".join(kind.model_type for kind in KINDS.values())
    raise ValueError(f"model_type in {where} is {short(found)}; accepted: {accepted}")


def config_of(class_name: str, values: Mapping[str, Any], where: object) -> Any:
    """A config of transformers for a class in `KINDS`, of what its list names in the values and of nothing else.

    Raises ValueError for another model_type, a value that does not fit, or a field that the class reads and no list
    names.
    """
    import transformers

    kind = KINDS[class_name]
    if values.get("model_type") != kind.model_type:
        raise ValueError(f"model_type in {where} is {short(values.get('model_type'))}; accepted: {kind.model_type}")
    for name, accepted in REFUSED.items():
        if values.get(name) is not None:
            raise ValueError(f"{name} in {where} is {short(values[name])}; accepted: {accepted}, without it")
    config_class: Any = getattr(transformers, class_name).config_class
    own = {field.name for field in dataclasses.fields(config_class)} - {
        field.name for field in dataclasses.fields(transformers.PretrainedConfig)
    }
    for name in sorted(own - kind.fields.keys()):  # of a release that came after the list
        if values.get(name) is not None:
            raise ValueError(f"{name} in {where} is {short(values[name])}; accepted: none of it yet")
    found = listed(values, kind.fields, where)
    with refusing(f"{where} makes no {class_name}"):
        return config_class(**found, architectures=[class_name])


@contextmanager
def refusing(words: str) -> Iterator[None]:
    """Makes a ValueError that begins with the words of whatever a library raises about files that nobody has checked,
    but for OSError and ImportError."""
    try:
        yield
    except (OSError, ImportError):
        raise
    except Exception as error:  # of any kind
        raise ValueError(f"{words}: {error!r}") from error
