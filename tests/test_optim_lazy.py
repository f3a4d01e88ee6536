"""LazyAdam: the cases of its users (numbers: optimizers, section 3), and what it promises beyond all optimizers."""

from __future__ import annotations

import copy
import gc
import io
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from optimizers import equal, same, snapshot
from torch import Tensor, nn

import anyfuse
from anyfuse.ops import lazy_adam as op
from anyfuse.optim import LazyAdam

ROOT = Path(__file__).parent.parent
MODES: dict[str, dict[str, Any]] = {
    "global": {},
    "row": {"bias_correction": "row", "weight_decay": 0.1},
    "none": {"bias_correction": False, "eps_mode": "inside"},
    "catch up": {"decay_mode": "catch_up", "weight_decay": 0.1},
}


def table(*values: float, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    """A table of one column."""
    return nn.Parameter(torch.tensor(values, dtype=dtype).unsqueeze(1))


def coo(param: Tensor, ids: Iterable[int], values: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(torch.tensor([list(ids)]), values, tuple(param.shape), check_invariants=True)


def named(param: nn.Parameter, ids: list[int], *values: float) -> None:
    param.grad = coo(param, ids, torch.tensor(values).unsqueeze(1).to(param.dtype))


def column(tensor: Tensor) -> list[float]:
    return tensor.detach().flatten().tolist()


# ---- ids ----


def test_case_o39_equal_ids_are_summed_before_the_step() -> None:
    """Values to 1e-6: they were computed without eps, beside which fp32 and an eps of 1e-8 stand at 3e-7."""
    weight = table(0.0, 0.0, 0.0, 0.0)
    optimizer = LazyAdam([weight], lr=0.1)
    named(weight, [1, 1], 1.0, 3.0)
    optimizer.step()
    state = optimizer.state[weight]
    assert column(state["exp_avg"]) == pytest.approx([0, 0.4, 0, 0], rel=1e-6)
    assert column(state["exp_avg_sq"]) == pytest.approx([0, 0.016, 0, 0], rel=1e-6)
    assert column(weight) == pytest.approx([0, -0.1, 0, 0], rel=1e-6)
    named(weight, [1], 2.0)
    optimizer.step()
    assert column(weight)[1] + 0.1 == pytest.approx(-0.1 * 0.9321796, rel=2e-6)


def test_case_o39_many_equal_ids_on_many_threads() -> None:
    results, before = [], torch.get_num_threads()
    values = torch.randn(100_000, 2, generator=torch.Generator().manual_seed(0))
    try:
        for threads in (1, 16, 16, 5):
            torch.set_num_threads(threads)
            weight = nn.Parameter(torch.zeros(3, 2))
            LazyAdam([weight]).step(rows={weight: (torch.full((100_000,), 1), values)})
            results.append(weight.detach())
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


def test_case_o40_a_batch_of_padding_changes_nothing_but_counts() -> None:
    embedding = nn.Embedding(5, 1, padding_idx=0, sparse=True)
    before = embedding.weight.detach().clone()
    optimizer = LazyAdam(embedding.parameters(), padding_idx=0)
    embedding(torch.tensor([[0, 0]], dtype=torch.int32)).sum().backward()
    optimizer.step()
    state = optimizer.state[embedding.weight]
    assert torch.equal(embedding.weight, before) and not state["exp_avg"].any()
    assert state["step"] == 1  # a call with a gradient is a step, as in torch's SparseAdam


@pytest.mark.parametrize("mode", MODES)
def test_case_o40_no_ids(mode: str) -> None:
    weight = nn.Parameter(torch.ones(7, 64))
    optimizer = LazyAdam([weight], **MODES[mode])
    for _ in range(2):
        optimizer.step(rows={weight: (torch.zeros(0, dtype=torch.int32), torch.zeros(0, 64))})
    assert torch.equal(weight, torch.ones(7, 64)) and optimizer.state[weight]["step"] == 2


@pytest.mark.parametrize("padding", [-1, 4])
def test_case_o41_padding_is_skipped_and_guard_rows_stay(padding: int) -> None:
    memory = torch.ones(14, 3)
    weight = nn.Parameter(memory[2:12])
    optimizer = LazyAdam([weight], lr=0.1, padding_idx=padding, bias_correction="row")
    optimizer.step(rows={weight: (torch.tensor([padding, 3, 9, padding]), torch.ones(4, 3))})
    assert (memory != 1.0).any(1).nonzero().flatten().tolist() == [2 + 3, 2 + 9]
    assert optimizer.state[weight]["row_step"].tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("bad", "padding"), [(10, -1), (-2, -1), (-1, None), (-(2**40), 3), (-(2**63), None)])
def test_case_o41_other_ids_are_refused_before_any_write(
    bad: int, padding: int | None, groups: int, strided: bool
) -> None:
    """Not a byte of any table, state or count changes, in any group."""
    weights = [
        nn.Parameter(torch.ones(10, 4)),
        nn.Parameter(torch.ones(10, 8)[:, ::2] if strided else torch.ones(10, 4)),
    ]
    lists = [weights] if groups == 1 else [[weight] for weight in weights]
    optimizer = LazyAdam([{"params": some} for some in lists], padding_idx=padding, bias_correction="row")
    fine = {weight: (torch.tensor([1, 2]), torch.ones(2, 4)) for weight in weights}
    optimizer.step(rows=fine)
    before = copy.deepcopy((weights, snapshot(optimizer)))
    with pytest.raises(IndexError, match=f"indices holds {bad}; accepted"):
        optimizer.step(rows={**fine, weights[1]: (torch.tensor([1, bad]), torch.ones(2, 4))})
    assert same(list(before), [weights, snapshot(optimizer)])


def test_case_o42_types_of_ids() -> None:
    results = []
    for dtype in (torch.int32, torch.int64):
        weight = nn.Parameter(torch.ones(50, 5))
        ids = torch.arange(60).to(dtype) * 7 % 50
        LazyAdam([weight]).step(rows={weight: (ids, torch.linspace(-1, 1, 300).view(60, 5))})
        results.append(weight.detach())
    assert torch.equal(*results)
    with pytest.raises(TypeError, match="ids of rows has dtype uint8"):
        LazyAdam([weight]).step(rows={weight: (ids.to(torch.uint8), torch.ones(60, 5))})


# ---- the rule ----


@pytest.mark.parametrize(("mode", "first", "third"), [("global", 2.5146, 0.6388), ("row", 1.0, 1.0)])
def test_case_o43_rows_that_are_first_seen_late(mode: str, first: float, third: float) -> None:
    for now, expected in ((1000, first), (3, third)):
        weight = table(0.0, 0.0)
        optimizer = LazyAdam([weight], lr=0.1, bias_correction=mode)
        for _ in range(2):
            named(weight, [0], 1.0)
            optimizer.step()
        optimizer.state[weight]["step"].fill_(now - 1)
        named(weight, [1], 1.0)
        optimizer.step()
        assert column(weight)[1] == pytest.approx(-0.1 * expected, rel=1e-4)  # the values have five digits
        if mode == "row":
            assert optimizer.state[weight]["row_step"].tolist() == [2, 1]
            assert optimizer.state[weight]["row_step"].dtype == torch.int32
        else:
            assert "row_step" not in optimizer.state[weight]


@pytest.mark.parametrize(("mode", "expected"), [("outside", 0.5), ("inside", 0.03065)])
def test_case_o44_where_eps_stands(mode: str, expected: float) -> None:
    weight = table(0.0)
    optimizer = LazyAdam([weight], lr=0.1, eps_mode=mode)
    named(weight, [0], 1e-8)
    optimizer.step()
    assert column(weight) == pytest.approx([-0.1 * expected], rel=1e-3)  # the value has four digits


@pytest.mark.parametrize("mode", ["outside", "inside"])
def test_case_o44_parity_with_torch(mode: str) -> None:
    own = nn.Parameter(torch.randn(30, 6, generator=torch.Generator().manual_seed(0)))
    other = nn.Parameter(own.detach().clone())
    mine = LazyAdam([own], lr=0.01, eps=1e-3, eps_mode=mode)
    theirs = (torch.optim.SparseAdam if mode == "inside" else torch.optim.Adam)([other], lr=0.01, eps=1e-3)
    for step in range(10):
        values = torch.randn(30, 6, generator=torch.Generator().manual_seed(step))
        own.grad = coo(own, range(30), values)
        other.grad = own.grad.clone() if mode == "inside" else values
        mine.step()
        theirs.step()
    torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)  # the same formula in another order of roundings


