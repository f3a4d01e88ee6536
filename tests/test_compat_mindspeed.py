"""MindSpeed's optimizer: what the document writes, checkpoints, errors."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor


def document(
    grad: Tensor, var: Tensor, m: Tensor, v: Tensor, s: Tensor, step: int, lr: float, decay: float, wd: float, mode: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The update rule of the document, in float64."""
    grad = grad + wd * var * (1 - mode)
    m = 0.9 * m + (1 - 0.9) * grad
    v = 0.999 * v + (1 - 0.999) * grad * grad
    update = m / (1 - 0.9**step) / ((v / (1 - 0.999**step)).sqrt() + 1e-8) + wd * var * mode
    var = var - lr * update
    return var, m, v, decay * s + (1 - decay) * var


@pytest.mark.parametrize("use_num_updates", [True, False])
@pytest.mark.parametrize("adam_w_mode", [True, False])
def test_fused_ema_adamw_follows_the_document(fused_ema_adamw: Any, use_num_updates: bool, adam_w_mode: bool) -> None:
    torch.manual_seed(0)
    params = [
        torch.nn.Parameter(torch.randn(5, 3)),
        torch.nn.Parameter(torch.randn(7)),
        torch.nn.Parameter(torch.ones(1)),
    ]
    optimizer = fused_ema_adamw(
        params, lr=0.1, weight_decay=0.2, ema_decay=0.3, use_num_updates=use_num_updates, adam_w_mode=adam_w_mode
    )
    mine = [(p.detach().double(), *[torch.zeros_like(p).double()] * 2, p.detach().double()) for p in params[:2]]
    for n in range(1, 9):
        for i in (0, 1):
            params[i].grad = torch.randn_like(params[i])
            decay = min(0.3, (1 + n) / (10 + n)) if use_num_updates else 0.3
            mine[i] = document(params[i].grad.double(), *mine[i], n, 0.1, decay, 0.2, int(adam_w_mode))
        optimizer.step()
    assert torch.equal(optimizer.param_groups[0]["step"], torch.tensor([8]))
    assert optimizer.num_updates == (8 if use_num_updates else -1)
    assert params[2] not in optimizer.state or not optimizer.state[params[2]]
    for param, values in zip(params, mine, strict=False):
        state = optimizer.state[param]
        found = (param, state["exp_avg"], state["exp_avg_sq"], state["ema_params"])
        for one, other in zip(found, values, strict=True):
            # 1 - 0.999 has a relative error of 3e-5 in fp32, its root half of that; 8 steps of about lr = 0.1.
            torch.testing.assert_close(one.double(), other, rtol=0, atol=8 * 0.1 * 1.5e-5)


def test_fused_ema_adamw_swaps_weights(fused_ema_adamw: Any) -> None:
    module = torch.nn.Linear(4, 2)
    optimizer = fused_ema_adamw(module.parameters(), lr=0.1)
    for _ in range(3):
        module(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert module.weight.grad is None
    trained = module.weight.detach().clone()
    optimizer.store(optimizer.param_groups)
    optimizer.copy_to()
    assert torch.equal(module.weight, optimizer.state[module.weight]["ema_params"])
    assert not torch.equal(module.weight, trained)
    optimizer.restore(optimizer.param_groups)
    assert torch.equal(module.weight, trained)
    with pytest.raises(RuntimeError, match="restore"):
        optimizer.restore(optimizer.param_groups)


def test_case_o32_fused_ema_adamw_goes_on_from_a_checkpoint(fused_ema_adamw: Any) -> None:
    def run(steps: int, resume: dict[str, Any] | None = None, weights: Tensor | None = None) -> tuple[Any, Any]:
        param = torch.nn.Parameter(torch.linspace(-1, 1, 9) if weights is None else weights.clone())
        optimizer = fused_ema_adamw([param], lr=0.1)
        if resume is not None:
            optimizer.load_state_dict(resume)
        for _ in range(steps):
            param.grad = param.detach().square()
            optimizer.step()
        return param, optimizer

    half, optimizer = run(3)
    resumed, theirs = run(3, optimizer.state_dict(), half.detach())
    whole, mine = run(6)
    assert torch.equal(resumed, whole)
    assert torch.equal(theirs.state[resumed]["ema_params"], mine.state[whole]["ema_params"])


def test_case_o21_fused_ema_adamw_keeps_its_steps_by_group(fused_ema_adamw: Any) -> None:
    """A parameter whose first gradient comes at step 10 is corrected as at step 10; a group counts once a step."""
    early, late = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1).bfloat16())
    optimizer = fused_ema_adamw([early, late], lr=1.0, weight_decay=0.0)
    for step in range(1, 11):
        early.grad = torch.ones(1)
        late.grad = torch.ones(1).bfloat16() if step == 10 else None
        optimizer.step()
    assert torch.equal(optimizer.param_groups[0]["step"], torch.tensor([10]))
    torch.testing.assert_close(late.float().detach(), torch.tensor([-0.4844]), rtol=2**-8, atol=0)  # bfloat16
    assert early.item() == pytest.approx(-10.0, rel=1e-4)


