r"""AdamW and an exponential moving average of the weights in one pass (MindSpeed's `npu_apply_fused_ema_adamw`).

For each element, with step number t, in fp32, every operation rounded once, in this order:

    c1 = 1 - beta1^t,  c2 = 1 - beta2^t           (1 without bias_correction)
    g  = grad                                      (mode 0: grad + weight_decay·var)
    m' = beta1·m + (1 - beta1)·g
    v' = beta2·v + (1 - beta2)·g·g
    u  = (m'/c1) / (sqrt(v'/c2) + eps)             (mode 1: + weight_decay·var)
    var' = var - lr·u
    s' = ema_decay·s + (1 - ema_decay)·var'

Tensors of 16 bits are widened at the load and rounded once at the store; m', v' and var' go on unrounded. With
`stochastic_rounding` var' and s' of 16 bits are rounded up or down by chance (`ops._rounding`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._opspec import OpSpec, register
from .._settings import convention_or_default, use_reference
from .._soc import Profiles, restricted
from . import _checks as checks
from . import _memory as memory
from . import _numerics as numerics
from ._record import Convention, Updated
from ._register import define
from ._rounding import rounded, seeds_of

RETURNS = "()"


class Call(NamedTuple):
    """The schema's arguments."""

    grad: list[Tensor]
    var: Updated[list[Tensor]]
    m: Updated[list[Tensor]]
    v: Updated[list[Tensor]]
    s: Updated[list[Tensor]]
    step: list[Tensor]
    lr: float
    ema_decay: float
    beta1: float
    beta2: float
    eps: float
    adam_mode: int
    bias_correction: bool
    weight_decay: float
    convention: Convention
    lr_tensor: Tensor | None
    grad_scale: Tensor | None
    found_inf: Tensor | None
    maximize: bool
    stochastic_rounding: list[int] | None
    correction1: Tensor | None = None
    correction2: Tensor | None = None
    weight_decay_tensor: Tensor | None = None

    @property
    def updated(self) -> tuple[list[Tensor], ...]:
        return self.var, self.m, self.v, self.s

    def check_memory(self) -> None:
        """Refuses in-place tensors that share an element with another argument."""
        memory.check_memory(zip(("var", "m", "v", "s"), self.updated, strict=True), (("grad", self.grad),))


PROFILES = Profiles("apply_fused_ema_adamw")


def apply_fused_ema_adamw_(
    grad: Tensor | Sequence[Tensor],
    var: Tensor | Sequence[Tensor],
    m: Tensor | Sequence[Tensor],
    v: Tensor | Sequence[Tensor],
    s: Tensor | Sequence[Tensor],
    step: int | Tensor | Sequence[int | Tensor],
    lr: float | Tensor = 1e-3,
    ema_decay: float = 0.9999,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    mode: int = 1,
    bias_correction: bool = True,
    weight_decay: float = 0.0,
    *,
    convention: str | None = None,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    maximize: bool = False,
    stochastic_rounding: int | Sequence[int] | None = None,
) -> tuple[Any, Any, Any, Any]:
    """Steps parameters with AdamW and moves their EMA, in place and in one pass.

    The mathematics is in this module's docstring.

    Args:
        grad: gradients; a tensor, or a list for many parameters in one native call. float32, float16 or bfloat16.
        var, m, v, s: parameters, first and second moments, EMA of the parameters; updated. Each the shape of its
            gradient; any of the three dtypes each.
        step: number of the step, 1 at the first: an int, a one-element int64 tensor, or a list with one a tensor.
        lr, ema_decay, beta1, beta2, eps, weight_decay: numbers as in AdamW; lr may be a one-element float tensor. Any
            number is taken, as by the operator on an NPU, NaN and those that no training uses too: the formula is
            evaluated as it stands. (`anyfuse.optim` refuses what makes no sense.)
        mode: 1 decays the weights apart from the gradient (AdamW), 0 adds the decay to the gradient (Adam with L2).
        bias_correction: divides the moments by 1 - beta^step.
        convention: "formula" (the document) or "device" (the order of the NPU's kernel); default `ANYFUSE_CONVENTION`.
        grad_scale: gradients are multiplied by 1/grad_scale first (a one-element tensor, as GradScaler has).
        found_inf: a one-element tensor; when it is not 0 nothing changes.
        maximize: turns the sign of the gradients.
        stochastic_rounding: None, or a seed (0 to 2^32 - 1): var and s of 16 bits are rounded by chance. A list has one
            seed a tensor; otherwise tensor i takes the seed + i.

    Returns:
        (var, m, v, s), the objects that were given.

    Raises:
        TypeError: a dtype or a kind of argument that is not accepted.
        ValueError: shapes that differ, a mode other than 0 and 1, in-place tensors that share memory.

    Example:
        >>> import torch, anyfuse
        >>> var, s = torch.ones(4), torch.ones(4)
        >>> m, v = torch.zeros(4), torch.zeros(4)
        >>> _ = anyfuse.apply_fused_ema_adamw_(torch.full((4,), 0.5), var, m, v, s, step=1, lr=0.1, ema_decay=0.9)
        >>> var
        tensor([0.9000, 0.9000, 0.9000, 0.9000])
    """
    lr_number, lr_tensor = (0.0, lr) if isinstance(lr, Tensor) else (lr, None)
    convention = convention_or_default(convention)
    if isinstance(var, Tensor):
        _one(
            grad, var, m, v, s, step if isinstance(step, Tensor) else checks.one_step(step), lr_number, ema_decay,
            beta1, beta2, eps, mode, bias_correction, weight_decay, convention, lr_tensor, grad_scale, found_inf,
            maximize, None if stochastic_rounding is None else seeds_of(stochastic_rounding, 1), None, None, None,
        )  # fmt: skip
    else:
        lists = checks.lists_like(var, grad=grad, var=var, m=m, v=v, s=s)
        _list(
            *lists, checks.step_list(step, len(var)), lr_number, ema_decay, beta1, beta2, eps, mode, bias_correction,
            weight_decay, convention, lr_tensor, grad_scale, found_inf, maximize,
            seeds_of(stochastic_rounding, len(var)), None, None, None,
        )  # fmt: skip
    return var, m, v, s


