"""AdamW8bit: the cases of section 1 (their numbers in the names), its state, and the converters."""

from __future__ import annotations

import copy
import ctypes
import itertools
import math
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import optimizers
import pytest
import torch
from optimizers import equal, give_gradients, parameter, same, snapshot, train
from torch import nn

import anyfuse
from anyfuse import _core
from anyfuse.formats import create_codebook, dequantize_blockwise, quantize_blockwise
from anyfuse.ops import _rounding
from anyfuse.optim import AdamW8bit, export_state, import_state

MAPS = create_codebook("dynamic", signed=True), create_codebook("dynamic", signed=False)


def stepped(size: int, steps: int = 3, **options: Any) -> tuple[nn.Parameter, AdamW8bit]:
    weight = nn.Parameter(torch.ones(size))
    optimizer = AdamW8bit([weight], **options)
    for step in range(steps):
        give_gradients([weight], step)
        optimizer.step()
    return weight, optimizer


def test_one_step_equals_the_operator_bit_for_bit() -> None:
    weight, optimizer = stepped(10_000, steps=2, lr=0.01, weight_decay=0.1)
    var, state = torch.ones(10_000), (torch.zeros(10_000, dtype=torch.uint8) for _ in range(2))
    m, v = (codes.fill_(int((qmap == 0).nonzero())) for codes, qmap in zip(state, MAPS, strict=True))
    absmax_m, absmax_v = torch.zeros(40), torch.zeros(40)
    for step in range(2):
        other = nn.Parameter(torch.ones(10_000))
        give_gradients([other], step)
        anyfuse.apply_adam_w_quant_(
            var, other.grad, m, v, *MAPS, absmax_m, absmax_v, step + 1, lr=0.01, weight_decay=0.1, nonzero_v=True
        )
    own = optimizer.state[weight]
    assert equal([weight, own["exp_avg"], own["exp_avg_sq"], own["absmax_exp_avg"]], [var, m, v, absmax_m])


# ---- the cases ----


def test_case_o1_a_state_of_another_block_size() -> None:
    _, old = stepped(8192, block_size=2048)
    weight = nn.Parameter(torch.ones(8192))
    optimizer = AdamW8bit([weight], block_size=256)
    saved = snapshot(old)
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["block_size"] == 2048, "the state goes on with the blocks that it was saved with"
    assert optimizer.state[weight]["absmax_exp_avg"].numel() == 4

    saved["param_groups"][0]["block_size"] = 256
    fresh = AdamW8bit([weight])
    with pytest.raises(ValueError, match=r"2048.*256"):
        fresh.load_state_dict(saved)
    assert not fresh.state

    import_state(fresh, export_state(old, "bitsandbytes"), "bitsandbytes")  # dequantized by 2048, quantized by 256
    (old_state,), new_state = old.state.values(), fresh.state[weight]
    assert new_state["absmax_exp_avg"].numel() == 32
    before = dequantize_blockwise(old_state["exp_avg"], old_state["absmax_exp_avg"], MAPS[0], 2048)
    after = dequantize_blockwise(new_state["exp_avg"], new_state["absmax_exp_avg"], MAPS[0], 256)
    scale = new_state["absmax_exp_avg"].repeat_interleave(256)
    assert float(((before - after).abs() / scale).max()) <= float(MAPS[0].diff().max()), "one step of the map"


def test_case_o2_an_fp32_checkpoint_in_a_bf16_model() -> None:
    model = optimizers.model()
    optimizer = AdamW8bit(model.parameters())
    train(model, optimizer, range(5))
    half = optimizers.model(torch.bfloat16)
    other = AdamW8bit(half.parameters())
    other.load_state_dict(snapshot(optimizer))
    assert same(snapshot(optimizer), snapshot(other))
    weight, bias = list(half.parameters())[:2]
    assert other.state[weight]["exp_avg"].dtype == torch.uint8
    assert other.state[bias]["exp_avg"].dtype == other.state[weight]["absmax_exp_avg"].dtype == torch.float32


