"""AdamW with 8-bit state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from . import _adamw_rows as rows
from ._base import FusedOptimizer
from ._options import check_flag
from ._step import Entry, Group, State, Taken, first_seed


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

    State of a parameter: `step` (int64, one element), `exp_avg` and `exp_avg_sq` (uint8 codes), `absmax_exp_avg` and
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
        self._codebooks = rows.Codebooks(self.param_groups, self.state)

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        rows.check_quantized(group)
        check_flag("skip_nonfinite", group["skip_nonfinite"])

    def _calls(self, taken: Taken, grad_scale: float) -> Sequence[Any]:
        self._codebooks.check(taken)
        return [rows.call_of(taken, grad_scale)]

    def _new_state(self, group: Group, param: Tensor) -> State:
        self._codebooks.made(param, group["codebook"])
        return rows.new_state(group, param)

    def _entries(self, group: Group, param: Tensor, state: State) -> dict[str, Entry]:
        return rows.entries(group, param, state)

    def _saved_state(self, group: Group, param: Tensor, state: State) -> State:
        return rows.saved_state(group, param, state, self.checkpoint_form)

    def _adapt_state(self, group: Group, param: Tensor, state: Mapping[str, Any]) -> State:
        adapted = rows.adapt_state(group, param, state)
        adapted.pop("max_exp_avg_sq", None)
        return adapted
