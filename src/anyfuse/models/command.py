"""What the commands read: models and texts, from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .source import TOKENIZER_FILES, load_float, load_tokenizer
from .storage import FILE, check_companions, load_quantized


def open_model(path: Path) -> tuple[Any, Any]:
    """A model and its tokenizer: quantized (a folder that holds our file), or float, from a folder or a GGUF file.

    Raises OSError where there is nothing, ValueError for what `load_quantized` and `load_float` refuse, RuntimeError
    without transformers.
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
        model = load_quantized(path)
        check_companions(path, *TOKENIZER_FILES)
        return model, load_tokenizer(path, model.config)
    return load_float(path)


def read_ids(tokenizer: Any, path: Path, tokens: int) -> Any:
    """The first ids of a text, (length,)."""
    ids = tokenizer(path.read_text(encoding="utf-8"), return_tensors="pt").input_ids[0, :tokens]
    if ids.shape[0] < 2:
        raise ValueError(f"{path} holds {ids.shape[0]} tokens; accepted: 2 or more")
    return ids