def test_case_o6_min_8bit_size() -> None:
    sizes = (1023, 1024, 4095, 4096, 4097)
    for limit, coded in (({"min_8bit_size": 1024}, sizes[1:]), ({}, sizes[3:])):
        for size in sizes:
            weight, optimizer = stepped(size, **limit)
            state = optimizer.state[weight]
            assert (state["exp_avg"].dtype == torch.uint8) == (size in coded)
            if size in coded:
                assert state["absmax_exp_avg"].shape == (math.ceil(size / 256),)


def test_case_o7_a_partial_last_block_keeps_8_bits() -> None:
    memory = torch.full((5000,), float("nan"))
    grad = torch.randn(4097) * 1e-3
    grad[-1] = 1e3
    memory[:4097] = grad
    weight = nn.Parameter(torch.ones(4097))
    optimizer = AdamW8bit([weight], lr=1e-3)
    weight.grad = memory[:4097]
    optimizer.step()
    state = optimizer.state[weight]
    m = dequantize_blockwise(state["exp_avg"], state["absmax_exp_avg"], MAPS[0])
    assert state["absmax_exp_avg"].numel() == 17 and float(state["absmax_exp_avg"][16]) == float(m[4096].abs())
    assert bool(weight.isfinite().all()) and bool(memory[4097:].isnan().all())
    held = sum(value.nbytes for key, value in state.items() if key != "step")
    assert held <= 2 * 4097 + 2 * 17 * 4


def test_state_bytes() -> None:
    weight, optimizer = stepped(1 << 16)
    held = sum(value.nbytes for key, value in optimizer.state[weight].items() if key != "step")
    assert held == 2 * weight.numel() + 8 * weight.numel() // 256


def test_case_o9_dtypes_of_parameters_and_gradients() -> None:
    codes, absmax = quantize_blockwise(torch.ones(5, 10, dtype=torch.float16), MAPS[0])
    assert torch.equal(dequantize_blockwise(codes, absmax, MAPS[0]), torch.ones(5, 10))
    floats = (torch.float32, torch.bfloat16, torch.float16)
    for var_dtype, grad_dtype in itertools.product(floats, floats):
        grad = (torch.randn(300) * 0.1).to(grad_dtype)
        results = []
        for dtype in (var_dtype, torch.float32):
            var, m, v = torch.ones(300, dtype=dtype), torch.zeros(300), torch.zeros(300)
            none = torch.zeros(0)
            anyfuse.apply_adam_w_quant_(var, grad, m, v, *MAPS, none, none.clone(), 1, lr=0.1)
            results.append(var)
        assert torch.equal(results[0], results[1].to(var_dtype)), "fp32 arithmetic, rounded once"


@pytest.mark.parametrize("block_size", [0, -1, 3, 2**64, "256", 256.0])
def test_case_o10_silly_block_sizes(block_size: Any) -> None:
    with pytest.raises(ValueError, match="block_size"):
        AdamW8bit([parameter(1.0)], block_size=block_size)


def test_case_o12_weight_decay_comes_first() -> None:
    for size in (1, 4096):
        weight = nn.Parameter(torch.ones(size))
        weight.grad = torch.ones(size)
        AdamW8bit([weight], lr=0.1, weight_decay=0.5).step()
        torch.testing.assert_close(weight.detach(), torch.full((size,), 0.85))


@pytest.mark.parametrize("small", [1e-4, 1e-5])
def test_case_o14_the_step_does_not_explode_when_the_gradient_vanishes(small: float) -> None:
    def largest_second_step(**options: Any) -> float:
        weight = nn.Parameter(torch.zeros(4096))
        optimizer = AdamW8bit([weight], lr=0.1, weight_decay=0.0, **options)
        weight.grad = torch.zeros(4096)
        weight.grad[0], weight.grad[1] = 1.0, small
        optimizer.step()
        before = weight.detach().clone()
        weight.grad = torch.zeros(4096)
        optimizer.step()
        return float((weight.detach() - before).abs().max())

    assert largest_second_step() <= 1.5 * 0.1
    assert largest_second_step(nonzero_v=False) > 100 * 0.1