def test_case_o45_lazy_rows_stay() -> None:
    weight = table(0.0, 0.0)
    optimizer = LazyAdam([weight], lr=0.1)
    named(weight, [0], 1.0)
    optimizer.step()
    after_one = [tensor[0].clone() for tensor in (weight.detach(), *_moments(optimizer, weight))]
    for _ in range(4):
        named(weight, [1], 1.0)
        optimizer.step()
    assert equal(after_one, [tensor[0] for tensor in (weight, *_moments(optimizer, weight))])
    assert column(weight)[0] == pytest.approx(-0.1, rel=1e-6)


def _moments(optimizer: LazyAdam, weight: Tensor) -> tuple[Tensor, Tensor]:
    return optimizer.state[weight]["exp_avg"], optimizer.state[weight]["exp_avg_sq"]


def test_case_o45_catching_up_gives_the_drift_of_dense_adam() -> None:
    """-.29709 at step 5, and then the step that touches the row with a gradient of 0."""
    weight, dense = table(0.0, 0.0), table(0.0, 0.0)
    optimizer = LazyAdam([weight], lr=0.1, decay_mode="catch_up")
    adam = torch.optim.Adam([dense], lr=0.1)
    for step in range(6):
        row = 0 if step in (0, 5) else 1
        named(weight, [row], 0.0 if step == 5 else 1.0)
        dense.grad = weight.grad.to_dense()
        optimizer.step()
        adam.step()
        if step == 4:
            assert column(dense)[0] == pytest.approx(-0.29709, rel=1e-4)
    assert column(weight)[0] == pytest.approx(column(dense)[0], rel=1e-5)
    assert optimizer.state[weight]["row_step"].tolist() == [6, 5]


