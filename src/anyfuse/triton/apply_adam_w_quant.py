"""apply_adam_w_quant on GPUs. The mathematics is in `ops/apply_adam_w_quant.py`.

A list of tensors is one launch for each combination of dtypes in it; a program takes whole blocks of states. Codes are
found by the definition, eight halvings of the map, whose 1 KiB stays in the nearest cache; it serves every map. Results
are built to equal the CPU's bit for bit on NVIDIA. With steps or a learning rate on the device, what depends on them is
computed there in double, by that device's pow, which is not always the C library's: about once in 2^19 steps a number
may round otherwise to fp32. On AMD the compiler expands a division into a sequence of fused multiply-adds; that its
last bit is the correctly rounded one, on which a code may depend, is not promised. Maps and steps on the device are not
looked at.

An EMA, moments of 32 bits and stochastic rounding have no kernel here: such a call runs on copies on the CPU, right but
slow.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..ops import _dispatch as d
from ..ops.apply_adam_w_quant import Call, _device_numbers, _formula_numbers, check
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
from ._maths import magnitude_bits, narrow, widen

#: Elements of a program: several blocks of states, or one large one.
TILE = 1024


@triton.jit
def _encode(n, qmap):
    """The lower and the upper neighbour in the map, then the nearer of the two, the lower one in a tie; its entry."""
    lower = tl.zeros_like(n).to(tl.int32)
    upper = lower + 255
    for _ in tl.static_range(8):
        pivot = (lower + upper) >> 1
        above = n > tl.load(qmap + pivot)
        lower = tl.where(above, pivot, lower)
        upper = tl.where(above, upper, pivot)
    low = tl.load(qmap + lower)
    high = tl.load(qmap + upper)
    nearer_low = tl.abs(n - low) <= tl.abs(n - high)
    return tl.where(nearer_low, lower, upper), tl.where(nearer_low, low, high)


@triton.jit
def _scaled(moment, largest):
    scale = largest.to(tl.float32, bitcast=True)
    return tl.div_rn(moment, tl.where(scale == 0, 1.0, scale)[:, None]), scale


@triton.jit
def _step(
    table, count, i, begin, numel, qmap_m, qmap_v, unscale, gnorm_scale, beta1, rest1, beta2, rest2,
    step_size, eps_c2, decay,
    VAR: tl.constexpr, GRAD: tl.constexpr, ALIGNED: tl.constexpr, DEVICE: tl.constexpr,
    SKIP_NONFINITE: tl.constexpr, NONZERO_V: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, ROWS)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    number = begin // BLOCK + tl.arange(0, ROWS)
    exists = number * BLOCK < numel
    if WHOLE:
        mask = tl.full((ROWS, BLOCK), True, tl.int1)
    else:
        mask = begin + at < numel
    at_var = pointer(table, 2 * count + i, VAR, ALIGNED) + begin + at
    at_grad = pointer(table, 3 * count + i, GRAD, ALIGNED) + begin + at
    at_m = pointer(table, 4 * count + i, tl.uint8, ALIGNED) + begin + at
    at_v = pointer(table, 5 * count + i, tl.uint8, ALIGNED) + begin + at
    at_scale_m = pointer(table, 6 * count + i, tl.float32, ALIGNED) + number
    at_scale_v = pointer(table, 7 * count + i, tl.float32, ALIGNED) + number
    if WHOLE:
        raw = widen(tl.load(at_grad))
        var = widen(tl.load(at_var))
        m_code = tl.load(at_m)
        v_code = tl.load(at_v)
    else:
        raw = widen(tl.load(at_grad, mask, other=0.0))
        var = widen(tl.load(at_var, mask, other=0.0))
        m_code = tl.load(at_m, mask, other=0)
        v_code = tl.load(at_v, mask, other=0)
    m = tl.load(qmap_m + m_code.to(tl.int32)) * tl.load(at_scale_m, exists, other=0.0)[:, None]
    v = tl.load(qmap_v + v_code.to(tl.int32)) * tl.load(at_scale_v, exists, other=0.0)[:, None]
    g = raw * unscale * gnorm_scale
    m = m * beta1 + g * rest1
    v = v * beta2 + (g * g) * rest2
    update = tl.div_rn(m * step_size, tl.sqrt_rn(v) + eps_c2)
    if DEVICE:
        var = (var + update) * decay
    else:
        var = var * decay + update
    if not WHOLE:
        m = tl.where(mask, m, 0.0)
        v = tl.where(mask, v, 0.0)

    n, scale_m = _scaled(m, tl.max(magnitude_bits(m), axis=1))
    code, entry = _encode(n, qmap_m)
    code = code + ((n > 0) & (entry < 0)).to(tl.int32) - ((n < 0) & (entry > 0)).to(tl.int32)
    m_code = tl.minimum(tl.maximum(code, 0), 255)
    n, scale_v = _scaled(v, tl.max(magnitude_bits(v), axis=1))
    v_code, entry = _encode(n, qmap_v)
    if NONZERO_V:
        positive = tl.sum((tl.load(qmap_v + tl.arange(0, 256)) <= 0).to(tl.int32))  # the first entry above 0
        v_code = tl.where((v > 0) & (entry == 0) & (positive < 256), positive, v_code)

    if SKIP_NONFINITE:
        exists = exists & (tl.max(magnitude_bits(raw), axis=1) < 0x7F800000)
        mask = mask & exists[:, None]
    if WHOLE and not SKIP_NONFINITE:
        tl.store(at_var, narrow(var, VAR))
        tl.store(at_m, m_code.to(tl.uint8))
        tl.store(at_v, v_code.to(tl.uint8))
    else:
        tl.store(at_var, narrow(var, VAR), mask)
        tl.store(at_m, m_code.to(tl.uint8), mask)
        tl.store(at_v, v_code.to(tl.uint8), mask)
    tl.store(at_scale_m, scale_m, exists)
    tl.store(at_scale_v, scale_v, exists)


@triton.jit
def kernel(
    table, per_tensor, qmap_m, qmap_v, unscale, found_inf, count, gnorm_scale, beta1, rest1, beta2, rest2,
    VAR: tl.constexpr, GRAD: tl.constexpr, ALIGNED: tl.constexpr, DEVICE: tl.constexpr,
    SKIP_NONFINITE: tl.constexpr, NONZERO_V: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0).to(tl.int64)
    i = find(table, count, tile)
    begin = (tile - tl.load(table + i)) * (ROWS * BLOCK)
    numel = tl.load(table + count + i)
    if found_inf is not None:
        numel = tl.where(tl.load(found_inf) != 0, 0, numel)
    step_size = tl.load(per_tensor + i)
    eps_c2 = tl.load(per_tensor + count + i)
    decay = tl.load(per_tensor + 2 * count + i)
    if begin + ROWS * BLOCK <= numel:  # without a mask loads are as wide as they can be
        _step(
            table, count, i, begin, numel, qmap_m, qmap_v, tl.load(unscale), gnorm_scale, beta1, rest1, beta2, rest2,
            step_size, eps_c2, decay, VAR, GRAD, ALIGNED, DEVICE, SKIP_NONFINITE, NONZERO_V, ROWS, BLOCK, True,
        )  # fmt: skip
    else:
        _step(
            table, count, i, begin, numel, qmap_m, qmap_v, tl.load(unscale), gnorm_scale, beta1, rest1, beta2, rest2,
            step_size, eps_c2, decay, VAR, GRAD, ALIGNED, DEVICE, SKIP_NONFINITE, NONZERO_V, ROWS, BLOCK, False,
        )  # fmt: skip


def numbers_of_steps(
    step: Sequence[Tensor],
    count: int,
    lr: float | Tensor,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    convention: str,
    device: torch.device,
) -> Tensor:
    """The step size, eps·c2 and the decay factor of each tensor, (3, count)."""
    if on_host(step) and not isinstance(lr, Tensor):
        function = _device_numbers if convention == "device" else _formula_numbers
        rows = [function(t, lr, beta1, beta2, weight_decay, eps)[2:] for t in d.step_values(step, count)]
        return torch.stack([numbers(column, device) for column in zip(*rows, strict=True)])
    t = device_steps(step, count, device)
    rate = torch.full_like(t, lr) if not isinstance(lr, Tensor) else lr.to(device).reshape(1).double().expand(count)
    if convention == "device":
        return _fp32_numbers(t, rate, beta1, beta2, weight_decay, eps)
    c1 = 1.0 - torch.pow(torch.full_like(t, beta1), t)
    c2 = (1.0 - torch.pow(torch.full_like(t, beta2), t)).sqrt()
    return torch.stack([-rate * c2 / c1, eps * c2, 1.0 - rate * weight_decay]).float()


def _fp32_numbers(t: Tensor, lr: Tensor, beta1: float, beta2: float, weight_decay: float, eps: float) -> Tensor:
    """The same in the device convention: every operation in fp32."""
    lr, t = lr.float(), (t.float() + 1.0).double()
    c1, rest2 = (1.0 - torch.pow(torch.full_like(t, d.f32(beta)), t).float() for beta in (beta1, beta2))
    c2 = d.correctly_rounded_sqrt(rest2)
    decay = 1.0 - lr * d.f32(weight_decay) if d.f32(weight_decay) > 0 else torch.ones_like(lr)
    return torch.stack([(-lr * c2) / c1, c2 * d.f32(eps), decay])


def launches(call: Call) -> list[Launch]:
    """The launches of one call; the tensors are contiguous and on one device."""
    if not call.var:
        return []
    device = call.var[0].device
    sign = -1.0 if call.maximize else 1.0
    unscale = sign if call.grad_scale is None else sign / call.grad_scale.to(device).double()
    rows = max(1, TILE // call.block_size)

    def given(x: float) -> float:
        return d.f32(x) if call.convention == "device" else x

    common = {
        "qmap_m": call.qmap_m,
        "qmap_v": call.qmap_v,
        "unscale": number(unscale, device),
        "found_inf": None if call.found_inf is None else number(call.found_inf != 0, device),
        "gnorm_scale": d.f32(call.gnorm_scale),
        "beta1": d.f32(call.beta1),
        "rest1": d.f32(1.0 - given(call.beta1)),
        "beta2": d.f32(call.beta2),
        "rest2": d.f32(1.0 - given(call.beta2)),
        "DEVICE": call.convention == "device",
        "SKIP_NONFINITE": call.skip_nonfinite,
        "NONZERO_V": call.nonzero_v,
        "ROWS": rows,
        "BLOCK": call.block_size,
    }
    tensors = list(zip(call.var, call.grad, call.m, call.v, call.absmax_m, call.absmax_v, strict=True))
    rate = call.lr if call.lr_tensor is None else call.lr_tensor
    every = numbers_of_steps(
        call.step, len(tensors), rate, call.beta1, call.beta2, call.weight_decay, call.eps, call.convention, device
    )
    result = []
    for dtypes, places in by_dtypes(tensors).items():
        group = [tensors[i] for i in places]
        sizes = [each[0].numel() for each in group]
        starts, tiles = first_blocks(sizes, rows * call.block_size)
        addresses = [[each[k].data_ptr() for each in group] for k in range(6)]
        arguments = {
            "table": table(device, starts, sizes, *addresses),
            "per_tensor": columns(every, places),
            "count": len(group),
            "VAR": DTYPES[dtypes[0]],
            "GRAD": DTYPES[dtypes[1]],
            "ALIGNED": aligned(*addresses),
        }
        result.append(Launch(kernel, (tiles,), common | arguments, num_warps=max(4, rows * call.block_size // 512)))
    return result


def has_kernel(call: Call) -> bool:
    codes = all(moment.dtype == torch.uint8 for moment in (*call.m, *call.v))
    return codes and not call.s and call.stochastic_rounding is None


def run(call: Call) -> None:
    check(call)
    call.check_memory()
    if on_host(call.step):
        first = 0 if call.convention == "device" else 1
        smallest = min(d.step_values(call.step, len(call.var)), default=first)
        d.require(smallest >= first, f"step is {smallest}; accepted: {first} and above")
    worked_on = d.with_contiguous(call)  # kept until the launches are queued
    for launch in launches(worked_on):
        launch.run()
    d.write_back(*zip(call.updated, worked_on.updated, strict=True))
