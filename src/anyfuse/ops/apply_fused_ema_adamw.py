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

from .. import _core
from .._opspec import OpSpec, register
from .._settings import convention_or_default, use_reference
from .._soc import Profiles, restricted
from . import _dispatch as d
from ._rounding import rounded, seeds_of

SCHEMA = (
    "apply_fused_ema_adamw_(Tensor[] grad, Tensor(a!)[] var, Tensor(b!)[] m, Tensor(c!)[] v, Tensor(d!)[] s, "
    "Tensor[] step, float lr, float ema_decay, float beta1, float beta2, float eps, int adam_mode, "
    "bool bias_correction, float weight_decay, str convention, Tensor? lr_tensor, Tensor? grad_scale, "
    "Tensor? found_inf, bool maximize, int[]? stochastic_rounding) -> ()"
)


class Call(NamedTuple):
    """The schema's arguments."""

    grad: list[Tensor]
    var: list[Tensor]
    m: list[Tensor]
    v: list[Tensor]
    s: list[Tensor]
    step: list[Tensor]
    lr: float
    ema_decay: float
    beta1: float
    beta2: float
    eps: float
    adam_mode: int
    bias_correction: bool
    weight_decay: float
    convention: str
    lr_tensor: Tensor | None
    grad_scale: Tensor | None
    found_inf: Tensor | None
    maximize: bool
    stochastic_rounding: list[int] | None

    @property
    def updated(self) -> tuple[list[Tensor], ...]:
        return self.var, self.m, self.v, self.s

    def check_memory(self) -> None:
        """Refuses in-place tensors that share an element with another argument."""
        d.check_memory(zip(("var", "m", "v", "s"), self.updated, strict=True), (("grad", self.grad),))


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
    given = {"grad": grad, "var": var, "m": m, "v": v, "s": s}
    lists = [d.as_list(name, value, var, "var") for name, value in given.items()]
    lr_tensor = lr if isinstance(lr, Tensor) else None
    _op(
        *lists,
        d.step_list(step, len(lists[0])),
        0.0 if lr_tensor is not None else lr,
        ema_decay,
        beta1,
        beta2,
        eps,
        mode,
        bias_correction,
        weight_decay,
        convention_or_default(convention),
        lr_tensor,
        grad_scale,
        found_inf,
        maximize,
        seeds_of(stochastic_rounding, len(lists[0])),
    )
    return var, m, v, s


def check(call: Call) -> None:
    """Refuses dtypes, shapes and attributes; looks at no value and no address."""
    mode, count = call.adam_mode, len(call.var)
    d.require(mode in (0, 1), f"mode is {mode}; accepted: 0 (Adam with L2) or 1 (AdamW)")
    d.check_tensor_lists({name: getattr(call, name) for name in ("var", "grad", "m", "v", "s")}, d.FLOATS)
    d.check_steps(call.step, count)
    d.check_scalar("lr", call.lr_tensor)
    d.check_scalar("grad_scale", call.grad_scale)
    d.check_scalar("found_inf", call.found_inf)
    seeds_of(call.stochastic_rounding, count)
    if restricted():
        PROFILES.check(**call._asdict())


# ---- reference ----