@pytest.mark.parametrize("gap", [1, 2, 30, 400, 5000])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.95, 0.98), (0.5, 0.9)])
@pytest.mark.parametrize("eps", [1e-8, 1e-2])
def test_case_o45_caught_up_rows_are_where_dense_adamw_has_them(
    gap: int, betas: tuple[float, float], eps: float
) -> None:
    """In float64 by the published formula; rows named at steps 1, 3 and then after `gap` steps. The first row is named
    at that last step alone: until then only its weight has decayed."""
    generator = torch.Generator().manual_seed(gap)
    gradients = {step: torch.randn(4, 3, generator=generator) for step in (1, 3, 3 + gap)}
    gradients[1][0] = gradients[3][0] = 0.0
    start = torch.randn(4, 3, generator=generator)
    weight = nn.Parameter(start.clone())
    optimizer = LazyAdam([weight], 1e-3, betas, eps, 0.01, decay_mode="catch_up")
    optimizer.set_step(0)
    p, m, v = start.double(), torch.zeros(4, 3).double(), torch.zeros(4, 3).double()
    for t in range(1, 3 + gap + 1):
        g = gradients.get(t, torch.zeros(4, 3)).double()
        p = p * (1 - 1e-3 * 0.01)
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
        p = p - 1e-3 * (m / (1 - betas[0] ** t)) / ((v / (1 - betas[1] ** t)).sqrt() + eps)
        if t in gradients:
            optimizer.state[weight]["step"].fill_(t - 1)  # the steps between name no row
            ids = torch.arange(1 if t <= 3 else 0, 4)
            optimizer.step(rows={weight: (ids, g[ids].float())})
    torch.testing.assert_close(weight.detach().double(), p, rtol=1e-5, atol=1e-6)
    for moment, expected in zip(_moments(optimizer, weight), (m, v), strict=True):
        torch.testing.assert_close(moment.double(), expected, rtol=1e-5, atol=1e-9)


