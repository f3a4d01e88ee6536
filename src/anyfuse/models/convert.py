"""Replaces the linears and norms of a decoder by quantized ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from ..nn import AddRMSNormQuant, QuantLinear, QuantLinearPart
from .adapter import Adapter, adapter_of
from .calibration import Seen, fitted_scale, observe, random_tokens, smooth_scale
from .decoder import AddNorm, QuantDecoderLayer


@dataclass
class Report:
    """What `quantize_` did.

    Attributes:
        replaced: names of linears and norms that are quantized now.
        kept: names of linears and norms that are not, and why.
        float_bytes: what the weights (and biases) of the replaced linears took.
        bytes: what their quantized forms take, scales and padding included.
    """

    replaced: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    float_bytes: int = 0
    bytes: int = 0

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} replaced, {len(self.kept)} kept; {self.float_bytes} bytes are {self.bytes} now"]
        return "\n".join(lines + [f"kept {name}: {reason}" for name, reason in self.kept.items()])


@dataclass(frozen=True)
class Recipe:
    """How a model was quantized: what makes the same modules of an empty model again."""

    kind: str
    adapter: Adapter
    skip: tuple[str, ...]


@torch.no_grad()
def quantize_(
    model: nn.Module,
    *,
    calibration: Iterable[Any] | None = None,
    smooth_alpha: float | str | None = "fit",
    skip: Sequence[str] = ("lm_head",),
    adapter: Adapter | None = None,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Puts a decoder of the Llama shape into W8A8, in place: int8 weights, int8 activations with a scale for each row.

    Linears become `anyfuse.nn.QuantLinear`, those that read one activation (q, k, v; gate, up) one product; the norms
    before them become `AddRMSNormQuant`, which does the residual add, too. The model is for inference afterwards: its
    parameters require no gradient. `generate`, caches and `torch.compile` work as before; `output_hidden_states` does
    not, since hidden states between the layers are not computed.

    Args:
        model: `LlamaForCausalLM` (SmolLM2 is one), `MistralForCausalLM`, `Qwen2ForCausalLM`, `Qwen3ForCausalLM`,
            `SmolLM3ForCausalLM` of transformers, or another with an `adapter`; float32, float16 or bfloat16.
        calibration: batches of token ids (batch, length), or mappings of the model's arguments, to compute SmoothQuant
            scales from; those before q, k, v and gate, up are folded into the norm's smooth scale. None: 512 tokens
            drawn by chance from `config.vocab_size` (no smooth scales where there is none), which shows most columns
            that hold outliers, but fits less well than text like what the model will read.
        smooth_alpha: how much of an activation's outliers moves into the weights, by SmoothQuant's formula: 0 none, 1
            all. "fit": 0.5, and with a calibration the scales behind the norms are fitted, each by the error that
            rounding is expected to make on the calibration's first 2048 rows (`anyfuse.models.calibration`), which
            takes most of the time here. None: no smooth scales, and no calibration.
        skip: names of linears to keep: full ones, last parts, or patterns (`"*.mlp.*"`).
        adapter: where the parts are, for a model of another class.
        advance: told how many of the linears' groups are done, and of how many.

    Returns:
        A `Report`: what was replaced, what was kept and why, and bytes before and after.

    Raises:
        TypeError: model is not a module, or is quantized already; a text where token ids are accepted.
        ValueError: a class without adapter, smooth_alpha outside 0 … 1 or another word, no batch in the calibration,
            weights or activations that are not finite, the device "meta". The model is unchanged then.

    Example:
        >>> report = anyfuse.quantize_(model, calibration=[ids], skip=())   # doctest: +SKIP
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; accepted: a torch.nn.Module")
    if any(isinstance(module, QuantLinear) for module in model.modules()):
        raise TypeError("model is quantized already; accepted: a float model")
    require_numbers("model", model)
    if isinstance(skip, str):
        raise TypeError(f"skip is {skip!r}; accepted: a list of names")
    fit = smooth_alpha == "fit"
    if not (smooth_alpha is None or fit or (not isinstance(smooth_alpha, str) and 0 <= smooth_alpha <= 1)):
        raise ValueError(f"smooth_alpha is {smooth_alpha!r}; accepted: 0 to 1, 'fit', or None")
    adapter = adapter_of(model) if adapter is None else adapter
    plan = make_plan(model, adapter, skip)
    keep = [group.name for group in plan.groups if group.norm is not None] if fit and calibration is not None else []
    seen = {} if smooth_alpha is None else _observe(model, plan, calibration, keep)
    alpha = 0.5 if smooth_alpha is None or isinstance(smooth_alpha, str) else smooth_alpha

    def make(group: Group) -> QuantLinear:
        smooth, one = None, seen.pop(group.name, None)
        if one is not None and one.rows:
            smooth = fitted_scale(one, group.linears)
        elif one is not None:
            smooth = smooth_scale(one.absmax, group.linears, alpha)
        return QuantLinear.from_float(group.linears, smooth_scale=smooth)

    made = {}
    for group in plan.groups:
        made[group.name] = make(group)
        advance(len(made), len(plan.groups))
    report = apply(model, plan, lambda group: made[group.name])
    # What `load_quantized` needs to make the same modules again.
    model._anyfuse_recipe = Recipe(type(model).__name__, adapter, tuple(skip))  # type: ignore[assignment]
    return report


def require_numbers(name: str, model: nn.Module | None = None) -> None:
    """ValueError where tensors are made on the device "meta", or a model's are there: they hold no numbers."""
    if torch.get_default_device().type == "meta":
        raise ValueError(f"{name} is asked for under torch.device('meta'); accepted: a default device with memory")
    if model is not None and any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError(f"{name} has parameters on the device meta, without numbers; accepted: a model that is loaded")


