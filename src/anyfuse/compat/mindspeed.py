"""MindSpeed's AdamW with an EMA of the weights: the operator, as documented, and the optimizer above it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ..ops.apply_fused_ema_adamw import apply_fused_ema_adamw_
from ._modules import runtime_errors

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def npu_apply_fused_ema_adamw(
    grad: Tensor,
    var: Tensor,
    m: Tensor,
    v: Tensor,
    s: Tensor,
    step: Tensor,
    lr: float = 1e-3,
    ema_decay: float = 0.9999,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    mode: int = 1,
    bias_correction: bool = True,
    weight_decay: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One step of AdamW (mode 1) or Adam with L2 (mode 0), and of the EMA s (`anyfuse.apply_fused_ema_adamw_`).

    Args:
        grad, var, m, v, s: tensors of one shape; float32, float16 or bfloat16.
        step: int64 of shape (1,), 1 at the first step.

    Returns:
        (var, m, v, s): the tensors given, which have been updated.

    Raises:
        RuntimeError: arguments that are not accepted. Nothing has been written.
    """
    with runtime_errors():
        if not isinstance(step, Tensor):
            raise TypeError(f"step is a {type(step).__name__}; accepted: an int64 tensor of shape (1,)")
        return apply_fused_ema_adamw_(
            grad, var, m, v, s, step, lr, ema_decay, beta1, beta2, eps, mode, bias_correction, weight_decay
        )


@torch.no_grad()
def fused_ema_adamw(
    grad: list[Tensor],
    var: list[Tensor],
    m: list[Tensor],
    v: list[Tensor],
    s: list[Tensor],
    step: Tensor,
    lr: float,
    ema_decay: float,
    beta1: float,
    beta2: float,
    eps: float,
    mode: int,
    bias_correction: bool,
    weight_decay: float,
) -> None:
    """`npu_apply_fused_ema_adamw` for lists of parameters, which share the step, in one native call."""
    with runtime_errors():
        apply_fused_ema_adamw_(
            grad, var, m, v, s, step, lr, ema_decay, beta1, beta2, eps, mode, bias_correction, weight_decay
        )


