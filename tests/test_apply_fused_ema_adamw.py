"""apply_fused_ema_adamw: the document's own expression, the worked examples, and what users of such optimizers hit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import anyfuse
from anyfuse import _core
from anyfuse._bits import same_bits
from anyfuse.ops import _checks as checks
from anyfuse.ops import _numerics as numerics
from anyfuse.ops import apply_fused_ema_adamw as op

step_ = anyfuse.apply_fused_ema_adamw_


def call(grad: Any, var: Any, m: Any, v: Any, s: Any, step: Any, **options: Any) -> list[Tensor]:
    """One step on fp32 tensors made of lists."""
    tensors = [torch.tensor(x, dtype=torch.float32) for x in (grad, var, m, v, s)]
    return list(step_(*tensors, step, **options))


# ---- the worked examples of the operator: (arguments, options, var, m, v, s), computed in the device's order ----

TWO = {"grad": [0.5, -1.0], "var": [1.0, 2.0], "m": [0.0, 0.0], "v": [0.0, 0.0], "s": [1.0, 2.0], "step": 1}
RATES = {"lr": 0.1, "ema_decay": 0.9, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01}
EXAMPLES = {
    "E1 the document's call": (
        {"grad": [0.5], "var": [0.5], "m": [0.9], "v": [0.9], "s": [0.5], "step": 1},
        {"lr": 1e-8, "ema_decay": 0.9999, "beta1": 0.9999, "beta2": 0.9999, "weight_decay": 0.001},
        ([0.499999046], [0.899959981], [0.899935007], [0.5]),
    ),
    "E2 AdamW": (
        TWO,
        RATES,
        (
            [0.898999989, 2.09800005],
            [0.0500000119, -0.100000024],
            [0.000249996781, 0.000999987125],
            [0.989899993, 2.00979996],
        ),
    ),
    "E3 Adam with L2": (
        TWO,
        RATES | {"mode": 0},
        (
            [0.899999976, 2.0999999],
            [0.0510000102, -0.0980000272],
            [0.000260096625, 0.000960387698],
            [0.990000010, 2.00999999],
        ),
    ),
    "E4 without bias correction": (
        TWO,
        RATES | {"bias_correction": False},
        (
            [0.682770312, 2.31422973],
            [0.0500000119, -0.100000024],
            [0.000249996781, 0.000999987125],
            [0.968277037, 2.03142309],
        ),
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("convention", ["device", "formula"])
def test_worked_example(name: str, convention: str) -> None:
    """Nine digits name one fp32 number, so the device's order is compared exactly. The device subtracts a rounded beta
    from 1, which the formula does not: their v differ by up to 2^-24 / (1 - beta2), relative."""
    arguments, options, expected = EXAMPLES[name]
    tolerance = 0.0 if convention == "device" else 2**-24 / (1 - options["beta2"])
    for result, values in zip(call(**arguments, **options, convention=convention), expected, strict=True):
        torch.testing.assert_close(result, torch.tensor(values), rtol=tolerance, atol=0.0)


def test_worked_example_e5_nothing_divided_by_nothing() -> None:
    zero = {"grad": [0.0], "var": [1.0], "m": [0.0], "v": [0.0], "s": [1.0], "step": 1}
    assert [float(x) for x in call(**zero)] == [1.0, 0.0, 0.0, 1.0]
    var, m, v, s = call(**zero, eps=0.0)
    assert var.isnan().all() and s.isnan().all() and not m.any() and not v.any()


def test_worked_example_e6_step_zero_is_computed_as_written() -> None:
    var, m, v, s = call([0.5], [1.0], [0.0], [0.0], [1.0], 0)
    assert m == torch.tensor([0.05]) and var.isnan().all() and s.isnan().all()
    torch.testing.assert_close(v, torch.tensor([2.5e-4]))


@pytest.mark.parametrize("convention", ["device", "formula"])
def test_worked_example_e7_bf16(convention: str) -> None:
    tensors = [torch.tensor([x], dtype=torch.bfloat16) for x in (0.5, 1.0, 0.1, 0.01, 1.0)]
    results = step_(*tensors, 10, lr=0.1, ema_decay=0.9, weight_decay=0.01, convention=convention)
    assert [float(x) for x in results] == [0.9765625, 0.1396484375, 0.01025390625, 0.99609375]


# ---- the document's expression ----


def document(grad, var, m, v, s, step, lr, ema_decay, beta1, beta2, eps, mode, bias_correction, weight_decay, root):
    """The expression printed in the document, with the square root as an argument."""
    beta1_correction = 1 - torch.pow(beta1, step) * bias_correction
    beta2_correction = 1 - torch.pow(beta2, step) * bias_correction
    grad_ = grad + weight_decay * var * (1 - mode)
    m_ = beta1 * m + (1 - beta1) * grad_
    v_ = beta2 * v + (1 - beta2) * grad_ * grad_
    next_m = m_ / beta1_correction
    next_v = v_ / beta2_correction
    denom = root(next_v) + eps
    update = next_m / denom + weight_decay * var * mode
    var_ = var - lr * update
    s_ = ema_decay * s + (1 - ema_decay) * var_
    return (var_, m_, v_, s_), update


def agreeing_steps(beta1: float, beta2: float) -> list[int]:
    """Steps at which torch's fp32 power is the correctly rounded one for both betas."""
    return [
        t
        for t in range(1, 200)
        if all(
            float(torch.pow(b, torch.tensor([t]))) == numerics.f32(numerics.power(numerics.f32(b), t))
            for b in (beta1, beta2)
        )
    ]


