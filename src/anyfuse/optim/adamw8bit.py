"""AdamW with 8-bit state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from torch import Tensor

from . import _adamw_rows as rows
from ._base import FusedOptimizer, Run
from ._options import check_flag
from ._plans import Group, State, first_seed, seeds_of

#: Options of a group that a plan is made for: when one changes, all are looked at again.
_made_for = itemgetter(
    "block_size", "codebook", "nonzero_v", "skip_nonfinite", "stochastic_rounding", "rounding_seed", "state_bits"
)


class AdamW8bit(FusedOptimizer):
    """AdamW whose moments are 8-bit codes with a scale for each block: a quarter of the memory of fp32 state.

    The mathematics is that of `anyfuse.apply_adam_w_quant_` (CANN's `aclnnApplyAdamWQuant`), in its "formula"
    convention: torch.optim.AdamW up to the rounding of the moments.

    Args:
        params: parameters, pairs of name and parameter, or groups; float32, float16 or bfloat16, on the
            CPU or, by the kernels of `anyfuse[triton]`, on one GPU a group.
        lr: learning rate, a number or a one-element tensor; read anew at each step, as are all numbers of a group.
        betas, eps, weight_decay, maximize: as in torch.optim.AdamW. The decay is decoupled.
        block_size: elements that share a scale: 64, 128, 256, 512, 1024 or 2048.
        min_8bit_size: parameters of fewer elements keep float32 moments (in the same native call).
        codebook: "dynamic" (decades, for moments of any distribution) or "linear".
        nonzero_v: a second moment above 0 is never stored as 0; without it an element whose gradient is small beside
            its block's may take an enormous step when that gradient becomes 0.
        skip_nonfinite: a block whose gradient holds a NaN or an infinity keeps its parameters and state.
        stochastic_rounding: parameters of 16 bits are rounded up or down by chance, so that updates below half a step
            of their format count in the mean. The seed is torch's (`torch.manual_seed`) at construction, or 0 where
            torch.distributed is initialized, and is kept in the group as `rounding_seed`, which a group may set; the
            same seed and gradients give the same bits on any number of threads.

    Groups may set each of these, and `state_bits`: 8, or 32 for float32 moments. The parameters of FSDP2 may be sharded
    by rows; blocks are then local to a rank (docs/distributed.md). The attribute `checkpoint_form` says how
    `state_dict` gives the moments: None as they are, "rows" with scales by row that can be sharded anew (as always for
    sharded parameters), "float32" as float32 moments, which they stay when loaded.

    State of a parameter: `step` (int), `exp_avg` and `exp_avg_sq` (uint8 codes), `absmax_exp_avg` and
    `absmax_exp_avg_sq` (float32, one for each block): 2 + 8/block_size bytes an element. Below `min_8bit_size`:
    `exp_avg` and `exp_avg_sq` in float32. `load_state_dict` never quantizes: a state of torch's AdamW stays float32,
    and `anyfuse.optim.import_state(optimizer, state_dict, "torch")` makes codes of it.

    Raises:
        TypeError: a parameter, a gradient or an option of another kind.
        ValueError: an option out of range; states that do not fit their parameters.

    Example:
        >>> import torch, anyfuse
        >>> weight = torch.nn.Parameter(torch.ones(4096))
        >>> optimizer = anyfuse.optim.AdamW8bit([weight], lr=0.1, weight_decay=0.0)
        >>> weight.sum().backward()
        >>> optimizer.step()
        >>> weight.data[:2]
        tensor([0.9000, 0.9000])
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        block_size: int = 256,
        min_8bit_size: int = 4096,
        codebook: str = "dynamic",
        nonzero_v: bool = True,
        skip_nonfinite: bool = False,
        stochastic_rounding: bool = False,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "block_size": block_size,
            "min_8bit_size": min_8bit_size,
            "codebook": codebook,
            "nonzero_v": nonzero_v,
            "skip_nonfinite": skip_nonfinite,
            "stochastic_rounding": stochastic_rounding,
            "rounding_seed": first_seed(),
            "maximize": maximize,
            "state_bits": 8,
        }
        self._codebooks = rows.Codebooks()
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._codebooks = rows.Codebooks()

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        self._check_choices(group)

    def _check_choices(self, group: Group) -> None:
        rows.check_quantized(group)
        check_flag("skip_nonfinite", group["skip_nonfinite"])

    def _prepare(
        self, number: int, group: Group, params: Sequence[Tensor], grads: Sequence[Tensor], grad_scale: float
    ) -> Run:
        plan = self._plan(number, lambda: self._new_plan(number, group, params, grads), _made_for(group))
        options, steps = rows.options_of(group, grad_scale), plan.next_steps()
        return lambda: rows.run(plan, grads, options, steps)

    def _new_plan(self, number: int, group: Group, params: Sequence[Tensor], grads: Sequence[Tensor]) -> Any:
        self._check_choices(group)
        states = []
        for param in params:
            if not self.state[param]:
                self.state[param] = rows.new_state(group, param)
                self._codebooks.made(param, group["codebook"])
            states.append(self.state[param])
        self._codebooks.check(params, states, group["codebook"])
        return rows.make_plan(params, grads, states, seeds_of(group, number, params), group["block_size"])

    def _saved_state(self, group: Group, param: Tensor, state: State) -> State:
        return rows.saved_state(group, param, state, self.checkpoint_form)

    def _adapt_state(self, group: Group, param: Tensor, state: Mapping[str, Any]) -> State:
        adapted = rows.adapt_state(group, param, state)
        adapted.pop("max_exp_avg_sq", None)
        return adapted
