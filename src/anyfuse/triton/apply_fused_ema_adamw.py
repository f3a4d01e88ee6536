"""apply_fused_ema_adamw on GPUs. The mathematics is in `ops/apply_fused_ema_adamw.py`.

A list of tensors is one launch for each combination of dtypes in it. Results are built to equal the CPU's bit for bit
on NVIDIA: each operation is rounded on its own, division and square root are the correctly rounded instructions. With
steps on the device beta^t is that device's pow in double, which is not always the C library's: about once in 2^27 steps
it may round otherwise to fp32. On AMD the compiler expands a division into a sequence of fused multiply-adds; that its
last bit is the correctly rounded one is not promised.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..ops import _checks as checks
from ..ops import _memory as memory
from ..ops import _numerics as numerics
from ..ops.apply_fused_ema_adamw import Call, check
from ._launch import (
    DTYPES,
    EVERYWHERE,
    Launch,
    Variant,
    aligned,
    by_dtypes,
    columns,
    find,
    first_blocks,
    number,
    numbers,
    on_host,
    ones,
    pointer,
    spread,
    table,
)
from ._maths import narrow, stored, widen

#: Elements a program steps: 8 a thread, so that 16-bit streams move 16 bytes with an instruction.
BLOCK = 1024


@triton.jit
def _step(
    table, count, i, begin, numel, c1, c2, lr, factor, seed, step,
    beta1, rest1, beta2, rest2, eps, weight_decay, ema_decay, rest,
    GRAD: tl.constexpr, VAR: tl.constexpr, M: tl.constexpr, V: tl.constexpr, S: tl.constexpr, ALIGNED: tl.constexpr,
    DECOUPLED: tl.constexpr, DEVICE: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, BLOCK)
    at_grad = pointer(table, 3 * count + i, GRAD, ALIGNED) + begin + lane
    at_var = pointer(table, 4 * count + i, VAR, ALIGNED) + begin + lane
    at_m = pointer(table, 5 * count + i, M, ALIGNED) + begin + lane
    at_v = pointer(table, 6 * count + i, V, ALIGNED) + begin + lane
    at_s = pointer(table, 7 * count + i, S, ALIGNED) + begin + lane
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
    tl.store(at_var, stored(var, VAR, seed, step, 0, begin + lane, begin >> 32), mask)
    tl.store(at_s, stored(s, S, seed, step, 1, begin + lane, begin >> 32), mask)


@triton.jit(do_not_specialize_on_alignment=["count"])
def kernel(
    table, corrections, lr, factor, found_inf, steps, count,
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
    if steps is None:
        seed = None
        step = None
    else:
        seed = tl.load(table + 2 * count + i)
        step = tl.load(steps + i)
    if begin + BLOCK <= numel:  # without a mask loads are as wide as they can be
        _step(
            table, count, i, begin, numel, c1, c2, tl.load(lr), tl.load(factor), seed, step,
            beta1, rest1, beta2, rest2, eps, weight_decay, ema_decay, rest,
            GRAD, VAR, M, V, S, ALIGNED, DECOUPLED, DEVICE, BLOCK, True,
        )  # fmt: skip
    else:
        _step(
            table, count, i, begin, numel, c1, c2, tl.load(lr), tl.load(factor), seed, step,
            beta1, rest1, beta2, rest2, eps, weight_decay, ema_decay, rest,
            GRAD, VAR, M, V, S, ALIGNED, DECOUPLED, DEVICE, BLOCK, False,
        )  # fmt: skip


def corrections(call: Call, device: torch.device) -> Tensor:
    """1 - beta^t of each tensor for both betas, (2, count); their reciprocals in the device convention."""
    count = len(call.var)
    if not call.bias_correction:
        return torch.ones(2, count, dtype=torch.float32, device=device)
    betas, rows = (numerics.f32(call.beta1), numerics.f32(call.beta2)), []
    for beta, given in zip(betas, (call.correction1, call.correction2), strict=True):
        if given is not None:
            rows.append(given.to(device).float().reshape(1).expand(count))
        elif on_host(call.step):
            powers = [numerics.f32(numerics.power(beta, t)) for t in checks.step_values(call.step, count)]
            rows.append(numbers([numerics.f32(1.0 - power) for power in powers], device))
        else:
            t = spread(call.step, count, device, torch.float64)
            rows.append(1.0 - torch.pow(torch.full_like(t, beta), t).float())
    result = torch.stack(rows)
    return torch.ones_like(result) / result if call.convention == "device" else result


def launches(call: Call) -> list[Launch]:
    """The launches of one call; the tensors are contiguous and on one device."""
    if not call.var:
        return []
    device = call.var[0].device
    sign = -1.0 if call.maximize else 1.0
    factor = sign if call.grad_scale is None else (sign / call.grad_scale.to(device).double()).float()

    def given(x: float) -> float:
        return numerics.f32(x) if call.convention == "device" else x

    common = {
        "lr": number(call.lr if call.lr_tensor is None else call.lr_tensor, device),
        "factor": number(factor, device),
        "found_inf": None if call.found_inf is None else number(call.found_inf != 0, device),
        "beta1": numerics.f32(call.beta1),
        "rest1": numerics.f32(1.0 - given(call.beta1)),
        "beta2": numerics.f32(call.beta2),
        "rest2": numerics.f32(1.0 - given(call.beta2)),
        "eps": numerics.f32(call.eps),
        "weight_decay": numerics.f32(
            call.weight_decay if call.weight_decay_tensor is None else float(call.weight_decay_tensor)
        ),
        "ema_decay": numerics.f32(call.ema_decay),
        "rest": numerics.f32(1.0 - given(call.ema_decay)),
        "DECOUPLED": call.adam_mode == 1,
        "DEVICE": call.convention == "device",
        "BLOCK": BLOCK,
    }
    tensors = list(zip(call.grad, *call.updated, strict=True))
    every = corrections(call, device)
    seeds = call.stochastic_rounding or [0] * len(tensors)
    steps = spread(call.step, len(tensors), device, torch.int64) if call.stochastic_rounding else None
    result = []
    for dtypes, places in by_dtypes(tensors).items():
        group = [tensors[i] for i in places]
        sizes = [each[1].numel() for each in group]
        starts, blocks = first_blocks(sizes, BLOCK)
        addresses = [[each[k].data_ptr() for each in group] for k in range(5)]
        arguments = {
            "table": table(device, starts, sizes, [seeds[i] for i in places], *addresses),
            "corrections": columns(every, places),
            "steps": None if steps is None else columns(steps, places),
            "count": len(group),
            "ALIGNED": aligned(*addresses),
            **{name: DTYPES[dtype] for name, dtype in zip(("GRAD", "VAR", "M", "V", "S"), dtypes, strict=True)},
        }
        result.append(Launch(kernel, (blocks,), common | arguments))
    return result


def run(call: Call) -> None:
    check(call)
    call.check_memory()
    worked_on = memory.with_contiguous(call)  # kept until the launches are queued
    for launch in launches(worked_on):
        launch.run()
    memory.write_back_all(call.updated, worked_on.updated)


def variants() -> Iterator[Variant]:
    """What is compiled ahead of time."""

    def launch(dtypes: tuple[torch.dtype, ...], **changes: Any) -> Launch:
        sizes = (4096,) if changes.get("convention") == "device" else (4096, 100)  # one: specialized on its length
        lists: list[Any] = [[ones(size, dtype=dtype) for size in sizes] for dtype in dtypes]
        numbers: dict[str, Any] = dict(
            step=[torch.tensor([1])], lr=0.1, ema_decay=0.999, beta1=0.9, beta2=0.999, eps=1e-8, adam_mode=1,
            bias_correction=True, weight_decay=0.01, convention="formula", lr_tensor=None, grad_scale=None,
            found_inf=None, maximize=False, stochastic_rounding=None,
        )  # fmt: skip
        call = Call(*lists, **(numbers | changes))
        return launches(call)[0]

    name, half = "apply_fused_ema_adamw", (torch.bfloat16, torch.bfloat16, *(torch.float32,) * 3)
    yield Variant(name, "fp32", launch((torch.float32,) * 5))
    yield Variant(name, "bf16 with fp32 state", launch(half, adam_mode=0, found_inf=ones(1)))
    yield Variant(
        name, "bf16, rounded by chance", launch((torch.bfloat16,) * 5, stochastic_rounding=[1, 2]), EVERYWHERE
    )
    chance = launch((torch.float16,) * 5, convention="device", stochastic_rounding=[1])
    yield Variant(name, "fp16, rounded by chance, device", chance)