def test_touched_rows_alone_decay() -> None:
    weight = table(1.0, 1.0)
    optimizer = LazyAdam([weight], lr=0.1, weight_decay=0.5)
    named(weight, [1], 0.0)
    optimizer.step()
    assert column(weight) == pytest.approx([1.0, 0.95])


# ---- dense and sparse together ----


def test_case_o47_dense_and_sparse_in_one_optimizer() -> None:
    torch.manual_seed(0)
    own = nn.Sequential(nn.EmbeddingBag(50, 8, sparse=True, mode="sum"), nn.Linear(8, 3))
    other = copy.deepcopy(own)
    other[0].sparse = False
    mine = LazyAdam(own.parameters(), lr=0.01, weight_decay=0.1)
    theirs = torch.optim.AdamW(other.parameters(), lr=0.01, weight_decay=0.1)
    ids = torch.arange(50).repeat(2).view(20, 5)  # every row, twice: lazy and dense are the same then
    for _ in range(5):
        for model, optimizer in ((own, mine), (other, theirs)):
            optimizer.zero_grad()
            model(ids).square().sum().backward()
            torch.nn.utils.clip_grad_norm_(model[1].parameters(), 1.0)
            optimizer.step()
    assert own[0].weight.grad.is_sparse and not own[0].weight.grad.is_coalesced()
    for a, b in zip(own.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)  # the same formula in another order of roundings


@pytest.mark.parametrize("mode", MODES)
def test_case_o47_a_gradient_that_is_sparse_and_then_dense(mode: str) -> None:
    """As that of an embedding that is tied to the last layer. All rows named, and all rows of a dense gradient, are
    the same step bit for bit."""
    results = []
    for kinds in (["sparse", "dense", "sparse"], ["dense", "sparse", "dense"], ["sparse"] * 3):
        weight = nn.Parameter(torch.linspace(-1, 1, 60).view(20, 3))
        optimizer = LazyAdam([weight], lr=0.1, **MODES[mode])
        for step, kind in enumerate(kinds):
            values = torch.randn(20, 3, generator=torch.Generator().manual_seed(step))
            weight.grad = values if kind == "dense" else coo(weight, range(20), values)
            optimizer.step()
        results.append((weight.detach(), snapshot(optimizer)))
    assert same(results[0], results[1]) and same(results[0], results[2])


@pytest.mark.parametrize("mode", MODES)
def test_case_o47_rows_that_are_visible(mode: str) -> None:
    """The parameters of Gaussian splatting: of any shape behind N, stepped as by ids, row for row."""
    shapes = [(40,), (40, 1), (40, 3), (40, 15, 3)]
    visible = torch.arange(40) % 3 == 1
    ids = visible.nonzero().flatten()
    masked, listed = ([nn.Parameter(torch.ones(shape)) for shape in shapes] for _ in range(2))
    one, two = LazyAdam(masked, lr=0.1, **MODES[mode]), LazyAdam(listed, lr=0.1, **MODES[mode])
    for step in range(3):
        grads = [torch.randn(shape, generator=torch.Generator().manual_seed(step)) for shape in shapes]
        for param, grad in zip(masked, grads, strict=True):
            param.grad = grad
        one.step(visible=visible)
        two.step(rows={param: (ids, grad[ids]) for param, grad in zip(listed, grads, strict=True)})
    assert equal(masked, listed) and same(snapshot(one), snapshot(two))
    assert all(bool((param[~visible] == 1.0).all()) and bool((param[visible] != 1.0).all()) for param in masked)
    with pytest.raises(ValueError, match=r"visible has shape \(39,\)"):
        one.step(visible=visible[:-1])
    with pytest.raises(TypeError, match="visible has dtype int64"):
        one.step(visible=ids)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mode", MODES)
