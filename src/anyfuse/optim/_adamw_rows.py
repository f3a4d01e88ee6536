"""AdamW by `apply_adam_w_quant` for the parameters of a group: 8-bit or fp32 moments row by row, and an EMA or none.

The state of a parameter: `step`, `exp_avg`, `exp_avg_sq`, for 8 bits `absmax_exp_avg` and `absmax_exp_avg_sq`, and
`ema` where one is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import _core
from ..formats import codebook as books
from ..ops import _checks as checks
from ..ops import apply_adam_w_quant as op
from . import _blocks as blocks
from . import _sharding as sharding
from ._loading import copies
from ._options import check_choice, check_flag, check_number, check_whole
from ._plans import Group, Plan, State, count_steps, runs_natively, scale_tensor

FIELDS = {
    "m": "exp_avg",
    "v": "exp_avg_sq",
    "absmax_m": "absmax_exp_avg",
    "absmax_v": "absmax_exp_avg_sq",
    "s": "ema",
}
_DTYPES = {"grad_dtype": "grad", "var_dtype": "var", "s_dtype": "s"}


@cache
def maps(codebook: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """The maps of the first and the second moment."""
    signed, unsigned = (books.create_codebook(codebook, signed=signed) for signed in (True, False))
    return signed.to(device), unsigned.to(device)


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
        return {"step": 0, **{key: _zeros(mine, torch.float32) for key in ("exp_avg", "exp_avg_sq")}}
    sharding.require_rows(param, "8-bit moments")
    state: State = {"step": 0}
    for key, qmap in zip(_MOMENTS, maps(group["codebook"], _CPU), strict=True):
        state[key] = _zeros(mine, torch.uint8).fill_(_code_of_zero(qmap))
    count = blocks.count(param, group["block_size"])
    scales = {f"absmax_{key}": torch.zeros(count, device=mine.device, dtype=torch.float32) for key in _MOMENTS}
    return state | scales


def _zeros(param: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(param.shape, dtype=dtype, device=param.device)


def _code_of_zero(qmap: Tensor) -> int:
    return int(books.encode(torch.zeros_like(qmap[:1]), qmap))


class Codebooks:
    """With which codebook the codes of each parameter were made, as its group may name another one between two steps.
    A new one belongs to an optimizer whose states are new or loaded: a saved group names the codebook of its states."""

    def __init__(self) -> None:
        self._of: dict[Tensor, str] = {}

    def made(self, param: Tensor, codebook: str) -> None:
        self._of[param] = codebook

    def check(self, params: Sequence[Tensor], states: Sequence[State], codebook: str) -> None:
        """ValueError where codes would be read by another codebook than they were made with."""
        for param, state in zip(params, states, strict=True):
            moment = state.get("exp_avg")  # the plan looks at what else it may be
            if isinstance(moment, Tensor) and moment.dtype == torch.uint8:
                made_with = self._of.setdefault(param, codebook)
                if made_with != codebook:
                    raise ValueError(
                        f"codebook is {codebook!r}; accepted: {made_with!r}, which the state was made with"
                    )


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
    adapted.setdefault("step", 0)
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


@dataclass(frozen=True)
class Options:
    """What a step takes from its group."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    maximize: bool
    grad_scale: float
    block_size: int = 256
    codebook: str = "dynamic"
    nonzero_v: bool = True
    skip_nonfinite: bool = False
    ema_decay: float = 0.0
    stochastic_rounding: bool = False


def options_of(group: Group, grad_scale: float, ema_decay: float = 0.0) -> Options:
    """The options of a group; those that it lacks are the defaults."""
    own = ("block_size", "codebook", "nonzero_v", "skip_nonfinite", "stochastic_rounding")
    return Options(
        lr=float(group["lr"]),
        betas=(float(group["betas"][0]), float(group["betas"][1])),
        eps=float(group["eps"]),
        weight_decay=float(group["weight_decay"]),
        maximize=bool(group["maximize"]),
        grad_scale=grad_scale,
        ema_decay=ema_decay,
        **{key: group[key] for key in own if key in group},
    )


