"""Adam with an EMA of the weights, written out: which forms are one call of the operator, to the bit or by consent."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from fusing import compiled
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import anyfuse
from anyfuse import fusion
from anyfuse.fusion import _ema_adamw
from anyfuse.ops._numerics import correctly_rounded_sqrt

STEP = "apply_fused_ema_adamw"
BETA1, BETA2, EPS, DECAY, LR, EMA = 0.9, 0.999, 1e-8, 0.01, 1e-3, 0.995

Lists = Sequence[list[Tensor]]  # grad, var, m, v, s


def state(count: int = 3, size: int = 70, dtype: torch.dtype = torch.float32) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        [torch.randn(size, generator=generator).abs().to(dtype) - 0.5 * (k < 3) for _ in range(count)] for k in range(5)
    ]


def functional(lists: Lists, step: Tensor) -> None:
    step.copy_(step + 1)
    c1, c2 = 1 - BETA1**step, 1 - BETA2**step
    for g, p, m, v, s in zip(*lists, strict=True):
        m_new = BETA1 * m + (1 - BETA1) * g
        v_new = BETA2 * v + (1 - BETA2) * g * g
        update = (m_new / c1) / (torch.sqrt(v_new / c2) + EPS) + DECAY * p
        p_new = p - LR * update
        s.copy_(EMA * s + (1 - EMA) * p_new)
        m.copy_(m_new)
        v.copy_(v_new)
        p.copy_(p_new)


def in_place(lists: Lists, step: Tensor) -> None:
    step.add_(1)
    for g, p, m, v, s in zip(*lists, strict=True):
        c1, c2 = 1 - BETA1**step, 1 - BETA2**step
        m.mul_(BETA1).add_(g, alpha=1 - BETA1)
        v.mul_(BETA2).add_((1 - BETA2) * g * g)
        p.sub_((m / c1) / ((v / c2) ** 0.5 + EPS) + p * DECAY, alpha=LR)
        s.mul_(EMA).add_(p, alpha=1 - EMA)


def by_lists(lists: Lists, step: Tensor) -> None:
    grad, var, m, v, s = lists
    step.add_(1)
    torch._foreach_mul_(m, BETA1)
    torch._foreach_add_(m, grad, alpha=1 - BETA1)
    torch._foreach_mul_(v, BETA2)
    torch._foreach_add_(v, torch._foreach_mul(torch._foreach_mul(grad, 1 - BETA2), grad))
    top = torch._foreach_div(m, 1 - BETA1**step)
    bottom = torch._foreach_add(torch._foreach_sqrt(torch._foreach_div(v, 1 - BETA2**step)), EPS)
    update = torch._foreach_add(torch._foreach_div(top, bottom), torch._foreach_mul(var, DECAY))
    torch._foreach_sub_(var, torch._foreach_mul(update, LR))
    torch._foreach_mul_(s, EMA)
    torch._foreach_add_(s, var, alpha=1 - EMA)


def with_l2(lists: Lists, step: Tensor) -> None:
    step.add_(1)
    c1, c2 = 1 - BETA1**step, 1 - BETA2**step
    for g, p, m, v, s in zip(*lists, strict=True):
        g = g.add(p, alpha=DECAY)
        m.mul_(BETA1).add_(g, alpha=1 - BETA1)
        v.mul_(BETA2).add_((1 - BETA2) * g * g)
        p.sub_(LR * ((m / c1) / ((v / c2).sqrt() + EPS)))
        s.mul_(EMA).add_(p, alpha=1 - EMA)


def uncorrected(lists: Lists, step: Tensor) -> None:
    for g, p, m, v, s in zip(*lists, strict=True):
        m.mul_(BETA1).add_(g, alpha=1 - BETA1)
        v.mul_(BETA2).add_((1 - BETA2) * g * g)
        p.add_((m / (v.sqrt() + EPS)).add(p, alpha=DECAY), alpha=-LR)
        s.mul_(EMA).add_(p, alpha=1 - EMA)


EXACT = [functional, in_place, by_lists, with_l2, uncorrected]


def torch_adamw(lists: Lists, step: Tensor) -> None:
    """The order of torch.optim.AdamW, and of most code that is derived from it."""
    step.add_(1)
    c1, c2 = 1 - BETA1**step, 1 - BETA2**step
    for g, p, m, v, s in zip(*lists, strict=True):
        p.mul_(1 - LR * DECAY)
        m.lerp_(g, 1 - BETA1)
        v.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
        p.sub_((LR / c1) * (m / ((v.sqrt() / c2.sqrt()).add_(EPS))))
        s.lerp_(p, 1 - EMA)


def torch_foreach(lists: Lists, step: Tensor) -> None:
    """The capturable form of torch.optim.AdamW(foreach=True)."""
    grad, var, m, v, s = lists
    step.add_(1)
    torch._foreach_mul_(var, 1 - LR * DECAY)
    torch._foreach_lerp_(m, grad, 1 - BETA1)
    torch._foreach_mul_(v, BETA2)
    torch._foreach_addcmul_(v, grad, grad, 1 - BETA2)
    bottom = torch._foreach_sqrt(v)
    torch._foreach_div_(bottom, (1 - BETA2**step).sqrt())
    torch._foreach_add_(bottom, EPS)
    torch._foreach_div_(bottom, -(LR / (1 - BETA1**step)))
    torch._foreach_addcdiv_(var, m, bottom)
    torch._foreach_lerp_(s, var, 1 - EMA)


def squares_first(lists: Lists, step: Tensor) -> None:
    step.add_(1)
    for g, p, m, v, s in zip(*lists, strict=True):
        m.mul_(BETA1).add_((1 - BETA1) * g)
        v.mul_(BETA2).add_((1 - BETA2) * g**2)
        p.sub_(LR * ((m / (1 - BETA1**step)) / ((v / (1 - BETA2**step)).sqrt() + EPS) + DECAY * p))
        s.mul_(EMA).add_((1 - EMA) * p)


def device_rate(lists: Lists, step: Tensor) -> None:
    """The learning rate is computed, too, and decays the weights."""
    step.add_(1)
    lr = LR * (step / 10)
    c1, c2 = 1 - BETA1**step, 1 - BETA2**step
    for g, p, m, v, s in zip(*lists, strict=True):
        p.mul_(1 - lr * DECAY)
        m.mul_(BETA1).add_(g, alpha=1 - BETA1)
        v.mul_(BETA2).add_((1 - BETA2) * g * g)
        p.sub_(lr * (m / c1) / ((v / c2).sqrt() + EPS))
        s.mul_(EMA).add_(p, alpha=1 - EMA)


OTHER_ORDER = {
    torch_adamw: "interpolated",
    torch_foreach: "interpolated",
    squares_first: "squared before it is scaled",
    device_rate: "decayed before they are stepped",
}


def run(function: Callable[..., None], lists: Lists, steps: int = 3) -> None:
    number = torch.zeros(())
    for _ in range(steps):
        function(lists, number)


class SeparatelyRounded(TorchDispatchMode):
    """What inductor computes: roots rounded correctly, and products rounded before they are added. torch's own roots on
    the CPU and its `alpha` are neither."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func._schema.name.removeprefix("aten::").rstrip("_")
        if name in ("add", "sub", "_foreach_add") and "alpha" in kwargs:
            alpha = kwargs.pop("alpha")
            other = [t * alpha for t in args[1]] if isinstance(args[1], list) else args[1] * alpha
            return func(args[0], other, **kwargs)
        if name == "sqrt" or (name == "pow" and args[1] == 0.5):
            return correctly_rounded_sqrt(args[0])
        if name == "_foreach_sqrt":
            return [correctly_rounded_sqrt(t) for t in args[0]]
        return func(*args, **kwargs)


