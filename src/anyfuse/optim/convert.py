"""Optimizer states of other libraries, and back. None of those libraries is needed: their layouts are plain dicts here.

A layout names the entries of a parameter's state:

    "torch"         step, exp_avg, exp_avg_sq: torch.optim.AdamW
    "bitsandbytes"  step, state1, state2 (codes or float32) and, for codes, qmap1, qmap2, absmax1, absmax2; newer
                    versions wrap them in a dict of their own, which is taken too
    "torchao"       step, and exp_avg, exp_avg_sq: plain tensors, or codes, scale, qmap in a dict (or as attributes)
    "arrays"        lists over all parameters, as `anyfuse.apply_adam_w_quant_` takes them: m, v, absmax_m, absmax_v,
                    step (the number of the last step), and qmap_m, qmap_v once

Codes are copied where block size and map are those of the optimizer's group; otherwise moments are dequantized in
float32 and quantized anew, by the group's block size, codebook and `nonzero_v`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..formats import codebook as books
from . import _adamw_rows as rows
from ._base import FusedOptimizer
from ._options import check_choice
from ._step import Group, State

LAYOUTS = ("torch", "bitsandbytes", "torchao", "arrays")
_KEYS = ("exp_avg", "exp_avg_sq")
_ARRAYS = ("m", "v", "absmax_m", "absmax_v", "step", "qmap_m", "qmap_v")
_WRAPPED = "__bnb_optimizer_quant_state__"
_TORCH_GROUP = {
    "amsgrad": False,
    "foreach": None,
    "capturable": False,
    "differentiable": False,
    "fused": None,
    "decoupled_weight_decay": True,
}


@dataclass(frozen=True)
class Coded:
    """A moment as codes."""

    codes: Tensor
    absmax: Tensor
    qmap: Tensor

    @property
    def block_size(self) -> int:
        """The one block size that fits; ValueError where none does."""
        fits = [size for size in books.BLOCK_SIZES if -(-self.codes.numel() // size) == self.absmax.numel()]
        if not fits:
            raise ValueError(
                f"{self.absmax.numel()} scales for {self.codes.numel()} codes; accepted: one scale for each block of "
                f"{', '.join(map(str, books.BLOCK_SIZES))}"
            )
        return 256 if 256 in fits else fits[0]

    def values(self) -> Tensor:
        return books.dequantize_blockwise(self.codes, self.absmax, self.qmap, self.block_size)


Moment = Coded | Tensor


def import_state(optimizer: FusedOptimizer, state: Mapping[str, Any], layout: str) -> None:
    """Loads the moments and steps that another implementation has kept, and the groups' lr, betas, eps, weight_decay.

    Args:
        optimizer: an AdamW8bit or EMAAdamW over the same parameters in the same order.
        state: a state dict of that library (`{"state": ..., "param_groups": ...}`), or the arrays.
        layout: "torch", "bitsandbytes", "torchao" or "arrays".

    Raises:
        TypeError: another optimizer, or a state that is no dict of that layout.
        ValueError: another layout, an AMSGrad state, or moments that do not fit the parameters. Nothing has changed
            then.
    """
    check_choice("layout", layout, LAYOUTS)
    _check_kinds(optimizer, state, layout)
    own = optimizer.state_dict()
    given = _from_arrays(state) if layout == "arrays" else dict(state["state"])
    groups = []
    converted: dict[Any, State] = {}
    saved_groups = own["param_groups"] if layout == "arrays" else state["param_groups"]
    if [len(group["params"]) for group in saved_groups] != [len(group["params"]) for group in own["param_groups"]]:
        raise ValueError("state has groups of other sizes; accepted: the groups of the optimizer")
    for group, ids, saved in zip(optimizer.param_groups, own["param_groups"], saved_groups, strict=True):
        if saved.get("amsgrad"):
            raise ValueError("amsgrad is True in the saved group; accepted: False")
        taken = {key: saved[key] for key in ("lr", "betas", "eps", "weight_decay") if key in saved}
        groups.append({**ids, **taken})
        for param, key, number in zip(group["params"], saved["params"], ids["params"], strict=True):
            if given.get(key):
                step, moments = _read(given[key])
                converted[number] = _state_of(group, param, step, moments)
    optimizer.load_state_dict({**own, "state": converted, "param_groups": groups})


def export_state(optimizer: FusedOptimizer, layout: str) -> dict[str, Any]:
    """The moments and steps of an optimizer in another library's layout, with copies of the tensors.

    "torch" dequantizes to float32; the others keep codes as codes (`load_state_dict` of bitsandbytes and a torchao
    OptimState8bit take them as they are).

    Raises ValueError for another layout, and for "arrays" when a parameter has no 8-bit state; TypeError for another
    optimizer than AdamW8bit and EMAAdamW.
    """
    check_choice("layout", layout, LAYOUTS)
    _check_kinds(optimizer)
    own = optimizer.state_dict()
    states, groups = {}, []
    for group, ids in zip(optimizer.param_groups, own["param_groups"], strict=True):
        options = {key: group[key] for key in ("lr", "betas", "eps", "weight_decay", "maximize")}
        groups.append({**options, **(_TORCH_GROUP if layout == "torch" else {}), "params": ids["params"]})
        for param, number in zip(group["params"], ids["params"], strict=True):
            if optimizer.state.get(param):
                states[number] = (int(optimizer.state[param]["step"]), _moments_of(group, optimizer.state[param]))
    if layout == "arrays":
        return _to_arrays([states[number] for number in sorted(states)])
    write = {"torch": _to_torch, "bitsandbytes": _to_bitsandbytes, "torchao": _to_torchao}[layout]
    return {"state": {number: write(*item) for number, item in states.items()}, "param_groups": groups}


def _check_kinds(optimizer: Any, state: Any = None, layout: str | None = None) -> None:
    """TypeError for an optimizer without such moments, and for a state that is not of its layout at all."""
    if not isinstance(optimizer, FusedOptimizer) or "state_bits" not in optimizer.defaults:
        raise TypeError(f"optimizer is a {type(optimizer).__name__}; accepted: an AdamW8bit or EMAAdamW")
    if layout is None:
        return
    names = _ARRAYS if layout == "arrays" else ("state", "param_groups")
    if not isinstance(state, Mapping) or not state.keys() >= set(names):
        raise TypeError(f"state is a {type(state).__name__}; accepted for {layout}: a dict with {', '.join(names)}")


# ---- between moments and the state of a parameter ----


def _state_of(group: Group, param: Tensor, step: int, moments: tuple[Moment, Moment]) -> State:
    state: State = {"step": step}
    for i, (key, moment) in enumerate(zip(_KEYS, moments, strict=True)):
        given = moment.codes if isinstance(moment, Coded) else moment
        if given.shape != param.shape:
            raise ValueError(f"{key} has shape {tuple(given.shape)}; accepted: {tuple(param.shape)}, the parameter's")
        if not rows.has_codes(group, param):
            state[key] = moment.values() if isinstance(moment, Coded) else moment.float()
            continue
        coded = _as_coded(moment, group, rows.maps(group["codebook"], given.device)[i])
        state[key], state[f"absmax_{key}"] = coded.codes, coded.absmax
    return state


def _as_coded(moment: Moment, group: Group, qmap: Tensor) -> Coded:
    size = group["block_size"]
    blocks = -(-(moment.codes if isinstance(moment, Coded) else moment).numel() // size)
    if isinstance(moment, Coded) and torch.equal(moment.qmap.to(qmap.device), qmap) and moment.absmax.numel() == blocks:
        return moment
    values = moment.values() if isinstance(moment, Coded) else moment.float()
    codes, absmax = books.quantize_blockwise(values, qmap, size, nonzero=group["nonzero_v"] and bool(qmap[0] >= 0))
    return Coded(codes, absmax, qmap)


def _moments_of(group: Group, state: State) -> tuple[Moment, Moment]:
    def moment(key: str, qmap: Tensor) -> Moment:
        scale, value = state.get(f"absmax_{key}"), state[key].clone()
        return value if scale is None else Coded(value, scale.clone(), qmap.clone())

    qmap_m, qmap_v = rows.maps(group["codebook"], state["exp_avg"].device)
    return moment("exp_avg", qmap_m), moment("exp_avg_sq", qmap_v)


# ---- layouts ----


def _read(state: Mapping[str, Any]) -> tuple[int, tuple[Moment, Moment]]:
    state = {**state, **state.get(_WRAPPED, {})}
    names = ("state1", "state2") if "state1" in state else _KEYS
    moments: list[Moment] = []
    for i, name in enumerate(names, start=1):
        if f"qmap{i}" in state and state[name].dtype == torch.uint8:
            moments.append(Coded(state[name], state[f"absmax{i}"].float(), state[f"qmap{i}"].float()))
        else:
            moments.append(_read_moment(state[name]))
    return int(state["step"]), (moments[0], moments[1])


def _read_moment(value: Any) -> Moment:
    parts = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
    if {"codes", "scale", "qmap"} <= parts.keys():
        return Coded(parts["codes"], parts["scale"].float(), parts["qmap"].float())
    moment: Tensor = value
    return moment


def _from_arrays(state: Mapping[str, Any]) -> dict[int, State]:
    steps = state["step"] if isinstance(state["step"], (list, tuple)) else [state["step"]] * len(state["m"])
    lists = zip(steps, state["m"], state["v"], state["absmax_m"], state["absmax_v"], strict=True)
    maps = {"qmap1": state["qmap_m"], "qmap2": state["qmap_v"]}
    return {
        i: {"step": step, "state1": m, "state2": v, "absmax1": absmax_m, "absmax2": absmax_v, **maps}
        for i, (step, m, v, absmax_m, absmax_v) in enumerate(lists)
    }


def _to_arrays(states: list[tuple[int, tuple[Moment, Moment]]]) -> dict[str, Any]:
    result: dict[str, Any] = {"step": [step for step, _ in states]}
    for i, name in enumerate("mv"):
        moments = [moments[i] for _, moments in states]
        coded = [moment for moment in moments if isinstance(moment, Coded)]
        if len(coded) != len(moments) or not coded:
            raise ValueError("a parameter has float32 moments; accepted for arrays: parameters with 8-bit state")
        result[name] = [moment.codes for moment in coded]
        result[f"absmax_{name}"] = [moment.absmax for moment in coded]
        result[f"qmap_{name}"] = coded[0].qmap
    return result


def _to_torch(step: int, moments: tuple[Moment, Moment]) -> State:
    values = [moment.values() if isinstance(moment, Coded) else moment for moment in moments]
    return {"step": torch.tensor(float(step), dtype=torch.float32), **dict(zip(_KEYS, values, strict=True))}


def _to_bitsandbytes(step: int, moments: tuple[Moment, Moment]) -> State:
    state: State = {"step": step}
    for i, moment in enumerate(moments, start=1):
        if isinstance(moment, Coded):
            state |= {f"state{i}": moment.codes, f"qmap{i}": moment.qmap, f"absmax{i}": moment.absmax}
        else:
            state[f"state{i}"] = moment
    return state


def _to_torchao(step: int, moments: tuple[Moment, Moment]) -> State:
    state: State = {"step": torch.tensor(float(step), dtype=torch.float32)}
    for key, moment, signed in zip(_KEYS, moments, (True, False), strict=True):
        state[key] = moment
        if isinstance(moment, Coded):
            state[key] = {"codes": moment.codes, "scale": moment.absmax, "qmap": moment.qmap, "signed": signed}
    return state