def test_native_equals_reference_for_tables_of_any_width(mode: str, dtype: torch.dtype) -> None:
    """In one native call: sparse, dense, strided, of one row, of no column."""
    results = []
    for backend in ("native", "reference"):
        generator = torch.Generator().manual_seed(0)
        shapes = [(30, 5), (7, 64), (1, 1), (12, 2, 3), (9,), (4, 0), (0, 4), ()]
        params = [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]
        params.append(nn.Parameter(torch.randn(6, 8, generator=generator).to(dtype).t()))
        optimizer = LazyAdam(params, lr=0.1, stochastic_rounding=True, **MODES[mode])
        with anyfuse.backend(backend):
            for step in range(4):
                for number, param in enumerate(params):
                    named_rows = param.dim() > 0 and (number + step) % 3 != 0
                    if named_rows and len(param):
                        ids = torch.randint(len(param), (5,), generator=generator)
                        values = torch.randn((5, *param.shape[1:]), generator=generator).to(dtype)
                        param.grad = coo(param, ids.tolist(), values)
                    else:
                        param.grad = torch.randn(param.shape, generator=generator).to(dtype)
                optimizer.step()
        results.append((params, snapshot(optimizer)))
    assert equal(results[0][0], results[1][0]) and same(results[0][1], results[1][1])


def test_moments_of_16_bit_tables_are_fp32() -> None:
    weight = table(1.0, 2.0, dtype=torch.bfloat16)
    optimizer = LazyAdam([weight])
    named(weight, [1], 1.0)
    optimizer.step()
    assert {moment.dtype for moment in _moments(optimizer, weight)} == {torch.float32}


def test_stochastic_rounding_moves_a_16_bit_table_in_the_mean() -> None:
    """1 - 50·1e-4 in steps that nearest rounding would drop, the mean over 4096 elements within four deviations."""
    weight = nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
    torch.manual_seed(0)
    optimizer = LazyAdam([weight], lr=1e-4, stochastic_rounding=True)
    for _ in range(50):
        weight.grad = coo(weight, range(64), torch.ones(64, 64, dtype=torch.bfloat16))
        optimizer.step()
    assert float(weight.detach().float().mean()) == pytest.approx(1 - 50e-4, abs=4 * 2**-8 * 0.5 * 50**0.5 / 64)


# ---- counts, saving ----


def test_case_o49_counts_and_keys() -> None:
    weight = table(0.0, 0.0, 0.0)
    optimizer = LazyAdam([weight], lr=0.1, bias_correction="row")
    for ids in ([0], [0, 2], [0]):
        named(weight, ids, *[1.0] * len(ids))
        optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    again = LazyAdam([weight])
    again.load_state_dict(torch.load(file, weights_only=True))
    state = again.state[weight]
    assert state["step"] == 3 and state["row_step"].tolist() == [3, 0, 1]
    assert set(state) == {"step", "exp_avg", "exp_avg_sq", "row_step"}
    again.set_step(0)
    assert state["step"] == 0 and state["row_step"].tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="step is -1"):
        again.set_step(-1)


