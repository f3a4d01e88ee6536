"""What every optimizer of `anyfuse.optim` must do (numbers of the cases: optimizers, sections 1 and 2)."""

from __future__ import annotations

import copy
import io
import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optimizers
import pytest
import torch
import torch.distributed.checkpoint as dcp
from optimizers import CLASSES, VARIANTS, equal, give_gradients, parameter, same, snapshot, train, values
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import lr_scheduler

import anyfuse
from anyfuse.ops import _register
from anyfuse.optim import AdamW8bit
from anyfuse.optim._base import FusedOptimizer

Make = Callable[..., Any]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EMA8bit = VARIANTS["EMAAdamW 8-bit"]


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def make(request: pytest.FixtureRequest) -> Make:
    return request.param


@pytest.fixture(params=CLASSES, ids=lambda cls: cls.__name__)
def cls(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_they_are_torch_optimizers(cls: Any) -> None:
    optimizer = cls([parameter(1.0)])
    assert isinstance(optimizer, torch.optim.Optimizer) and isinstance(optimizer, FusedOptimizer)
    assert optimizer.defaults["weight_decay"] == 1e-2 and optimizer.defaults["betas"] == (0.9, 0.999)


# ---- the step ----


def test_equals_torch_adamw_where_the_state_is_fp32(cls: Any) -> None:
    own = optimizers.model()
    other = copy.deepcopy(own)
    train(own, cls(own.parameters(), lr=1e-2, weight_decay=0.1, **_fp32(cls)), range(20))
    train(other, torch.optim.AdamW(other.parameters(), lr=1e-2, weight_decay=0.1), range(20))
    for a, b in zip(own.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)  # the same formula in another order of roundings


def _fp32(cls: Any) -> dict[str, Any]:
    return {"min_8bit_size": 10**9} if cls is anyfuse.optim.AdamW8bit else {}


def test_native_equals_reference_bit_for_bit(make: Make) -> None:
    results = []
    for backend in ("native", "reference"):
        model = optimizers.model(torch.bfloat16)
        optimizer = make(model.parameters(), lr=1e-2)
        with anyfuse.backend(backend):
            train(model, optimizer, range(3))
        results.append((values(model), snapshot(optimizer)))
    assert same(*results)


def test_steps_by_the_public_operator_give_the_same_bits(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of parameters that lie on a GPU, here on the CPU."""
    results = []
    for native in (True, False):
        if not native:
            monkeypatch.setattr(_register, "run_together", lambda calls: False)
        model = optimizers.model(torch.bfloat16)
        optimizer = make(model.parameters(), lr=1e-2)
        train(model, optimizer, range(3))
        results.append((values(model), snapshot(optimizer)))
    assert same(*results)


def test_stochastic_rounding_is_the_same_on_any_number_of_threads(make: Make) -> None:
    results, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            torch.manual_seed(0)
            weight = nn.Parameter(torch.randn(300, 300).bfloat16())
            optimizer = make([weight])
            for step in range(2):
                give_gradients([weight], step)
                optimizer.step()
            results.append((weight.detach(), snapshot(optimizer)))
    finally:
        torch.set_num_threads(before)
    assert same(results[0], results[1]) and same(results[0], results[2])


def test_closures(make: Make) -> None:
    weight = parameter(1.0, 2.0)
    optimizer = make([weight], lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (weight * weight).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 5.0
    assert optimizer.step(closure).item() < 5.0
    assert optimizer.step() is None


def test_maximize_turns_the_gradient(make: Make) -> None:
    up, down = parameter(1.0, -2.0), parameter(1.0, -2.0)
    for weight, maximize, sign in ((up, True, -1.0), (down, False, 1.0)):
        optimizer = make([weight], lr=0.1, maximize=maximize)
        weight.grad = torch.tensor([0.5, 3.0]) * sign
        optimizer.step()
    assert torch.equal(up, down)


def test_lr_as_a_tensor(make: Make) -> None:
    by_number, by_tensor = parameter(1.0, 2.0), parameter(1.0, 2.0)
    for weight, lr in ((by_number, 0.125), (by_tensor, torch.tensor(0.125))):
        weight.grad = torch.ones(2)
        make([weight], lr=lr).step()
    assert torch.equal(by_number, by_tensor)


def test_groups_overrides_and_added_groups(make: Make) -> None:
    a, b, c = parameter(1.0), parameter(1.0), parameter(1.0)
    optimizer = make([{"params": [a], "lr": 0.5}, {"params": [b]}], lr=0.1, weight_decay=0.0)
    optimizer.add_param_group({"params": c, "lr": 0.25})
    for weight in (a, b, c):
        weight.grad = torch.ones(1)
    optimizer.step()
    torch.testing.assert_close(torch.cat([a, b, c]).detach(), torch.tensor([0.5, 0.9, 0.75]))
    assert [group["lr"] for group in optimizer.state_dict()["param_groups"]] == [0.5, 0.1, 0.25]


def test_a_group_added_between_steps(make: Make) -> None:
    a, b = parameter(1.0), parameter(1.0)
    optimizer = make([a], lr=0.1, weight_decay=0.0)
    a.grad, b.grad = torch.ones(1), torch.ones(1)
    optimizer.step()
    optimizer.add_param_group({"params": [b]})
    optimizer.step()
    torch.testing.assert_close(torch.cat([a, b]).detach(), torch.tensor([0.8, 0.9]))


def test_named_parameters(make: Make) -> None:
    model = optimizers.model()
    optimizer = make(model.named_parameters())
    train(model, optimizer, range(1))
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == [name for name, _ in model.named_parameters()]


def test_case_o21_a_parameter_counts_its_own_steps(make: Make) -> None:
    a, b = parameter(0.0), parameter(0.0)
    optimizer = make([a, b], lr=0.1, weight_decay=0.0)
    for step in range(10):
        a.grad = torch.ones(1)
        if step == 9:
            b.grad = torch.ones(1)
        optimizer.step()
    assert float(b.detach()) == pytest.approx(-0.1, rel=1e-4)  # 1 - beta2 in fp32 is 1.3e-5 off in the EMA's document
    assert optimizer.state[a]["step"] == 10 and optimizer.state[b]["step"] == 1


def test_case_o21_mixed_dtypes_in_one_group(make: Make) -> None:
    weights = [nn.Parameter(torch.ones(5, dtype=dtype)) for dtype in DTYPES]
    optimizer = make(weights)
    give_gradients(weights, 0)
    optimizer.step()
    assert [optimizer.state[weight]["step"] for weight in weights] == [1, 1, 1]


def test_case_o22_empty_parameters_among_others(make: Make) -> None:
    sizes = ([4096, 0], [0, 4096], [0] * 50)
    results = []
    for group in sizes:
        weights = [nn.Parameter(torch.ones(size)) for size in group]
        optimizer = make(weights)
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer.step()
        results.append([weight.detach() for weight in weights if weight.numel()])
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.step()
    assert equal(results[0], results[1]) and not torch.equal(results[0][0], torch.ones(4096))


def test_case_o10_scalars_and_odd_sizes(make: Make) -> None:
    for shape in ((), (0,), (1,), (255,), (256,), (257,), (4097,)):
        weight = nn.Parameter(torch.ones(shape))
        weight.grad = torch.ones(shape)
        make([weight], lr=0.1, weight_decay=0.0).step()
        torch.testing.assert_close(weight.detach(), torch.full(shape, 0.9))


def test_frozen_and_gradless_parameters_stay(make: Make) -> None:
    frozen, unused, used = parameter(1.0), parameter(1.0), parameter(1.0)
    frozen.requires_grad_(False)
    optimizer = make([frozen, unused, used])
    used.grad = torch.ones(1)
    optimizer.step()
    assert float(frozen) == float(unused.detach()) == 1.0 != float(used.detach())
    assert set(optimizer.state) == {used}
    unused.grad = torch.ones(1)  # another set of gradients than at the step before
    optimizer.step()
    assert float(unused.detach()) != 1.0 and optimizer.state[used]["step"] == 2


def test_tied_parameters_are_stepped_once(make: Make) -> None:
    tied, single = parameter(1.0), parameter(1.0)
    tied.grad, single.grad = torch.ones(1), torch.ones(1)
    optimizer = make([tied, tied])
    optimizer.step()
    make([single]).step()
    assert torch.equal(tied, single) and len(optimizer.param_groups[0]["params"]) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_case_o8_noncontiguous_parameters_and_gradients(make: Make, dtype: torch.dtype) -> None:
    base = torch.randn(128, 64).to(dtype)
    grads = [torch.randn(256, 64)[::2].t().to(dtype), torch.randn(64, 1).to(dtype).expand(64, 128)]
    whole = nn.Parameter(base.t().contiguous())
    strided = nn.Parameter(base.t())
    address, strides = strided.data_ptr(), strided.stride()
    results = []
    for weight in (whole, strided):
        optimizer = make([weight], lr=0.1)
        for grad in grads:
            weight.grad = grad.contiguous() if weight is whole else grad
            optimizer.step()
        results.append(optimizer.state_dict()["state"])
    assert equal([whole], [strided]) and same(*results)
    assert torch.equal(base.t(), strided) and (strided.data_ptr(), strided.stride()) == (address, strides)


def test_data_that_is_replaced_is_followed(make: Make) -> None:
    """As `module.to` and others do it: the parameter stays, its memory is another."""
    weight = nn.Parameter(torch.ones(5000))
    optimizer = make([weight], lr=0.1)
    for _ in range(3):
        weight.data = torch.ones(5000)
        weight.grad = torch.ones(5000)
        optimizer.step()
        assert bool((weight < 1.0).all())


def test_data_of_another_size_is_refused(make: Make) -> None:
    """Instead of a step beyond the end of the state that belongs to the old size, or of the gradient."""
    weight = nn.Parameter(torch.ones(5000))
    optimizer = make([weight], lr=0.1)
    weight.grad = torch.ones(5000)
    optimizer.step()
    before = weight.data
    for data in (torch.ones(9000), before[:4000]):
        weight.grad = None
        weight.data = data
        weight.grad = torch.ones_like(data)
        with pytest.raises(ValueError, match="exp_avg"):
            optimizer.step()
        assert bool((data == data[0]).all())


def test_a_replaced_state_is_followed(make: Make) -> None:
    weight, other = parameter(1.0, 2.0), parameter(1.0, 2.0)
    one, two = make([weight]), make([other])
    for optimizer, param in ((one, weight), (two, other)):
        for step in range(2):
            give_gradients([param], step)
            optimizer.step()
    one.state[weight]["exp_avg"] = torch.ones(2)
    two.state[other] = {**two.state[other], "exp_avg": torch.ones(2)}
    for optimizer, param in ((one, weight), (two, other)):
        give_gradients([param], 2)
        optimizer.step()
    assert equal([weight], [other])
    assert not torch.equal(one.state[weight]["exp_avg"], torch.ones(2))


@pytest.mark.parametrize("move", ["data", "shared memory"])
def test_a_state_that_moves_is_followed(make: Make, move: str) -> None:
    """`state.data = ...`, as offloading does it, and `share_memory_`: the same tensor object in other memory."""
    own, other = optimizers.model(), optimizers.model()
    one, two = make(own.parameters()), make(other.parameters())
    train(own, one, range(2))
    train(other, two, range(2))
    for state in one.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor) and move == "data":
                value.data = value.data.clone()
            elif isinstance(value, torch.Tensor):
                value.share_memory_()
    train(own, one, range(2, 4))
    train(other, two, range(2, 4))
    assert equal(own.parameters(), other.parameters()) and same(snapshot(one), snapshot(two))


@pytest.mark.parametrize("key", ["exp_avg", "exp_avg_sq"])
def test_a_state_of_another_dtype_is_refused(make: Make, key: str) -> None:
    model = optimizers.model()
    optimizer = make(model.parameters())
    train(model, optimizer, range(2))
    before = values(model)
    for state in optimizer.state.values():
        state[key].data = state[key].data.to(torch.float16)
    with pytest.raises(TypeError, match=f"{key} has dtype float16"):
        train(model, optimizer, [2])
    assert equal(model.parameters(), before)


def test_a_state_that_was_looked_at_before_the_first_step_is_saved_and_loaded(make: Make) -> None:
    """`optimizer.state` makes an empty state for a parameter that it is asked for."""
    model, other = optimizers.model(), optimizers.model()
    one, two = make(model.parameters()), make(other.parameters())
    assert one.state[model[0].weight].get("step") is None
    two.load_state_dict(snapshot(one))
    train(model, one, range(2))
    train(other, two, range(2))
    assert equal(model.parameters(), other.parameters())


def test_data_of_another_shape_at_the_same_address_is_refused(make: Make) -> None:
    weight = nn.Parameter(torch.ones(96, 64))
    optimizer = make([weight])
    for _ in range(2):
        weight.grad = torch.ones(96, 64)
        optimizer.step()
    before = weight.detach().clone()
    weight.grad = None
    weight.data = weight.data.view(64, 96)
    weight.grad = torch.ones(64, 96)
    with pytest.raises(ValueError, match="exp_avg has shape"):
        optimizer.step()
    assert torch.equal(weight.view(96, 64), before)


def test_strided_data_of_another_shape_is_refused(make: Make) -> None:
    """At the same address, and of as many elements: the state is of the old shape."""
    base = torch.ones(64, 96)
    weight = nn.Parameter(torch.empty(96, 64))
    weight.data = base.t()
    optimizer = make([weight])
    for _ in range(2):
        weight.grad = torch.ones(96, 64)
        optimizer.step()
    before = base.clone()
    weight.grad = None
    weight.data = base.view(32, 192).t()
    weight.grad = torch.ones(192, 32)
    with pytest.raises(ValueError, match="exp_avg has shape"):
        optimizer.step()
    assert torch.equal(base, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_default_dtype_of_torch_changes_nothing(make: Make, dtype: torch.dtype) -> None:
    """Scales of blocks are float32 whatever it is: the operator writes as many bytes."""
    models, optimizers_ = [optimizers.model(), optimizers.model()], []
    for model, default in zip(models, (torch.float32, dtype), strict=True):
        optimizers_.append(make(model.parameters()))
        for step in range(2):
            give_gradients(model.parameters(), step)
            torch.set_default_dtype(default)
            try:
                optimizers_[-1].step()
            finally:
                torch.set_default_dtype(torch.float32)
    assert equal(*(model.parameters() for model in models)) and same(*map(snapshot, optimizers_))


def test_options_of_the_state_that_change_between_steps_are_refused() -> None:
    """Instead of scales beyond the end of those that the state has, codes read as float32 or by another map."""
    changes = [
        (AdamW8bit, {"block_size": 64}), (AdamW8bit, {"codebook": "linear"}),
        (EMA8bit, {"block_size": 64}), (EMA8bit, {"state_bits": 32}), (EMA8bit, {"codebook": "linear"}),
    ]  # fmt: skip
    for make, change in changes:
        model = optimizers.model()
        optimizer = make(model.parameters())
        train(model, optimizer, range(2))
        before = values(model)
        optimizer.param_groups[0].update(change)
        with pytest.raises((TypeError, ValueError), match="accepted"):
            train(model, optimizer, [2])
        assert equal(model.parameters(), before)


def test_a_codebook_may_change_where_the_codes_are_new() -> None:
    weight = nn.Parameter(torch.ones(5000))
    optimizer = AdamW8bit([weight])
    for codebook in ("linear", "dynamic"):
        optimizer.param_groups[0]["codebook"] = codebook
        optimizer.state.clear()
        give_gradients([weight], 0)
        optimizer.step()
    optimizer.param_groups.insert(0, {**optimizer.param_groups[0], "params": [], "codebook": "linear"})
    optimizer.step()  # the same group at another place


@pytest.mark.parametrize("option", ["state_bits", "codebook", "stochastic_rounding", "rounding_seed", "nonzero_v"])
def test_choices_that_change_between_steps_are_looked_at(cls: Any, option: str) -> None:
    weight = parameter(1.0)
    optimizer = cls([weight])
    weight.grad = torch.ones(1)
    optimizer.step()
    before = weight.detach().clone()
    optimizer.param_groups[0][option] = "other"
    with pytest.raises((TypeError, ValueError), match=option):
        optimizer.step()
    assert torch.equal(weight, before)


@pytest.mark.parametrize("name", [name for name in VARIANTS if "stochastic" in name])
def test_a_seed_that_is_changed_holds_from_the_next_step_on(name: str) -> None:
    results = []
    for load in (False, True):
        model = optimizers.model(torch.bfloat16)
        optimizer = VARIANTS[name](model.parameters())
        train(model, optimizer, range(2))
        optimizer.param_groups[0]["rounding_seed"] = 77
        if load:
            state, optimizer = snapshot(optimizer), VARIANTS[name](model.parameters())
            optimizer.load_state_dict(state)
        train(model, optimizer, range(2, 4))
        results.append(values(model))
    assert equal(*results)


def test_a_stale_backward_raises(make: Make) -> None:
    weight = parameter(1.0, 2.0)
    loss = (weight * weight).sum()
    weight.grad = torch.ones(2)
    make([weight]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_no_tensor_is_allocated_after_the_first_step(make: Make) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Allocations(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.found: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            mine = {id(value) for value in args}
            if isinstance(result, torch.Tensor) and id(result) not in mine and "view" not in str(func):
                self.found.append(str(func))
            return result

    model = optimizers.model()
    optimizer = make(model.parameters())
    train(model, optimizer, range(2))
    before = [state["exp_avg"].data_ptr() for state in optimizer.state.values()]
    with Allocations() as allocations:
        optimizer.step()
    assert allocations.found == []
    assert [state["exp_avg"].data_ptr() for state in optimizer.state.values()] == before


def test_gradients_are_not_kept_alive(make: Make) -> None:
    import weakref

    model = optimizers.model()
    optimizer = make(model.parameters())
    train(model, optimizer, range(2))
    grads = [weakref.ref(param.grad) for param in model.parameters()]
    optimizer.zero_grad()
    assert all(grad() is None for grad in grads)


# ---- schedulers ----


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.95),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [3, 9]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 4),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.5, 1.0, 10),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 25),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 20),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 6),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 5), lr_scheduler.CosineAnnealingLR(o, 15)], [5]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 4), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=3),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 1e-3, 0.05, step_size_up=4),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.05, total_steps=25),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 1e-3, anneal_epochs=5),
}


def test_case_o20_no_scheduler_of_torch_is_left_out() -> None:
    abstract = {"LRScheduler", "_LRScheduler"}
    assert set(lr_scheduler.__all__) - abstract - {"SWALR"} == SCHEDULERS.keys() - {"SWALR"}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_case_o20_schedulers(make: Make, scheduler: str) -> None:
    """CyclicLR and OneCycleLR change the betas too."""
    own = optimizers.model()
    other = copy.deepcopy(own)
    seen = []
    for model, create in ((own, make), (other, torch.optim.AdamW)):
        optimizer = create(model.parameters(), lr=1e-2)
        schedule = SCHEDULERS[scheduler](optimizer)
        for step in range(20):
            train(model, optimizer, [step])
            schedule.step(*[1.0] * (scheduler == "ReduceLROnPlateau"))
        seen.append([(group["lr"], group["betas"]) for group in optimizer.param_groups])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("scheduler", ["CosineAnnealingLR", "OneCycleLR", "CyclicLR"])
def test_case_o20_scheduled_steps_equal_torch_adamw(cls: Any, scheduler: str) -> None:
    own = optimizers.model()
    other = copy.deepcopy(own)
    for model, make in ((own, lambda p: cls(p, lr=1e-2, **_fp32(cls))), (other, lambda p: torch.optim.AdamW(p, 1e-2))):
        optimizer = make(model.parameters())
        schedule = SCHEDULERS[scheduler](optimizer)
        for step in range(20):
            train(model, optimizer, [step])
            schedule.step()
    for a, b in zip(own.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-6)  # 20 steps of other roundings


def test_a_schedule_on_a_tensor_lr(make: Make) -> None:
    weight = parameter(0.0)
    optimizer = make([weight], lr=torch.tensor(0.5), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for _ in range(2):
        weight.grad = torch.ones(1)
        optimizer.step()
        schedule.step()
    assert float(weight.detach()) == pytest.approx(-0.75, rel=1e-4)  # as in case O21


# ---- GradScaler ----


def test_grad_scaler_unscales_and_skips(make: Make) -> None:
    scaled, plain = optimizers.model(torch.float16), optimizers.model(torch.float16)
    one, two = make(scaled.parameters(), lr=1e-2), make(plain.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))  # makes the scale
    for step in range(3):
        give_gradients(plain.parameters(), step)
        two.step()
        give_gradients(scaled.parameters(), step)
        for param in scaled.parameters():
            param.grad *= 8.0  # exact, as the scale is a power of two
        scaler.step(one)
        scaler.update(8.0)
    assert equal(scaled.parameters(), plain.parameters()) and same(snapshot(one), snapshot(two))

    before = values(scaled), snapshot(one)
    give_gradients(scaled.parameters(), 9)
    next(scaled.parameters()).grad.view(-1)[5] = float("inf")
    scaler.step(one)
    scaler.update()
    assert same(before, (values(scaled), snapshot(one)))


def test_a_first_step_that_is_skipped_makes_no_state(make: Make) -> None:
    weight = parameter(1.0)
    optimizer = make([weight])
    weight.grad = torch.ones(1)
    optimizer.found_inf = torch.ones(1)
    optimizer.step()
    assert float(weight.detach()) == 1.0 and not optimizer.state


# ---- what is refused ----


def test_case_o19_unsupported_arguments_raise(cls: Any) -> None:
    for name in ("amsgrad", "fused", "foreach", "capturable", "differentiable", "is_paged"):
        with pytest.raises(TypeError, match=name):
            cls([parameter(1.0)], **{name: True})


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ({"lr": -1.0}, ValueError),
        ({"lr": "fast"}, TypeError),
        ({"lr": torch.ones(2)}, ValueError),
        ({"betas": (0.9, 1.0)}, ValueError),
        ({"betas": (0.9,)}, ValueError),
        ({"betas": 0.9}, ValueError),
        ({"eps": -1e-8}, ValueError),
        ({"weight_decay": -0.1}, ValueError),
        ({"weight_decay": float("nan")}, ValueError),
        ({"maximize": 1}, TypeError),
    ],
)
def test_options_out_of_range_are_refused(cls: Any, option: dict[str, Any], error: type[Exception]) -> None:
    name = next(iter(option))
    with pytest.raises(error, match=name):
        cls([parameter(1.0)], **option)
    optimizer = cls([parameter(1.0)])
    with pytest.raises(error, match=name):
        optimizer.add_param_group({"params": [parameter(2.0)], **option})
    assert len(optimizer.param_groups) == 1


def test_parameters_of_other_dtypes_are_refused(cls: Any) -> None:
    with pytest.raises(TypeError, match="float64"):
        cls([nn.Parameter(torch.ones(2, dtype=torch.float64))])
    with pytest.raises(ValueError, match="meta"):
        cls([nn.Parameter(torch.ones(2, device="meta"))])


def test_sparse_gradients_are_refused_before_any_write(cls: Any) -> None:
    first, table = parameter(1.0), nn.Parameter(torch.ones(4, 2))
    optimizer = cls([{"params": [first]}, {"params": [table]}])
    first.grad = torch.ones(1)
    table.grad = torch.sparse_coo_tensor([[1]], torch.ones(1, 2), (4, 2), check_invariants=True)
    with pytest.raises(TypeError, match="sparse"):
        optimizer.step()
    assert float(first.detach()) == 1.0 and torch.equal(table, torch.ones(4, 2)) and not optimizer.state


def test_parameters_that_share_memory_are_refused(make: Make) -> None:
    memory = torch.ones(10)
    weights = [nn.Parameter(memory[:6]), nn.Parameter(memory[4:])]
    optimizer = make(weights)
    for weight in weights:
        weight.grad = torch.ones(6)
    with pytest.raises(ValueError, match="shares memory"):
        optimizer.step()
    assert torch.equal(memory, torch.ones(10))


# ---- saving and resuming ----


@pytest.mark.parametrize("dtype", DTYPES)
def test_case_o2_resume_is_bitwise_and_casts_nothing(make: Make, dtype: torch.dtype) -> None:
    whole = optimizers.model(dtype)
    optimizer = make(whole.parameters(), lr=1e-2)
    train(whole, optimizer, range(5))
    file = io.BytesIO()
    torch.save({"model": whole.state_dict(), "optimizer": optimizer.state_dict()}, file)
    saved_dtypes = _dtypes(optimizer)
    train(whole, optimizer, range(5, 10))

    file.seek(0)
    saved = torch.load(file, weights_only=True, map_location="cpu")
    resumed = optimizers.model(dtype, seed=7)
    again = make(resumed.parameters())
    resumed.load_state_dict(saved["model"])
    again.load_state_dict(saved["optimizer"])
    assert _dtypes(again) == saved_dtypes
    train(resumed, again, range(5, 10))
    assert equal(whole.parameters(), resumed.parameters()) and same(snapshot(optimizer), snapshot(again))


def _dtypes(optimizer: torch.optim.Optimizer) -> list[list[Any]]:
    return [[getattr(value, "dtype", value) for value in state.values()] for state in optimizer.state.values()]


def test_loading_copies(make: Make) -> None:
    one, two = optimizers.model(), optimizers.model()
    first, second = make(one.parameters()), make(two.parameters())
    train(one, first, range(2))
    second.load_state_dict(first.state_dict())
    before = snapshot(second)
    train(one, first, range(2))
    assert same(before, snapshot(second))


def test_case_o18_overrides_are_saved(make: Make) -> None:
    weights = [parameter(1.0), parameter(2.0)]
    optimizer = make([{"params": [weights[0]], "lr": 0.5, "eps": 1e-3}, {"params": [weights[1]]}])
    fresh = make([{"params": [parameter(1.0)]}, {"params": [parameter(2.0)]}])
    fresh.load_state_dict(optimizer.state_dict())
    assert [(group["lr"], group["eps"]) for group in fresh.param_groups] == [(0.5, 1e-3), (1e-3, 1e-8)]


def test_a_deep_copy_goes_on_alike(make: Make) -> None:
    model = optimizers.model()
    optimizer = make(model.parameters())
    train(model, optimizer, range(2))
    twin_model, twin = copy.deepcopy((model, optimizer))
    train(model, optimizer, [2])
    train(twin_model, twin, [2])
    assert equal(model.parameters(), twin_model.parameters())


@pytest.mark.parametrize("flat", [False, True])
def test_case_o3_distributed_checkpoint_in_one_process(make: Make, flat: bool, tmp_path: Path) -> None:
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    whole = optimizers.model(torch.bfloat16)
    optimizer = make(whole.parameters(), lr=1e-2)
    train(whole, optimizer, range(3))
    saved_model = copy.deepcopy(whole.state_dict())
    state = {"optimizer": get_optimizer_state_dict(whole, optimizer, options=options)}
    dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
    train(whole, optimizer, range(3, 6))

    resumed = optimizers.model(torch.bfloat16, seed=7)
    again = make(resumed.parameters())
    resumed.load_state_dict(saved_model)
    state = {"optimizer": get_optimizer_state_dict(resumed, again, options=options)}
    dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
    set_optimizer_state_dict(resumed, again, state["optimizer"], options=options)
    train(resumed, again, range(3, 6))
    assert equal(whole.parameters(), resumed.parameters())
    assert same(snapshot(optimizer)["state"], snapshot(again)["state"])


def test_a_distributed_checkpoint_of_the_optimizer_itself_resumes(make: Make, tmp_path: Path) -> None:
    """DCP fills the tensors of the state that is there, in place; what is no tensor it leaves as it is."""
    whole = optimizers.model()
    optimizer = make(whole.parameters(), lr=1e-2)
    train(whole, optimizer, range(3))
    saved = copy.deepcopy(whole.state_dict())
    dcp.save({"optim": optimizer}, checkpoint_id=tmp_path / "object", no_dist=True)
    dcp.save(optimizer.state_dict(), checkpoint_id=tmp_path / "state", no_dist=True)
    train(whole, optimizer, range(3, 6))
    for way in ("object", "state"):
        resumed = optimizers.model(seed=7)
        again = make(resumed.parameters(), lr=1e-2)
        train(resumed, again, range(1))  # makes the state
        resumed.load_state_dict(saved)
        if way == "object":
            dcp.load({"optim": again}, checkpoint_id=tmp_path / way, no_dist=True)
        else:
            dcp.load(again.state_dict(), checkpoint_id=tmp_path / way, no_dist=True)
        train(resumed, again, range(3, 6))
        assert equal(whole.parameters(), resumed.parameters()), way
        assert [int(state["step"]) for state in again.state.values()] == [6] * len(again.state)


def test_steps_of_another_process_are_seen_in_shared_memory(make: Make) -> None:
    """As `share_memory_` of torch's optimizers in asynchronous training."""
    model = optimizers.model().share_memory()
    optimizer = make(model.parameters())
    train(model, optimizer, range(1))
    for state in optimizer.state.values():
        for value in state.values():
            value.share_memory_()
    child = torch.multiprocessing.get_context("fork").Process(target=train, args=(model, optimizer, range(1, 3)))
    child.start()
    child.join(60)
    assert child.exitcode == 0 and {int(state["step"]) for state in optimizer.state.values()} == {3}


def test_states_of_version_0_1_are_loaded(make: Make) -> None:
    """Their step is an int, in a checkpoint and in a pickled optimizer."""
    model = optimizers.model()
    optimizer = make(model.parameters())
    train(model, optimizer, range(2))
    saved = snapshot(optimizer)
    for state in saved["state"].values():
        state["step"] = 2
    resumed = make(copy.deepcopy(model).parameters())
    resumed.load_state_dict(saved)
    for state in optimizer.state.values():
        state["step"] = 2
    for again in (resumed, copy.deepcopy(optimizer)):
        steps = [state["step"] for state in again.state.values()]
        assert all(step.dtype == torch.int64 and step.shape == () and step == 2 for step in steps)
        assert len({step.data_ptr() for step in steps}) == len(steps)


RESUME = """
import sys, torch
sys.path.insert(0, {tests!r})
import optimizers
from optimizers import VARIANTS
saved = torch.load({file!r}, weights_only=True)
result = {{}}
for (name, dtype), state in saved.items():
    model = optimizers.model(dtype, seed=3)
    optimizer = VARIANTS[name](model.parameters())
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    optimizers.train(model, optimizer, range(5, 10))
    result[name, dtype] = {{"model": model.state_dict(), "optimizer": optimizer.state_dict()}}
torch.save(result, {file!r})
"""


def test_resume_in_a_new_process_is_bitwise(tmp_path: Path) -> None:
    """Every optimizer, dtype and rounding, weights and states."""
    saved, expected = {}, {}
    for key in itertools.product(VARIANTS, DTYPES):
        model = optimizers.model(key[1])
        optimizer = VARIANTS[key[0]](model.parameters(), lr=1e-2)
        for results, steps in ((saved, range(5)), (expected, range(5, 10))):
            train(model, optimizer, steps)
            results[key] = copy.deepcopy({"model": dict(model.state_dict()), "optimizer": optimizer.state_dict()})
    file = str(tmp_path / "state.pt")
    torch.save(saved, file)
    code = RESUME.format(tests=str(Path(__file__).parent), file=file)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    got = torch.load(file, weights_only=True)
    for key, state in expected.items():
        assert same(state["model"], dict(got[key]["model"])) and same(state["optimizer"], got[key]["optimizer"]), key


def test_a_state_of_torch_adamw_is_taken(cls: Any) -> None:
    own = optimizers.model()
    other = copy.deepcopy(own)
    original = torch.optim.AdamW(other.parameters(), lr=1e-2)
    train(other, original, range(3))
    own.load_state_dict(other.state_dict())
    optimizer = cls(own.parameters(), lr=0.5)
    optimizer.load_state_dict(copy.deepcopy(original.state_dict()))
    assert optimizer.param_groups[0]["lr"] == 1e-2
    train(own, optimizer, range(3, 6))
    train(other, original, range(3, 6))
    for a, b in zip(own.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    amsgrad = torch.optim.AdamW(other.parameters(), amsgrad=True)
    with pytest.raises(ValueError, match="amsgrad"):
        optimizer.load_state_dict(amsgrad.state_dict())


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("step", -1),
        ("step", 2.5),
        ("step", float("nan")),
        ("step", torch.tensor(float("inf"))),
        ("step", 2**63),
        ("step", torch.ones(2)),
        ("step", "3"),
        ("step", None),
        ("exp_avg", torch.zeros(128, 64, device="meta")),
        ("exp_avg", torch.zeros(128, 64).to_sparse()),
        ("exp_avg", torch.zeros(128, 64, dtype=torch.int32)),
        ("exp_avg", None),
        (None, [1]),
    ],
)
def test_entries_of_a_saved_state_that_make_no_sense_are_refused(make: Make, entry: str | None, value: Any) -> None:
    model = optimizers.model()
    optimizer = make(model.parameters())
    train(model, optimizer, range(2))
    before, odd = snapshot(optimizer), snapshot(optimizer)
    if entry is None:
        odd["state"][0] = value
    else:
        odd["state"][0][entry] = value
    with pytest.raises((TypeError, ValueError), match=f"{entry or 'a saved state'}.*accepted"):
        optimizer.load_state_dict(odd)
    assert same(before, snapshot(optimizer))


def test_a_saved_step_may_be_any_whole_number(make: Make) -> None:
    for step in (3, 3.0, torch.tensor(3.0), torch.tensor([3]), np.int64(3)):
        model = optimizers.model()
        optimizer = make(model.parameters())
        train(model, optimizer, range(2))
        saved = snapshot(optimizer)
        saved["state"][0]["step"] = step
        optimizer.load_state_dict(saved)
        loaded = optimizer.state[model[0].weight]["step"]
        assert loaded == 3 and loaded.dtype == torch.int64 and loaded.shape == ()


def test_a_moment_that_is_a_negated_view_is_loaded_with_its_values(make: Make) -> None:
    weight = parameter(1.0, 2.0)
    optimizer = make([weight])
    weight.grad = torch.ones(2)
    optimizer.step()
    saved = snapshot(optimizer)
    saved["state"][0]["exp_avg"] = torch._neg_view(torch.tensor([-1.0, 3.0]))
    optimizer.load_state_dict(saved)
    loaded = optimizer.state[weight]["exp_avg"]
    assert loaded.tolist() == [1.0, -3.0] and not loaded.is_neg()


def test_states_that_do_not_fit_are_refused_and_change_nothing(make: Make) -> None:
    model = optimizers.model()
    optimizer = make(model.parameters())
    train(model, optimizer, range(2))
    before = snapshot(optimizer)
    odd = snapshot(optimizer)
    odd["state"][0]["exp_avg"] = odd["state"][0]["exp_avg"][:5]
    with pytest.raises(ValueError, match="exp_avg"):
        optimizer.load_state_dict(odd)
    fewer = snapshot(optimizer)
    fewer["param_groups"][0]["params"].pop()
    with pytest.raises(ValueError, match="size"):
        optimizer.load_state_dict(fewer)
    assert same(before, snapshot(optimizer))