def random_state(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    grad, var, m, v, s = (torch.randn(count, generator=generator) for _ in range(5))
    return [grad, var, m * 0.1, (v * 0.1) ** 2, s]


OPTIONS = [
    {"mode": mode, "bias_correction": correction, "weight_decay": decay, "beta1": beta1, "beta2": beta2}
    for mode in (0, 1)
    for correction in (True, False)
    for decay in (0.0, 0.01)
    for beta1, beta2 in ((0.9, 0.999), (0.5, 0.9999))
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_document_expression_with_a_correct_root_is_equal_bit_for_bit(options: dict[str, Any]) -> None:
    steps = agreeing_steps(options["beta1"], options["beta2"])
    assert len(steps) > 20
    rates = {"lr": 1e-2, "ema_decay": 0.999, "eps": 1e-8, **options}
    for step in steps[:20]:
        state = random_state(3001)
        expected, _ = document(*state, torch.tensor([step]), **rates, root=numerics.correctly_rounded_sqrt)
        for got, value in zip(step_(*state, step, **rates), expected, strict=True):
            assert torch.equal(got, value)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_document_expression_taken_literally_differs_by_roundings_only(options: dict[str, Any]) -> None:
    """pow(x, 0.5) is off by an ulp at times; m and v cannot notice, var moves by ≤ 4·2⁻²⁴·(|var| + lr·|update|)."""
    rates = {"lr": 1e-2, "ema_decay": 0.999, "eps": 1e-8, **options}
    for step in agreeing_steps(options["beta1"], options["beta2"])[:20]:
        state = random_state(3001)
        old = state[1].clone()
        (var, m, v, _), update = document(*state, torch.tensor([step]), **rates, root=lambda x: torch.pow(x, 0.5))
        got_var, got_m, got_v, _ = step_(*state, step, **rates)
        assert torch.equal(got_m, m) and torch.equal(got_v, v)
        bound = 4 * 2.0**-24 * (old.double().abs() + rates["lr"] * update.double().abs())
        assert ((got_var.double() - var.double()).abs() <= bound).all()


# ---- what users of such optimizers hit ----


def test_case_o13_two_modes_alternate_in_one_process() -> None:
    """p = 1, gradients +1 then -1, lr .1, decay .5: L2 and decoupled steps, alternating, do not disturb each other."""
    states = {mode: [torch.tensor([1.0]), torch.zeros(1), torch.zeros(1), torch.tensor([1.0])] for mode in (0, 1)}
    for step, grad in ((1, 1.0), (2, -1.0)):
        for mode, state in states.items():
            step_(torch.tensor([grad]), *state, step, lr=0.1, weight_decay=0.5, mode=mode)
    expected = {0: (0.8627221, 0.08, 0.00255025), 1: (0.8127632, -0.01, 0.001999)}
    for mode, (var, m, v) in expected.items():
        torch.testing.assert_close(torch.cat(states[mode][:3]), torch.tensor([var, m, v]), rtol=2e-6, atol=0)


def test_case_o8_views_stay_views_and_give_the_values_of_contiguous_tensors() -> None:
    base = torch.randn(128, 64)
    var = base.t()
    grad = torch.randn(1, 128).expand(64, 128)
    m, v, s = torch.zeros(64, 128), torch.zeros(64, 128), torch.zeros(128, 64).t()
    contiguous = [x.clone(memory_format=torch.contiguous_format) for x in (grad, var, m, v, s)]
    address, strides = var.data_ptr(), var.stride()
    step_(grad, var, m, v, s, 1)
    expected = step_(*contiguous, 1)
    for got, value in zip((var, m, v, s), expected, strict=True):
        assert torch.equal(got, value)
    assert torch.equal(base.t(), var) and (var.data_ptr(), var.stride()) == (address, strides)


def test_case_o22_empty_tensors_in_a_list_disturb_nothing() -> None:
    full = [torch.randn(4096).abs() for _ in range(5)]
    alone = [x.clone() for x in full]
    empty = [torch.zeros(0) for _ in range(50)]
    step_(*([torch.zeros(0), x, *[e.clone() for e in empty]] for x in full), 1)
    step_(*alone, 1)
    for got, expected in zip(full, alone, strict=True):
        assert torch.equal(got, expected)


def test_case_o21_every_tensor_of_a_list_has_its_own_step() -> None:
    """A tensor whose first gradient comes at its group's tenth step moves by lr, not by a tenth step's correction."""
    var = [torch.zeros(1), torch.zeros(1)]
    zeros = [[torch.zeros(1), torch.zeros(1)] for _ in range(3)]
    step_([torch.ones(1), torch.ones(1)], var, *zeros, [10, 1], lr=0.1)
    torch.testing.assert_close(var[1], torch.tensor([-0.1]))
    torch.testing.assert_close(var[0], torch.tensor([-0.04844]), rtol=1e-4, atol=0)


def test_case_o9_every_pair_of_dtypes_rounds_once() -> None:
    for var_dtype in checks.FLOATS:
        for grad_dtype in checks.FLOATS:
            grad, var = torch.tensor([0.3], dtype=grad_dtype), torch.tensor([1.7], dtype=var_dtype)
            wide = [grad.float(), var.clone().float(), torch.zeros(1), torch.zeros(1), var.clone().float()]
            narrow = [grad, var, torch.zeros(1), torch.zeros(1), var.clone()]
            assert torch.equal(step_(*narrow, 1)[0], step_(*wide, 1)[0].to(var_dtype))


def test_found_inf_changes_nothing_and_grad_scale_divides() -> None:
    state = random_state(100)
    kept = [x.clone() for x in state]
    step_(*state, 1, found_inf=torch.ones(()))
    assert all(torch.equal(a, b) for a, b in zip(state, kept, strict=True))
    scaled = [kept[0] * 1024, *(x.clone() for x in kept[1:])]
    step_(*scaled, 1, grad_scale=torch.tensor(1024.0), found_inf=torch.zeros(()))
    step_(*kept, 1)
    assert all(torch.equal(a, b) for a, b in zip(scaled[1:], kept[1:], strict=True))


def test_maximize_turns_the_gradient() -> None:
    up, down = random_state(100), random_state(100)
    up[0] = -up[0]
    step_(*up, 1, maximize=True)
    step_(*down, 1)
    assert all(torch.equal(a, b) for a, b in zip(up[1:], down[1:], strict=True))


def test_lr_may_be_a_tensor() -> None:
    a, b = random_state(100), random_state(100)
    step_(*a, torch.tensor([2]), lr=torch.tensor(0.25))
    step_(*b, 2, lr=0.25)
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_infinite_weight_does_not_poison_the_gradient_in_mode_1() -> None:
    """Mode 1 is a branch: the gradient is not `grad + decay·var·0`, which would be NaN for an infinite weight."""
    _, m, v, _ = call([0.5], [float("inf")], [0.0], [0.0], [0.0], 1, weight_decay=0.1)
    assert m.isfinite().all() and v.isfinite().all()


def test_disjoint_views_of_one_storage_are_accepted() -> None:
    storage = torch.zeros(4, 10)
    rows = list(storage)
    step_(torch.ones(10), *rows, 1, lr=0.1)
    torch.testing.assert_close(storage[0], torch.full((10,), -0.1))
    interleaved = torch.zeros(40)
    step_(torch.ones(10), *(interleaved[i::4] for i in range(4)), 1, lr=0.1)
    assert torch.equal(interleaved.view(10, 4).t(), storage)


@pytest.mark.parametrize("convention", ["formula", "device"])
@pytest.mark.parametrize(
    "corrections", [(0.1, 0.001), (0.1, 0.0), (0.0, 0.001), (float("nan"), 1.0), (float("inf"), 1e-50)]
)
def test_given_corrections_are_those_of_the_reference(
    target: str, convention: str, corrections: tuple[float, float]
) -> None:
    """One that is 0 is 1 - beta^step."""
    results = []
    given = [torch.tensor(value, dtype=torch.float64) for value in corrections]
    for backend in ("native", "reference"):
        generator = torch.Generator().manual_seed(0)
        lists = [[torch.rand(n, generator=generator) for n in (5, 130)] for _ in range(5)]
        options = (1e-2, 0.99, 0.9, 0.999, 1e-8, 1, True, 0.01, convention, None, None, None, False, None)
        call = op.Call(*lists, [torch.tensor([3]), torch.tensor([4])], *options, *given, None)
        with _core.target(target), anyfuse.backend(backend):
            torch.ops.anyfuse.apply_fused_ema_adamw_(*call)
        results.append([t for tensors in lists for t in tensors])
    for native, reference in zip(*results, strict=True):
        assert same_bits(native, reference)