def test_set_step_before_the_first_step() -> None:
    weight = table(0.0)
    optimizer = LazyAdam([weight], lr=0.1)
    optimizer.set_step(999)
    named(weight, [0], 1.0)
    optimizer.step()
    assert column(weight) == pytest.approx([-0.25146], rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", MODES)
def test_resume_with_sparse_gradients_is_bitwise(mode: str, dtype: torch.dtype) -> None:
    def go_on(weight: nn.Parameter, optimizer: LazyAdam, steps: Iterable[int]) -> None:
        for step in steps:
            generator = torch.Generator().manual_seed(step)
            values = torch.randn(9, 5, generator=generator).to(dtype)
            weight.grad = coo(weight, torch.randint(20, (9,), generator=generator).tolist(), values)
            optimizer.step()

    make = partial(LazyAdam, lr=0.1, stochastic_rounding=True, **MODES[mode])
    whole = nn.Parameter(torch.ones(20, 5, dtype=dtype))
    optimizer = make([whole])
    go_on(whole, optimizer, range(5))
    file = io.BytesIO()
    torch.save({"weight": whole.detach(), "optimizer": optimizer.state_dict()}, file)
    go_on(whole, optimizer, range(5, 10))
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = nn.Parameter(saved["weight"])
    again = LazyAdam([resumed])
    again.load_state_dict(saved["optimizer"])
    go_on(resumed, again, range(5, 10))
    assert equal([whole], [resumed]) and same(snapshot(optimizer), snapshot(again))


def test_a_state_of_sparse_adam_is_taken() -> None:
    own, other = table(0.0, 1.0), table(0.0, 1.0)
    original = torch.optim.SparseAdam([other], lr=0.1)
    for _ in range(2):
        named(other, [1], 1.0)
        original.step()
    optimizer = LazyAdam([own], eps_mode="inside")
    own.data.copy_(other)
    optimizer.load_state_dict(original.state_dict())
    for param, opt in ((own, optimizer), (other, original)):
        named(param, [1], 0.5)
        opt.step()
    torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-7)


def test_a_count_of_rows_that_does_not_fit_is_refused() -> None:
    weight = table(0.0, 1.0)
    optimizer = LazyAdam([weight], bias_correction="row")
    named(weight, [1], 1.0)
    optimizer.step()
    state = snapshot(optimizer)
    state["state"][0]["row_step"] = torch.zeros(3, dtype=torch.int32)
    with pytest.raises(ValueError, match="row_step of a saved state"):
        optimizer.load_state_dict(state)
    assert optimizer.state[weight]["row_step"].tolist() == [0, 1]


# ---- the loop ----


def test_grad_scaler_with_sparse_gradients() -> None:
    scaled, plain = (nn.Embedding(5, 2, sparse=True, _weight=torch.ones(5, 2)) for _ in range(2))
    one, two = LazyAdam(scaled.parameters(), lr=0.1), LazyAdam(plain.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    ids = torch.tensor([1, 1, 4])
    for _ in range(2):
        one.zero_grad()
        two.zero_grad()
        scaler.scale(scaled(ids).square().sum()).backward()
        plain(ids).square().sum().backward()
        scaler.step(one)
        scaler.update(8.0)
        two.step()
    assert equal(scaled.parameters(), plain.parameters()) and same(snapshot(one), snapshot(two))
    before = copy.deepcopy((list(scaled.parameters()), snapshot(one)))
    scaled.weight.grad = coo(scaled.weight, [1], torch.full((1, 2), float("inf")))
    scaler.step(one)
    scaler.update()
    assert same(list(before), [list(scaled.parameters()), snapshot(one)])


@pytest.mark.parametrize("schedule", [partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.05, total_steps=12)])
def test_case_o20_schedules_that_change_betas_too(schedule: Callable[..., Any]) -> None:
    own, other = nn.Parameter(torch.ones(6, 2)), nn.Parameter(torch.ones(6, 2))
    for weight, make in ((own, LazyAdam), (other, torch.optim.Adam)):
        optimizer = make([weight], lr=0.01)
        scheduler = schedule(optimizer)
        for step in range(10):
            values = torch.randn(6, 2, generator=torch.Generator().manual_seed(step))
            weight.grad = values if make is torch.optim.Adam else coo(weight, range(6), values)
            optimizer.step()
            scheduler.step()
    torch.testing.assert_close(own, other, rtol=1e-4, atol=2e-6)  # 10 steps of other roundings