def check(call: Call) -> None:
    """Refuses dtypes, shapes and attributes; looks at no value and no address."""
    mode, count = call.adam_mode, len(call.var)
    checks.require(mode in (0, 1), f"mode is {mode}; accepted: 0 (Adam with L2) or 1 (AdamW)")
    checks.check_tensor_lists({name: getattr(call, name) for name in ("var", "grad", "m", "v", "s")}, checks.FLOATS)
    checks.check_steps(call.step, count)
    checks.check_scalar("lr", call.lr_tensor)
    checks.check_scalar("grad_scale", call.grad_scale)
    checks.check_scalar("found_inf", call.found_inf)
    seeds_of(call.stochastic_rounding, count)
    if restricted():
        PROFILES.check(**call._asdict())


# ---- reference ----


def reference(call: Call, i: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The step of tensor i, as new tensors (var, m, v, s) in the dtypes given. The definition of the numbers."""
    real, f32, device = numerics.real, numerics.f32, call.convention == "device"
    g, p, m_old, v_old, s_old = (real(t[i]) for t in (call.grad, call.var, call.m, call.v, call.s))
    step = int(checks.entry(call.step, i))
    b1, b2, decay, wd = f32(call.beta1), f32(call.beta2), f32(call.ema_decay), f32(call.weight_decay)
    rest1, rest2, rest = (f32(1.0 - (f32(x) if device else x)) for x in (call.beta1, call.beta2, call.ema_decay))
    given = (0.0 if c is None else float(c) for c in (call.correction1, call.correction2))
    c1, c2 = (f32(c or 1.0 - f32(numerics.power(b, step))) for b, c in zip((b1, b2), given, strict=True))
    if not call.bias_correction:
        c1 = c2 = 1.0

    g = g * f32(checks.grad_factor(call))
    if call.adam_mode == 0:
        g = g + wd * p
    m_new = b1 * m_old + rest1 * g
    v_new = b2 * v_old + ((g * g) * rest2 if device else rest2 * g * g)
    if device:
        one = torch.ones((), dtype=g.dtype)
        m_hat, v_hat = m_new * (one / c1), v_new * (one / c2)
    else:
        m_hat, v_hat = m_new / torch.tensor(c1, dtype=g.dtype), v_new / torch.tensor(c2, dtype=g.dtype)
    update = m_hat / (numerics.correctly_rounded_sqrt(v_hat) + f32(call.eps))
    if call.adam_mode == 1:
        update = update + wd * p
    p_new = p - f32(call.lr) * update
    s_new = decay * s_old + rest * p_new
    p_new = rounded(p_new, call.var[i].dtype, call.stochastic_rounding, i, step, 0)
    s_new = rounded(s_new, call.s[i].dtype, call.stochastic_rounding, i, step, 1)
    return p_new, m_new.to(call.m[i].dtype), v_new.to(call.v[i].dtype), s_new


# ---- what is not plain ----


def _general(call: Call) -> None:
    check(call)
    call.check_memory()
    if checks.is_skipped(call):
        return
    call = checks.with_numbers(call)
    if call.weight_decay_tensor is not None:
        call = call._replace(weight_decay=float(call.weight_decay_tensor), weight_decay_tensor=None)
    if use_reference():
        memory.assign(call.updated, [reference(call, i) for i in range(len(call.var))])
    else:
        worked_on = memory.with_contiguous(call)
        _native(*worked_on)
        memory.write_back_all(call.updated, worked_on.updated)


_list, _one = define("apply_fused_ema_adamw_", Call, _general, check)
_native = torch.ops.anyfuse.apply_fused_ema_adamw_.default


register(
    OpSpec(
        name="apply_fused_ema_adamw",
        function=apply_fused_ema_adamw_,
        document="npu_apply_fused_ema_adamw",
        summary="AdamW and an EMA of the weights in one pass",
        in_place=("var", "m", "v", "s"),
        outputs=("var", "m", "v", "s"),
        profiles=PROFILES,
    )
)
