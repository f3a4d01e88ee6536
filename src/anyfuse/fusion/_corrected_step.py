"""`apply_fused_ema_adamw` as code that is written out calls it: with the numbers that the graph computes by itself.

The public operator takes the number of the step and corrects the moments by 1 - beta^step in its own way. Plain code
has computed a correction already, in float32 or in double; the step here divides by that one, for the same bits. What
the matcher has checked is not checked again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..ops import apply_fused_ema_adamw as ema_adamw

library = torch.library.Library("anyfuse", "FRAGMENT")
library.define(
    "_apply_corrected_ema_adamw_(Tensor[] grad, Tensor(a!)[] var, Tensor(b!)[] m, Tensor(c!)[] v, Tensor(d!)[] s, "
    "Tensor? correction1, Tensor? correction2, Tensor? lr_tensor, Tensor? weight_decay_tensor, float lr, "
    "float weight_decay, float ema_decay, float beta1, float beta2, float eps, int adam_mode) -> ()"
)


def _cpu(
    grad: Sequence[Tensor], var: Sequence[Tensor], m: Sequence[Tensor], v: Sequence[Tensor], s: Sequence[Tensor],
    correction1: Tensor | None, correction2: Tensor | None, lr_tensor: Tensor | None,
    weight_decay_tensor: Tensor | None, lr: float, weight_decay: float, ema_decay: float, beta1: float, beta2: float,
    eps: float, adam_mode: int,
) -> None:  # fmt: skip
    corrections = tuple(1.0 if c is None else float(c) for c in (correction1, correction2))
    decay = weight_decay if weight_decay_tensor is None else float(weight_decay_tensor)
    # At step 0 the operator's own corrections are 0, as those are that it is not given for being 0.
    step = [torch.zeros(1, dtype=torch.int64)]
    call = ema_adamw.Call(
        list(grad), list(var), list(m), list(v), list(s), step, lr, ema_decay, beta1, beta2, eps, adam_mode, True,
        decay, "formula", lr_tensor, None, None, False, None,
    )  # fmt: skip
    ema_adamw.run(call, (corrections[0], corrections[1]))


library.impl("_apply_corrected_ema_adamw_", _cpu, "CPU")
torch.library.register_fake("anyfuse::_apply_corrected_ema_adamw_", lambda *arguments: None, lib=library)
step = torch.ops.anyfuse._apply_corrected_ema_adamw_.default