def expected(function: Callable[..., None], given: Lists) -> list[list[Tensor]]:
    copies = copy.deepcopy(list(given))
    with SeparatelyRounded():
        run(function, copies)
    return copies


def equal(a: Lists, b: Lists) -> bool:
    return all(torch.equal(x, y) for left, right in zip(a, b, strict=True) for x, y in zip(left, right, strict=True))


@pytest.mark.parametrize("function", EXACT)
def test_a_step_in_the_operators_order_is_one_call_with_equal_bits(function: Callable[..., None]) -> None:
    given = state()
    want = expected(function, given)
    run(compiled(function), given)
    report = fusion.report()
    assert report.fused == {STEP: 1} and not report.misses and not report.accepted, report
    assert equal(want, given)


@pytest.mark.parametrize("function", OTHER_ORDER)
def test_a_step_in_another_order_is_fused_by_consent(function: Callable[..., None]) -> None:
    given = state()
    want = copy.deepcopy(given)
    run(function, want)
    refused = copy.deepcopy(given)
    run(compiled(function), refused)
    report = fusion.report()
    assert not report.fused
    assert len(report.misses) == 3 and OTHER_ORDER[function] in report.misses[0].reason
    assert "(3 times)" in str(report)
    run(compiled(function, ("order",)), given)
    assert fusion.report().fused == {STEP: 1} and fusion.report().accepted == {"order": 1}
    for tensors in (refused, given):
        for a, b in zip(want, tensors, strict=True):
            # A few roundings of the update's factors, which are of the size of the weights, in each of three steps.
            torch.testing.assert_close(b, a, rtol=2.0**-19, atol=2.0**-22)


