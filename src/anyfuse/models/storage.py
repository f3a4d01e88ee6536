"""Quantized models on disk: the model's `config.json`, and `anyfuse.safetensors` with every tensor."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._saving import digest, saving
from ..nn import QuantLinear
from ..ops import _checks as checks
from .adapter import Adapter
from .convert import Group, Recipe, apply, make_plan, require_numbers
from .kinds import CONFIG_LIMIT, KINDS, config_of, read_json, refusing, short
from .source import weights_of

FILE, FORMAT = "anyfuse.safetensors", "anyfuse-w8a8-1"
CONFIG, GENERATION = "config.json", "generation_config.json"


def save_quantized(model: nn.Module, folder: str | Path, *, tokenizer: Any = None) -> None:
    """Writes a model that `quantize_` has quantized: int8 weights, scales and what is left in float, and its config.

    Tensors that the model shares (tied embeddings) are written once. Nothing is pickled. All files are completed in a
    temporary folder before the first appears, and the tensors appear last: an error loses nothing that was there, and
    a process that is killed leaves a model, or a folder that `load_quantized` refuses. Of several processes that save
    to one folder the second waits, up to five minutes; the file of tensors knows the others by their SHA-256.

    Args:
        model: what `quantize_` was given.
        folder: made where there is none.
        tokenizer: a tokenizer of transformers to save with the model.

    Raises:
        TypeError: the model is not quantized, has no config, or its scales have another dtype than float32.
        OSError: a file cannot be written, or another process is writing in the folder all the time (TimeoutError).
    """
    config: Any = getattr(model, "config", None)
    recipe: Recipe | None = getattr(model, "_anyfuse_recipe", None)
    if recipe is None or config is None:
        raise TypeError(
            f"model is a {type(model).__name__}; accepted: one of transformers that quantize_ has quantized"
        )
    with saving(folder, last=FILE, outdated=(GENERATION,)) as waiting:
        if tokenizer is not None:
            tokenizer.save_pretrained(waiting)
        _write(waiting, Path(folder), model, copy.deepcopy(config), recipe)


def _write(waiting: Path, folder: Path, model: nn.Module, config: Any, recipe: Recipe) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    if hasattr(config, "quantization_config"):  # of the file that the float weights came from
        del config.quantization_config
    config.save_pretrained(waiting)
    generation: Any = getattr(model, "generation_config", None)
    if generation is not None:
        generation.save_pretrained(waiting)
    tensors = {name: tensor.contiguous() for name, tensor in _tensors(model)}
    for name, tensor in tensors.items():
        if name.endswith("_scale"):
            # `model.to(dtype)` converts them, which no call accepts
            checks.require_tensor(name, tensor, (torch.float32,))
    companions = {path.name: digest(path) for path in waiting.iterdir() if path.is_file()}
    metadata = {"format": FORMAT, "recipe": json.dumps(asdict(recipe)), "companions": json.dumps(companions)}
    try:
        save_file(tensors, waiting / FILE, metadata=metadata)
    except SafetensorError as error:  # a full disk
        raise OSError(f"{folder / FILE} cannot be written: {error}") from error


def check_companions(folder: Path, *names: str) -> None:
    """ValueError where files are not those that the tensors were saved with. Writers that note none are believed."""
    from safetensors import safe_open

    with safe_open(folder / FILE, framework="pt") as file:
        _check_companions(folder, file.metadata() or {}, names)


def _check_companions(folder: Path, metadata: dict[str, str], names: Iterable[str]) -> None:
    try:
        companions = dict(json.loads(metadata.get("companions", "{}")))
    except (ValueError, TypeError, RecursionError):
        raise ValueError(f"{folder / FILE} has unreadable companions; accepted: what save_quantized wrote") from None
    for name in names:
        if name in companions and (not (folder / name).is_file() or digest(folder / name) != companions[name]):
            raise ValueError(f"{folder / name} is not the one that {FILE} was saved with; accepted: files of one save")


def load_quantized(folder: str | Path, *, model_class: type[nn.Module] | None = None) -> Any:
    """The model that `save_quantized` wrote. No float model is built, and nothing but the file's tensors is read.

    Args:
        folder: where it is. `config.json` may ask for what the lists in `anyfuse.models.kinds` accept; other fields of
            it are not read.
        model_class: the class of a model that was quantized with an adapter of one's own. No list knows it, so its
            config is read as transformers reads it: for folders that you trust.

    Raises:
        OSError: a file is missing.
        ValueError: the file is not of this format, the config asks for what no list names, or a name, shape or type of
            a tensor is not what the config asks; under `torch.device("meta")`, where a model would have no numbers.
        ImportError: transformers, accelerate or safetensors is missing (extra `hf`).
    """
    from safetensors import SafetensorError, safe_open

    require_numbers("the model")
    folder = Path(folder)
    if not (folder / FILE).is_file():
        raise FileNotFoundError(f"{folder / FILE} is missing; accepted: a folder that `anyfuse quantize` wrote")
    try:
        with safe_open(folder / FILE, framework="pt") as file:
            return _read(folder, file, model_class)
    except SafetensorError as error:
        raise ValueError(f"{folder / FILE} cannot be read: {error}; accepted: what save_quantized wrote") from None


def _read(folder: Path, file: Any, model_class: type[nn.Module] | None) -> Any:
    metadata = file.metadata() or {}
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{folder / FILE} has format {metadata.get('format')!r}; accepted: {FORMAT!r}")
    _check_companions(folder, metadata, (CONFIG,))
    recipe = _recipe(metadata.get("recipe", ""))
    kind, config = _config(folder, recipe, model_class)
    _check_sizes(folder, kind, config, len(file.keys()))
    with refusing(f"the config in {folder} and the recipe in {FILE} make no {recipe.kind}"):
        model = _skeleton(kind, config, recipe, set(file.keys()))
    expected = dict(_tensors(model))
    _check_names(expected.keys(), file.keys())
    tensors = {name: file.get_tensor(name) for name in expected}
    for name, tensor in tensors.items():
        _check_tensor(name, tensor, expected[name])
    model.load_state_dict(tensors, strict=False, assign=True)
    model.requires_grad_(False)
    if any(parameter.is_meta for parameter in model.parameters()):
        model.tie_weights()
    return model.eval()


def _config(folder: Path, recipe: Recipe, model_class: Any) -> tuple[Any, Any]:
    """The model's class and its config."""
    import transformers

    known = list(KINDS) if model_class is None else [model_class.__name__]
    if recipe.kind not in known:
        advice = ", or another with model_class" if model_class is None else ""
        raise ValueError(f"{folder / FILE} is of a {short(recipe.kind)}; accepted: {', '.join(known)}{advice}")
    if model_class is not None:
        return model_class, model_class.config_class.from_pretrained(folder, local_files_only=True)
    path = folder / CONFIG
    return getattr(transformers, recipe.kind), config_of(recipe.kind, read_json(path, CONFIG_LIMIT), path)


