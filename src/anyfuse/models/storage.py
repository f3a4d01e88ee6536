"""Quantized models on disk: the model's `config.json`, and `anyfuse.safetensors` with every tensor."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..nn import QuantLinear
from .adapter import Adapter
from .convert import Group, Recipe, apply, make_plan

FILE, FORMAT = "anyfuse.safetensors", "anyfuse-w8a8-1"


def save_quantized(model: nn.Module, folder: str | Path) -> None:
    """Writes a model that `quantize_` has quantized: int8 weights, scales and what is left in float, and its config.

    Tensors that the model shares (tied embeddings) are written once. Nothing is pickled.

    Raises:
        TypeError: the model is not quantized, or has no config.
    """
    from safetensors.torch import save_file

    config: Any = getattr(model, "config", None)
    recipe: Recipe | None = getattr(model, "_anyfuse_recipe", None)
    if recipe is None or config is None:
        raise TypeError(
            f"model is a {type(model).__name__}; accepted: one of transformers that quantize_ has quantized"
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(config)
    if hasattr(config, "quantization_config"):  # of the file that the float weights came from
        del config.quantization_config
    config.save_pretrained(folder)
    generation: Any = getattr(model, "generation_config", None)
    if generation is not None:
        generation.save_pretrained(folder)
    tensors = {name: tensor.contiguous() for name, tensor in _tensors(model)}
    save_file(tensors, folder / FILE, metadata={"format": FORMAT, "recipe": json.dumps(asdict(recipe))})


def load_quantized(folder: str | Path) -> Any:
    """The model that `save_quantized` wrote. No float model is built, and nothing but the file's tensors is read.

    Raises:
        OSError: a file is missing.
        ValueError: the file is not of this format, or a name, shape or type of a tensor is not what the config asks.
        ImportError: transformers, accelerate or safetensors is missing (extra `hf`).
    """
    from safetensors import safe_open

    folder = Path(folder)
    if not (folder / FILE).is_file():
        raise FileNotFoundError(f"{folder / FILE} is missing; accepted: a folder that `anyfuse quantize` wrote")
    with safe_open(folder / FILE, framework="pt") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise ValueError(f"{folder / FILE} has format {metadata.get('format')!r}; accepted: {FORMAT!r}")
        model = _skeleton(folder, _recipe(metadata["recipe"]), set(file.keys()))
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

    config = transformers.AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, recipe.kind, None)
    if kind is None:
        raise ValueError(f"{folder / FILE} is of a {recipe.kind}, which transformers {transformers.__version__} lacks")
    with init_empty_weights(include_buffers=False):
        model = kind(config)
    model.tie_weights()  # parameters that became empty are no longer one

    def make(group: Group) -> QuantLinear:
        n, k = sum(one.out_features for one in group.linears), group.linears[0].in_features
        biased = any(one.bias is not None for one in group.linears)
        return QuantLinear.empty(
            n, k, bias=torch.float32 if biased else None, smooth=f"{group.name}.smooth_scale" in names
        )

    apply(model, make_plan(model, recipe.adapter, recipe.skip), make)
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
            yield name, tensor.detach()


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
