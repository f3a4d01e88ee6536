"""apply_adam_w_quant on GPUs. The mathematics is in `ops/apply_adam_w_quant.py`.

A list of tensors is one launch for each combination of dtypes in it, so that moments of 8 and of 32 bits may stand
side by side; a program takes whole blocks of states. Codes are found by a guide, one for each map, that says where to
look in it, and by comparisons that say whether it was right (`_guided`). Results are built to equal the CPU's bit for
bit on NVIDIA. With steps or a learning rate on the device, what depends on them is computed there in double, by that
device's pow, which is not always the C library's: about once in 2^19 steps a number may round otherwise to fp32. On AMD
the compiler expands a division into a sequence of fused multiply-adds; that its last bit is the correctly rounded one,
on which a code may depend, is not promised. Maps and steps on the device are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..ops import _checks as checks
from ..ops import _memory as memory
from ..ops import _numerics as numerics
from ..ops.apply_adam_w_quant import Call, check, device_numbers, formula_numbers
from ._launch import (
    DTYPES,
    EVERYWHERE,
    INTERPRETED,
    Launch,
    Variant,
    aligned,
    by_dtypes,
    capturing,
    columns,
    find,
    first_blocks,
    held,
    number,
    numbers,
    on_host,
    ones,
    pointer,
    spread,
    table,
)
from ._maths import magnitude_bits, stored, widen

#: Elements of a program: several blocks of states, or one large one.
TILE = 1024


#: Entries of a guide: one for each upper half of the bits of a float32.
GUIDE = 1 << 16

# ---- codes ----


@triton.jit
def _search(n, qmap):
    """The entry before the first that is not below n, by the definition's eight halvings, and the one after it."""
    lower = tl.zeros_like(n).to(tl.int32)
    upper = lower + 255
    for _ in tl.static_range(8):
        pivot = (lower + upper) >> 1
        above = n > tl.load(qmap + pivot)
        lower = tl.where(above, pivot, lower)
        upper = tl.where(above, upper, pivot)
    return lower, upper


@triton.jit
def guide_kernel(qmap, guide, BLOCK: tl.constexpr):
    """guide[u >> 16] = the entry below the smallest number whose bits u have that upper half, at most 253."""
    half = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    smallest = tl.where(half < 0x8000, half << 16, (half << 16) | 0xFFFF)
    lower, _ = _search(smallest.to(tl.float32, bitcast=True), qmap)
    tl.store(guide + half, tl.minimum(lower, 253).to(tl.uint8))


@triton.jit
def _guided(n, qmap, guide):
    """The entry below n, its value and the next one's, and whether that is proven.

    The guide is a proposal: where it was made for this map, and no two entries lie between the numbers that share its
    entry, it is right. The proof does not ask for that. In an ascending map the neighbours with low < n <= high are the
    definition's, and beyond the first and the last entry either of the outer two gives its code. NaN proves nothing.
    """
    first = tl.load(guide + (n.to(tl.int32, bitcast=True) >> 16 & 0xFFFF)).to(tl.int32)
    first = tl.minimum(first, 253)  # a guide of any content reads inside the map
    middle = tl.load(qmap + first + 1)
    above = n > middle
    lower = tl.where(above, first + 1, first)
    other = tl.load(qmap + tl.where(above, first + 2, first))  # the cache's accesses are what is scarce, not its time
    low = tl.where(above, middle, other)
    high = tl.where(above, other, middle)
    proven = ((n > low) | ((lower == 0) & (n <= low))) & ((n <= high) | ((lower == 254) & (n > high)))
    return lower, low, high, proven


@triton.jit
def _nearest(n, lower, upper, low, high):
    """The nearer neighbour, the lower one in a tie, and its value."""
    nearer_low = tl.abs(n - low) <= tl.abs(n - high)
    return tl.where(nearer_low, lower, upper), tl.where(nearer_low, low, high)


