"""A plain call of an operator: its arguments from sizes, a dtype and settings, and its results by name."""

from __future__ import annotations

import contextlib
import inspect
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .._checks import dtype_name, one_of
from .._opspec import REGISTRY, OpSpec
from .._settings import convention_or_default
from ..samples.draw import Draw
from ..samples.kinds import CaseSpec, Preset

#: The dtypes of tensors in files, by name.
DTYPES = {
    dtype_name(dtype): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    )
}  # fmt: skip


def operator(name: str) -> OpSpec:
    """An operator by its stem or the name of its function."""
    for spec in REGISTRY.values():
        if name in (spec.name, spec.function.__name__):
            return spec
    raise ValueError(f"operator {name!r} is unknown; accepted: {', '.join(known())}")


def known() -> list[str]:
    """The operators, by their stems."""
    return sorted(REGISTRY)


def describe(name: str) -> dict[str, Any]:
    """What `cases.generate` takes for an operator."""
    spec = operator(name)
    plan, standard = spec.samples.case, defaults(spec)
    tensors = plan.inputs(Draw(0), plan.sizes, plan.dtypes[0], standard)
    return {
        "operator": spec.name,
        "summary": spec.summary,
        "shape": ",".join(plan.axes) or "sizes of any number",
        "default shape": ",".join(map(str, plan.sizes)),
        "dtypes": [dtype_name(dtype) for dtype in plan.dtypes],
        "attributes": {key: value for key, value in standard.items() if key not in tensors}
        | {
            key: value.item()
            for key, value in tensors.items()
            if standard.get(key, 0) is not None and value.numel() == 1
        },
        "optional tensors": _optional(spec, tensors),
        "presets": {key: preset.summary for key, preset in plan.presets.items()},
        "outputs": list(spec.outputs),
    }


def everyday(spec: OpSpec, dtype: torch.dtype, seed: int) -> dict[str, Any]:
    """The arguments of an operator's plain call: default sizes and attributes, without optional tensors."""
    plan = spec.samples.case
    every = plan.inputs(Draw(seed), plan.sizes, dtype, defaults(spec))
    tensors, attributes = arguments_of(spec, every, {}, ())
    return {**attributes, **tensors}


def call(spec: OpSpec, arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """Runs an operator on copies of its tensors and names its results."""
    return named(spec, {key: value.clone() if isinstance(value, Tensor) else value for key, value in arguments.items()})


def preset_of(plan: CaseSpec, name: str | None) -> Preset | None:
    if name is None:
        return None
    if name not in plan.presets:
        raise ValueError(f"preset {name!r} is unknown; accepted: {', '.join(plan.presets) or 'none for this operator'}")
    return plan.presets[name]


def sizes_of(plan: CaseSpec, sizes: Sequence[int], axes: Mapping[str, int]) -> tuple[int, ...]:
    words = ",".join(plan.axes) if plan.axes else "any number of sizes"
    if plan.axes and len(sizes) != len(plan.axes):
        raise ValueError(f"shape has {len(sizes)} sizes; accepted: {words}")
    for name in axes:
        if name not in plan.axes:
            raise ValueError(f"size {name!r} is unknown; accepted: {', '.join(plan.axes) or '--shape'}")
    result = tuple(axes.get(name, size) for name, size in zip(plan.axes, sizes, strict=True)) if plan.axes else sizes
    if min(result, default=0) < 0:
        raise ValueError(f"shape is {tuple(result)}; accepted: sizes of 0 and more")
    return tuple(result)


def dtype_of(plan: CaseSpec, name: str | None) -> torch.dtype:
    dtypes = {dtype_name(dtype): dtype for dtype in plan.dtypes}
    return plan.dtypes[0] if name is None else dtypes[one_of("dtype", name, tuple(dtypes))]


def parameters(spec: OpSpec) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(spec.function).parameters


def parse(spec: OpSpec, settings: Mapping[str, str]) -> dict[str, Any]:
    """Attributes from their text: numbers, true, false, none, names of dtypes where one is taken, otherwise strings."""
    hints = typing.get_type_hints(spec.function)
    result = {}
    for name, text in settings.items():
        if name not in hints or name == "return":
            accepted = ", ".join(parameters(spec))
            raise ValueError(f"{spec.function.__name__} has no argument {name!r}; accepted: {accepted}")
        result[name] = _parse_value(text, torch.dtype in typing.get_args(hints[name]))
    return result


def _parse_value(text: str, dtypes: bool) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    if dtypes and text in DTYPES:
        return DTYPES[text]
    if "," in text:
        return [_parse_value(part, dtypes) for part in text.split(",")]
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    return text


def arguments_of(
    spec: OpSpec, tensors: Mapping[str, Tensor], given: Mapping[str, Any], optional: Sequence[str]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The call: its tensors (those required, those asked for) and its attributes. A number given for a one-element
    tensor (a step, a learning rate) fills that tensor."""
    standard = defaults(spec)
    can = _optional(spec, tensors)
    for name in optional:
        if name not in can:
            raise ValueError(f"optional tensor {name!r} is unknown; accepted: {', '.join(can) or 'none'}")
    wanted = {*optional, *(name for name, value in given.items() if value is not None)}
    chosen = {name: tensor for name, tensor in tensors.items() if name not in can or name in wanted}
    for name in given:
        if name in chosen:
            chosen[name] = _filled(name, chosen[name], given[name])
    attributes = {name: value for name, value in {**standard, **given}.items() if name not in chosen}
    return chosen, attributes


def _optional(spec: OpSpec, tensors: Mapping[str, Tensor]) -> list[str]:
    """The tensors that a case can do without."""
    standard, always = defaults(spec), spec.samples.case.always
    return [name for name in tensors if standard.get(name, ...) is None and name not in always]


def defaults(spec: OpSpec) -> dict[str, Any]:
    """The default attributes, written out in every manifest: a case must not change with those of a later version."""
    every = parameters(spec).items()
    result = {name: item.default for name, item in every if item.default is not inspect.Parameter.empty}
    if "convention" in result:
        result["convention"] = convention_or_default(result["convention"])
    return result


def _filled(name: str, tensor: Tensor, value: Any) -> Tensor:
    whole = not tensor.dtype.is_floating_point
    if tensor.numel() != 1:
        raise ValueError(f"{name} is a tensor of shape {tuple(tensor.shape)}; accepted: values for attributes only")
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        kind = "a whole number" if whole else "a number"
        raise ValueError(f"{name} is {value!r}; accepted: {kind}, as it is a tensor of {dtype_name(tensor.dtype)}")
    return torch.full_like(tensor, value)


def named(spec: OpSpec, arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """Runs an operator and names its results."""
    results = spec.function(**arguments)
    return dict(zip(spec.outputs, results if isinstance(results, tuple) else (results,), strict=True))
