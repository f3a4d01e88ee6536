r"""AdamW whose moments are 8-bit codes, scaled block by block (CANN's `aclnnApplyAdamWQuant`).

For each element, with step number t, in fp32, every operation rounded once, in this order:

    c1 = 1 - beta1^t,  c2 = sqrt(1 - beta2^t),  step_size = -lr·c2/c1
    g  = (grad·(1/grad_scale))·gnorm_scale
    m  = qmap_m[m code]·absmax_m,  v = qmap_v[v code]·absmax_v           (absmax of the element's block)
    m' = m·beta1 + g·(1 - beta1)
    v' = v·beta2 + (g·g)·(1 - beta2)
    var' = var·(1 - lr·weight_decay) + (m'·step_size)/(sqrt(v') + eps·c2)

which is AdamW with the bias corrections moved into step_size and eps. Then for each block of `block_size` elements

    absmax_m' = max|m'|,  absmax_v' = max|v'|
    m code' = the code of m'/absmax_m' in qmap_m,  v code' = the code of v'/absmax_v' in qmap_v     (a block of 0: of 0)

where the code is the nearest entry, the lower one in a tie (`formats.codebook.encode`), and m' never gets an entry of
the other sign. Tensors of 16 bits are widened at the load and rounded once at the store. step_size, eps·c2, the decay
factor and 1 - beta are computed in double and rounded once.

`convention="device"` is the order of the NPU's kernel: t is one more than `step`, the attributes are rounded to fp32
and all that is computed from them is fp32, and the decay comes last: var' = (var + ...)·(1 - lr·weight_decay), only
where weight_decay > 0.

Three things that the document does not have. A tensor whose m and v are float32 is stepped by the same rule without
codes and scales. With s, an EMA of the parameters, s' = ema_decay·s + (1 - ema_decay)·var' follows in the same pass,
1 - ema_decay computed in double and rounded once (device: in fp32). With `stochastic_rounding` var' and s' of 16 bits
are rounded up or down by chance (`ops._rounding`).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._opspec import OpSpec, register
from .._settings import convention_or_default, use_reference
from .._soc import Profiles, restricted
from ..formats import codebook
from . import _checks as checks
from . import _memory as memory
from . import _numerics as numerics
from ._record import Convention, Perhaps, Updated
from ._register import define
from ._rounding import rounded, seeds_of

RETURNS = "()"


class Call(NamedTuple):
    """The schema's arguments."""

    var: Updated[list[Tensor]]
    grad: list[Tensor]
    m: Updated[list[Tensor]]
    v: Updated[list[Tensor]]
    qmap_m: Tensor
    qmap_v: Tensor
    absmax_m: Updated[list[Tensor]]
    absmax_v: Updated[list[Tensor]]
    step: list[Tensor]
    lr: float
    beta1: float
    beta2: float
    weight_decay: float
    eps: float
    gnorm_scale: float
    block_size: int
    convention: Convention
    skip_nonfinite: bool
    nonzero_v: bool
    lr_tensor: Tensor | None
    grad_scale: Tensor | None
    found_inf: Tensor | None
    maximize: bool
    s: Perhaps[Updated[list[Tensor]]]
    ema_decay: float
    stochastic_rounding: list[int] | None

    @property
    def updated(self) -> tuple[list[Tensor], ...]:
        return self.var, self.m, self.v, self.absmax_m, self.absmax_v, self.s

    def check_memory(self) -> None:
        """Refuses in-place tensors that share an element with another argument."""
        in_place = zip(("var", "m", "v", "absmax_m", "absmax_v", "s"), self.updated, strict=True)
        memory.check_memory(in_place, (("grad", self.grad), ("qmap_m", [self.qmap_m]), ("qmap_v", [self.qmap_v])))


#: What moments are kept in: codes, or themselves.
STATES = (torch.uint8, torch.float32)

PROFILES = Profiles("apply_adam_w_quant")


