"""Float models and tokenizers from folders and GGUF files that anyone may have written."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

import torch

from .kinds import (
    CONFIG_LIMIT,
    GENERATION,
    TOKENIZER_LIMIT,
    TOKENIZERS,
    config_of,
    kind_of,
    listed,
    read_json,
    refusing,
    short,
)

ELEMENTS = 1 << 21  # of a GGUF file's lists, each of which costs its reader an object
TENSORS_OF_A_LAYER = 9  # of a decoder's: seven linears and two norms, at least
TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json")
WEIGHTS = (".safetensors", ".bin")


def load_float(path: Path) -> tuple[Any, Any]:
    """A model of `KINDS` and its tokenizer, from a folder of transformers or a GGUF file.

    Raises:
        OSError: a file is missing.
        ValueError: the config asks for what no list names or for more than the file holds, weights are missing, or a
            file is damaged.
        ImportError: a package that reads the file is missing.
    """
    import transformers

    source: dict[str, Any] = {"gguf_file": path.name} if path.is_file() else {}
    folder = path.parent if source else path
    where = path if source else path / "config.json"
    tensors = 0
    if source:
        tensors = check_gguf(path)
        with refusing(f"{path} cannot be read"):
            values, _ = transformers.PretrainedConfig.get_config_dict(folder, local_files_only=True, **source)
    else:
        values = read_json(where, CONFIG_LIMIT)
        _refuse_adapter(folder)
    name = kind_of(values, where)
    config = config_of(name, values, where)
    kind = getattr(transformers, name)
    # A packed weight of a GGUF file takes an eighth of a byte at least, one of the other files a byte.
    room = 8 * path.stat().st_size if source else _bytes_of_weights(folder)
    least = TENSORS_OF_A_LAYER * config.num_hidden_layers
    if least > (tensors or room // config.hidden_size):  # before time is spent on making them
        raise ValueError(f"{path} is too small for {config.num_hidden_layers} layers; accepted: what its config asks")
    needed = weights_of(kind, config, path)
    if needed > room:
        raise ValueError(f"{path} is too small for {needed} weights; accepted: what its config asks")
    tokenizer = load_tokenizer(folder, config, **source)
    generation = _generation(folder, config, source)
    with refusing(f"{path} cannot be read"):
        model, report = kind.from_pretrained(
            folder, config=config, generation_config=generation, local_files_only=True,
            trust_remote_code=False, dtype="auto", output_loading_info=True, **source,
        )  # fmt: skip
    missing = sorted(report["missing_keys"])
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing[:3])} ({len(missing)}); accepted: what the config asks")
    return model.eval(), tokenizer


def weights_of(kind: Any, config: Any, where: object) -> int:
    """How many weights a model has, without memory for them: those that are shared count once."""
    with refusing(f"{where} makes no {kind.__name__}"), torch.device("meta"):
        model = kind(config)
        model.tie_weights()
        return sum(parameter.numel() for parameter in model.parameters())


def load_tokenizer(folder: Path, config: Any, **source: Any) -> Any:
    """The tokenizer beside a model whose config is checked. Code of the folder is refused, not offered.

    Raises ValueError where there is none (transformers' own words name no folder), or where it asks for code.
    """
    import transformers

    path = folder / "tokenizer_config.json"
    if path.exists():
        values = read_json(path, TOKENIZER_LIMIT)
        listed(values, {"tokenizer_class": TOKENIZERS}, path)
        for field in ("auto_map", "fast_tokenizer_files"):
            if values.get(field):
                raise ValueError(
                    f"{field} in {path} is {short(values[field])}; accepted: none, anyfuse runs no code of it"
                )
    try:
        return transformers.AutoTokenizer.from_pretrained(
            folder, config=config, local_files_only=True, trust_remote_code=False, **source
        )
    except ImportError:
        raise
    except Exception as error:  # of any kind
        advice = "save it beside the model: tokenizer.save_pretrained(folder)"
        raise ValueError(f"{folder} has no tokenizer that transformers can read; {advice}. ({error})") from error


def _refuse_adapter(folder: Path) -> None:
    """Weights to be added to those of a model elsewhere, which peft would look for."""
    if (folder / "adapter_config.json").exists():
        raise ValueError(f"{folder} holds an adapter; accepted: a model that it has been merged into")


def _bytes_of_weights(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix in WEIGHTS and path.is_file())


def _generation(folder: Path, config: Any, source: dict[str, Any]) -> Any:
    """What the folder says of sampling, or what follows from the config."""
    import transformers

    path = folder / "generation_config.json"
    if source or not path.exists():
        return transformers.GenerationConfig.from_model_config(config)
    return transformers.GenerationConfig(**listed(read_json(path, CONFIG_LIMIT), GENERATION, path))


# ---- GGUF ----

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _LIST = 8, 9


def check_gguf(path: Path) -> int:
    """Walks a GGUF file's header, whose counts and lengths its readers believe; returns how many tensors it names.

    Raises ValueError where the file ends before what it announces, or is no GGUF file of version 2 or 3.
    """
    size = path.stat().st_size
    if size < 24:
        raise ValueError(f"{path} has {size} bytes; accepted: a GGUF file, of 24 or more")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            return _Header(content).walk()
        except (struct.error, _Lie) as error:
            raise ValueError(f"{path} is damaged: {error}; accepted: a whole GGUF file") from None


class _Lie(Exception):
    """What a header says and cannot be."""


class _Header:
    def __init__(self, content: mmap.mmap) -> None:
        self.content, self.at, self.elements = content, 0, 0

    def walk(self) -> int:
        magic, version, tensors, entries = self.take("<4sIQQ")
        if magic != b"GGUF" or version not in (2, 3):
            raise _Lie(f"it begins with {magic!r}, version {version}")
        for _ in range(entries):
            self.skip_string()
            self.skip_value(*self.take("<I"))
        for _ in range(tensors):
            self.skip_string()
            (dimensions,) = self.take("<I")
            if dimensions > 4:
                raise _Lie(f"a tensor has {dimensions} dimensions")
            self.skip(8 * dimensions + 12)
        return int(tensors)

    def take(self, form: str) -> tuple[Any, ...]:
        start = self.at
        self.skip(struct.calcsize(form))
        return struct.unpack_from(form, self.content, start)

    def skip(self, count: int) -> None:
        if count > len(self.content) - self.at:
            raise _Lie(f"it ends at {len(self.content)}, and byte {self.at} announces {count} more")
        self.at += count

    def skip_string(self) -> None:
        self.skip(*self.take("<Q"))

    def skip_value(self, kind: int) -> None:
        if kind in _SIZES:
            self.skip(_SIZES[kind])
        elif kind == _STRING:
            self.skip_string()
        elif kind == _LIST:
            inner, count = self.take("<IQ")
            self.elements += count
            if self.elements > ELEMENTS:
                raise _Lie(f"its lists have more than {ELEMENTS} elements")
            if inner in _SIZES:
                self.skip(_SIZES[inner] * count)
            elif inner == _STRING:
                for _ in range(count):
                    self.skip_string()
            else:
                raise _Lie(f"a list holds elements of type {inner}")
        else:
            raise _Lie(f"a value has type {kind}")