class FusedEmaAdamW(torch.optim.Optimizer):
    """AdamW that keeps an exponential moving average of the parameters, in one pass over them.

    A group counts its steps in `group["step"]`, an int64 tensor of shape (1,). A parameter's state is `exp_avg`,
    `exp_avg_sq`, both 0 at first, and `ema_params`, first a copy of the parameter. Groups without parameters are
    skipped.

    Args:
        params, lr, eps, betas, weight_decay: as in torch.optim.AdamW.
        ema_decay: how much of the average a step keeps; the attribute `ema_decay`, which may be changed.
        amsgrad, maximize: must be False.
        use_num_updates: the n-th step keeps min(ema_decay, (1 + n)/(10 + n)), so that the average soon forgets where
            it started. n is the attribute `num_updates`; below 0, as it is without `use_num_updates`, it stays as it
            is, and so does the decay.
        bias_correction: divides the moments by 1 - beta^step.
        adam_w_mode: decays the weights apart from the gradient; False adds the decay to the gradient.
        set_grad_none: `zero_grad` sets gradients to None.

    Raises:
        ValueError: an lr, eps or weight_decay below 0, betas outside of [0, 1).
        RuntimeError: amsgrad or maximize.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        eps: float = 1e-8,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 1e-2,
        ema_decay: float = 0.9999,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        use_num_updates: bool = True,
        bias_correction: bool = True,
        adam_w_mode: bool = True,
        set_grad_none: bool = True,
    ) -> None:
        if amsgrad:
            raise RuntimeError("amsgrad is True; accepted: False")
        if maximize:
            raise RuntimeError("maximize is True; accepted: False")
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if not value >= 0.0:
                raise ValueError(f"{name} is {value}; accepted: 0 or more")
        for i, beta in enumerate(betas):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"betas[{i}] is {beta}; accepted: 0 up to, but less than, 1")
        defaults = {
            "lr": lr,
            "eps": eps,
            "betas": betas,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "bias_correction": bias_correction,
        }
        super().__init__(params, defaults)
        self.ema_decay = ema_decay
        self.num_updates = 0 if use_num_updates else -1
        self.adam_w_mode = 1 if adam_w_mode else 0
        self.set_grad_none = set_grad_none
        self.collected_params_group: list[list[Tensor]] | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps every parameter that has a gradient, and its average.

        Returns:
            What `closure`, called before the step, returned, or None.

        Raises:
            RuntimeError: a gradient that is sparse, a dtype that is not accepted. Nothing has been written.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = [group for group in self.param_groups if group["params"]]
        work = [(group, [p for p in group["params"] if p.grad is not None]) for group in groups]
        for _, params in work:
            _check(params)
        ema_decay = self.ema_decay
        if self.num_updates >= 0:
            self.num_updates += 1
            ema_decay = min(ema_decay, (1 + self.num_updates) / (10 + self.num_updates))
        for group, params in work:
            self._step_group(group, params, ema_decay)
        return loss

    def _step_group(self, group: dict[str, Any], params: list[Tensor], ema_decay: float) -> None:
        if "step" in group:
            group["step"] += 1
        else:
            device = group["params"][0].device
            group["step"] = torch.ones(1, dtype=torch.int64, device=device)
        if not params:
            return
        states = [self._state_of(param) for param in params]
        beta1, beta2 = group["betas"]
        fused_ema_adamw(
            [param.grad for param in params if param.grad is not None],
            params,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [state["ema_params"] for state in states],
            group["step"],
            group["lr"],
            ema_decay,
            beta1,
            beta2,
            group["eps"],
            self.adam_w_mode,
            bool(group["bias_correction"]),
            group["weight_decay"],
        )

    def _state_of(self, param: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.state[param]
        if not state:
            state["exp_avg"] = torch.zeros_like(param)
            state["exp_avg_sq"] = torch.zeros_like(param)
            state["ema_params"] = param.detach().clone()
        return state

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Forgets the gradients: None where `set_grad_none` (or `set_to_none`) says so, 0 otherwise."""
        super().zero_grad(set_to_none=self.set_grad_none if set_to_none is None else set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state, one of MindSpeed's own class too; `num_updates` goes on from the steps of its groups."""
        super().load_state_dict(state_dict)
        if self.num_updates >= 0:
            self.num_updates = max([int(group.get("step", 0)) for group in self.param_groups], default=0)

    @torch.no_grad()
    def copy_to(self) -> None:
        """Copies the averages into the parameters."""
        for group in self.param_groups:
            for param in group["params"]:
                if "ema_params" in self.state[param]:
                    param.copy_(self.state[param]["ema_params"])

    def store(self, parameters: Iterable[dict[str, Any]]) -> None:
        """Keeps copies of the parameters of groups, in the CPU's memory, for `restore`."""
        self.collected_params_group = [
            [param.detach().to("cpu", copy=True) for param in group["params"]] for group in parameters
        ]

    @torch.no_grad()
    def restore(self, parameters: Iterable[dict[str, Any]]) -> None:
        """Puts what `store` kept back into the parameters of groups, one after another, as far as both go.
        RuntimeError without `store`."""
        if self.collected_params_group is None:
            raise RuntimeError("restore without store: there are no parameters to put back")
        for kept, group in zip(self.collected_params_group, parameters, strict=False):
            for value, param in zip(kept, group["params"], strict=False):
                param.copy_(value)
        self.collected_params_group = None


def _check(params: list[Tensor]) -> None:
    for param in params:
        if param.grad is not None and param.grad.layout is not torch.strided:
            raise RuntimeError("a gradient is sparse; accepted: dense gradients")
        if param.dtype not in _DTYPES:
            raise RuntimeError(f"a parameter has dtype {param.dtype}; accepted: float32, float16, bfloat16")


#: What MindSpeed's modules hold.
OPERATOR = {"npu_apply_fused_ema_adamw": npu_apply_fused_ema_adamw}
OPTIMIZER = {"FusedEmaAdamW": FusedEmaAdamW, "fused_ema_adamw": fused_ema_adamw}