class RowsPlan(Plan):
    """A plan whose rows are cut where this rank's part of a parameter begins inside a block: see `_blocks`.

    The operator counts blocks from the first element of a row. The elements before the first block that begins here
    are therefore a row of their own, behind all others.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        states: Sequence[State],
        seeds: Sequence[int],
        block_size: int,
    ) -> None:
        super().__init__(op.Row, params, grads, states, FIELDS, _DTYPES)
        self.block_size = block_size
        coded = [state["exp_avg"].dtype == torch.uint8 for state in states]
        for param, state, has_codes in zip(params, states, coded, strict=True):
            if has_codes:
                _check_scales(param, state, block_size)
        self.rows["state_bits"] = [8 if has_codes else 32 for has_codes in coded]
        self.rows["seed"] = seeds
        pairs = zip(params, coded, strict=True)
        self.heads = [blocks.head(param, block_size) if has_codes else 0 for param, has_codes in pairs]
        self.cut_at = [i for i, head in enumerate(self.heads) if head]
        for i in self.cut_at:
            if not self.params[i].is_contiguous():
                raise ValueError("a sharded parameter is not contiguous; accepted with 8-bit moments: contiguous ones")
        sizes = {"grad": grads, "var": self.params, "s": [state.get("ema", grads[0]) for state in states]}
        self._sizes = {field: np.array([t.element_size() for t in tensors]) for field, tensors in sizes.items()}
        self._sizes |= {"m": np.ones(len(params), int), "v": np.ones(len(params), int)}

    def cut_rows(self) -> np.ndarray:
        """The rows for the operator."""
        if not self.cut_at:
            return self.rows
        at, heads = self.cut_at, np.array(self.heads)[self.cut_at]
        firsts, rest = self.rows[at].copy(), self.rows.copy()
        firsts["numel"] = heads
        rest["numel"][at] -= heads
        for field, size in self._sizes.items():
            rest[field][at] += (heads * size[at]).astype(rest[field].dtype) * (rest[field][at] != 0)
        for field in ("absmax_m", "absmax_v"):
            rest[field][at] += 4
        firsts["seed"] ^= 0x9E3779B9
        return np.concatenate([rest, firsts])

    def cut(self, tensors: Sequence[Tensor], heads: Sequence[int] | None = None) -> list[Tensor]:
        """The same of tensors (for scales, whose head is 1, the heads are given)."""
        heads = self.heads if heads is None else heads
        pairs = list(zip(tensors, heads, strict=True))
        return [t.view(-1)[h:] if h else t for t, h in pairs] + [t.view(-1)[:h] for t, h in pairs if h]


def _check_scales(param: Tensor, state: State, block_size: int) -> None:
    count = blocks.count(param, block_size)
    for key in ("absmax_exp_avg", "absmax_exp_avg_sq"):
        if key not in state:
            raise ValueError(f"a state has codes and no {key}; accepted: states as `step` makes them")
        checks.require_shape(key, state[key], (count,), f"a scale for each {block_size} elements")


def make_plan(
    params: Sequence[Tensor], grads: Sequence[Tensor], states: Sequence[State], seeds: Sequence[int], block_size: int
) -> RowsPlan:
    return RowsPlan(params, grads, states, seeds, block_size)


def run(plan: RowsPlan, grads: Sequence[Tensor], options: Options, steps: list[int]) -> None:
    """Steps the plan's rows and counts their steps, to the numbers given."""
    if not runs_natively(plan.params):
        _run_operator(plan, grads, steps, options)
    else:
        qmap_m, qmap_v = maps(options.codebook, _CPU)
        plan.begin(grads, steps)
        cut = plan.cut_rows()
        native(
            op.Params(
                _core.sizeof(op.Params), _core.sizeof(op.Row), cut.ctypes.data, len(cut),
                qmap_m.data_ptr(), qmap_v.data_ptr(), options.block_size,
                options.lr, *options.betas, options.weight_decay, options.eps, 1.0, options.grad_scale,
                _core.CONVENTIONS["formula"], options.maximize, options.skip_nonfinite, options.nonzero_v,
                torch.get_num_threads(), options.stochastic_rounding, options.ema_decay,
            )
        )  # fmt: skip
        plan.end()
    count_steps(plan.states, steps)


native = _core.function("apply_adam_w_quant", op.Params)


def _run_operator(plan: RowsPlan, grads: Sequence[Tensor], steps: list[int], options: Options) -> None:
    """The same by the public operator (see `runs_natively`)."""
    scales, device = [int(head > 0) for head in plan.heads], grads[0].device
    none = torch.zeros(0, dtype=torch.float32, device=device)
    lists: dict[str, Any] = {
        field: plan.cut([state.get(key, none) for state in plan.states], scales if "absmax" in key else None)
        for field, key in FIELDS.items()
        if field != "s" or key in plan.states[0]
    }
    cut = plan.cut_rows()
    qmap_m, qmap_v = maps(options.codebook, device)
    op.apply_adam_w_quant_(
        plan.cut(plan.params), plan.cut([grad.contiguous() for grad in grads]), qmap_m=qmap_m, qmap_v=qmap_v, **lists,
        step=steps + [steps[i] for i in plan.cut_at],
        lr=options.lr, beta1=options.betas[0], beta2=options.betas[1], weight_decay=options.weight_decay,
        eps=options.eps, block_size=options.block_size, convention="formula", skip_nonfinite=options.skip_nonfinite,
        nonzero_v=options.nonzero_v, grad_scale=scale_tensor(options.grad_scale),
        maximize=options.maximize, ema_decay=options.ema_decay,
        stochastic_rounding=cut["seed"].tolist() if options.stochastic_rounding else None,
    )  # fmt: skip