def test_case_o29_fused_ema_adamw_decay(fused_ema_adamw: Any) -> None:
    param = torch.nn.Parameter(torch.zeros(1))
    optimizer = fused_ema_adamw([param], lr=1.0, ema_decay=0.9999)
    average = 0.0
    for decay in (0.181818, 0.25, 0.307692, 0.357143):
        param.grad = torch.ones(1)
        optimizer.step()
        average = decay * average + (1 - decay) * param.item()
        assert optimizer.state[param]["ema_params"].item() == pytest.approx(average, rel=1e-5)
    assert optimizer.ema_decay == 0.9999


@pytest.mark.parametrize("way", ["attribute", "num_updates", "use_num_updates"])
def test_the_attributes_are_the_truth(fused_ema_adamw: Any, way: str) -> None:
    """MindSpeed's wrapper of Megatron sets `ema_decay` on the finished optimizer; num_updates = -1 ends the ramp."""
    param = torch.nn.Parameter(torch.zeros(2))
    optimizer = fused_ema_adamw([param], lr=1.0, ema_decay=0.5, use_num_updates=way == "num_updates")
    if way == "attribute":
        optimizer.ema_decay = 0.0
    if way == "num_updates":
        optimizer.num_updates = -1
    for _ in range(2):
        before = optimizer.state[param]["ema_params"].clone() if optimizer.state[param] else param.detach().clone()
        param.grad = torch.ones(2)
        optimizer.step()
        decay = 0.0 if way == "attribute" else 0.5
        assert torch.equal(optimizer.state[param]["ema_params"], decay * before + (1 - decay) * param.detach())
    assert optimizer.num_updates == -1


def test_empty_groups_are_skipped(fused_ema_adamw: Any) -> None:
    param = torch.nn.Parameter(torch.ones(2))
    optimizer = fused_ema_adamw([{"params": []}, {"params": [param]}])
    param.grad = torch.ones(2)
    optimizer.step()
    assert not torch.equal(param.detach(), torch.ones(2))
    assert "step" not in optimizer.param_groups[0] and torch.equal(optimizer.param_groups[1]["step"], torch.tensor([1]))
    trained = param.detach().clone()
    optimizer.store(optimizer.param_groups)
    optimizer.copy_to()
    optimizer.restore(optimizer.param_groups)
    assert torch.equal(param.detach(), trained)


def test_restore_takes_as_many_groups_as_there_are(fused_ema_adamw: Any) -> None:
    first, second = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3))
    optimizer = fused_ema_adamw([{"params": [first]}, {"params": [second]}])
    optimizer.store(optimizer.param_groups)
    with torch.no_grad():
        first.zero_()
        second.zero_()
    optimizer.restore(optimizer.param_groups[:1])
    assert torch.equal(first.detach(), torch.ones(2)) and torch.equal(second.detach(), torch.zeros(3))
    with pytest.raises(RuntimeError, match="restore without store"):
        optimizer.restore(optimizer.param_groups)