def apply_adam_w_quant_(
    var: Tensor | Sequence[Tensor],
    grad: Tensor | Sequence[Tensor],
    m: Tensor | Sequence[Tensor],
    v: Tensor | Sequence[Tensor],
    qmap_m: Tensor,
    qmap_v: Tensor,
    absmax_m: Tensor | Sequence[Tensor],
    absmax_v: Tensor | Sequence[Tensor],
    step: int | Tensor | Sequence[int | Tensor],
    *,
    lr: float | Tensor,
    beta1: float = 0.9,
    beta2: float = 0.999,
    weight_decay: float = 0.0,
    eps: float = 1e-8,
    gnorm_scale: float = 1.0,
    quant_mode: str | None = None,
    block_size: int = 256,
    convention: str | None = None,
    skip_nonfinite: bool = False,
    nonzero_v: bool = False,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    maximize: bool = False,
    s: Tensor | Sequence[Tensor] | None = None,
    ema_decay: float = 0.9999,
    stochastic_rounding: int | Sequence[int] | None = None,
) -> tuple[Any, Any, Any, Any, Any]:
    """Steps parameters with AdamW whose moments are kept in 8 bits, in place and in one pass.

    The mathematics is in this module's docstring. A NaN or an infinity in a gradient makes its block's absmax NaN or
    infinite, and the block stays so; `skip_nonfinite` prevents it.

    Args:
        var: parameters; a tensor, or a list for many parameters in one native call; updated. float32, float16 or
            bfloat16.
        grad: gradients, of the parameters' shapes; any of the three dtypes each.
        m, v: codes of the first and second moments, uint8, of the parameters' shapes; updated. float32 (both of a
            tensor): the moments themselves.
        qmap_m, qmap_v: the values of the codes, (256,) float32, finite and ascending (`formats.create_codebook`); one
            pair for the whole list.
        absmax_m, absmax_v: the scale of each block, (ceil(numel/block_size),) float32; updated. (0,) where m is
            float32.
        step: number of the step, 1 at the first (device: 0): an int, a one-element int64 tensor, or a list with one a
            tensor.
        lr, beta1, beta2, weight_decay, eps: numbers as in AdamW; lr may be a one-element float tensor. Any number is
            taken, as by the operator on an NPU, NaN and those that no training uses too: the formula is evaluated as it
            stands. (`anyfuse.optim` refuses what makes no sense.)
        gnorm_scale: gradients are multiplied by it (clipping by the norm).
        quant_mode: None or "BLOCKWISE", which is the only one.
        block_size: elements that share a scale: 64, 128, 256, 512, 1024 or 2048.
        convention: "formula" (the document) or "device" (the order of the NPU's kernel); default `ANYFUSE_CONVENTION`.
        skip_nonfinite: a block whose gradient holds a NaN or an infinity keeps its parameters and state.
        nonzero_v: a second moment above 0 never gets the code of 0 but the smallest positive one. Otherwise a small one
            beside large ones is lost, and when its gradient becomes 0 the next step divides by eps alone.
        grad_scale: gradients are multiplied by fp32(1/grad_scale) first (a one-element tensor, as GradScaler has).
        found_inf: a one-element tensor; when it is not 0 nothing changes.
        maximize: turns the sign of the gradients.
        s: an EMA of the parameters, of their shapes; updated. float32, float16 or bfloat16.
        ema_decay: the share of s that stays.
        stochastic_rounding: None, or a seed (0 to 2^32 - 1): var and s of 16 bits are rounded by chance. A list has one
            seed a tensor; otherwise tensor i takes the seed + i.

    Returns:
        (var, m, v, absmax_m, absmax_v), the objects that were given.

    Raises:
        TypeError: a dtype or a kind of argument that is not accepted.
        ValueError: shapes that differ, a block size, map, mode or step that is not accepted, in-place tensors that
            share memory.

    Example:
        >>> import torch, anyfuse
        >>> from anyfuse.formats import create_codebook
        >>> var, m, v = torch.ones(4), torch.zeros(4, dtype=torch.uint8), torch.zeros(4, dtype=torch.uint8)
        >>> maps = create_codebook("dynamic", signed=True), create_codebook("dynamic", signed=False)
        >>> _ = anyfuse.apply_adam_w_quant_(
        ...     var, torch.full((4,), 0.5), m, v, *maps, torch.zeros(1), torch.zeros(1), step=1, lr=0.1
        ... )
        >>> var, m
        (tensor([0.9000, 0.9000, 0.9000, 0.9000]), tensor([255, 255, 255, 255], dtype=torch.uint8))
    """
    blockwise = quant_mode is None or (isinstance(quant_mode, str) and quant_mode == "BLOCKWISE")
    checks.require(blockwise, f"quant_mode is {quant_mode!r}; accepted: None, 'BLOCKWISE'")
    codebook.check_block_size(block_size)
    lr_number, lr_tensor = (0.0, lr) if isinstance(lr, Tensor) else (lr, None)
    convention = convention_or_default(convention)
    if isinstance(var, Tensor):
        _one(
            var, grad, m, v, qmap_m, qmap_v, absmax_m, absmax_v,
            step if isinstance(step, Tensor) else checks.one_step(step), lr_number, beta1, beta2, weight_decay, eps,
            gnorm_scale, block_size, convention, skip_nonfinite, nonzero_v, lr_tensor, grad_scale, found_inf, maximize,
            s, ema_decay, None if stochastic_rounding is None else seeds_of(stochastic_rounding, 1),
        )  # fmt: skip
    else:
        given: dict[str, Any] = {"var": var, "grad": grad, "m": m, "v": v, "absmax_m": absmax_m, "absmax_v": absmax_v}
        lists = checks.lists_like(var, **given if s is None else {**given, "s": s})
        _list(
            *lists[:4], qmap_m, qmap_v, *lists[4:6], checks.step_list(step, len(var)), lr_number, beta1, beta2,
            weight_decay, eps, gnorm_scale, block_size, convention, skip_nonfinite, nonzero_v, lr_tensor, grad_scale,
            found_inf, maximize, lists[6] if s is not None else [], ema_decay, seeds_of(stochastic_rounding, len(var)),
        )  # fmt: skip
    return var, m, v, absmax_m, absmax_v


