"""`add_rms_norm_dynamic_quant` as compiled graphs call it, into tensors that inductor allocates.

What the matcher has checked is not checked again, nothing is added where the code adds nothing, and a sum that is not
used is not stored. A call costs a third of the public operator's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._settings import use_reference
from ..ops import add_rms_norm_dynamic_quant as norm_quant

library = torch.library.Library("anyfuse", "FRAGMENT")
library.define(
    "_put_normed_codes_(Tensor x1, Tensor? x2, Tensor gamma, Tensor? smooth_scale1, Tensor? smooth_scale2, "
    "Tensor? beta, float epsilon, Tensor(a!) y1, Tensor(b!) scale1, Tensor(c!)? y2, Tensor(d!)? scale2, Tensor(e!)? x) "
    "-> ()"
)


def _cpu(
    x1: Tensor, x2: Tensor | None, gamma: Tensor, smooth_scale1: Tensor | None, smooth_scale2: Tensor | None,
    beta: Tensor | None, epsilon: float, y1: Tensor, scale1: Tensor, y2: Tensor | None, scale2: Tensor | None,
    x: Tensor | None,
) -> None:  # fmt: skip
    if use_reference():
        results = norm_quant.reference(
            x1, torch.zeros_like(x1) if x2 is None else x2, gamma, smooth_scale1=smooth_scale1,
            smooth_scale2=smooth_scale2, beta=beta, epsilon=epsilon, outputs=(True, y2 is not None), y_dtype="int8",
            convention="formula",
        )  # fmt: skip
        for tensor, result in zip((y1, y2, x, scale1, scale2), results, strict=True):
            if tensor is not None:
                tensor.copy_(result)
        return
    # Copies are kept by these names until the call is over.
    x1, gamma = x1.contiguous(), gamma.contiguous()
    x2, beta = _contiguous(x2), _contiguous(beta)
    smooth_scale1, smooth_scale2 = _contiguous(smooth_scale1), _contiguous(smooth_scale2)
    branches = y1, y2, scale1, scale1 if scale2 is None else scale2
    norm_quant.run_native(
        x1, x2, gamma, smooth_scale1, smooth_scale2, beta, epsilon, branches, x, "int8", "formula"
    )  # fmt: skip


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


library.impl("_put_normed_codes_", _cpu, "CPU")
torch.library.register_fake("anyfuse::_put_normed_codes_", lambda *arguments: None, lib=library)
call = torch.ops.anyfuse._put_normed_codes_.default
