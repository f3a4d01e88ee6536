"""Calls of operators with unusual lists."""

from __future__ import annotations

import pytest
import torch

import anyfuse
from anyfuse._opspec import OpSpec


@pytest.mark.parametrize("step", [1, [], torch.tensor([1])])
def test_no_tensors_at_all_are_no_work(spec: OpSpec, step: object) -> None:
    """The lists of a group none of whose parameters has a gradient, steps and all."""
    qmap = torch.linspace(-1, 1, 256)
    calls = {
        "apply_fused_ema_adamw": lambda: anyfuse.apply_fused_ema_adamw_([], [], [], [], [], step),
        "apply_adam_w_quant": lambda: anyfuse.apply_adam_w_quant_(
            [], [], [], [], qmap, qmap, [], [], step, lr=0.1
        ),
        "lazy_adam": lambda: anyfuse.lazy_adam_([], [], [], [], [], [], step=step, bias_correction="global"),
    }  # fmt: skip
    if spec.name in calls:
        assert all(result == [] for result in calls[spec.name]())