def test_case_o16_gradients_of_zero() -> None:
    weight = nn.Parameter(torch.randn(8192))
    start = weight.detach().clone()
    optimizer = AdamW8bit([weight], lr=0.1, weight_decay=0.01)
    for _ in range(3):
        weight.grad = torch.zeros(8192)
        optimizer.step()
    decay = torch.tensor(1 - 0.1 * 0.01)
    assert torch.equal(weight.detach(), start * decay * decay * decay)
    state = optimizer.state[weight]
    assert not state["absmax_exp_avg"].any() and not state["absmax_exp_avg_sq"].any()
    assert bool((MAPS[0][state["exp_avg"].long()] == 0).all()) and bool(
        (MAPS[1][state["exp_avg_sq"].long()] == 0).all()
    )
    before = copy.deepcopy(state)
    weight.grad = torch.zeros(8192)
    weight.grad[256:512] = 1.0
    optimizer.step()
    changed = (state["absmax_exp_avg"] != before["absmax_exp_avg"]).nonzero().flatten().tolist()
    codes = (state["exp_avg"] != before["exp_avg"]).view(-1, 256).any(dim=1).nonzero().flatten().tolist()
    assert changed == codes == [1]


def test_case_o18_a_group_with_32_bits_equals_torch_adamw() -> None:
    own, other = nn.Parameter(torch.ones(5000)), nn.Parameter(torch.ones(5000))
    coded = nn.Parameter(torch.ones(5000))
    optimizer = AdamW8bit([{"params": [own], "state_bits": 32}, {"params": [coded]}], lr=0.01)
    peer = torch.optim.AdamW([other], lr=0.01)
    for step in range(5):
        give_gradients([own, coded], step)
        other.grad = own.grad.clone()
        optimizer.step()
        peer.step()
    torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-6)
    assert optimizer.state[own]["exp_avg"].dtype == torch.float32
    assert optimizer.state[coded]["exp_avg"].dtype == torch.uint8
    fresh = AdamW8bit([{"params": [own]}, {"params": [coded]}])
    fresh.load_state_dict(snapshot(optimizer))
    assert [group["state_bits"] for group in fresh.param_groups] == [32, 8]


def test_options_of_its_own_are_checked() -> None:
    for options in ({"state_bits": 16}, {"codebook": "nf4"}, {"min_8bit_size": -1}, {"block_size": 100}):
        with pytest.raises(ValueError, match=next(iter(options))):
            AdamW8bit([{"params": [parameter(1.0)], **options}])
    for name in ("nonzero_v", "skip_nonfinite", "stochastic_rounding"):
        with pytest.raises(TypeError, match=name):
            AdamW8bit([parameter(1.0)], **{name: 1})


def test_case_o24_the_kernel_takes_indices_beyond_32_bits() -> None:
    """What depends on the index alone is the random number: its upper half must count."""
    assert _core.struct("anyfuse_apply_adam_w_quant_row").numel.size == 8
    key = [int(_rounding._mix(torch.tensor(5) ^ (index >> 32))) for index in (0, 1 << 32, 2 << 32)]
    assert len(set(key)) == 3


HUGE = (1 << 31) + 257


