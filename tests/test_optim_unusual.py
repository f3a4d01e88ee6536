"""Optimizers against gradients, parameters and states of unusual kinds, and under torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from optimizers import CLASSES, VARIANTS, equal, train, values
from torch import Tensor, nn

import anyfuse
from anyfuse.ops import _arguments

Make = Callable[..., Any]


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def make(request: pytest.FixtureRequest) -> Make:
    return request.param


def _negated(value: Tensor) -> Tensor:
    """The same values, as a view that torch negates lazily: its memory holds their negatives."""
    view = torch._neg_view(-value)
    assert view.is_neg() and torch.equal(view, value)
    return view


def _imaginary(value: Tensor) -> Tensor:
    """The same values as the imaginary part of a conjugate, the way such views come about."""
    return torch.complex(torch.zeros_like(value), -value).conj().imag


@pytest.mark.parametrize("view", [_negated, _imaginary], ids=["negated", "imaginary"])
@pytest.mark.parametrize("first", [True, False], ids=["from the first step", "after a step"])
def test_gradients_that_are_negated_views_keep_their_sign(
    make: Make, view: Callable[[Tensor], Tensor], first: bool
) -> None:
    torch.manual_seed(0)
    start, gradients = torch.randn(70, 80), [torch.randn(70, 80) for _ in range(3)]
    results = []
    for change in (lambda gradient: gradient, view):
        weight = nn.Parameter(start.clone())
        optimizer = make([weight])
        for step, gradient in enumerate(gradients):
            weight.grad = change(gradient) if first or step else gradient.clone()
            optimizer.step()
        results.append([weight.detach().clone()])
    assert equal(*results)


def test_parameters_that_are_negated_views_keep_their_sign_or_are_refused(make: Make) -> None:
    start, results = torch.linspace(-1, 1, 5600).view(70, 80), []
    for value in (start.clone(), _negated(start)):
        weight = nn.Parameter(torch.zeros(70, 80))
        weight.data = value
        weight.grad = torch.ones(70, 80)
        try:
            make([weight]).step()
        except (TypeError, ValueError):
            assert torch.equal(weight, start) and value.is_neg()
            return
        results.append([weight.detach().resolve_neg().clone()])
    assert equal(*results)


def test_a_gradient_that_shares_memory_with_a_parameter_is_refused_at_every_step(make: Make) -> None:
    memory = torch.ones(8192)
    weight, other = nn.Parameter(memory[:5000].detach()), nn.Parameter(torch.ones(5000))
    optimizer = make([other, weight])
    for step in range(3):
        other.grad = weight.grad = memory[:5000] if step != 1 else torch.ones(5000)
        if step != 1:
            with pytest.raises(ValueError, match="shares memory"):
                optimizer.step()
            assert torch.equal(other, weight)
        else:
            optimizer.step()
    strided = nn.Parameter(torch.ones(6, 4).t())  # and of one that passes through a buffer
    optimizer.add_param_group({"params": [strided]})
    strided.grad = strided.data
    other.grad, weight.grad = torch.ones(5000), torch.ones(5000)
    with pytest.raises(ValueError, match="shares memory"):
        optimizer.step()
    strided.grad = None
    other.grad = memory[100:5100]  # overlaps with the parameter of another gradient
    weight.grad = torch.ones(5000)
    with pytest.raises(ValueError, match="shares memory"):
        optimizer.step()
    assert torch.equal(other, weight)


def test_a_gradient_that_shares_memory_with_a_state_is_refused_at_every_step(make: Make) -> None:
    weight = nn.Parameter(torch.ones(60))  # small enough for float32 moments
    optimizer = make([weight])
    weight.grad = torch.ones(60)
    optimizer.step()
    before = weight.detach().clone()
    weight.grad = optimizer.state[weight]["exp_avg"]
    with pytest.raises(ValueError, match="shares memory"):
        optimizer.step()
    assert torch.equal(weight, before)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_compiled_step_is_the_step(cls: Any) -> None:
    results = []
    for wrap in (lambda step: step, lambda step: torch.compile(step, backend="eager")):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 3))
        optimizer = cls(model.parameters(), lr=1e-2)
        train(model, _Stepping(wrap(lambda optimizer=optimizer: optimizer.step())), range(3))  # type: ignore[arg-type]
        results.append(values(model))
    assert equal(*results)


class _Stepping:
    """What `train` needs of an optimizer."""

    def __init__(self, step: Callable[[], Any]) -> None:
        self.step = step


def test_amsgrad_of_a_group_is_refused_as_that_of_the_constructor(make: Make) -> None:
    with pytest.raises(ValueError, match="amsgrad"):
        make([{"params": [nn.Parameter(torch.ones(2))], "amsgrad": True}])


def test_a_state_whose_shape_changes_in_place_is_refused(make: Make) -> None:
    weight = nn.Parameter(torch.ones(60))
    optimizer = make([weight])
    weight.grad = torch.ones(60)
    optimizer.step()
    before = weight.detach().clone()
    optimizer.state[weight]["exp_avg"].resize_(20)
    with pytest.raises(ValueError, match="exp_avg"):
        optimizer.step()
    assert torch.equal(weight, before)


def test_a_gradient_whose_memory_is_released_is_refused_before_any_write(make: Make) -> None:
    weights = [nn.Parameter(torch.ones(60)), nn.Parameter(torch.ones(60))]
    optimizer = make([{"params": [weight]} for weight in weights])
    for weight in weights:
        weight.grad = torch.ones(60)
    optimizer.step()
    before = [weight.detach().clone() for weight in weights]
    weights[1].grad.untyped_storage().resize_(0)
    with pytest.raises(TypeError, match=r"gradient.*released"):
        optimizer.step()
    assert equal(weights, before)


def test_a_gradient_of_another_shape_and_the_same_size_is_refused(make: Make) -> None:
    weight = nn.Parameter(torch.ones(5, 12))
    optimizer = make([weight])
    weight.grad = torch.ones(5, 12)
    optimizer.step()
    before = weight.detach().clone()
    weight.grad.data = torch.ones(12, 5)  # torch compares shapes where a gradient is set, not here
    with pytest.raises(ValueError, match="gradient has shape"):
        optimizer.step()
    assert torch.equal(weight, before)


class Made(Tensor):
    """A tensor of another one, that has no memory of its own."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Made:
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined,no-any-return]

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*(arg.inner if isinstance(arg, Made) else arg for arg in args), **(kwargs or {}))