def test_states_of_the_official_class_are_loaded(fused_ema_adamw: Any) -> None:
    """Their groups have the keys of its defaults and "step", and no "ema_decay"."""
    keys = {"lr", "bias_correction", "betas", "eps", "weight_decay", "amsgrad", "maximize", "params", "step"}
    param = torch.nn.Parameter(torch.ones(2))
    optimizer = fused_ema_adamw([param], lr=1.0)
    param.grad = torch.ones(2)
    optimizer.step()
    saved = optimizer.state_dict()
    assert keys <= saved["param_groups"][0].keys() and "ema_decay" not in saved["param_groups"][0]
    official = {
        "state": {0: {"exp_avg": torch.ones(2), "exp_avg_sq": torch.ones(2), "ema_params": torch.zeros(2)}},
        "param_groups": [{key: saved["param_groups"][0][key] for key in keys} | {"step": torch.tensor([7])}],
    }
    optimizer.load_state_dict(official)
    param.grad = torch.ones(2)
    optimizer.step()
    assert optimizer.num_updates == 8 and torch.equal(optimizer.param_groups[0]["step"], torch.tensor([8]))
    average = torch.tensor(1 - 9 / 18) * param.detach()
    torch.testing.assert_close(optimizer.state[param]["ema_params"], average, rtol=2**-23, atol=0)
    assert torch.equal(official["param_groups"][0]["step"], torch.tensor([7]))


@pytest.mark.parametrize(
    "place", ["mindspeed.core.optimizer.fused_ema_adamw.fused_ema_adamw", "mindspeed.optimizer.ema_adamw"]
)
def test_the_function_beside_the_optimizer(names: None, place: str) -> None:
    module = importlib.import_module(place)
    operator = importlib.import_module("mindspeed.ops.npu_apply_fused_ema_adamw").npu_apply_fused_ema_adamw
    params = [torch.nn.Parameter(torch.full((size,), 2.0)) for size in (3, 5)]
    mine = [[torch.full((p.numel(),), 0.5), p.detach().clone(), *torch.zeros(3, p.numel())] for p in params]
    lists = [params, *([torch.zeros(3), torch.zeros(5)] for _ in range(3))]
    numbers = (0.1, 0.9, 0.9, 0.999, 1e-8, 1, True, 0.01)
    module.fused_ema_adamw([torch.full((3,), 0.5), torch.full((5,), 0.5)], *lists, torch.tensor([1]), *numbers)
    for i, tensors in enumerate(mine):
        operator(*tensors, torch.tensor([1]), *numbers)
        for one, other in zip(tensors[1:], lists, strict=True):
            assert torch.equal(one, other[i])
    assert issubclass(module.FusedEmaAdamW, torch.optim.Optimizer)


def test_fused_ema_adamw_errors(fused_ema_adamw: Any) -> None:
    params = [torch.nn.Parameter(torch.ones(2))]
    for arguments, error in (
        ({"amsgrad": True}, RuntimeError),
        ({"maximize": True}, RuntimeError),
        ({"lr": -1.0}, ValueError),
        ({"eps": -1.0}, ValueError),
        ({"betas": (1.0, 0.9)}, ValueError),
        ({"betas": (0.9, -0.1)}, ValueError),
        ({"weight_decay": -1.0}, ValueError),
        ({"weight_decay": float("nan")}, ValueError),
    ):
        with pytest.raises(error, match="accepted"):
            fused_ema_adamw(params, **arguments)
    double = torch.nn.Parameter(torch.ones(2).double())
    double.grad = torch.ones(2).double()
    with pytest.raises(RuntimeError, match="float64"):
        fused_ema_adamw([double]).step()
    table = torch.nn.Embedding(3, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    before = table.weight.detach().clone()
    with pytest.raises(RuntimeError, match="sparse"):
        fused_ema_adamw(table.parameters()).step()
    assert torch.equal(table.weight, before)
    keeping = fused_ema_adamw(params, set_grad_none=False)
    params[0].grad = torch.ones(2)
    keeping.zero_grad()
    assert torch.equal(params[0].grad, torch.zeros(2))
    assert keeping.step(lambda: 5.0) == 5.0
