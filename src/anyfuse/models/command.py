"""What the commands read: models and texts, from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .storage import FILE, load_quantized


def open_model(path: Path) -> tuple[Any, Any]:
    """A model and its tokenizer: quantized (a folder that holds our file), or float, from a folder or a GGUF file.

    Raises OSError where there is nothing, ImportError without transformers.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; accepted: a model's folder or a .gguf file")
    try:
        import transformers
    except ImportError:
        raise RuntimeError("transformers is missing: pip install 'anyfuse[hf]'") from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if (path / FILE).is_file():
        return load_quantized(path), _tokenizer(path)
    source: dict[str, Any] = {"gguf_file": path.name} if path.is_file() else {}
    folder = path.parent if path.is_file() else path
    tokenizer = _tokenizer(folder, **source)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype="auto", **source)
    return model.eval(), tokenizer


def _tokenizer(folder: Path, **source: Any) -> Any:
    """The tokenizer beside a model. ValueError where there is none: transformers' own words name no folder."""
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, **source)
    except (OSError, ValueError) as error:
        advice = "save it beside the model: tokenizer.save_pretrained(folder)"
        raise ValueError(f"{folder} has no tokenizer that transformers can read; {advice}. ({error})") from error


def read_ids(tokenizer: Any, path: Path, tokens: int) -> Any:
    """The first ids of a text, (length,)."""
    ids = tokenizer(path.read_text(encoding="utf-8"), return_tensors="pt").input_ids[0, :tokens]
    if ids.shape[0] < 2:
        raise ValueError(f"{path} holds {ids.shape[0]} tokens; accepted: 2 or more")
    return ids
