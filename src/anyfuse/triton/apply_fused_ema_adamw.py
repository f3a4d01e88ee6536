"""apply_fused_ema_adamw on GPUs. The mathematics is in `ops/apply_fused_ema_adamw.py`.

A list of tensors is one launch for each combination of dtypes in it. Results are built to equal the CPU's bit for bit
on NVIDIA: each operation is rounded on its own, division and square root are the correctly rounded instructions. With
steps on the device beta^t is that device's pow in double, which is not always the C library's: about once in 2^27 steps
it may round otherwise to fp32. On AMD the compiler expands a division into a sequence of fused multiply-adds; that its
last bit is the correctly rounded one is not promised.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..ops import _dispatch as d
from ..ops.apply_fused_ema_adamw import check
from ._launch import (
    DTYPES,
    Launch,
    aligned,
    by_dtypes,
    columns,
    device_steps,
    find,
    first_blocks,
    number,
    numbers,
    on_host,
    pointer,
    table,
)
from ._maths import narrow, widen

#: Elements a program steps: 8 a thread, so that 16-bit streams move 16 bytes with an instruction.
BLOCK = 1024


@triton.jit
def _step(
    table, count, i, begin, numel, c1, c2, lr, factor,
    beta1, rest1, beta2, rest2, eps, weight_decay, ema_decay, rest,
    GRAD: tl.constexpr, VAR: tl.constexpr, M: tl.constexpr, V: tl.constexpr, S: tl.constexpr, ALIGNED: tl.constexpr,
    DECOUPLED: tl.constexpr, DEVICE: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, BLOCK)
    at_grad = pointer(table, 2 * count + i, GRAD, ALIGNED) + begin + lane
    at_var = pointer(table, 3 * count + i, VAR, ALIGNED) + begin + lane
    at_m = pointer(table, 4 * count + i, M, ALIGNED) + begin + lane
    at_v = pointer(table, 5 * count + i, V, ALIGNED) + begin + lane
    at_s = pointer(table, 6 * count + i, S, ALIGNED) + begin + lane
    if WHOLE:
        mask = None
    else:
        mask = begin + lane < numel
    g = widen(tl.load(at_grad, mask)) * factor
    var = widen(tl.load(at_var, mask))
    m = widen(tl.load(at_m, mask))
    v = widen(tl.load(at_v, mask))
    s = widen(tl.load(at_s, mask))
    if not DECOUPLED:
        g = g + weight_decay * var
    m = beta1 * m + rest1 * g
    if DEVICE:
        v = beta2 * v + (g * g) * rest2
        m_hat = m * c1
        v_hat = v * c2
    else:
        v = beta2 * v + rest2 * g * g
        m_hat = tl.div_rn(m, c1)
        v_hat = tl.div_rn(v, c2)
    update = tl.div_rn(m_hat, tl.sqrt_rn(v_hat) + eps)
    if DECOUPLED:
        update = update + weight_decay * var
    var = var - lr * update
    s = ema_decay * s + rest * var
    tl.store(at_m, narrow(m, M), mask)
    tl.store(at_v, narrow(v, V), mask)
    tl.store(at_var, narrow(var, VAR), mask)
    tl.store(at_s, narrow(s, S), mask)


@triton.jit
def kernel(
    table, corrections, lr, factor, found_inf, count,
    beta1, rest1, beta2, rest2, eps, weight_decay, ema_decay, rest,
    GRAD: tl.constexpr, VAR: tl.constexpr, M: tl.constexpr, V: tl.constexpr, S: tl.constexpr, ALIGNED: tl.constexpr,
    DECOUPLED: tl.constexpr, DEVICE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64)
    i = find(table, count, block)
    begin = (block - tl.load(table + i)) * BLOCK
    numel = tl.load(table + count + i)
    if found_inf is not None:
        numel = tl.where(tl.load(found_inf) != 0, 0, numel)
    c1 = tl.load(corrections + i)
    c2 = tl.load(corrections + count + i)
    if begin + BLOCK <= numel:  # without a mask loads are as wide as they can be
        _step(
            table, count, i, begin, numel, c1, c2, tl.load(lr), tl.load(factor),
            beta1, rest1, beta2, rest2, eps, weight_decay, ema_decay, rest,
            GRAD, VAR, M, V, S, ALIGNED, DECOUPLED, DEVICE, BLOCK, True,
        )  # fmt: skip
    else:
        _step(
            table, count, i, begin, numel, c1, c2, tl.load(lr), tl.load(factor),
            beta1, rest1, beta2, rest2, eps, weight_decay, ema_decay, rest,
            GRAD, VAR, M, V, S, ALIGNED, DECOUPLED, DEVICE, BLOCK, False,
        )  # fmt: skip


def corrections(
    step: Sequence[Tensor], count: int, beta1: float, beta2: float, enabled: bool, convention: str, device: torch.device
) -> Tensor:
    """1 - beta^t of each tensor for both betas, (2, count); their reciprocals in the device convention."""
    if not enabled:
        return torch.ones(2, count, device=device)
    b1, b2 = d.f32(beta1), d.f32(beta2)
    if on_host(step):
        steps = d.step_values(step, count)
        rows = [numbers([d.f32(1.0 - d.f32(d.power(b, t))) for t in steps], device) for b in (b1, b2)]
    else:
        t = device_steps(step, count, device)
        rows = [1.0 - torch.pow(torch.full_like(t, b), t).float() for b in (b1, b2)]
    result = torch.stack(rows)
    return torch.ones_like(result) / result if convention == "device" else result


def launches(
    grad: Sequence[Tensor],
    var: Sequence[Tensor],
    m: Sequence[Tensor],
    v: Sequence[Tensor],
    s: Sequence[Tensor],
    step: Sequence[Tensor],
    lr: float | Tensor,
    ema_decay: float,
    beta1: float,
    beta2: float,
    eps: float,
    adam_mode: int,
    bias_correction: bool,
    weight_decay: float,
    convention: str,
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
    maximize: bool,
) -> list[Launch]:
    """The launches of one call; the tensors are contiguous and on one device."""
    if not var:
        return []
    device = var[0].device
    sign = -1.0 if maximize else 1.0
    factor = sign if grad_scale is None else (sign / grad_scale.to(device).double()).float()

    def given(x: float) -> float:
        return d.f32(x) if convention == "device" else x

    common = {
        "lr": number(lr, device),
        "factor": number(factor, device),
        "found_inf": None if found_inf is None else number(found_inf != 0, device),
        "beta1": d.f32(beta1),
        "rest1": d.f32(1.0 - given(beta1)),
        "beta2": d.f32(beta2),
        "rest2": d.f32(1.0 - given(beta2)),
        "eps": d.f32(eps),
        "weight_decay": d.f32(weight_decay),
        "ema_decay": d.f32(ema_decay),
        "rest": d.f32(1.0 - given(ema_decay)),
        "DECOUPLED": adam_mode == 1,
        "DEVICE": convention == "device",
        "BLOCK": BLOCK,
    }
    tensors = list(zip(grad, var, m, v, s, strict=True))
    every = corrections(step, len(var), beta1, beta2, bias_correction, convention, device)
    result = []
    for dtypes, places in by_dtypes(tensors).items():
        group = [tensors[i] for i in places]
        sizes = [each[1].numel() for each in group]
        starts, blocks = first_blocks(sizes, BLOCK)
        addresses = [[each[k].data_ptr() for each in group] for k in range(5)]
        arguments = {
            "table": table(device, starts, sizes, *addresses),
            "corrections": columns(every, places),
            "count": len(group),
            "ALIGNED": aligned(*addresses),
            **{name: DTYPES[dtype] for name, dtype in zip(("GRAD", "VAR", "M", "V", "S"), dtypes, strict=True)},
        }
        result.append(Launch(kernel, (blocks,), common | arguments))
    return result


def call(
    grad: list[Tensor],
    var: list[Tensor],
    m: list[Tensor],
    v: list[Tensor],
    s: list[Tensor],
    step: list[Tensor],
    lr: float,
    ema_decay: float,
    beta1: float,
    beta2: float,
    eps: float,
    adam_mode: int,
    bias_correction: bool,
    weight_decay: float,
    convention: str,
    lr_tensor: Tensor | None,
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
    maximize: bool,
) -> None:
    check(grad, var, m, v, s, step, adam_mode, lr_tensor, grad_scale, found_inf, maximize)
    in_place = (("var", var), ("m", m), ("v", v), ("s", s))
    d.check_memory(in_place, (("grad", grad),))
    grad_ = d.contiguous(grad)  # kept until the launches are queued
    var_, m_, v_, s_ = (d.contiguous(tensors) for _, tensors in in_place)
    for launch in launches(
        grad_, var_, m_, v_, s_, step, lr if lr_tensor is None else lr_tensor, ema_decay, beta1, beta2, eps, adam_mode,
        bias_correction, weight_decay, convention, grad_scale, found_inf, maximize,
    ):  # fmt: skip
        launch.run()
    d.write_back((var, var_), (m, m_), (v, v_), (s, s_))
