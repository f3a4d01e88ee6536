"""Optimizers against gradients, parameters and states of unusual kinds, and under torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from optimizers import CLASSES, VARIANTS, equal, train, values
from torch import Tensor, nn

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
        optimizer = make([weight])
        weight.grad = torch.ones(70, 80)
        try:
            optimizer.step()
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