@pytest.mark.parametrize(
    ("options", "error", "names"),
    [
        ({"bias_correction": True}, ValueError, "bias_correction"),
        ({"bias_correction": "local"}, ValueError, "bias_correction"),
        ({"eps_mode": "both"}, ValueError, "eps_mode"),
        ({"eps": 0.0}, ValueError, "epsilon"),
        ({"decay_mode": "lazy"}, ValueError, "decay_mode"),
        ({"decay_mode": "catch_up", "bias_correction": "row"}, ValueError, "bias_correction"),
        ({"padding_idx": 1.5}, TypeError, "padding_idx"),
        ({"stochastic_rounding": 1}, TypeError, "stochastic_rounding"),
        ({"lr": -1.0}, ValueError, "lr"),
        ({"amsgrad": True}, TypeError, "amsgrad"),
    ],
)
def test_options_are_checked(options: dict[str, Any], error: type[Exception], names: str) -> None:
    with pytest.raises(error, match=names):
        LazyAdam([table(1.0)], **options)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"bias_correction": "x"}, "bias_correction"),
        ({"bias_correction": "row", "decay_mode": "catch_up"}, "bias_correction"),
        ({"eps_mode": None}, "eps_mode"),
        ({"eps": 1e-9}, "epsilon"),
        ({"padding_idx": "a"}, "padding_idx"),
        ({"stochastic_rounding": None}, "stochastic_rounding"),
        ({"rounding_seed": "x"}, "rounding_seed"),
    ],
)
def test_choices_that_change_between_steps_are_looked_at(options: dict[str, Any], names: str) -> None:
    weight = table(1.0, 2.0)
    optimizer = LazyAdam([weight])
    weight.grad = torch.ones(2, 1)
    optimizer.step()
    before = weight.detach().clone()
    optimizer.param_groups[0].update(options)
    with pytest.raises((TypeError, ValueError), match=names):
        optimizer.step()
    assert torch.equal(weight, before)


@pytest.mark.parametrize(
    ("pair", "names"),
    [
        ((torch.tensor([1]),), "rows"),
        (None, "rows"),
        ((torch.tensor([1]), torch.ones(1, 4).to_sparse()), "values of rows"),
        ((torch.tensor([1], device="meta"), torch.ones(1, 4)), "ids"),
        ((torch.tensor([1]), torch.ones(1, 4, device="meta")), "gradient"),
        (([1], torch.ones(1, 4)), "ids of rows"),
    ],
)
def test_rows_of_a_wrong_kind_are_refused_by_name(pair: Any, names: str) -> None:
    weight = nn.Parameter(torch.ones(3, 4))
    with pytest.raises((TypeError, ValueError), match=names):
        LazyAdam([weight]).step(rows={weight: pair})
    with pytest.raises(TypeError, match="rows is a list"):
        LazyAdam([weight]).step(rows=[pair])  # type: ignore[arg-type]
    assert torch.equal(weight, torch.ones(3, 4))


def test_values_and_ids_that_are_negated_views_keep_their_sign() -> None:
    values, ids = torch.tensor([[1.0], [-2.0]]), torch.tensor([1, 0])
    results = []
    for change in (lambda tensor: tensor, lambda tensor: torch._neg_view(-tensor)):
        weight = table(1.0, 2.0, 3.0)
        optimizer = LazyAdam([weight])
        optimizer.step(rows={weight: (change(ids), change(values))})
        results.append(column(weight))
    assert results[0] == results[1] != [1.0, 2.0, 3.0]