@pytest.mark.parametrize("steps", [0, 2])
def test_a_gradient_without_memory_is_refused_before_any_write(make: Make, steps: int) -> None:
    weights = [nn.Parameter(torch.ones(60)), nn.Parameter(torch.ones(60))]
    optimizer = make([{"params": [weight]} for weight in weights])
    for weight in weights:
        weight.grad = torch.ones(60)
    for _ in range(steps):
        optimizer.step()
    before = [weight.detach().clone() for weight in weights]
    weights[1].grad = Made(torch.ones(60))
    with pytest.raises(TypeError, match="gradient is a Made, which has no memory"):
        optimizer.step()
    assert equal(weights, before)


def test_a_plan_is_made_without_a_question_to_each_tensor(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts whose gradients come and go make a plan at each step; what is sound is looked at all at once."""
    asked: list[Tensor] = []
    problem = _arguments.tensor_problem

    def ask(tensor: Tensor) -> str | None:
        asked.append(tensor)
        return problem(tensor)

    monkeypatch.setattr(_arguments, "tensor_problem", ask)
    experts = [nn.Parameter(torch.ones(4, 3)) for _ in range(6)]
    optimizer = make(experts)
    asked.clear()
    with anyfuse.backend("native"):
        for step in range(3):
            for i, expert in enumerate(experts):
                expert.grad = torch.ones(4, 3) if (i + step) % 3 else None
            optimizer.step()
    assert len(asked) <= len(experts) * 3  # of the state that counts rows alone


def _release(weight: Tensor, state: dict[str, Any]) -> None:
    weight.data.untyped_storage().resize_(0)


def _without_moment(weight: Tensor, state: dict[str, Any]) -> None:
    state["exp_avg"] = None


def _without_step(weight: Tensor, state: dict[str, Any]) -> None:
    del state["step"]


def _step_in_words(weight: Tensor, state: dict[str, Any]) -> None:
    state["step"] = "two"


@pytest.mark.parametrize(
    ("break_it", "steps"), [(_release, 0), (_release, 1), (_without_moment, 1), (_without_step, 1), (_step_in_words, 1)]
)
def test_what_is_wrong_in_the_last_group_is_refused_before_the_first_is_written(
    make: Make, break_it: Callable[[Tensor, dict[str, Any]], None], steps: int
) -> None:
    weights = [nn.Parameter(torch.ones(70, 60)) for _ in range(2)]
    optimizer = make([{"params": [weight]} for weight in weights])
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    for _ in range(steps):
        optimizer.step()
    break_it(weights[1], optimizer.state[weights[1]])
    before = weights[0].detach().clone()
    with pytest.raises((TypeError, ValueError)):
        optimizer.step()
    assert torch.equal(weights[0], before)