def _observe(model: nn.Module, plan: Plan, calibration: Iterable[Any] | None, keep: Sequence[str]) -> dict[str, Seen]:
    if calibration is None:
        size = getattr(getattr(model, "config", None), "vocab_size", None)
        if size is None:
            return {}
        calibration = [random_tokens(size)]
    if isinstance(calibration, str):
        raise TypeError(f"calibration is {calibration!r}; accepted: batches of token ids, or None")
    return observe(model, {group.name: group.linears[0] for group in plan.groups}, calibration, keep)


# ---- what to replace ----


@dataclass
class Group:
    """Linears that one `QuantLinear` replaces: one alone, or several that read the same norm.

    Attributes:
        name: of the quantized linear, from the model.
        owner: the module that holds them, and will hold the quantized one.
        members: their names in the owner.
        linears: themselves.
        norm: the name of the norm that gives them rows; None where they read floats.
    """

    name: str
    owner: nn.Module
    members: tuple[str, ...]
    linears: list[nn.Linear]
    norm: str | None = None


@dataclass
class Plan:
    """What of a model is replaced, before anything is."""

    adapter: Adapter
    groups: list[Group]
    layers: list[int]
    kept: dict[str, str]


def make_plan(model: nn.Module, adapter: Adapter, skip: Sequence[str]) -> Plan:
    """Looks at the model's structure only, so that models without numbers (device "meta") will do.

    Raises ValueError where the adapter does not fit the model at all.
    """
    plan = Plan(adapter, [], [], {})
    layers = _find(model, adapter.layers)
    if not isinstance(layers, nn.ModuleList):
        raise ValueError(f"model is a {type(model).__name__} without a ModuleList {adapter.layers!r}; it does not fit")
    for i, layer in enumerate(layers):
        _plan_layer(plan, layer, i, skip)
    head = _find(model, adapter.head)
    if head is not None:
        _plan_single(plan, adapter.head, model, adapter.head, skip)
    planned = {id(linear) for group in plan.groups for linear in group.linears}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and id(module) not in planned:
            plan.kept.setdefault(name, "the adapter does not name it")
    return plan


def _plan_layer(plan: Plan, layer: nn.Module, i: int, skip: Sequence[str]) -> None:
    adapter, prefix = plan.adapter, f"{plan.adapter.layers}.{i}"
    parts = (adapter.input_norm, adapter.attention, adapter.post_norm, adapter.mlp)
    missing = [name for name in parts if _find(layer, name) is None]
    if missing:
        plan.kept[prefix] = f"it has no {', '.join(missing)}"
        return
    plan.layers.append(i)
    for norm, owner, members, shared, last in (
        (adapter.input_norm, adapter.attention, adapter.qkv, "qkv", adapter.out),
        (adapter.post_norm, adapter.mlp, adapter.gate_up, "gate_up", adapter.down),
    ):
        holder = _find(layer, owner)
        assert holder is not None
        _plan_norm(plan, layer, f"{prefix}.{norm}", f"{prefix}.{owner}", holder, members, shared, skip)
        _plan_single(plan, f"{prefix}.{owner}.{last}", holder, last, skip)