def _check_sizes(folder: Path, kind: Any, config: Any, tensors: int) -> None:
    """Before time is spent on modules and memory is asked for."""
    layers = getattr(config, "num_hidden_layers", 0)
    if layers > tensors:
        raise ValueError(f"{FILE} has {tensors} tensors, too few for {layers} layers")
    needed, found = weights_of(kind, config, folder), (folder / FILE).stat().st_size
    if needed > found:  # each takes a byte or more
        raise ValueError(f"{FILE} has {found} bytes, too few for {needed} weights")


def _skeleton(kind: Any, config: Any, recipe: Recipe, names: set[str]) -> Any:
    """The quantized model's modules, without numbers: parameters on the device "meta", int8 weights zero."""
    from accelerate import init_empty_weights

    with init_empty_weights(include_buffers=False):
        model = kind(config)
    model.tie_weights()  # parameters that became empty are no longer one
    plan = make_plan(model, recipe.adapter, recipe.skip)

    def make(group: Group) -> QuantLinear:
        n, k = sum(one.out_features for one in group.linears), group.linears[0].in_features
        biased = any(one.bias is not None for one in group.linears)
        return QuantLinear.empty(
            n, k, bias=torch.float32 if biased else None, smooth=f"{group.name}.smooth_scale" in names
        )

    apply(model, plan, make)
    model._anyfuse_recipe = recipe
    return model


def _recipe(text: str) -> Recipe:
    try:
        values = json.loads(text)
        names: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values["adapter"].items()
        }
        return Recipe(str(values["kind"]), Adapter(**names), tuple(values["skip"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{FILE} has an unreadable recipe ({error}); accepted: one that save_quantized wrote"
        ) from None


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the state, those that several modules share once."""
    state = model.state_dict(keep_vars=True)
    seen: set[int] = set()
    for name, tensor in state.items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name.replace("_orig_mod.", ""), tensor.detach()  # of modules that torch.compile has wrapped


def _check_names(expected: Any, found: Any) -> None:
    missing, unknown = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if missing or unknown:
        raise ValueError(
            f"{FILE} lacks {', '.join(missing[:3]) or 'nothing'} ({len(missing)}) and has "
            f"{', '.join(unknown[:3]) or 'nothing'} ({len(unknown)}) too many; accepted: what the config asks"
        )


def _check_tensor(name: str, tensor: Tensor, like: Tensor) -> None:
    if tensor.shape != like.shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; accepted: {tuple(like.shape)}, as the config asks")
    exact = not like.is_floating_point() or name.endswith("_scale")
    if (exact and tensor.dtype != like.dtype) or tensor.is_floating_point() != like.is_floating_point():
        raise ValueError(f"{name} has dtype {tensor.dtype}; accepted: {like.dtype}")
