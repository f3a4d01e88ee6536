import torch
from torch.optim.optimizer import Optimizer

from mindspeed.ops.npu_apply_fused_ema_adamw import npu_apply_fused_ema_adamw


def fused_ema_adamw(grad, var, m, v, s, step, lr, ema_decay, beta1, beta2, eps, mode, bias_correction, weight_decay):
    numbers = (lr, ema_decay, beta1, beta2, eps, mode, bias_correction, weight_decay)
    for tensors in zip(grad, var, m, v, s, strict=True):
        param = tensors[1]
        updated = npu_apply_fused_ema_adamw(tensors[0], param.data, *tensors[2:], step, *numbers)
        param.data = updated[0]


class FusedEmaAdamW(Optimizer):
    def __init__(
        self, params, lr=1e-3, eps=1e-8, betas=(0.9, 0.999), weight_decay=1e-2, ema_decay=0.9999, amsgrad=False, *,
        maximize=False, use_num_updates=True, bias_correction=True, adam_w_mode=True, set_grad_none=True,
    ):  # fmt: skip
        defaults = dict(lr=lr, bias_correction=bias_correction, betas=betas, eps=eps, weight_decay=weight_decay)
        super().__init__(params, defaults | dict(amsgrad=amsgrad, maximize=maximize))
        self.ema_decay, self.num_updates = ema_decay, 0 if use_num_updates else -1
        self.adam_w_mode, self.set_grad_none = int(adam_w_mode), set_grad_none

    @torch.no_grad()
    def step(self, closure=None):
        decay = self.ema_decay
        if self.num_updates >= 0:
            self.num_updates += 1
            decay = min(decay, (1 + self.num_updates) / (10 + self.num_updates))
        for group in self.param_groups:
            if len(group["params"]) == 0:
                continue
            if "step" in group:
                group["step"] = group["step"] if group["step"].is_npu else group["step"].npu()
                group["step"] += 1
            else:
                group["step"] = torch.tensor([1]).npu()
            params = [param for param in group["params"] if param.grad is not None]
            for param in params:
                state = self.state[param]
                if len(state) == 0:
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(param), torch.zeros_like(param)
                    state["ema_params"] = param.data.clone()
            states = [[self.state[param][key] for param in params] for key in ("exp_avg", "exp_avg_sq", "ema_params")]
            fused_ema_adamw(
                [param.grad for param in params], params, *states, group["step"], group["lr"], decay, *group["betas"],
                group["eps"], self.adam_w_mode, group["bias_correction"], group["weight_decay"],
            )  # fmt: skip

    def store(self, parameters):
        self.collected_params_group = [
            [param.detach().cpu().clone() for param in group["params"]] for group in parameters if group["params"]
        ]

    def copy_to(self):
        for group in self.param_groups:
            for param in group["params"]:
                if "ema_params" in self.state[param]:
                    param.data.copy_(self.state[param]["ema_params"])

    def restore(self, parameters):
        for stored, group in zip(self.collected_params_group, parameters, strict=False):
            for kept, param in zip(stored, group["params"], strict=False):
                param.data.copy_(kept)
        del self.collected_params_group