@triton.jit
def _encode(n, qmap, guide):
    """The code of n and its entry, before the sign is looked at."""
    lower, low, high, proven = _guided(n, qmap, guide)
    upper = lower + 1
    if tl.min(tl.min(proven.to(tl.int32), axis=1), axis=0) == 0:  # the whole tile again, by the definition
        lower, upper = _search(n, qmap)
        low = tl.load(qmap + lower)
        high = tl.load(qmap + upper)
    return _nearest(n, lower, upper, low, high)


@triton.jit
def _scaled(moment, largest):
    scale = largest.to(tl.float32, bitcast=True)
    return tl.div_rn(moment, tl.where(scale == 0, 1.0, scale)[:, None]), scale


@triton.jit
def _step(
    table, count, i, begin, numel, qmap_m, qmap_v, guide_m, guide_v, unscale, gnorm_scale, beta1, rest1, beta2, rest2,
    step_size, eps_c2, decay, ema_decay, rest, seed, step,
    VAR: tl.constexpr, GRAD: tl.constexpr, S: tl.constexpr, ALIGNED: tl.constexpr, DEVICE: tl.constexpr,
    SKIP_NONFINITE: tl.constexpr, NONZERO_V: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    at = begin + tl.arange(0, ROWS)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    number = begin // BLOCK + tl.arange(0, ROWS)
    exists = number * BLOCK < numel
    if WHOLE:
        mask = tl.full((ROWS, BLOCK), True, tl.int1)
    else:
        mask = at < numel
    at_var = pointer(table, 3 * count + i, VAR, ALIGNED) + at
    at_grad = pointer(table, 4 * count + i, GRAD, ALIGNED) + at
    STATE: tl.constexpr = tl.float32 if guide_m is None else tl.uint8
    at_m = pointer(table, 5 * count + i, STATE, ALIGNED) + at
    at_v = pointer(table, 6 * count + i, STATE, ALIGNED) + at
    if WHOLE:
        raw = widen(tl.load(at_grad))
        var = widen(tl.load(at_var))
        m = tl.load(at_m)
        v = tl.load(at_v)
    else:
        raw = widen(tl.load(at_grad, mask, other=0.0))
        var = widen(tl.load(at_var, mask, other=0.0))
        m = tl.load(at_m, mask, other=0)
        v = tl.load(at_v, mask, other=0)
    at_scale_m = pointer(table, 7 * count + i, tl.float32, ALIGNED) + number
    at_scale_v = pointer(table, 8 * count + i, tl.float32, ALIGNED) + number
    if guide_m is not None:
        m = tl.load(qmap_m + m.to(tl.int32)) * tl.load(at_scale_m, exists, other=0.0)[:, None]
        v = tl.load(qmap_v + v.to(tl.int32)) * tl.load(at_scale_v, exists, other=0.0)[:, None]
    g = raw * unscale * gnorm_scale
    m = m * beta1 + g * rest1
    v = v * beta2 + (g * g) * rest2
    update = tl.div_rn(m * step_size, tl.sqrt_rn(v) + eps_c2)
    if DEVICE:
        var = (var + update) * decay
    else:
        var = var * decay + update

    if SKIP_NONFINITE:
        stepped = exists & (tl.max(magnitude_bits(raw), axis=1) < 0x7F800000)
        written = mask & stepped[:, None]
    else:
        stepped = exists
        written = mask
    if guide_m is not None:
        m = tl.where(mask, m, 0.0)
        v = tl.where(mask, v, 0.0)
        n, scale_m = _scaled(m, tl.max(magnitude_bits(m), axis=1))
        code, entry = _encode(n, qmap_m, guide_m)
        code = code + ((n > 0) & (entry < 0)).to(tl.int32) - ((n < 0) & (entry > 0)).to(tl.int32)
        m_new = tl.minimum(tl.maximum(code, 0), 255).to(tl.uint8)
        n, scale_v = _scaled(v, tl.max(magnitude_bits(v), axis=1))
        code, entry = _encode(n, qmap_v, guide_v)
        if NONZERO_V:
            positive = tl.sum((tl.load(qmap_v + tl.arange(0, 256)) <= 0).to(tl.int32))  # the first entry above 0
            code = tl.where((v > 0) & (entry == 0) & (positive < 256), positive, code)
        v_new = code.to(tl.uint8)
        tl.store(at_scale_m, scale_m, stepped)
        tl.store(at_scale_v, scale_v, stepped)
    else:
        m_new = m
        v_new = v
    if WHOLE and not SKIP_NONFINITE:
        written = None
    tl.store(at_var, stored(var, VAR, seed, step, 0, at, begin >> 32), written)
    tl.store(at_m, m_new, written)
    tl.store(at_v, v_new, written)
    if S is not None:
        at_s = pointer(table, 9 * count + i, S, ALIGNED) + at
        ema = widen(tl.load(at_s, written)) * ema_decay + rest * var
        tl.store(at_s, stored(ema, S, seed, step, 1, at, begin >> 32), written)


@triton.jit(do_not_specialize_on_alignment=["count"])
def kernel(
    table, per_tensor, qmap_m, qmap_v, guide_m, guide_v, unscale, found_inf, steps, count, gnorm_scale,
    beta1, rest1, beta2, rest2, ema_decay, rest,
    VAR: tl.constexpr, GRAD: tl.constexpr, S: tl.constexpr, ALIGNED: tl.constexpr, DEVICE: tl.constexpr,
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
    if steps is None:
        seed = None
        step = None
    else:
        seed = tl.load(table + 2 * count + i)
        step = tl.load(steps + i)
    if begin + ROWS * BLOCK <= numel:  # without a mask loads are as wide as they can be
        _step(
            table, count, i, begin, numel, qmap_m, qmap_v, guide_m, guide_v, tl.load(unscale), gnorm_scale,
            beta1, rest1, beta2, rest2, step_size, eps_c2, decay, ema_decay, rest, seed, step,
            VAR, GRAD, S, ALIGNED, DEVICE, SKIP_NONFINITE, NONZERO_V, ROWS, BLOCK, True,
        )  # fmt: skip
    else:
        _step(
            table, count, i, begin, numel, qmap_m, qmap_v, guide_m, guide_v, tl.load(unscale), gnorm_scale,
            beta1, rest1, beta2, rest2, step_size, eps_c2, decay, ema_decay, rest, seed, step,
            VAR, GRAD, S, ALIGNED, DEVICE, SKIP_NONFINITE, NONZERO_V, ROWS, BLOCK, False,
        )  # fmt: skip


# ---- launches ----

#: The guide of each map, and the version of the map that it was made from.
_guides: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def guide_launch(qmap: Tensor, guide: Tensor) -> Launch:
    block = GUIDE if INTERPRETED else 1024  # one program costs the interpreter as much as a large one
    return Launch(guide_kernel, (GUIDE // block,), {"qmap": qmap, "guide": guide, "BLOCK": block})


def guide_of(qmap: Tensor) -> Tensor:
    """The guide of a map, made once. A map that was changed behind torch's back costs time, not a right code."""
    version = 0 if qmap.is_inference() else qmap._version
    made, guide = _guides.get(qmap, (None, None))
    if guide is not None and made == version:
        return held(guide)
    guide = torch.empty(GUIDE, dtype=torch.uint8, device=qmap.device)
    guide_launch(qmap, guide).run()
    if not capturing(qmap.device):  # a graph makes its own, which is nothing before it is replayed
        _guides[qmap] = version, guide
    return guide


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
        function = device_numbers if convention == "device" else formula_numbers
        rows = [function(t, lr, beta1, beta2, weight_decay, eps)[2:] for t in checks.step_values(step, count)]
        return torch.stack([numbers(column, device) for column in zip(*rows, strict=True)])
    t = spread(step, count, device, torch.float64)
    rate = torch.full_like(t, lr) if not isinstance(lr, Tensor) else lr.to(device).reshape(1).double().expand(count)
    if convention == "device":
        return _fp32_numbers(t, rate, beta1, beta2, weight_decay, eps)
    c1 = 1.0 - torch.pow(torch.full_like(t, beta1), t)
    c2 = (1.0 - torch.pow(torch.full_like(t, beta2), t)).sqrt()
    return torch.stack([-rate * c2 / c1, eps * c2, 1.0 - rate * weight_decay]).float()


def _fp32_numbers(t: Tensor, lr: Tensor, beta1: float, beta2: float, weight_decay: float, eps: float) -> Tensor:
    """The same in the device convention: every operation in fp32."""
    lr, t = lr.float(), (t.float() + 1.0).double()
    c1, rest2 = (1.0 - torch.pow(torch.full_like(t, numerics.f32(beta)), t).float() for beta in (beta1, beta2))
    c2 = numerics.correctly_rounded_sqrt(rest2)
    decay = 1.0 - lr * numerics.f32(weight_decay) if numerics.f32(weight_decay) > 0 else torch.ones_like(lr)
    return torch.stack([(-lr * c2) / c1, c2 * numerics.f32(eps), decay])


def launches(call: Call, guide_m: Tensor | None, guide_v: Tensor | None) -> list[Launch]:
    """The launches of one call; the tensors are contiguous and on one device. Without codes there are no guides."""
    if not call.var:
        return []
    device = call.var[0].device
    sign = -1.0 if call.maximize else 1.0
    unscale = sign if call.grad_scale is None else sign / call.grad_scale.to(device).double()
    rows = max(1, TILE // call.block_size)

    def given(x: float) -> float:
        return numerics.f32(x) if call.convention == "device" else x

    common = {
        "unscale": number(unscale, device),
        "found_inf": None if call.found_inf is None else number(call.found_inf != 0, device),
        "gnorm_scale": numerics.f32(call.gnorm_scale),
        "beta1": numerics.f32(call.beta1),
        "rest1": numerics.f32(1.0 - given(call.beta1)),
        "beta2": numerics.f32(call.beta2),
        "rest2": numerics.f32(1.0 - given(call.beta2)),
        "ema_decay": numerics.f32(call.ema_decay),
        "rest": numerics.f32(1.0 - given(call.ema_decay)),
        "DEVICE": call.convention == "device",
        "SKIP_NONFINITE": call.skip_nonfinite,
        "NONZERO_V": call.nonzero_v,
        "ROWS": rows,
        "BLOCK": call.block_size,
    }
    codes = {"qmap_m": call.qmap_m, "qmap_v": call.qmap_v, "guide_m": guide_m, "guide_v": guide_v}
    lists = (call.var, call.grad, call.m, call.v, call.absmax_m, call.absmax_v, *([call.s] if call.s else []))
    tensors = list(zip(*lists, strict=True))
    rate = call.lr if call.lr_tensor is None else call.lr_tensor
    every = numbers_of_steps(
        call.step, len(tensors), rate, call.beta1, call.beta2, call.weight_decay, call.eps, call.convention, device
    )
    seeds = call.stochastic_rounding or [0] * len(tensors)
    steps = spread(call.step, len(tensors), device, torch.int64) if call.stochastic_rounding else None
    result = []
    for dtypes, places in by_dtypes(tensors).items():
        group = [tensors[i] for i in places]
        sizes = [each[0].numel() for each in group]
        starts, tiles = first_blocks(sizes, rows * call.block_size)
        addresses = [[each[k].data_ptr() for each in group] for k in range(len(lists))]
        arguments = {
            "table": table(device, starts, sizes, [seeds[i] for i in places], *addresses),
            "per_tensor": columns(every, places),
            "steps": None if steps is None else columns(steps, places),
            "count": len(group),
            "VAR": DTYPES[dtypes[0]],
            "GRAD": DTYPES[dtypes[1]],
            "S": DTYPES[dtypes[6]] if call.s else None,
            "ALIGNED": aligned(*addresses),
            **(codes if dtypes[2] == torch.uint8 else dict.fromkeys(codes)),
        }
        result.append(Launch(kernel, (tiles,), common | arguments, num_warps=max(4, rows * call.block_size // 256)))
    return result


def run(call: Call) -> None:
    check(call)
    call.check_memory()
    if on_host(call.step):
        first = 0 if call.convention == "device" else 1
        smallest = min(checks.step_values(call.step, len(call.var)), default=first)
        checks.require(smallest >= first, f"step is {smallest}; accepted: {first} and above")
    worked_on = memory.with_contiguous(call)  # kept until the launches are queued
    coded = any(m.dtype == torch.uint8 and m.numel() for m in call.m)
    guides = [guide_of(qmap) if coded else None for qmap in (worked_on.qmap_m, worked_on.qmap_v)]
    for launch in launches(worked_on, *guides):
        launch.run()
    memory.write_back_all(call.updated, worked_on.updated)


def variants() -> Iterator[Variant]:
    """What is compiled ahead of time."""

    guide = ones(GUIDE, dtype=torch.uint8)

    def launch(
        dtypes: tuple[torch.dtype, ...], block_size: int, state: torch.dtype = torch.uint8, **changes: Any
    ) -> Launch:
        sizes = (4096,) if changes.get("convention") == "device" else (4096, 100)  # one: specialized on its length
        var, grad, *ema = ([ones(size, dtype=dtype) for size in sizes] for dtype in dtypes)
        moments: list[Any] = [[ones(size, dtype=state) for size in sizes] for _ in range(2)]
        maps: list[Any] = [ones(256) for _ in range(2)]
        blocks = [-(-size // block_size) if state == torch.uint8 else 0 for size in sizes]
        scales: list[Any] = [[ones(count) for count in blocks] for _ in range(2)]
        numbers: dict[str, Any] = dict(
            step=[torch.tensor([1])], lr=0.1, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8, gnorm_scale=1.0,
            block_size=block_size, convention="formula", skip_nonfinite=False, nonzero_v=False, lr_tensor=None,
            grad_scale=None, found_inf=None, maximize=False, s=ema[0] if ema else [], ema_decay=0.999,
            stochastic_rounding=None,
        )  # fmt: skip
        call = Call(var, grad, *moments, *maps, *scales, **(numbers | changes))
        return launches(call, guide, guide)[0]

    name, full = "apply_adam_w_quant", (torch.float32,) * 2
    yield Variant(name, "guide of a map", guide_launch(ones(256), guide), EVERYWHERE)
    yield Variant(name, "fp32, blocks of 256", launch(full, 256), EVERYWHERE)
    everything: dict[str, Any] = {"skip_nonfinite": True, "nonzero_v": True, "found_inf": ones(1)}
    everything |= {"stochastic_rounding": [1, 2]}
    guarded = launch((torch.bfloat16, torch.float32, torch.bfloat16), 64, **everything)
    yield Variant(name, "bf16 with EMA, blocks of 64, guarded, rounded by chance", guarded)
    mixed = (torch.float16, torch.bfloat16, torch.float16)
    chance = launch(mixed, 2048, convention="device", stochastic_rounding=[1])
    yield Variant(name, "fp16 with EMA, blocks of 2048, rounded by chance, device", chance)
    yield Variant(name, "fp32 moments, fp32", launch(full, 256, torch.float32))
    state = launch((torch.bfloat16, torch.float32, torch.float32), 64, torch.float32, **everything)
    yield Variant(name, "fp32 moments, bf16 with EMA, guarded, rounded by chance", state, EVERYWHERE)