def check(call: Call) -> None:
    """Refuses dtypes, shapes and attributes; looks at no value and no address."""
    var, m, v, block_size = call.var, call.m, call.v, call.block_size
    codebook.check_block_size(block_size)
    shapes = checks.shapes_of(var)
    for name, floats in (("var", var), ("grad", call.grad)):
        checks.check_tensor_list(name, floats, checks.FLOATS, shapes, "var")
    for name, moments in (("m", m), ("v", v)):
        checks.check_tensor_list(name, moments, STATES, shapes, "var")
    scales = [(-(-numel // block_size),) for numel in map(Tensor.numel, var)]
    if any(moment.dtype != torch.uint8 for moment in (*m, *v)):
        scales = _shapes_of_scales(m, v, scales)
    for name, absmax in (("absmax_m", call.absmax_m), ("absmax_v", call.absmax_v)):
        checks.check_tensor_list(name, absmax, (torch.float32,), scales, f"var in blocks of {block_size}")
    for name, qmap in (("qmap_m", call.qmap_m), ("qmap_v", call.qmap_v)):
        checks.require_tensor(name, qmap, (torch.float32,))
        checks.require_shape(name, qmap, (256,), "a value for each code")
    checks.check_steps(call.step, len(var))
    checks.check_scalar("lr", call.lr_tensor)
    checks.check_scalar("grad_scale", call.grad_scale)
    checks.check_scalar("found_inf", call.found_inf)
    if call.s:
        checks.check_tensor_list("s", call.s, checks.FLOATS, shapes, "var")
    seeds_of(call.stochastic_rounding, len(var))
    if restricted():
        PROFILES.check(**call._asdict())


def _shapes_of_scales(m: Sequence[Tensor], v: Sequence[Tensor], coded: list[tuple[int]]) -> list[tuple[int]]:
    """Those of codes, and none where the moments are float32. TypeError where m and v differ."""
    for m_, v_ in zip(m, v, strict=True):
        if m_.dtype != v_.dtype:
            raise TypeError(
                f"v has dtype {checks.names([v_.dtype])}; accepted: {checks.names([m_.dtype])}, the dtype of m"
            )
    return [shape if m_.dtype == torch.uint8 else (0,) for m_, shape in zip(m, coded, strict=True)]


@lru_cache(maxsize=64)
def _is_codebook(content: bytes) -> bool:
    return codebook.is_codebook(torch.frombuffer(bytearray(content), dtype=torch.float32))


def check_values(qmap_m: Tensor, qmap_v: Tensor, steps: Sequence[int], convention: str) -> None:
    """Refuses maps and steps by their values; the maps are contiguous."""
    for name, qmap in (("qmap_m", qmap_m), ("qmap_v", qmap_v)):
        checks.require(
            _is_codebook(ctypes.string_at(qmap.data_ptr(), qmap.nbytes)),
            f"{name} has entries that fall or are not finite; accepted: 256 finite values in ascending order",
        )
    first = 0 if convention == "device" else 1
    checks.require(
        min(steps, default=first) >= first, f"step is {min(steps, default=first)}; accepted: {first} and above"
    )


# ---- reference ----


def reference(call: Call, i: int) -> tuple[Tensor, ...]:
    """The step of tensor i, as new tensors (var, m, v, absmax_m, absmax_v and, where given, s). The definition of the
    numbers."""
    var, grad, m, v = call.var[i], call.grad[i], call.m[i], call.v[i]
    absmax_m, absmax_v, s = call.absmax_m[i], call.absmax_v[i], call.s[i] if call.s else None
    step, block_size, convention = int(checks.entry(call.step, i)), call.block_size, call.convention
    beta1, beta2, ema_decay, nonzero_v = call.beta1, call.beta2, call.ema_decay, call.nonzero_v
    numbers = step, call.lr, beta1, beta2, call.weight_decay, call.eps
    b1, b2 = numerics.f32(beta1), numerics.f32(beta2)
    if convention == "device":
        rest1, rest2, step_size, eps_c2, decay = device_numbers(*numbers)
    else:
        rest1, rest2, step_size, eps_c2, decay = formula_numbers(*numbers)
    g, p, m_given, v_given = (
        codebook.blocks_of(tensor, block_size) for tensor in (numerics.real(grad), numerics.real(var), m, v)
    )
    qmap_m, qmap_v = numerics.real(call.qmap_m), numerics.real(call.qmap_v)
    coded = m.dtype == torch.uint8
    m_old, v_old = numerics.real(m_given), numerics.real(v_given)
    if coded:
        m_old, v_old = qmap_m[m_given.long()] * absmax_m[:, None], qmap_v[v_given.long()] * absmax_v[:, None]
    inside = codebook.blocks_of(torch.ones(var.shape, dtype=torch.bool), block_size)

    scaled = g * numerics.f32(checks.grad_factor(call)) * numerics.f32(call.gnorm_scale)
    m_new = m_old * b1 + scaled * rest1
    v_new = v_old * b2 + (scaled * scaled) * rest2
    update = (m_new * step_size) / (numerics.correctly_rounded_sqrt(v_new) + eps_c2)
    p_new = (p + update) * decay if convention == "device" else p * decay + update

    new, old = {"var": p_new, "m": m_new, "v": v_new}, {"var": p, "m": m_given, "v": v_given}
    if s is not None:
        old["s"] = codebook.blocks_of(numerics.real(s), block_size)
        rest = numerics.f32(1.0 - (numerics.f32(ema_decay) if convention == "device" else ema_decay))
        new["s"] = numerics.f32(ema_decay) * old["s"] + rest * p_new
    m_scale, v_scale = absmax_m, absmax_v
    keep = ~g.isfinite().all(dim=1, keepdim=True) if call.skip_nonfinite else torch.tensor(False)
    if coded:
        m_new, v_new = (torch.where(inside, moment, 0.0) for moment in (m_new, v_new))
        m_scale, v_scale = (moment.abs().amax(dim=1, keepdim=True) for moment in (m_new, v_new))
        new["m"] = codebook.encode(m_new / torch.where(m_scale == 0, 1.0, m_scale), qmap_m, keep_sign=True)
        new["v"] = codebook.encode(v_new / torch.where(v_scale == 0, 1.0, v_scale), qmap_v)
        if nonzero_v:
            new["v"] = codebook.avoid_zero(new["v"], v_new, qmap_v)
        m_scale, v_scale = (
            torch.where(keep.view(-1), old_scale, scale.view(-1))
            for old_scale, scale in ((absmax_m, m_scale), (absmax_v, v_scale))
        )
    blocks = {name: torch.where(keep, old[name], value) for name, value in new.items()}
    whole = {name: value.reshape(-1)[: var.numel()].view(var.shape) for name, value in blocks.items()}
    stepped = (
        rounded(whole["var"], var.dtype, call.stochastic_rounding, i, step, 0),
        whole["m"].to(m.dtype),
        whole["v"].to(v.dtype),
    )
    ema = () if s is None else (rounded(whole["s"], s.dtype, call.stochastic_rounding, i, step, 1),)
    return *stepped, m_scale, v_scale, *ema


def formula_numbers(
    step: int, lr: float, beta1: float, beta2: float, weight_decay: float, eps: float
) -> tuple[float, float, float, float, float]:
    """1 - beta1, 1 - beta2, -lr·c2/c1, eps·c2, 1 - lr·weight_decay: in double, each rounded once to fp32."""
    c1 = 1.0 - numerics.power(beta1, step)
    c2 = _square_root(1.0 - numerics.power(beta2, step))
    return (
        numerics.f32(1.0 - beta1),
        numerics.f32(1.0 - beta2),
        numerics.f32(_quotient(-lr * c2, c1)),
        numerics.f32(eps * c2),
        numerics.f32(1.0 - lr * weight_decay),
    )


def device_numbers(
    step: int, lr: float, beta1: float, beta2: float, weight_decay: float, eps: float
) -> tuple[float, float, float, float, float]:
    """The same in fp32 throughout: double holds the exact result of one fp32 operation well enough to round it once."""
    lr, b1, b2, wd, eps = (numerics.f32(value) for value in (lr, beta1, beta2, weight_decay, eps))
    t = numerics.f32(numerics.f32(step) + 1.0)
    c1 = numerics.f32(1.0 - numerics.f32(numerics.power(b1, t)))
    c2 = numerics.f32(_square_root(numerics.f32(1.0 - numerics.f32(numerics.power(b2, t)))))
    return (
        numerics.f32(1.0 - b1),
        numerics.f32(1.0 - b2),
        numerics.f32(_quotient(numerics.f32(-lr * c2), c1)),
        numerics.f32(eps * c2),
        numerics.f32(1.0 - numerics.f32(lr * wd)) if wd > 0 else 1.0,
    )


def _square_root(x: float) -> float:
    return math.sqrt(x) if x >= 0 else math.nan


def _quotient(a: float, b: float) -> float:
    """a/b with the values of IEEE 754 where Python raises."""
    if b != 0:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)


# ---- what is not plain ----


def _general(call: Call) -> None:
    check(call)
    call.check_memory()
    qmap_m, qmap_v = memory.contiguous((call.qmap_m, call.qmap_v))
    check_values(qmap_m, qmap_v, list(map(int, call.step)), call.convention)
    if checks.is_skipped(call):
        return
    call = checks.with_numbers(call)
    if use_reference():
        memory.assign(call.updated, [reference(call, i) for i in range(len(call.var))])
    else:
        worked_on = memory.with_contiguous(call)
        _native(*worked_on)
        memory.write_back_all(call.updated, worked_on.updated)


_list, _one = define("apply_adam_w_quant_", Call, _general, check)
_native = torch.ops.anyfuse.apply_adam_w_quant_.default


register(
    OpSpec(
        name="apply_adam_w_quant",
        function=apply_adam_w_quant_,
        document="aclnnApplyAdamWQuant",
        summary="AdamW with 8-bit moments, scaled block by block",
        in_place=("var", "m", "v", "absmax_m", "absmax_v", "s"),
        outputs=("var", "m", "v", "absmax_m", "absmax_v"),
        profiles=PROFILES,
    )
)
