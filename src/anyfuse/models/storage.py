"""Quantized models on disk: the model's `config.json`, and `anyfuse.safetensors` with every tensor."""

from __future__ import annotations

import copy
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..nn import QuantLinear
from ..ops import _checks as checks
from .adapter import Adapter
from .convert import Group, Recipe, apply, make_plan, require_numbers

FILE, FORMAT = "anyfuse.safetensors", "anyfuse-w8a8-1"
GENERATION = "generation_config.json"


def save_quantized(model: nn.Module, folder: str | Path) -> None:
    """Writes a model that `quantize_` has quantized: int8 weights, scales and what is left in float, and its config.

    Tensors that the model shares (tied embeddings) are written once. Nothing is pickled. All files are completed in a
    temporary folder before the first appears, and the tensors appear last: an error loses nothing that was there, and
    a process that is killed leaves a model, or a folder that `load_quantized` refuses.

    Raises:
        TypeError: the model is not quantized, has no config, or its scales have another dtype than float32.
        OSError: a file cannot be written.
    """
    config: Any = getattr(model, "config", None)
    recipe: Recipe | None = getattr(model, "_anyfuse_recipe", None)
    if recipe is None or config is None:
        raise TypeError(
            f"model is a {type(model).__name__}; accepted: one of transformers that quantize_ has quantized"
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    waiting = Path(tempfile.mkdtemp(prefix=".saving-", dir=folder))
    try:
        _write(waiting, model, copy.deepcopy(config), recipe)
        _replace(folder, waiting)
    finally:
        _remove(waiting)


def _remove(folder: Path) -> None:
    """Removes a folder, also when Ctrl-C comes meanwhile."""
    try:
        shutil.rmtree(folder)
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _write(folder: Path, model: nn.Module, config: Any, recipe: Recipe) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    if hasattr(config, "quantization_config"):  # of the file that the float weights came from
        del config.quantization_config
    config.save_pretrained(folder)
    generation: Any = getattr(model, "generation_config", None)
    if generation is not None:
        generation.save_pretrained(folder)
    tensors = {name: tensor.contiguous() for name, tensor in _tensors(model)}
    for name, tensor in tensors.items():
        if name.endswith("_scale"):
            checks.require_tensor(
                name, tensor, (torch.float32,)
            )  # `model.to(dtype)` converts them, which no call accepts
    try:
        save_file(tensors, folder / FILE, metadata={"format": FORMAT, "recipe": json.dumps(asdict(recipe))})
    except SafetensorError as error:  # a full disk
        raise OSError(f"{folder.parent / FILE} cannot be written: {error}") from error


def _replace(folder: Path, waiting: Path) -> None:
    """Moves the files of `waiting` to the folder. Between the first and the last there is no file of tensors, since
    those of one model beside the config of another could load."""
    for path in waiting.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    for name in (FILE, GENERATION):
        (folder / name).unlink(missing_ok=True)
    for path in sorted(waiting.iterdir(), key=lambda path: path.name == FILE):
        os.replace(path, folder / path.name)


def load_quantized(folder: str | Path) -> Any:
    """The model that `save_quantized` wrote. No float model is built, and nothing but the file's tensors is read.

    Raises:
        OSError: a file is missing.
        ValueError: the file is not of this format, or a name, shape or type of a tensor is not what the config asks;
            under `torch.device("meta")`, where a model would have no numbers.
        ImportError: transformers, accelerate or safetensors is missing (extra `hf`).
    """
    from safetensors import SafetensorError, safe_open

    require_numbers("the model")
    folder = Path(folder)
    if not (folder / FILE).is_file():
        raise FileNotFoundError(f"{folder / FILE} is missing; accepted: a folder that `anyfuse quantize` wrote")
    try:
        with safe_open(folder / FILE, framework="pt") as file:
            return _read(folder, file)
    except SafetensorError as error:
        raise ValueError(f"{folder / FILE} cannot be read: {error}; accepted: what save_quantized wrote") from None


def _read(folder: Path, file: Any) -> Any:
    metadata = file.metadata() or {}
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{folder / FILE} has format {metadata.get('format')!r}; accepted: {FORMAT!r}")
    recipe = _recipe(metadata.get("recipe", ""))
    try:
        model = _skeleton(folder, recipe, set(file.keys()))
    except (OSError, ValueError, ImportError):
        raise
    except Exception as error:  # of any kind: models and their configs meet numbers and words that nobody has checked
        raise ValueError(f"the config in {folder} and the recipe in {FILE} make no {recipe.kind}: {error!r}") from error
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


def _skeleton(folder: Path, recipe: Recipe, names: set[str]) -> Any:
    """The quantized model's modules, without numbers: parameters on the device "meta", int8 weights zero."""
    import transformers
    from accelerate import init_empty_weights

    kind = getattr(transformers, recipe.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise ValueError(
            f"{folder / FILE} is of a {recipe.kind}, which is no model of transformers {transformers.__version__}"
        )
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    layers = getattr(config, "num_hidden_layers", 0)
    if layers > len(names):
        raise ValueError(f"{FILE} has {len(names)} tensors, too few for {layers} layers")
    with init_empty_weights(include_buffers=False):
        model = kind(config)
    model.tie_weights()  # parameters that became empty are no longer one

    plan = make_plan(model, recipe.adapter, recipe.skip)
    needed = sum(linear.in_features * linear.out_features for group in plan.groups for linear in group.linears)
    found = (folder / FILE).stat().st_size
    if needed > found:  # before memory for them is asked for
        raise ValueError(f"{FILE} has {found} bytes, too few for {needed} weights")

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
