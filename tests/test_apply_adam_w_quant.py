"""apply_adam_w_quant beyond what every operator must do: its document's examples, and the cases users met elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import anyfuse
from anyfuse import _core
from anyfuse._bits import same_bits
from anyfuse.formats import create_codebook, dequantize_blockwise, quantize_blockwise

LINEAR = (create_codebook("linear", True), create_codebook("linear", False))
DYNAMIC = (create_codebook("dynamic", True), create_codebook("dynamic", False))


class State:
    """A parameter and its 8-bit state, zero at first."""

    def __init__(self, var: Tensor, maps: tuple[Tensor, Tensor] = DYNAMIC, block_size: int = 256) -> None:
        self.var, self.maps, self.block_size = var.clone(), maps, block_size
        zeros = torch.zeros(var.shape)
        self.m, self.absmax_m = quantize_blockwise(zeros, maps[0], block_size)
        self.v, self.absmax_v = quantize_blockwise(zeros, maps[1], block_size)

    def step(self, grad: Tensor, step: int, **options: Any) -> None:
        anyfuse.apply_adam_w_quant_(
            self.var, grad, self.m, self.v, *self.maps, self.absmax_m, self.absmax_v, step,
            **{"lr": 0.1, "block_size": self.block_size, "convention": "formula", **options},
        )  # fmt: skip

    def tensors(self) -> list[Tensor]:
        return [self.var, self.m, self.v, self.absmax_m, self.absmax_v]

    def moments(self) -> tuple[Tensor, Tensor]:
        return (
            dequantize_blockwise(self.m, self.absmax_m, self.maps[0], self.block_size),
            dequantize_blockwise(self.v, self.absmax_v, self.maps[1], self.block_size),
        )


@pytest.fixture(params=["reference", *_core.available_targets()], autouse=True)
def implementation(request: pytest.FixtureRequest) -> Any:
    """Every test runs on the reference and on each target."""
    if request.param == "reference":
        with anyfuse.backend("reference"):
            yield
    else:
        with _core.target(request.param):
            yield


def equal(tensor: Tensor, values: list[float]) -> bool:
    return same_bits(tensor, torch.tensor(values, dtype=tensor.dtype))


# ---- the worked examples of the operator's document; there the attributes are fp32 ----


def example(dtype: torch.dtype = torch.float32) -> State:
    state = State(torch.tensor([1, -1, 0.5, 0], dtype=dtype), LINEAR)
    state.m.fill_(127)
    return state


E1_GRAD = torch.tensor([0.1, -0.2, 0.3, 0])
E1 = {"lr": 0.01, "weight_decay": 0.1}


def test_worked_example_e1_device() -> None:
    state = example()
    state.step(E1_GRAD, 1, convention="device", **E1)
    assert state.m.tolist() == [170, 42, 255, 127]
    assert state.v.tolist() == [28, 113, 255, 0]
    assert equal(state.absmax_m, [0.0300000086]) and equal(state.absmax_v, [8.99988445e-5])


def test_worked_example_e1_device_is_one_step_ahead_of_the_formula() -> None:
    state = example()
    state.step(E1_GRAD, 0, convention="device", **E1)
    assert equal(state.var, [0.989010036, -0.989010036, 0.489510030, 0])
    state = example()
    state.step(E1_GRAD, 1, convention="device", **E1)
    assert equal(state.var, [0.991566122, -0.991566122, 0.492066115, 0])


def test_worked_example_e1_formula_decays_the_parameter_before_the_update() -> None:
    state = example()
    state.step(E1_GRAD, 1, **E1)
    # The document's values, whose constants were computed in fp32: a few ulp of the update of 0.01.
    expected = torch.tensor([0.989000022, -0.989000022, 0.489500016, 0])
    torch.testing.assert_close(state.var, expected, rtol=0, atol=2**-23)
    assert state.m.tolist() == [170, 42, 255, 127] and state.v.tolist() == [28, 113, 255, 0]


def test_worked_example_e2_all_zero() -> None:
    state = State(torch.tensor([1, -1, 0.5, 0]), LINEAR)
    state.step(torch.zeros(4), 1, **E1)
    assert equal(state.var, [0.999, -0.999, 0.4995, 0])
    assert state.m.tolist() == [127] * 4 and state.v.tolist() == [0] * 4
    assert state.absmax_m.item() == 0 and state.absmax_v.item() == 0


def test_worked_example_e5_fp16() -> None:
    state = example(torch.float16)
    state.step(E1_GRAD.half(), 0, convention="device", **E1)
    assert equal(state.var, [0.98876953125, -0.98876953125, 0.489501953125, 0])


@pytest.mark.parametrize(
    ("step", "var"),
    [
        (2, [1.56854534, -1.00444591, 0.494542003, -0.000284770940]),
        (3, [1.51720238, -1.00404441, 0.495034873, -0.000259054359]),
    ],
)
def test_worked_example_e6_device_counts_one_more_than_step(step: int, var: list[float]) -> None:
    state = example()
    state.m.copy_(torch.tensor([0, 255, 200, 128]))
    state.v.copy_(torch.tensor([0, 255, 64, 1]))
    state.absmax_m.fill_(0.5)
    state.absmax_v.fill_(0.04)
    state.step(E1_GRAD, step, convention="device", lr=0.01, gnorm_scale=0.5)
    # The document's 0.9^4 is one fp32 ulp below the exact power's rounding; it shows in the last element alone.
    assert equal(state.var[:3], var[:3])
    torch.testing.assert_close(state.var[3].item(), var[3], rtol=2**-23, atol=0)
    assert equal(state.absmax_m, [0.444999993]) and equal(state.absmax_v, [0.0399699993])
    assert state.m.tolist() == [0, 254, 205, 128] and state.v.tolist() == [0, 255, 64, 1]


# ---- cases from comparable libraries ----


def test_case_o7_the_last_block_may_be_partial() -> None:
    grad = torch.randn(4097, generator=torch.Generator().manual_seed(0)) * 1e-3
    grad[-1] = 1e3
    state = State(torch.zeros(4097))
    assert state.absmax_m.shape == (17,)
    state.step(grad, 1)
    assert equal(state.absmax_m[16:], [0.1 * 1e3])
    last = state.moments()[0][4096]
    assert last == state.absmax_m[16]
    alone = State(torch.zeros(4096))
    alone.step(grad[:4096], 1)
    assert same_bits(state.var[:4096], alone.var) and same_bits(state.m[:4096], alone.m)


def test_case_o8_views_are_stepped_in_place() -> None:
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(128, 64, generator=generator)
    grads = torch.randn(128, 128, generator=generator)[::2]
    for grad in (grads, torch.randn(64, 1, generator=generator).expand(64, 128)):
        view = base.clone().t()
        whole = State(view.contiguous())
        state = State(view)
        state.var = view
        address, strides = view.data_ptr(), view.stride()
        for now in (1, 2):
            state.step(grad, now)
            whole.step(grad.contiguous(), now)
        assert same_bits(view, whole.var) and same_bits(state.m, whole.m) and same_bits(state.v, whole.v)
        assert (view.data_ptr(), view.stride()) == (address, strides)


@pytest.mark.parametrize("var_dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("grad_dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_case_o9_every_pair_of_dtypes_computes_in_fp32(var_dtype: torch.dtype, grad_dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    var = torch.randn(300, generator=generator).to(var_dtype)
    grad = torch.randn(300, generator=generator).to(grad_dtype)
    state, wide = State(var), State(var.float())
    state.step(grad, 1, weight_decay=0.1)
    wide.step(grad.float(), 1, weight_decay=0.1)
    assert same_bits(state.var, wide.var.to(var_dtype))
    assert same_bits(state.m, wide.m) and same_bits(state.absmax_v, wide.absmax_v)


@pytest.mark.parametrize("shape", [(0,), (), (1,), (255,), (256,), (257,), (3, 0, 2)])
def test_case_o10_small_sizes(shape: tuple[int, ...]) -> None:
    state = State(torch.ones(shape))
    state.step(torch.ones(shape), 1)
    # lr·1/(1 + eps·c2) rounded: 0.1 off one, to an ulp.
    torch.testing.assert_close(state.var, torch.full(shape, 0.9), rtol=0, atol=2**-24)


def test_case_o12_decay_before_the_update_and_after_it() -> None:
    for convention, step, expected in (("formula", 1, 0.85), ("device", 0, 0.855)):
        state = State(torch.ones(1))
        state.step(torch.ones(1), step, weight_decay=0.5, convention=convention)
        torch.testing.assert_close(state.var, torch.tensor([expected]), rtol=0, atol=2**-23)


def test_case_o14_a_small_second_moment_beside_a_large_one() -> None:
    moved = {}
    for nonzero_v in (False, True):
        for size in (1e-4, 1e-5):
            state = State(torch.zeros(4096))
            grad = torch.zeros(4096)
            grad[0], grad[1] = 1.0, size
            state.step(grad, 1, nonzero_v=nonzero_v)
            before = state.var[1].item()
            state.step(torch.zeros(4096), 2, nonzero_v=nonzero_v)
            moved[nonzero_v, size] = abs(state.var[1].item() - before) / 0.1
    # The codebook's relative resolution decides these: to the three or four digits of the case.
    assert moved[False, 1e-4] == pytest.approx(4204, rel=1e-3)
    assert moved[False, 1e-5] == pytest.approx(367, rel=2e-3)
    assert moved[True, 1e-4] <= 1.5 and moved[True, 1e-5] <= 1.5


def test_case_o16_blocks_of_zeros() -> None:
    start = torch.linspace(-1, 1, 8192)
    state = State(start)
    for now in (1, 2, 3):
        state.step(torch.zeros(8192), now, weight_decay=0.01)
    factor = torch.tensor(1 - 0.1 * 0.01)
    assert same_bits(state.var, start * factor * factor * factor)
    assert state.absmax_m.count_nonzero() == 0 and state.absmax_v.count_nonzero() == 0
    assert state.m.unique().tolist() == [127] and state.v.unique().tolist() == [0]
    before = [tensor.clone() for tensor in state.tensors()]
    grad = torch.zeros(8192)
    grad[512] = 1.0
    state.step(grad, 4)
    assert state.absmax_m.nonzero().tolist() == [[2]]
    outside = torch.arange(8192) // 256 != 2
    for old, new in zip(before[:3], state.tensors()[:3], strict=True):
        assert same_bits(old[outside], new[outside])


def test_case_o21_steps_of_their_own() -> None:
    first, late = State(torch.zeros(8)), State(torch.zeros(8))
    for now in range(1, 10):
        first.step(torch.ones(8), now)
    lists = [[a, b] for a, b in zip(first.tensors(), late.tensors(), strict=True)]
    var, m, v, absmax_m, absmax_v = lists
    grads = [torch.ones(8), torch.ones(8)]
    anyfuse.apply_adam_w_quant_(var, grads, m, v, *DYNAMIC, absmax_m, absmax_v, [10, 1], lr=0.1)
    torch.testing.assert_close(late.var, torch.full((8,), -0.1), rtol=2**-22, atol=0)


def test_case_o22_empty_tensors_in_a_list() -> None:
    sizes = [4096, 0, 0, 300, *[0] * 50]
    states = [State(torch.ones(size)) for size in sizes]
    var, m, v, absmax_m, absmax_v = zip(*(state.tensors() for state in states), strict=True)
    anyfuse.apply_adam_w_quant_(var, [torch.ones(n) for n in sizes], m, v, *DYNAMIC, absmax_m, absmax_v, 1, lr=0.1)
    for state, size in zip(states, sizes, strict=True):
        alone = State(torch.ones(size))
        alone.step(torch.ones(size), 1)
        assert all(map(same_bits, state.tensors(), alone.tensors()))


def test_case_o26_one_rounding_for_decay_and_update() -> None:
    state = State(torch.ones(256, dtype=torch.bfloat16))
    state.step(torch.full((256,), 0.5, dtype=torch.bfloat16), 1, lr=0.3, weight_decay=0.3)
    wide = State(torch.ones(256))
    wide.step(torch.full((256,), 0.5), 1, lr=0.3, weight_decay=0.3)
    assert same_bits(state.var, wide.var.bfloat16())


# ---- the operator's own rules ----


def test_it_is_adamw_within_the_codebooks_resolution() -> None:
    """With moments exact in the map (one value a block) it is torch.optim.AdamW up to fp32 rounding."""
    state = State(torch.linspace(-1, 1, 256))
    parameter = torch.nn.Parameter(state.var.clone())
    optimizer = torch.optim.AdamW([parameter], lr=0.01, weight_decay=0.1)
    for now in range(1, 20):
        parameter.grad = torch.full((256,), 0.3)
        optimizer.step()
        state.step(parameter.grad, now, lr=0.01, weight_decay=0.1)
    # 20 steps of two roundings each, of values up to 1.
    torch.testing.assert_close(state.var, parameter.detach(), rtol=0, atol=20 * 2 * 2**-24)


def test_a_nan_or_an_infinity_stays_in_its_block() -> None:
    generator = torch.Generator().manual_seed(3)
    grad = torch.randn(1024, generator=generator)
    clean = State(torch.zeros(1024))
    clean.step(grad, 1)
    for value in (float("nan"), float("inf"), float("-inf")):
        bad = grad.clone()
        bad[300] = value
        state = State(torch.zeros(1024))
        state.step(bad, 1)
        inside = torch.arange(1024) // 256 == 1
        assert same_bits(state.var[~inside], clean.var[~inside]) and same_bits(state.m[~inside], clean.m[~inside])
        assert state.var[300].isnan() and int(state.var.isnan().sum()) == 1
        assert not state.absmax_m[1].isfinite() and not state.absmax_v[1].isfinite()
        assert state.m[300] == 0
        if value != value:
            assert state.m[inside].unique().tolist() == [0] and state.v[inside].unique().tolist() == [0]


def test_skip_nonfinite_keeps_the_block() -> None:
    generator = torch.Generator().manual_seed(4)
    grad = torch.randn(1000, generator=generator)
    state = State(torch.ones(1000, dtype=torch.bfloat16))
    state.step(grad, 1)
    before = [tensor.clone() for tensor in state.tensors()]
    plain = State(torch.ones(1000, dtype=torch.bfloat16))
    plain.step(grad, 1)
    bad = grad.clone()
    bad[999] = float("nan")  # in the last, partial block
    state.step(bad, 2, skip_nonfinite=True)
    plain.step(grad, 2)
    for old, new, other in zip(before[:3], state.tensors()[:3], plain.tensors()[:3], strict=True):
        assert same_bits(new[768:], old[768:]) and same_bits(new[:768], other[:768])
    assert same_bits(state.absmax_m[3:], before[3][3:]) and same_bits(state.absmax_m[:3], plain.absmax_m[:3])


def test_gradient_factors() -> None:
    grad = torch.randn(700, generator=torch.Generator().manual_seed(5))
    unscale = torch.tensor(1 / 3.0)

    def stepped(given: Tensor, **options: Any) -> list[Tensor]:
        state = State(torch.ones(700))
        state.step(given, 1, **options)
        return state.tensors()

    def same(a: list[Tensor], b: list[Tensor]) -> bool:
        return all(map(same_bits, a, b))

    assert same(stepped(grad, maximize=True), stepped(-grad))
    assert same(stepped(grad, gnorm_scale=0.37), stepped(grad * 0.37))
    assert same(stepped(grad, grad_scale=torch.tensor([3.0])), stepped(grad * unscale))
    both = stepped(grad, grad_scale=torch.tensor([3.0]), gnorm_scale=0.37, maximize=True)
    assert same(both, stepped(-(grad * unscale) * 0.37))
    assert same(stepped(grad, found_inf=torch.ones(1)), State(torch.ones(700)).tensors())
    assert same(stepped(grad, lr=torch.tensor([0.25])), stepped(grad, lr=0.25))


@pytest.mark.parametrize("block_size", [64, 128, 512, 1024, 2048])
def test_other_block_sizes_are_the_same_step_with_other_scales(block_size: int) -> None:
    grad = torch.randn(3 * block_size + 5, generator=torch.Generator().manual_seed(6))
    state = State(torch.zeros_like(grad), block_size=block_size)
    state.step(grad, 1)
    moment = (grad * torch.tensor(1.0 - 0.9)).split(block_size)
    assert same_bits(state.absmax_m, torch.stack([block.abs().max() for block in moment]))
    expected = torch.cat([quantize_blockwise(block, DYNAMIC[0], block_size)[0] for block in moment])
    assert torch.equal(state.m, expected)


def test_codes_are_exact_around_every_boundary_of_a_map() -> None:
    """Gradients that put n on, above and below each place where the code changes, at a scale of 1."""
    generator = torch.Generator().manual_seed(7)
    near_one = torch.cat([torch.linspace(-0.9, 0.2, 254), torch.tensor([0.3, 0.300001])])  # ends far below 1
    for maps in (
        DYNAMIC,
        LINEAR,
        (torch.randn(256, generator=generator).sort().values / 3, torch.rand(256, generator=generator).sort().values),
        ((torch.randn(256, generator=generator) * 4).round().sort().values / 16, DYNAMIC[1]),
        (near_one, near_one.abs().sort().values),
    ):
        middles = (maps[0][1:] + maps[0][:-1]) / 2
        n = torch.cat([middles, *(torch.nextafter(middles, torch.tensor(to)) for to in (2.0, -2.0)), maps[0]])
        n = torch.cat([torch.ones(1), n.clamp(-1, 1)])
        for part in n.split(255):
            grad = torch.cat([torch.ones(1), part])
            state = State(torch.zeros(grad.shape), maps)
            state.step(grad, 1, beta1=0.0, beta2=0.0)  # m' = grad, v' = grad², both with a scale of 1
            assert torch.equal(state.m, quantize_blockwise(grad, maps[0])[0])
            assert torch.equal(state.v, quantize_blockwise(grad * grad, maps[1], keep_sign=False)[0])


def test_a_large_number_of_maps_at_once() -> None:
    """More maps than the library keeps tables for, each used again after the others."""
    generator = torch.Generator().manual_seed(8)
    grad = torch.randn(256, generator=generator)
    maps = [torch.rand(256, generator=generator).sort().values for _ in range(12)]
    for _ in range(2):
        for book in maps:
            state = State(torch.zeros(256), (book, book))
            state.step(grad, 1, beta1=0.0)
            assert torch.equal(state.m, quantize_blockwise(grad, book)[0])