def test_16_bit_weights_with_wide_moments() -> None:
    def step(lists: Lists, number: Tensor) -> None:
        number.add_(1)
        c1, c2 = 1 - BETA1**number, 1 - BETA2**number
        for g, p, m, v, s in zip(*lists, strict=True):
            m.mul_(BETA1).add_(g.float(), alpha=1 - BETA1)
            v.mul_(BETA2).add_((1 - BETA2) * g.float() * g.float())
            wide = p.float()
            wide = wide - LR * ((m / c1) / ((v / c2).sqrt() + EPS) + DECAY * wide)
            s.mul_(EMA).add_(wide, alpha=1 - EMA)
            p.copy_(wide)

    given = state()
    for k in (0, 1):
        given[k] = [t.bfloat16() for t in given[k]]
    want = expected(step, given)
    run(compiled(step), given)
    assert fusion.report().fused == {STEP: 1}, fusion.report()
    assert equal(want, given)


def test_uses_of_new_values_get_them() -> None:
    """Of the step in the same graph: a norm of the weights, a second average, the moments as a result."""

    def step(lists: Lists, number: Tensor, other: list[Tensor]) -> list[Tensor]:
        functional(lists, number)
        for p, t in zip(lists[1], other, strict=True):
            t.copy_(p)
        return [torch.stack([p.square().sum() for p in lists[1]]), lists[2][0] + 1, lists[1][0] - other[0]]

    given = state()
    want, others = copy.deepcopy(given), [[torch.zeros(70) for _ in range(3)] for _ in range(2)]
    with SeparatelyRounded():
        results = step(want, torch.zeros(()), others[0])
    got = compiled(step)(given, torch.zeros(()), others[1])
    assert fusion.report().fused == {STEP: 1}
    assert equal(want, given) and equal(others[:1], others[1:])
    torch.testing.assert_close(got, results)


def test_a_gradient_that_needs_an_earlier_step_takes_a_call_of_its_own() -> None:
    def step(lists: Lists, number: Tensor) -> None:
        grad, *rest = lists
        in_place([grad[:1], *(tensors[:1] for tensors in rest)], number)
        in_place([[grad[1] * rest[0][0].sum()], *(tensors[1:2] for tensors in rest)], number - 1)

    given = state(2)
    want = copy.deepcopy(given)
    with SeparatelyRounded():
        step(want, torch.zeros(()))
    compiled(step)(given, torch.zeros(()))
    assert fusion.report().fused == {STEP: 2}
    assert equal(want, given)


def amsgrad(lists: Lists, step: Tensor) -> None:
    for g, p, m, v, s in zip(*lists, strict=True):
        m.mul_(BETA1).add_(g, alpha=1 - BETA1)
        v.copy_(torch.maximum(v, g * g))
        p.sub_(LR * (m / (v.sqrt() + EPS)))
        s.mul_(EMA).add_(p, alpha=1 - EMA)


def two_gradients(lists: Lists, step: Tensor) -> None:
    for g, p, m, v, s in zip(*lists, strict=True):
        m.mul_(BETA1).add_(g, alpha=1 - BETA1)
        twice = 2 * g
        v.mul_(BETA2).add_((1 - BETA2) * twice * twice)
        p.sub_(LR * (m / (v.sqrt() + EPS)))
        s.mul_(EMA).add_(p, alpha=1 - EMA)


def epsilon_inside(lists: Lists, step: Tensor) -> None:
    for g, p, m, v, s in zip(*lists, strict=True):
        m.mul_(BETA1).add_(g, alpha=1 - BETA1)
        v.mul_(BETA2).add_((1 - BETA2) * g * g)
        p.sub_(LR * m / (v + EPS).sqrt())
        s.mul_(EMA).add_(p, alpha=1 - EMA)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (amsgrad, "does not become a mean"),
        (two_gradients, "not of one gradient"),
        (epsilon_inside, "the update is not"),
    ],
)
def test_steps_of_other_optimizers_tell_why(function: Callable[..., None], reason: str) -> None:
    given = state(1)
    want = copy.deepcopy(given)
    run(function, want)
    run(compiled(function, ("order",)), given)
    assert not fusion.report().fused
    (miss,) = fusion.report().misses
    assert miss.operator == STEP and reason in miss.reason
    for a, b in zip(want, given, strict=True):
        torch.testing.assert_close(b, a)