@contextmanager
def repeated(dtype: torch.dtype, fill: float) -> Iterator[torch.Tensor]:
    """HUGE elements in little memory: the same chunk again and again, but for the first and the last two."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    chunk, size = 1 << 22, HUGE * dtype.itemsize
    chunks = -(-size // chunk)
    file = os.memfd_create("chunks")
    os.ftruncate(file, 4 * chunk)  # the first one, the middle, the last two
    access = mmap.PROT_READ | mmap.PROT_WRITE
    base = libc.mmap(None, chunks * chunk, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, -1, 0)  # MAP_NORESERVE
    assert base not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
    try:
        for i in range(chunks):
            place = chunk * (0 if i == 0 else max(1, i - chunks + 4))
            got = libc.mmap(base + i * chunk, chunk, access, mmap.MAP_SHARED | 0x10, file, place)  # MAP_FIXED
            assert got == base + i * chunk, os.strerror(ctypes.get_errno())
        whole = torch.frombuffer((ctypes.c_byte * size).from_address(base), dtype=dtype)
        elements = chunk // dtype.itemsize
        for part in (whole[: 2 * elements], whole[-2 * elements :]):
            part.fill_(fill)
        yield whole
    finally:
        libc.munmap(base, chunks * chunk)
        os.close(file)


@pytest.mark.skipif(sys.platform != "linux", reason="maps memory again and again by Linux's memfd")
def test_case_o24_more_than_2_to_the_31_elements() -> None:
    """Gradients in the first and the last 300 elements alone; those are stepped, the rest stays."""
    zero_m, zero_v = (float((qmap == 0).nonzero()) for qmap in MAPS)
    scales = -(-HUGE // 256)
    with (
        repeated(torch.bfloat16, 1.0) as var,
        repeated(torch.bfloat16, 0.0) as grad,
        repeated(torch.uint8, zero_m) as m,
        repeated(torch.uint8, zero_v) as v,
    ):
        ends = torch.randn(2, 300, generator=torch.Generator().manual_seed(0)).bfloat16()
        grad[:300], grad[-300:] = ends
        absmax = torch.zeros(2, scales)
        arrays = (MAPS[0], MAPS[1], absmax[0], absmax[1])
        anyfuse.apply_adam_w_quant_(var, grad, m, v, *arrays, 1, lr=0.1, nonzero_v=True)
        for i, part in enumerate((slice(0, 512), slice(HUGE - 513, HUGE))):  # whole blocks: HUGE - 513 is a border
            size = part.stop - part.start
            small = nn.Parameter(torch.ones(size, dtype=torch.bfloat16))
            small.grad = torch.zeros_like(small)
            small.grad[(slice(0, 300), slice(-300, None))[i]] = ends[i]
            optimizer = AdamW8bit([small], lr=0.1, weight_decay=0.0, min_8bit_size=0)
            optimizer.step()
            state = optimizer.state[small]
            assert equal([var[part], m[part], v[part]], [small, state["exp_avg"], state["exp_avg_sq"]])
            blocks = slice(part.start // 256, -(-part.stop // 256))
            assert equal([absmax[0][blocks]], [state["absmax_exp_avg"]])
        assert bool((var[10_000:20_000] == 1.0).all()) and bool((var[1 << 30 : (1 << 30) + 5000] == 1.0).all())
        assert not absmax[:, 2:-3].any()


def test_case_o26_bf16_weights_decay_by_stochastic_rounding() -> None:
    """2000 steps with ten times the decay of the case, which is the same product."""
    torch.manual_seed(1)
    near, chance = (nn.Parameter(torch.ones(4096, dtype=torch.bfloat16)) for _ in range(2))
    optimizers_ = [
        AdamW8bit([weight], lr=1e-3, weight_decay=0.1, min_8bit_size=10**9, stochastic_rounding=stochastic)
        for weight, stochastic in ((near, False), (chance, True))
    ]
    near.grad, chance.grad = torch.zeros_like(near), torch.zeros_like(chance)
    for _ in range(2000):
        for optimizer in optimizers_:
            optimizer.step()
    assert torch.equal(near, torch.ones_like(near))
    truth = (1 - 1e-3 * 0.1) ** 2000
    assert float(chance.detach().float().mean()) == pytest.approx(truth, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_stochastic_rounding_is_unbiased_and_safe_at_the_ends(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    values = torch.tensor([0.0, -0.0, info.max, info.min, float("inf"), float("-inf"), float("nan")])
    for seed in range(50):
        got = _rounding.rounded(values, dtype, [seed], 0, 1, 0)
        assert optimizers.equal([got], [values.to(dtype)]), "what the dtype holds stays"
    beyond = torch.full((1000,), info.max) * (1 + 2**-12)
    assert bool((_rounding.rounded(beyond, dtype, [0], 0, 1, 0).float() == info.max).all())
    for scale in (1.0, 1e-6, 3e-8):
        value = torch.rand(1) * scale
        mean = _rounding.rounded(value.expand(200_000).contiguous(), dtype, [3], 0, 1, 0).double().mean()
        step = max(float(value) * info.eps, info.smallest_normal * info.eps)
        assert abs(float(mean) - float(value)) < 0.01 * step  # 5 standard deviations of the mean are 0.0056 steps


def test_random_bits_differ_between_seeds_steps_and_streams() -> None:
    base = _rounding._random_bits(4096, 1, 1, 0)
    for other in ((2, 1, 0), (1, 2, 0), (1, 1, 1), (1, 1 + 2**32, 0)):
        bits = _rounding._random_bits(4096, *other)
        equal_low = float(((base ^ bits) & 0xFFFF == 0).double().mean())
        assert equal_low < 0.002
        flips = sum(float((((base ^ bits) >> i) & 1).double().mean()) for i in range(32)) / 32
        assert flips == pytest.approx(0.5, abs=0.01)


# ---- converters ----


def trained() -> tuple[nn.Module, AdamW8bit]:
    model = optimizers.model()
    optimizer = AdamW8bit(model.parameters(), lr=1e-2)
    train(model, optimizer, range(4))
    return model, optimizer


@pytest.mark.parametrize("layout", ["bitsandbytes", "torchao"])
def test_layouts_with_codes_come_back_bit_for_bit(layout: str) -> None:
    model, optimizer = trained()
    exported = export_state(optimizer, layout)
    again = AdamW8bit(model.parameters())
    import_state(again, exported, layout)
    assert same(snapshot(optimizer)["state"], snapshot(again)["state"])
    assert again.param_groups[0]["lr"] == 1e-2


def test_bitsandbytes_layout() -> None:
    _, optimizer = trained()
    state = export_state(optimizer, "bitsandbytes")["state"]
    assert (
        set(state[0]) == {"step", "state1", "state2", "qmap1", "qmap2", "absmax1", "absmax2"} and state[0]["step"] == 4
    )
    assert set(state[1]) == {"step", "state1", "state2"} and state[1]["state1"].dtype == torch.float32
    wrapped = {"step": 4, "__bnb_optimizer_quant_state__": {k: v for k, v in state[0].items() if k != "step"}}
    model = optimizers.model()
    again = AdamW8bit(model.parameters())
    exported = export_state(optimizer, "bitsandbytes")
    import_state(again, {**exported, "state": {**exported["state"], 0: wrapped}}, "bitsandbytes")
    assert same(snapshot(optimizer)["state"], snapshot(again)["state"])


def test_torchao_layout_with_attributes() -> None:
    class Stored:
        def __init__(self, parts: dict[str, Any]) -> None:
            self.__dict__.update(parts)

    model, optimizer = trained()
    exported = export_state(optimizer, "torchao")
    for key in ("exp_avg", "exp_avg_sq"):
        exported["state"][0][key] = Stored(exported["state"][0][key])
    again = AdamW8bit(model.parameters())
    import_state(again, exported, "torchao")
    assert same(snapshot(optimizer)["state"], snapshot(again)["state"])


def test_torch_layout_there_and_back() -> None:
    """The moments of torch's AdamW become codes; those go to torch as the values that they stand for."""
    model, optimizer = trained()
    exported = export_state(optimizer, "torch")
    peer = torch.optim.AdamW(model.parameters())
    peer.load_state_dict(exported)
    weight = next(iter(model.parameters()))
    own = optimizer.state[weight]
    assert torch.equal(
        peer.state[weight]["exp_avg"], dequantize_blockwise(own["exp_avg"], own["absmax_exp_avg"], MAPS[0])
    )
    assert float(peer.state[weight]["step"]) == 4.0 and peer.param_groups[0]["lr"] == 1e-2
    again = AdamW8bit(model.parameters())
    import_state(again, peer.state_dict(), "torch")
    new = again.state[weight]
    assert equal([own["exp_avg_sq"], own["absmax_exp_avg_sq"]], [new["exp_avg_sq"], new["absmax_exp_avg_sq"]])
    # The signed map lacks -1, so that a block whose largest moment is negative gets a smaller scale.
    before, after = (
        dequantize_blockwise(state["exp_avg"], state["absmax_exp_avg"], MAPS[0]).view(-1, 256) for state in (own, new)
    )
    assert bool(((before - after).abs() <= 0.0141 * before.abs().amax(dim=1, keepdim=True)).all())