def _plan_norm(
    plan: Plan, layer: nn.Module, norm: str, owner: str, holder: nn.Module, members: tuple[str, ...], shared: str,
    skip: Sequence[str],
) -> None:  # fmt: skip
    """Plans the linears behind a norm: together, and with the norm, where none of them is kept."""
    reasons = {f"{owner}.{name}": _reason(f"{owner}.{name}", _find(holder, name), skip) for name in members}
    refused = [name for name, reason in reasons.items() if reason]
    module = _find(layer, norm.rpartition(".")[2])
    if refused:
        plan.kept[norm] = f"{', '.join(refused)} needs its float output"
    elif not isinstance(getattr(module, "weight", None), Tensor) or not hasattr(module, plan.adapter.epsilon):
        plan.kept[norm] = f"a {type(module).__name__} has no weight or no {plan.adapter.epsilon}"
    else:
        linears = [holder.get_submodule(name) for name in members]
        plan.groups.append(Group(f"{owner}.{shared}", holder, members, linears, norm))  # type: ignore[arg-type]
        return
    for name in members:
        _plan_single(plan, f"{owner}.{name}", holder, name, skip)


def _plan_single(plan: Plan, name: str, owner: nn.Module, member: str, skip: Sequence[str]) -> None:
    linear = _find(owner, member)
    reason = _reason(name, linear, skip)
    if reason:
        plan.kept[name] = reason
    elif isinstance(linear, nn.Linear):
        parent, _, last = member.rpartition(".")
        plan.groups.append(Group(name, owner.get_submodule(parent), (last,), [linear]))


def _reason(name: str, module: nn.Module | None, skip: Sequence[str]) -> str | None:
    """Why a linear is not replaced; None when it is."""
    if any(fnmatchcase(name, pattern) or name.rpartition(".")[2] == pattern for pattern in skip):
        return "skipped"
    return None if isinstance(module, nn.Linear) else f"it is a {type(module).__name__}, not a torch.nn.Linear"


def _find(module: nn.Module, name: str) -> nn.Module | None:
    try:
        return module.get_submodule(name)
    except AttributeError:
        return None


# ---- replacing ----


def apply(model: nn.Module, plan: Plan, make: Callable[[Group], QuantLinear]) -> Report:
    """Carries out a plan. `make` gives a group's linear, whose smooth scale is folded into the norm before it."""
    report = Report(kept=dict(plan.kept))
    smooth: dict[str, Tensor | None] = {}
    for group in plan.groups:
        linear = make(group)
        _put(group, linear)
        parent = group.name.rpartition(".")[0]
        report.replaced += [f"{parent}.{member}".lstrip(".") for member in group.members]
        report.float_bytes += sum(p.nbytes for one in group.linears for p in one.parameters())
        report.bytes += linear.nbytes
        if group.norm is not None:
            smooth[group.norm] = linear.smooth_scale
    layers = model.get_submodule(plan.adapter.layers)
    assert isinstance(layers, nn.ModuleList)
    for i in plan.layers:
        layers[i] = _quantized_layer(plan, layers[i], i, smooth)
    report.replaced += list(smooth)
    model.requires_grad_(False)
    return report


def _put(group: Group, linear: QuantLinear) -> None:
    if len(group.members) == 1 and group.norm is None:
        setattr(group.owner, group.members[0], linear)
        return
    setattr(group.owner, group.name.rpartition(".")[2], linear)
    start = 0
    for member, one in zip(group.members, group.linears, strict=True):
        setattr(group.owner, member, QuantLinearPart(linear, start, start + one.out_features))
        start += one.out_features


def _quantized_layer(plan: Plan, layer: nn.Module, i: int, smooth: dict[str, Tensor | None]) -> QuantDecoderLayer:
    adapter = plan.adapter
    norms: list[AddRMSNormQuant | AddNorm] = []
    for name in (adapter.input_norm, adapter.post_norm):
        norm, full = layer.get_submodule(name), f"{adapter.layers}.{i}.{name}"
        if full in smooth:
            weight: Any = norm.weight
            norms.append(AddRMSNormQuant(weight, getattr(norm, adapter.epsilon), smooth_scale=smooth[full]))
        else:
            norms.append(AddNorm(norm))
    names = (adapter.input_norm, adapter.attention, adapter.post_norm, adapter.mlp)
    attention, mlp = layer.get_submodule(adapter.attention), layer.get_submodule(adapter.mlp)
    result = QuantDecoderLayer(names, norms[0], attention, norms[1], mlp, hands_over=i + 1 in plan.layers)
    for name in ("attention_type", "layer_type"):  # what some models ask their layers for
        if hasattr(layer, name):
            setattr(result, name, getattr(layer, name))
    return result
