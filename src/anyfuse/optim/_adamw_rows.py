"""AdamW by `apply_adam_w_quant` for the parameters of a group: 8-bit or fp32 moments row by row, and an EMA or none.

The state of a parameter: `step`, `exp_avg`, `exp_avg_sq`, for 8 bits `absmax_exp_avg` and `absmax_exp_avg_sq`, and
`ema` where one is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..formats import codebook as books
from ..ops import apply_adam_w_quant as op
from . import _blocks as blocks
from . import _sharding as sharding
from ._loading import copies
from ._options import check_choice, check_flag, check_number, check_whole
from ._step import Entry, Group, State, Taken, scale_tensor


@cache
def maps(codebook: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """The maps of the first and the second moment."""
    signed, unsigned = (books.create_codebook(codebook, signed=signed) for signed in (True, False))
    return signed.to(device), unsigned.to(device)


_NO_SCALES = torch.zeros(0)
_CPU = torch.device("cpu")
_MOMENTS = ("exp_avg", "exp_avg_sq")


def check_quantized(group: Group) -> None:
    check_choice("state_bits", group["state_bits"], (8, 32))
    books.check_block_size(group["block_size"])
    check_choice("codebook", group["codebook"], books.KINDS)
    check_number("min_8bit_size", group["min_8bit_size"], 0)
    check_flag("nonzero_v", group["nonzero_v"])
    check_flag("stochastic_rounding", group["stochastic_rounding"])
    check_whole("rounding_seed", group["rounding_seed"])


def has_codes(group: Group, param: Tensor) -> bool:
    return bool(group["state_bits"] == 8 and param.numel() >= group["min_8bit_size"])


def new_state(group: Group, param: Tensor) -> State:
    """Moments of 0."""
    mine = sharding.local(param)
    if not has_codes(group, param):
        return {key: _zeros(mine, torch.float32) for key in _MOMENTS}
    sharding.require_rows(param, "8-bit moments")
    state: State = {}
    for key, qmap in zip(_MOMENTS, maps(group["codebook"], _CPU), strict=True):
        state[key] = _zeros(mine, torch.uint8).fill_(_code_of_zero(qmap))
    count = blocks.count(param, group["block_size"])
    scales = {f"absmax_{key}": torch.zeros(count, device=mine.device, dtype=torch.float32) for key in _MOMENTS}
    return state | scales


def entries(group: Group, param: Tensor, state: State) -> dict[str, Entry]:
    """What the moments of a state may be: codes where it has their scales, or float32."""
    shape = sharding.local(param).shape
    coded = "absmax_exp_avg" in state or (isinstance(m := state.get("exp_avg"), Tensor) and m.dtype == torch.uint8)
    found = {key: Entry((torch.uint8,) if coded else (torch.float32,), shape) for key in _MOMENTS}
    if coded:
        scales = Entry((torch.float32,), (blocks.count(param, group["block_size"]),))
        found |= {f"absmax_{key}": scales for key in _MOMENTS}
    return found


def _zeros(param: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(param.shape, dtype=dtype, device=param.device)


def _code_of_zero(qmap: Tensor) -> int:
    return int(books.encode(torch.zeros_like(qmap[:1]), qmap))


class Codebooks:
    """With which codebook the codes of each parameter were made, as its group may name another one between two steps.

    Args:
        groups, state: of an optimizer whose states are new or loaded: a saved group names the codebook of its states.
    """

    def __init__(self, groups: Sequence[Group] = (), state: Mapping[Tensor, Any] = MappingProxyType({})) -> None:
        self._of = {param: group["codebook"] for group in groups for param in group["params"] if param in state}

    def made(self, param: Tensor, codebook: str) -> None:
        self._of[param] = codebook

    def check(self, taken: Taken) -> None:
        """ValueError where codes would be read by another codebook than they were made with."""
        codebook = taken.group["codebook"]
        if {codebook}.issuperset(self._of.values()):
            return
        for param, state in zip(taken.params, taken.states, strict=True):
            made_with = self._of.get(param, codebook)
            if made_with != codebook and "absmax_exp_avg" in state:
                raise ValueError(f"codebook is {codebook!r}; accepted: {made_with!r}, which the state was made with")


def adapt_state(group: Group, param: Tensor, state: Mapping[str, Any]) -> State:
    """A saved state as it is stepped: codes and moments stay what they are, moments of 16 bits become fp32.

    Scales by rows, of a state that was saved for resharding, become those of this rank's blocks.

    Raises ValueError where shapes, or scales and the group's block size, do not belong together.
    """
    adapted = copies(state, param)
    shape = sharding.local(param).shape
    for key in ("exp_avg", "exp_avg_sq"):
        moment = adapted.get(key)
        if not isinstance(moment, Tensor) or moment.shape != shape:
            got = f"has shape {tuple(moment.shape)}" if isinstance(moment, Tensor) else "is missing"
            raise ValueError(f"{key} of a saved state {got}; accepted: {tuple(shape)}, the parameter's shape")
        if moment.dtype == torch.uint8:
            _adapt_scales(key, adapted, group, param)
        elif moment.is_floating_point():
            adapted[key] = moment.float()
        else:
            raise TypeError(f"{key} of a saved state has dtype {moment.dtype}; accepted: uint8 or a float dtype")
    if adapted["exp_avg"].dtype != adapted["exp_avg_sq"].dtype:
        raise ValueError("exp_avg and exp_avg_sq of a saved state have different dtypes; accepted: equal ones")
    return adapted


def _adapt_scales(key: str, state: State, group: Group, param: Tensor) -> None:
    absmax, block_size = state.get(f"absmax_{key}"), group["block_size"]
    numel, count = sharding.local(param).numel(), blocks.count(param, block_size)
    if not isinstance(absmax, Tensor) or absmax.dtype != torch.float32:
        raise TypeError(f"absmax_{key} of a saved state is not a float32 tensor; accepted: one scale for each block")
    sharding.require_rows(param, "8-bit moments")
    if absmax.dim() == 2:
        is_v = key == "exp_avg_sq"
        qmap, nonzero = maps(group["codebook"], absmax.device)[is_v], is_v and group["nonzero_v"]
        state[key], absmax = blocks.from_rows(param, state[key], absmax, qmap, block_size, nonzero)
        state[f"absmax_{key}"] = absmax
    if absmax.shape != (count,):
        fits = [size for size in books.BLOCK_SIZES if absmax.shape == (-(-numel // size),)]
        was = f", as for a block_size of {' or '.join(map(str, fits))}" if fits else ""
        raise ValueError(
            f"absmax_{key} of a saved state has shape {tuple(absmax.shape)}{was}; accepted: ({count},) for the "
            f"group's block_size of {block_size} (give the saved block_size in its group)"
        )


#: The forms in which 8-bit moments are saved.
FORMS = (None, "rows", "float32")


def saved_state(group: Group, param: Tensor, state: State, form: str | None) -> State:
    """A state as it is saved: with scales by block (None, not sharded), by row, or with moments of float32."""
    check_choice("checkpoint_form", form, FORMS)
    sharded = sharding.is_sharded(param)
    if state["exp_avg"].dtype != torch.uint8 or (form is None and not sharded):
        return sharding.wrap_state(param, state) if sharded else state
    saved = dict(state)
    for key, qmap in zip(_MOMENTS, maps(group["codebook"], state["exp_avg"].device), strict=True):
        absmax = saved.pop(f"absmax_{key}")
        if form == "float32":
            saved[key] = blocks.decode(param, state[key], absmax, qmap, group["block_size"])
        else:
            saved[f"absmax_{key}"] = blocks.to_rows(param, absmax, group["block_size"])
    return sharding.wrap_state(param, saved)


def call_of(taken: Taken, grad_scale: float, ema_decay: float = 0.0) -> op.Call:
    """A step of a group, of which the parameters of a state with an `ema` have an average."""
    group, params, grads = taken.group, list(taken.mine), list(taken.grads)
    device = params[0].device
    none = _NO_SCALES if device.type == "cpu" else torch.zeros(0, dtype=torch.float32, device=device)
    has_ema = "ema" in taken.states[0]
    qmap_m, qmap_v = maps(group["codebook"], device)
    call = op.Call(
        var=params,
        grad=grads,
        m=taken.column("exp_avg"),
        v=taken.column("exp_avg_sq"),
        qmap_m=qmap_m,
        qmap_v=qmap_v,
        absmax_m=[state.get("absmax_exp_avg", none) for state in taken.states],
        absmax_v=[state.get("absmax_exp_avg_sq", none) for state in taken.states],
        step=taken.column("step"),
        lr=float(group["lr"]),
        beta1=float(group["betas"][0]),
        beta2=float(group["betas"][1]),
        weight_decay=float(group["weight_decay"]),
        eps=float(group["eps"]),
        gnorm_scale=1.0,
        block_size=group["block_size"],
        convention="formula",
        skip_nonfinite=group.get("skip_nonfinite", False),
        nonzero_v=group["nonzero_v"],
        lr_tensor=None,
        grad_scale=scale_tensor(grad_scale),
        found_inf=None,
        maximize=bool(group["maximize"]),
        s=taken.column("ema") if has_ema else [],
        ema_decay=ema_decay,
        stochastic_rounding=taken.seeds(),
    )
    return _cut(call, taken) if sharding.any_sharded(taken.params) else call


def _cut(call: op.Call, taken: Taken) -> op.Call:
    """The call with tensors cut where this rank's part of a parameter begins inside a block: see `_blocks`.

    The operator counts blocks from the first element of a tensor. The elements before the first block that begins here
    are therefore a tensor of their own, behind all others.
    """
    heads = [
        blocks.head(param, call.block_size) if m.dtype == torch.uint8 else 0
        for param, m in zip(taken.params, call.m, strict=True)
    ]
    if not any(heads):
        return call
    for param, head in zip(call.var, heads, strict=True):
        if head and not param.is_contiguous():
            raise ValueError("a sharded parameter is not contiguous; accepted with 8-bit moments: contiguous ones")

    def cut(tensors: Sequence[Tensor], heads: Sequence[int] = heads) -> list[Tensor]:
        pairs = list(zip(tensors, heads, strict=True))
        rest = [tensor.detach().reshape(-1)[head:] if head else tensor for tensor, head in pairs]
        return rest + [tensor.detach().reshape(-1)[:head] for tensor, head in pairs if head]

    scales = [int(head > 0) for head in heads]
    at = [i for i, head in enumerate(heads) if head]
    seeds = call.stochastic_rounding
    return call._replace(
        var=cut(call.var),
        grad=cut(call.grad),
        m=cut(call.m),
        v=cut(call.v),
        absmax_m=cut(call.absmax_m, scales),
        absmax_v=cut(call.absmax_v, scales),
        s=cut(call.s) if call.s else [],
        step=call.step if len(call.step) == 1 else call.step + [call.step[i] for i in at],
        stochastic_rounding=None if seeds is None else seeds + [seeds[i] ^ 0x9E3779B9 for i in at],
    )