def test_arrays_there_and_back() -> None:
    weight, optimizer = stepped(5000)
    arrays = export_state(optimizer, "arrays")
    again = AdamW8bit([weight])
    import_state(again, arrays, "arrays")
    assert same(snapshot(optimizer)["state"], snapshot(again)["state"])
    var, other = weight.detach().clone(), nn.Parameter(weight.detach().clone())
    give_gradients([weight], 9)
    arrays.pop("step")
    anyfuse.apply_adam_w_quant_([var], [weight.grad], **arrays, step=4, lr=1e-3, weight_decay=1e-2, nonzero_v=True)
    again.step()
    assert equal([weight], [var]) and not torch.equal(weight, other)
    small = AdamW8bit([parameter(1.0)])
    train(nn.ParameterList(small.param_groups[0]["params"]), small, range(1))
    with pytest.raises(ValueError, match="float32 moments"):
        export_state(small, "arrays")


def test_another_codebook_is_requantized_and_what_does_not_fit_refused() -> None:
    weight, optimizer = stepped(5000, codebook="linear")
    again = AdamW8bit([weight])
    import_state(again, export_state(optimizer, "bitsandbytes"), "bitsandbytes")
    linear = create_codebook("linear")
    before = dequantize_blockwise(optimizer.state[weight]["exp_avg"], optimizer.state[weight]["absmax_exp_avg"], linear)
    after = dequantize_blockwise(again.state[weight]["exp_avg"], again.state[weight]["absmax_exp_avg"], MAPS[0])
    assert float((before - after).abs().max()) <= 0.01 * float(before.abs().max())
    other = AdamW8bit([nn.Parameter(torch.ones(4999))])
    with pytest.raises(ValueError, match="exp_avg"):
        import_state(other, export_state(optimizer, "bitsandbytes"), "bitsandbytes")
    with pytest.raises(ValueError, match="layout"):
        import_state(again, {}, "deepspeed")
    assert not other.state


@pytest.mark.parametrize("layout", ["torch", "bitsandbytes", "torchao", "arrays"])
def test_import_of_what_is_no_such_state_is_refused(layout: str) -> None:
    weight = parameter(1.0)
    for other in (anyfuse.optim.LazyAdam([weight]), torch.optim.AdamW([weight])):
        with pytest.raises(TypeError, match="optimizer is a"):
            import_state(other, {}, layout)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="optimizer is a"):
            export_state(other, layout)  # type: ignore[arg-type]
    for state in ({}, None, 3):
        with pytest.raises(TypeError, match="state is a"):
            import_state(AdamW8bit([weight]), state, layout)  # type: ignore[arg-type]


def test_import_refuses_amsgrad_as_load_does() -> None:
    weight = parameter(1.0)
    peer = torch.optim.AdamW([weight], amsgrad=True)
    weight.grad = torch.ones(1)
    peer.step()
    with pytest.raises(ValueError, match="amsgrad"):
        import_state(AdamW8bit([weight]), peer.state_dict(), "torch")