def test_gradients_that_do_not_fit_are_refused_before_any_write() -> None:
    first, weight = table(1.0), nn.Parameter(torch.ones(4, 3, 2))
    optimizer = LazyAdam([{"params": [first]}, {"params": [weight]}])
    first.grad = torch.ones(1, 1)
    ids = torch.tensor([1])
    for rows, error in (
        ({weight: (ids, torch.ones(1, 2))}, ValueError),
        ({weight: (ids, torch.ones(2, 3, 2))}, ValueError),
        ({weight: (ids, torch.ones(1, 3, 2).double())}, TypeError),
        ({weight: (ids, weight.detach()[:1])}, ValueError),
        ({torch.ones(2): (ids, torch.ones(1))}, ValueError),
        ({first: (ids, torch.ones(1, 1))}, ValueError),
    ):
        with pytest.raises(error):
            optimizer.step(rows=rows)
    weight.grad = torch.ones(4, 3, 2).to_sparse()
    with pytest.raises(ValueError, match="a gradient has 3 sparse dimensions"):
        optimizer.step()
    assert column(first) == [1.0] and bool((weight == 1.0).all()) and not optimizer.state


def test_nothing_is_allocated_but_for_the_ids() -> None:
    """What a step with sparse gradients leaves to the allocator: nothing of the size of a table."""
    weight, dense = nn.Parameter(torch.ones(5000, 8)), nn.Parameter(torch.ones(300, 4))
    optimizer = LazyAdam([weight, dense], bias_correction="row")

    def give() -> None:
        weight.grad, dense.grad = coo(weight, range(10), torch.ones(10, 8)), torch.ones(300, 4)

    give()
    optimizer.step()
    give()
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        optimizer.step()
    taken = sum(max(event.self_cpu_memory_usage, 0) for event in profile.events())
    assert taken <= 10 * 8 + 64, taken


FORBIDDEN = """
import sys, torch, anyfuse
from torch import nn
sys.path.insert(0, {tests!r})
from test_lazy_adam import forbid_all_but, unbacked
rows, dim = 10_000_000, 64
named = [3, 70, 5_000_000, rows - 1]
for options in ({{"decay_mode": "catch_up", "weight_decay": 0.1}}, {{"bias_correction": "row"}}):
    tables = [unbacked(rows, dim) for _ in range(3)]
    counts = unbacked(rows, 1).view(torch.int32).view(rows)
    for table in tables:
        forbid_all_but(table, named)
    weight = nn.Parameter(tables[0])
    optimizer = anyfuse.optim.LazyAdam([weight], **options)
    moments = {{"exp_avg": tables[1], "exp_avg_sq": tables[2]}}
    optimizer.state[weight] = {{"step": torch.tensor(0), **moments, "row_step": counts}}
    for step in range(3):
        ids = torch.tensor([named[:: step + 1]])
        values = torch.ones(ids.numel(), dim)
        weight.grad = torch.sparse_coo_tensor(ids, values, (rows, dim), check_invariants=False)
        optimizer.step()
    assert all(bool(tables[0][row].any()) for row in named)
print("only named rows")
"""


def test_case_o51_no_other_row_is_touched() -> None:
    """The work does not grow with the table: a single read in a page of 10 million rows that holds no named row would
    end the process."""
    code = FORBIDDEN.format(tests=str(Path(__file__).parent))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, (result.returncode, result.stderr)
    assert result.stdout.strip() == "only named rows"


def test_the_smallest_eps_is_that_of_the_operator() -> None:
    assert LazyAdam([table(1.0)], eps=op.SMALLEST_EPSILON).defaults["eps"] == op.SMALLEST_EPSILON


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    result = runpy.run_path(str(ROOT / "examples" / "optim_lazy_embedding.py"))["main"]()
    assert result["loss"] < 0.5 * result["first loss"]
    assert result["resumed"] and result["rows of the table moved"] < 1.0
    assert "loss" in capsys.readouterr().out