def reference(
    grad: Tensor,
    var: Tensor,
    m: Tensor,
    v: Tensor,
    s: Tensor,
    step: int,
    *,
    lr: float,
    ema_decay: float,
    beta1: float,
    beta2: float,
    eps: float,
    mode: int,
    bias_correction: bool,
    weight_decay: float,
    convention: str,
    grad_factor: float = 1.0,
    seed: int | None = None,
    corrections: tuple[float, float] = (0.0, 0.0),
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One tensor's step, as new tensors (var, m, v, s) in the dtypes given. The definition of the numbers."""
    device = convention == "device"
    g, p, m_old, v_old, s_old = (d.real(tensor) for tensor in (grad, var, m, v, s))
    b1, b2, decay, wd = d.f32(beta1), d.f32(beta2), d.f32(ema_decay), d.f32(weight_decay)
    rest1, rest2, rest = (d.f32(1.0 - (d.f32(x) if device else x)) for x in (beta1, beta2, ema_decay))
    c1, c2 = (d.f32(c or 1.0 - d.f32(d.power(b, step))) for b, c in zip((b1, b2), corrections, strict=True))
    if not bias_correction:
        c1 = c2 = 1.0

    g = g * d.f32(grad_factor)
    if mode == 0:
        g = g + wd * p
    m_new = b1 * m_old + rest1 * g
    v_new = b2 * v_old + ((g * g) * rest2 if device else rest2 * g * g)
    if device:
        one = torch.ones((), dtype=g.dtype)
        m_hat, v_hat = m_new * (one / c1), v_new * (one / c2)
    else:
        m_hat, v_hat = m_new / torch.tensor(c1, dtype=g.dtype), v_new / torch.tensor(c2, dtype=g.dtype)
    update = m_hat / (d.correctly_rounded_sqrt(v_hat) + d.f32(eps))
    if mode == 1:
        update = update + wd * p
    p_new = p - d.f32(lr) * update
    s_new = decay * s_old + rest * p_new
    p_new, s_new = (rounded(x, like.dtype, seed, step, i) for i, (x, like) in enumerate(((p_new, var), (s_new, s))))
    return p_new, m_new.to(m.dtype), v_new.to(v.dtype), s_new


# ---- CPU ----


class Row(_core.Struct, c_name="anyfuse_apply_fused_ema_adamw_row"):
    _fields_ = [
        ("numel", _core.i64),
        ("grad", _core.pointer),
        ("var", _core.pointer),
        ("m", _core.pointer),
        ("v", _core.pointer),
        ("s", _core.pointer),
        ("step", _core.i64),
        ("grad_dtype", _core.i32),
        ("var_dtype", _core.i32),
        ("m_dtype", _core.i32),
        ("v_dtype", _core.i32),
        ("s_dtype", _core.i32),
        ("seed", _core.u32),
    ]


class Params(_core.Struct, c_name="anyfuse_apply_fused_ema_adamw_params"):
    _fields_ = [
        ("size", _core.size),
        ("row_size", _core.size),
        ("rows", _core.pointer),
        ("count", _core.i64),
        ("lr", _core.f64),
        ("ema_decay", _core.f64),
        ("beta1", _core.f64),
        ("beta2", _core.f64),
        ("eps", _core.f64),
        ("weight_decay", _core.f64),
        ("grad_scale", _core.f64),
        ("mode", _core.i32),
        ("bias_correction", _core.i32),
        ("convention", _core.i32),
        ("maximize", _core.i32),
        ("threads", _core.i32),
        ("stochastic_rounding", _core.i32),
        ("correction1", _core.f64),
        ("correction2", _core.f64),
    ]


_native = _core.function("apply_fused_ema_adamw", Params)
number = d.NUMBERS


def _cpu(call: Call) -> None:
    check(call)
    call.check_memory()
    run(call)


def run(call: Call, corrections: tuple[float, float] = (0.0, 0.0)) -> None:
    """A step on the CPU of a call that is checked already. `corrections` that are not 0 stand for 1 - beta1^step and
    1 - beta2^step."""
    if call.found_inf is not None and float(call.found_inf) != 0.0:
        return
    steps = d.step_values(call.step, len(call.var))
    lr = call.lr if call.lr_tensor is None else float(call.lr_tensor)
    scale = d.grad_scale_value(call.grad_scale)
    seeds = call.stochastic_rounding or [0] * len(call.var)
    var_, m_, v_, s_ = worked_on = [d.contiguous(tensors) for tensors in call.updated]
    if use_reference():
        for i, now in enumerate(steps):
            results = reference(
                call.grad[i], var_[i], m_[i], v_[i], s_[i], now,
                lr=lr, ema_decay=call.ema_decay, beta1=call.beta1, beta2=call.beta2, eps=call.eps, mode=call.adam_mode,
                bias_correction=call.bias_correction, weight_decay=call.weight_decay, convention=call.convention,
                grad_factor=(-1.0 if call.maximize else 1.0) / scale,
                seed=seeds[i] if call.stochastic_rounding else None, corrections=corrections,
            )  # fmt: skip
            d.assign([tensors[i] for tensors in worked_on], results)
    else:
        grad_ = d.contiguous(call.grad)  # kept until the call is over
        rows = _core.array(
            Row,
            [
                (
                    p.numel(), g.data_ptr(), p.data_ptr(), a.data_ptr(), b.data_ptr(), e.data_ptr(), now,
                    number[g.dtype], number[p.dtype], number[a.dtype], number[b.dtype], number[e.dtype], seed,
                )
                for g, p, a, b, e, now, seed in zip(grad_, var_, m_, v_, s_, steps, seeds, strict=True)
            ],
        )  # fmt: skip
        _native(
            Params(
                _core.sizeof(Params), _core.sizeof(Row), _core.addressof(rows), len(steps),
                lr, call.ema_decay, call.beta1, call.beta2, call.eps, call.weight_decay, scale,
                call.adam_mode, call.bias_correction, _core.CONVENTIONS[call.convention], call.maximize,
                torch.get_num_threads(), bool(call.stochastic_rounding), *corrections,
            )
        )  # fmt: skip
    d.write_back(*zip(call.updated, worked_on, strict=True))


_op = d.define(SCHEMA, Call, _cpu, check)


register(
    OpSpec(
        name="apply_fused_ema_adamw",
        function=apply_fused_ema_adamw_,
        schema=SCHEMA,
        document="npu_apply_fused_ema_adamw",
        summary="AdamW and an EMA of the weights in one pass",
        in_place=("var", "m", "v", "s"),
        outputs=("var", "m", "v", "s"),
        profiles=PROFILES,
    )
)