def test_an_average_behind_plain_descent_is_nothing_of_ours() -> None:
    def step(weight: Tensor, grad: Tensor, average: Tensor) -> None:
        weight.sub_(LR * grad)
        average.mul_(EMA).add_(weight, alpha=1 - EMA)

    compiled(step)(torch.ones(5), torch.ones(5), torch.zeros(5))
    assert not fusion.report().fused and not fusion.report().misses


def test_small_tensors_stay_with_inductor() -> None:
    run(compiled(in_place, always=False), state(), 1)
    assert "too small" in fusion.report().misses[0].reason and not fusion.report().fused
    run(compiled(in_place, always=False), state(1, 4 * _ema_adamw.FEWEST_VALUES), 1)
    assert fusion.report().fused == {STEP: 1}


def test_inductor_writes_in_place_with_equal_bits() -> None:
    given = state(2)
    for tensors in given:
        for t in tensors:
            t.requires_grad_()
    want = copy.deepcopy(given)
    places = [t.data_ptr() for tensors in given for t in tensors]
    torch._dynamo.reset()
    plain = torch.compile(torch.no_grad()(in_place), fullgraph=True)
    run(plain, want)
    torch._dynamo.reset()
    fusion.report(reset=True)
    with fusion.enabled(always=True):
        fused = torch.compile(torch.no_grad()(in_place), fullgraph=True)
    run(fused, given)
    assert fusion.report().fused[STEP] == fusion.report().graphs
    assert equal(want, given)
    assert [t.data_ptr() for tensors in given for t in tensors] == places


def corrected(lists: Lists, *corrections: Tensor) -> tuple[Any, ...]:
    """The operator's arguments as the pass gives them."""
    numbers = LR, EMA, BETA1, BETA2, EPS, 1, True, DECAY, "formula", None, None, None, False, None
    return (*lists, [torch.zeros(1, dtype=torch.int64)], *numbers, *corrections, None)


def test_given_corrections_are_those_of_the_reference() -> None:
    lists = state(2)
    corrections = torch.tensor(0.1), torch.tensor(0.001, dtype=torch.float64)
    torch.library.opcheck(_ema_adamw.OPERATOR, corrected(lists, *corrections))
    with anyfuse.backend("reference"):
        want = copy.deepcopy(lists)
        _ema_adamw.OPERATOR(*corrected(want, *corrections))
    _ema_adamw.OPERATOR(*corrected(lists, *corrections))
    assert equal(want, lists)


def test_a_correction_of_0_divides_by_0() -> None:
    lists = state(1)
    _ema_adamw.OPERATOR(*corrected(lists, torch.zeros(()), torch.zeros(())))
    assert lists[1][0].isnan().all() and lists[2][0].isfinite().all()


# ---- what looks like a step and is another, or is one whose numbers need care ----


def with_update(change: Callable[..., None]) -> Callable[..., None]:
    """A step without corrections whose weights are changed by `change(p, m, root, *scalars)`."""

    def step(lists: Lists, *scalars: Tensor) -> None:
        for g, p, m, v, s in zip(*lists, strict=True):
            m.mul_(BETA1).add_(g, alpha=1 - BETA1)
            v.mul_(BETA2).add_((1 - BETA2) * g * g)
            change(p, m, v.sqrt(), *scalars)
            s.mul_(EMA).add_(p, alpha=1 - EMA)

    return step


def check_close(function: Callable[..., None], *scalars: Tensor, fused: bool) -> None:
    """With every difference accepted, three steps differ by last bits of weights and updates of size 1."""
    given = state()
    want = copy.deepcopy(given)
    run_fused = compiled(function, ("order",))
    for _ in range(3):
        with SeparatelyRounded():
            function(want, *scalars)
        run_fused(given, *scalars)
    assert bool(fusion.report().fused) == fused, fusion.report()
    for a, b in zip(want, given, strict=True):
        torch.testing.assert_close(b, a, rtol=2.0**-19, atol=2.0**-22)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_scalars_of_other_widths_are_multiplied_in_float32_at_least(dtype: torch.dtype) -> None:
    def change(p: Tensor, m: Tensor, root: Tensor, lr: Tensor, correction: Tensor) -> None:
        p.mul_(1 - LR * DECAY).sub_(lr * (m / correction) / (root + EPS))

    check_close(with_update(change), torch.tensor(0.0123, dtype=dtype), torch.tensor(0.37, dtype=dtype), fused=True)


def test_a_number_in_a_16_bit_tensor_is_the_rounded_one() -> None:
    def change(p: Tensor, m: Tensor, root: Tensor) -> None:
        p.sub_(torch.full((), 0.0123, dtype=torch.bfloat16) * (m / (root + EPS)))

    check_close(with_update(change), fused=True)

    def mean(lists: Lists) -> None:
        for g, p, m, v, s in zip(*lists, strict=True):
            m.copy_(torch.full((), BETA1, dtype=torch.bfloat16) * m + (1 - BETA1) * g)
            v.mul_(BETA2).add_((1 - BETA2) * g * g)
            p.sub_(LR * (m / (v.sqrt() + EPS)))
            s.mul_(EMA).add_(p, alpha=1 - EMA)

    check_close(mean, fused=False)


def test_weights_that_decay_beside_a_rate_of_0() -> None:
    def change(p: Tensor, m: Tensor, root: Tensor) -> None:
        p.mul_(0.99).sub_(0.0 * (m / (root + EPS)))

    check_close(with_update(change), fused=False)


@pytest.mark.parametrize("scalars", [(), (torch.tensor(-1.0),)])
def test_a_factor_of_the_root_that_may_be_negative_is_no_correction(scalars: tuple[Tensor, ...]) -> None:
    def change(p: Tensor, m: Tensor, root: Tensor, factor: float | Tensor = -1.0) -> None:
        p.add_(LR * (m / (root * factor + -1e-2)))

    check_close(with_update(change), *scalars, fused=False)


def test_factors_whose_squares_are_no_floats_stay() -> None:
    def change(p: Tensor, m: Tensor, root: Tensor) -> None:
        p.sub_(1e-26 * (m / (root * 1e-24 + 1e-30)))

    check_close(with_update(change), fused=False)


def test_a_decay_that_is_added_unrounded_is_no_part_of_the_call() -> None:
    """As a part of the gradient it is the graph's, with equal bits; as one of the update the step is another."""

    def l2(lists: Lists, decay: Tensor) -> None:
        grad, *rest = lists
        uncorrected_l2([[torch.addcmul(g, p, decay) for g, p in zip(grad, rest[0], strict=True)], *rest], decay)

    uncorrected_l2 = with_update(lambda p, m, root, _: p.sub_(LR * (m / (root + EPS))))
    given, decay = state(), torch.tensor(0.3)
    want = copy.deepcopy(given)
    with SeparatelyRounded():
        l2(want, decay)
    compiled(l2)(given, decay)
    assert fusion.report().fused == {STEP: 1} and not fusion.report().accepted
    assert equal(want, given)
    update = with_update(lambda p, m, root, wd: p.sub_(LR * torch.addcmul(m / (root + EPS), p, wd)))
    check_close(update, decay, fused=False)


def two_averages(lists: Lists, others: list[Tensor]) -> None:
    uncorrected(lists, torch.zeros(()))
    for p, t in zip(lists[1], others, strict=True):
        t.mul_(EMA).add_(p, alpha=1 - EMA)


def average_of_an_average(lists: Lists, others: list[Tensor]) -> None:
    uncorrected(lists, torch.zeros(()))
    for s, t in zip(lists[4], others, strict=True):
        t.mul_(0.5).add_(s * 0.5)


@pytest.mark.parametrize(("function", "misses"), [(two_averages, 3), (average_of_an_average, 0)])
def test_a_second_average_takes_what_the_call_gives(function: Callable[..., None], misses: int) -> None:
    given = state()
    want, others = copy.deepcopy(given), [state()[0] for _ in range(2)]
    run_fused = compiled(function)
    for _ in range(3):
        with SeparatelyRounded():
            function(want, others[0])
        run_fused(given, others[1])
    assert fusion.report().fused == {STEP: 1}
    reasons = [miss.reason for miss in fusion.report().misses]
    assert len(reasons) == misses and all("another call writes" in reason for reason in reasons)
    assert equal(want, given)
    for a, b in zip(*others, strict=True):
        torch.testing.assert_close(b, a, rtol=2.0**-22, atol=2.0**-24)  # torch does not round products by `alpha`
