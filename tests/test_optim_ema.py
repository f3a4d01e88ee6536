"""EMAAdamW: the cases of section 2 (their numbers in the names)."""

from __future__ import annotations

import copy
import tracemalloc
from pathlib import Path
from typing import Any

import optimizers
import pytest
import torch
import torch.distributed.checkpoint as dcp
from optimizers import equal, give_gradients, parameter, same, snapshot, train, values
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

import anyfuse
from anyfuse.optim import EMAAdamW


def fixed(value: float, **options: Any) -> tuple[nn.Parameter, EMAAdamW]:
    """4096 weights that a step leaves as they are, whose EMA starts at 1 and which are then set to `value`."""
    weight = nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
    optimizer = EMAAdamW([weight], lr=0.0, weight_decay=0.0, ema_warmup=False, **options)
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    with torch.no_grad():
        weight.fill_(value)
    return weight, optimizer


def test_one_step_equals_the_operator_bit_for_bit() -> None:
    weight = nn.Parameter(torch.ones(5000))
    optimizer = EMAAdamW([weight], lr=0.1)
    var, m, v, s = torch.ones(5000), torch.zeros(5000), torch.zeros(5000), torch.ones(5000)
    for step in range(1, 4):
        give_gradients([weight], step)
        optimizer.step()
        decay = (1 + step) / (10 + step)
        anyfuse.apply_fused_ema_adamw_(
            weight.grad, var, m, v, s, step, lr=0.1, ema_decay=decay, weight_decay=1e-2, convention="formula"
        )
    state = optimizer.state[weight]
    assert equal([weight, state["exp_avg"], state["exp_avg_sq"], state["ema"]], [var, m, v, s])


def test_8_bit_moments_and_the_ema_in_one_pass() -> None:
    """The weights are those of AdamW8bit, bit for bit, and the EMA is that of these weights."""
    weight, other = nn.Parameter(torch.ones(5000)), nn.Parameter(torch.ones(5000))
    one = EMAAdamW([weight], lr=0.1, state_bits=8, ema_decay=0.5, ema_warmup=False)
    two = anyfuse.optim.AdamW8bit([other], lr=0.1)
    ema = torch.ones(5000)
    for step in range(4):
        give_gradients([weight, other], step)
        other.grad = weight.grad.clone()
        one.step()
        two.step()
        ema = 0.5 * ema + 0.5 * weight.detach()
    assert equal([weight, one.state[weight]["ema"]], [other, ema])
    assert one.state[weight]["exp_avg"].dtype == torch.uint8


def test_modes_that_do_not_go_with_8_bits_are_refused() -> None:
    for option in ("adam_w_mode", "bias_correction"):
        with pytest.raises(ValueError, match=option):
            EMAAdamW([parameter(1.0)], state_bits=8, **{option: False})
    for option in ({"ema_warmup": 1}, {"ema_decay": 1.5}, {"step_mode": "row"}, {"ema_dtype": torch.int8}):
        with pytest.raises(ValueError, match=next(iter(option))):
            EMAAdamW([parameter(1.0)], **option)


def test_case_o13_both_modes_alive_in_one_process() -> None:
    weights = {mode: parameter(1.0) for mode in (False, True)}
    made = {mode: EMAAdamW([w], lr=0.1, weight_decay=0.5, adam_w_mode=mode) for mode, w in weights.items()}
    for grad in (1.0, -1.0):
        for mode, weight in weights.items():
            weight.grad = torch.tensor([grad])
            made[mode].step()
    expected = {False: (0.8627221, 0.08, 0.00255025), True: (0.8127632, -0.01, 0.001999)}
    for mode, weight in weights.items():
        state = made[mode].state[weight]
        got = [float(x.detach()) for x in (weight, state["exp_avg"], state["exp_avg_sq"])]
        assert got == pytest.approx(expected[mode], rel=1e-5)


def test_case_o21_one_count_for_a_group_as_in_mindspeed() -> None:
    a, b = parameter(0.0), parameter(0.0)
    optimizer = EMAAdamW([a, b], lr=0.1, weight_decay=0.0, step_mode="group")
    for step in range(10):
        a.grad = torch.ones(1)
        b.grad = torch.ones(1) if step == 9 else None
        optimizer.step()
    assert float(b.detach()) == pytest.approx(-0.04844, rel=1e-3)


def test_bias_correction_off() -> None:
    weight = parameter(0.0)
    weight.grad = torch.ones(1)
    EMAAdamW([weight], lr=0.1, weight_decay=0.0, bias_correction=False).step()
    assert float(weight.detach()) == pytest.approx(-0.1 * 0.1 / (0.001**0.5), rel=1e-4)


# ---- the cases of section 2 ----


def test_case_o29_warm_up_rules() -> None:
    for warmup, expected in (
        (True, [0.181818, 0.25, 0.307692, 0.357143]),
        ("diffusers", [0.0, 0.181818, 0.25, 0.307692]),
        (False, [0.9999] * 4),
    ):
        weight = parameter(1.0)
        optimizer = EMAAdamW([weight], ema_warmup=warmup)
        got = []
        for _ in range(4):
            weight.grad = torch.ones(1)
            optimizer.step()
            got += optimizer.effective_ema_decay()
        assert got == pytest.approx(expected, abs=1e-6)
    for _ in range(10_000):
        optimizer.step()
    assert optimizer.param_groups[0]["ema_decay"] == 0.9999


def test_case_o30_an_fp32_ema_of_bf16_weights_moves() -> None:
    weight, optimizer = fixed(2.0)
    assert optimizer.state[weight]["ema"].dtype == torch.float32
    for _ in range(10_000):
        optimizer.step()
    assert float(optimizer.state[weight]["ema"].mean()) == pytest.approx(1.632139, rel=1e-3)


def test_case_o30_a_bf16_ema_needs_stochastic_rounding() -> None:
    """A fifth of the case's steps with five times its 1 - decay."""
    means = {}
    for stochastic in (False, True):
        torch.manual_seed(1)
        options: dict[str, Any] = {"ema_dtype": torch.bfloat16, "stochastic_rounding": stochastic}
        weight, optimizer = fixed(2.0, ema_decay=0.9995, **options)
        for _ in range(2000):
            optimizer.step()
        means[stochastic] = float(optimizer.state[weight]["ema"].float().mean())
    assert means[False] == 1.0
    assert means[True] == pytest.approx(2 - 0.9995**2000, rel=0.01)


def test_case_o31_swap_puts_the_trained_weights_back() -> None:
    model, plain = optimizers.model(torch.bfloat16), optimizers.model(torch.bfloat16)
    optimizer, undisturbed = EMAAdamW(model.parameters(), lr=0.1), EMAAdamW(plain.parameters(), lr=0.1)
    train(model, optimizer, range(3))
    train(plain, undisturbed, range(3))
    trained, addresses = values(model), [param.data_ptr() for param in model.parameters()]
    with pytest.raises(KeyError), optimizer.swap_ema():
        averages = [optimizer.state[param]["ema"].bfloat16() for param in model.parameters()]
        assert equal(model.parameters(), averages) and not equal(model.parameters(), trained)
        assert [param.data_ptr() for param in model.parameters()] == addresses
        with pytest.raises(RuntimeError, match="swap_ema inside"), optimizer.swap_ema():
            pass
        with pytest.raises(RuntimeError, match="step inside"):
            optimizer.step()
        assert equal(model.parameters(), averages)
        raise KeyError
    assert equal(model.parameters(), trained)
    train(model, optimizer, [3])
    train(plain, undisturbed, [3])
    assert equal(model.parameters(), plain.parameters())
    with optimizer.swap_ema():
        pass


def test_case_o31_a_compiled_model_sees_the_swap() -> None:
    model = nn.Linear(3, 2)
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = EMAAdamW(model.parameters(), lr=0.1)
    train(model, optimizer, range(3))
    x = torch.ones(1, 3)
    trained = compiled(x).detach()
    with optimizer.swap_ema():
        assert torch.equal(compiled(x), model(x)) and not torch.equal(compiled(x), trained)
    assert torch.equal(compiled(x), trained)


def test_case_o32_resume_goes_on_with_the_warm_up() -> None:
    model = optimizers.model()
    optimizer = EMAAdamW(model.parameters())
    train(model, optimizer, range(50))
    other = copy.deepcopy(model)
    again = EMAAdamW(other.parameters())
    again.load_state_dict(snapshot(optimizer))
    train(model, optimizer, [50])
    train(other, again, [50])
    assert again.effective_ema_decay() == pytest.approx([0.852459], abs=1e-6)
    assert same(snapshot(optimizer), snapshot(again))


def test_case_o33_the_ema_counts_steps() -> None:
    weight = parameter(1.0)
    optimizer = EMAAdamW([weight])
    for _ in range(3):
        for _ in range(4):
            (weight * 1.0).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert optimizer.param_groups[0]["ema_updates"] == 3
    weight.grad = torch.ones(1)
    optimizer.found_inf = torch.ones(1)
    optimizer.step()
    assert optimizer.param_groups[0]["ema_updates"] == 3


class Model(nn.Module):
    """A frozen layer, a weight under two names, one without a gradient at first, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.late = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight


def trained_model() -> tuple[Model, EMAAdamW]:
    torch.manual_seed(0)
    model = Model()
    optimizer = EMAAdamW(model.parameters(), lr=0.1)
    for step in range(4):
        used = [
            p for p in model.parameters() if p.requires_grad and (step >= 2 or p not in set(model.late.parameters()))
        ]
        give_gradients(used, step)
        optimizer.step()
    return model, optimizer


def test_case_o34_every_entry_of_the_state_dict() -> None:
    model, optimizer = trained_model()
    exported = optimizer.ema_state_dict(model)
    assert exported.keys() == model.state_dict().keys()
    fresh = Model()
    fresh.load_state_dict(exported, strict=True)
    assert torch.equal(fresh.frozen.weight, model.frozen.weight) and not optimizer.state.get(model.frozen.weight)
    assert exported["frozen.weight"].data_ptr() == model.frozen.weight.data_ptr(), "no second buffer"
    tied = optimizer.state[model.embedding.weight]
    assert tied["step"] == 4 and optimizer.state[model.late.weight]["step"] == 2
    assert torch.equal(exported["embedding.weight"], tied["ema"]) and exported["head.weight"] is not None
    assert torch.equal(fresh.head.weight, tied["ema"]) and torch.equal(fresh.late.weight, exported["late.weight"])
    assert "norm.num_batches_tracked" in exported


def test_ema_state_dict_of_wrapped_models() -> None:
    model, optimizer = trained_model()
    names = model.state_dict().keys()
    assert optimizer.ema_state_dict(torch.compile(model, backend="eager")).keys() == names
    assert optimizer.ema_state_dict(nn.DataParallel(model)).keys() == names
    with pytest.raises(ValueError, match="model"):
        optimizer.ema_state_dict(Model())


def test_store_copy_to_and_restore() -> None:
    model = optimizers.model()
    optimizer = EMAAdamW(model.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="store"):
        optimizer.restore(model.parameters())
    train(model, optimizer, range(3))
    trained = values(model)
    optimizer.store(model.parameters())
    optimizer.copy_to()
    assert equal(model.parameters(), [optimizer.state[param]["ema"] for param in model.parameters()])
    with pytest.raises(ValueError, match="shapes"):
        optimizer.restore([parameter(1.0)])
    optimizer.restore(model.parameters())
    assert equal(model.parameters(), trained)


def test_an_ema_that_does_not_fit_is_refused() -> None:
    model = optimizers.model()
    optimizer = EMAAdamW(model.parameters())
    train(model, optimizer, range(1))
    odd = snapshot(optimizer)
    odd["state"][0]["ema"] = torch.zeros(3)
    with pytest.raises(ValueError, match="ema"):
        optimizer.load_state_dict(odd)
    coded = EMAAdamW(model.parameters(), state_bits=8)
    train(model, coded, range(1))
    odd = snapshot(coded)
    odd["param_groups"][0]["state_bits"] = 32
    with pytest.raises(ValueError, match="state_bits"):
        optimizer.load_state_dict(odd)


# ---- averages of buffers ----


class Buffered(nn.Module):
    """A layer with running statistics, a half-precision buffer that is assigned anew, and one that is not saved."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("scale", torch.ones(3, dtype=torch.bfloat16))
        self.register_buffer("cache", torch.ones(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale = self.scale + 1
        return self.norm(x) * self.scale.float().mean()


def train_buffered(model: Buffered, optimizer: EMAAdamW, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        model(torch.randn(8, 4, generator=torch.Generator().manual_seed(step))).square().sum().backward()
        optimizer.step()


def test_buffers_are_copied_unless_asked_otherwise() -> None:
    model = Buffered()
    optimizer = EMAAdamW(model.parameters())
    train_buffered(model, optimizer, range(3))
    exported = optimizer.ema_state_dict(model)
    assert torch.equal(exported["norm.running_mean"], model.norm.running_mean)
    assert exported["scale"].data_ptr() == model.scale.data_ptr()
    assert "ema_buffers" not in optimizer.param_groups[0]


def test_averaged_buffers_follow_the_rule_of_the_weights() -> None:
    model = Buffered()
    optimizer = EMAAdamW(model.parameters(), ema_decay=0.9)
    optimizer.average_buffers(torch.compile(model, backend="eager"))
    names = ("norm.running_mean", "norm.running_var", "scale")
    expected = {name: model.state_dict()[name].float().clone() for name in names}
    for step in range(4):
        train_buffered(model, optimizer, range(step, step + 1))
        decay = torch.tensor(min(0.9, (2 + step) / (11 + step)), dtype=torch.float64)
        for name in names:
            now = model.state_dict()[name].float()
            expected[name] = decay.float() * expected[name] + (1 - decay).float() * now
    exported = optimizer.ema_state_dict(model)
    assert exported.keys() == model.state_dict().keys()
    assert same({name: exported[name] for name in names}, expected)
    assert exported["norm.num_batches_tracked"] == 4
    assert torch.equal(exported["norm.weight"], optimizer.state[model.norm.weight]["ema"])
    Buffered().load_state_dict(exported, strict=True)


def test_swap_covers_averaged_buffers() -> None:
    model = Buffered()
    optimizer = EMAAdamW(model.parameters())
    optimizer.average_buffers(model)
    train_buffered(model, optimizer, range(3))
    trained, address = copy.deepcopy(model.state_dict()), model.norm.running_mean.data_ptr()
    exported = copy.deepcopy(optimizer.ema_state_dict(model))
    with optimizer.swap_ema():
        inside = {name: value.to(exported[name].dtype) for name, value in model.state_dict().items()}
        assert model.norm.running_mean.data_ptr() == address
        assert torch.equal(inside["norm.running_var"], exported["norm.running_var"])
        assert torch.equal(model.scale, exported["scale"].bfloat16()) and not torch.equal(model.scale, trained["scale"])
        assert model.norm.num_batches_tracked == 3
    assert same(dict(model.state_dict()), dict(trained))


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("form", ["file", "distributed checkpoint"])
def test_averaged_buffers_are_saved(form: str, flat: bool, tmp_path: Path) -> None:
    def made(model: Buffered) -> EMAAdamW:
        optimizer = EMAAdamW(model.parameters())
        optimizer.average_buffers(model)
        return optimizer

    torch.manual_seed(0)
    model = Buffered()
    optimizer = made(model)
    train_buffered(model, optimizer, range(3))
    other = copy.deepcopy(model)
    again = made(other)
    if form == "file":
        torch.save(optimizer.state_dict(), tmp_path / "state.pt")
        again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    else:
        options = StateDictOptions(flatten_optimizer_state_dict=flat)
        dcp.save(get_optimizer_state_dict(model, optimizer, options=options), checkpoint_id=tmp_path, no_dist=True)
        state = get_optimizer_state_dict(other, again, options=options)
        dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
        set_optimizer_state_dict(other, again, state, options=options)
    for pair in ((model, optimizer), (other, again)):
        train_buffered(*pair, range(3, 6))
    assert same(optimizer.ema_state_dict(model), again.ema_state_dict(other))


def test_a_buffer_that_is_gone_is_named_before_the_step() -> None:
    model = Buffered()
    optimizer = EMAAdamW(model.parameters())
    optimizer.average_buffers(model)
    train_buffered(model, optimizer, range(2))
    before = copy.deepcopy(model.norm.weight)
    model.scale = None
    with pytest.raises(ValueError, match="no buffer scale any more"):
        optimizer.step()
    del model.scale
    with pytest.raises(ValueError, match="no buffer scale any more"):
        optimizer.step()
    assert torch.equal(model.norm.weight, before)


def test_averages_of_buffers_need_their_model() -> None:
    model = Buffered()
    optimizer = EMAAdamW(model.parameters())
    optimizer.average_buffers(model)
    train_buffered(model, optimizer, range(2))
    before = copy.deepcopy(model.state_dict())
    late = EMAAdamW(model.parameters())
    late.load_state_dict(snapshot(optimizer))
    with pytest.raises(RuntimeError, match="average_buffers"):
        late.step()
    with pytest.raises(RuntimeError, match="average_buffers"):
        late.ema_state_dict(model)
    with pytest.raises(ValueError, match=r"norm\.running_mean"):
        late.average_buffers(nn.Linear(2, 2))
    assert same(dict(before), dict(model.state_dict()))
    late.average_buffers(model)
    assert same(late.ema_state_dict(model), optimizer.ema_state_dict(model))
    model.norm.running_mean = torch.zeros(5)
    with pytest.raises(ValueError, match=r"average of norm\.running_mean"):
        late.step()


def test_a_skipped_step_averages_nothing() -> None:
    model = Buffered()
    optimizer = EMAAdamW(model.parameters())
    optimizer.average_buffers(model)
    train_buffered(model, optimizer, range(2))
    before = snapshot(optimizer)
    optimizer.found_inf = torch.ones(1)
    train_buffered(model, optimizer, range(2, 3))
    assert same(before, snapshot(optimizer))


# ---- what it costs ----


def test_case_o38_a_step_allocates_nothing_and_reads_each_tensor_once() -> None:
    """The case's times are measured by `anyfuse bench` and benchmarks/optimizer_step_time.py. What a test can see on a
    shared machine is the reason for them: one native call for all parameters, moments and averages, and less than 1 %
    of the parameters allocated."""
    params = [nn.Parameter(torch.ones(200_000)) for _ in range(3)]
    optimizer = EMAAdamW(params)
    for step in range(2):
        give_gradients(params, step)
        optimizer.step()
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile,
    ):
        tracemalloc.start()
        optimizer.step()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    taken = sum(max(event.self_cpu_memory_usage, 0) for event in profile.events())
    limit = 0.01 * sum(param.nbytes for param in params)
    calls = [event.name for event in profile.events() if event.name.startswith("anyfuse::")]
    assert calls == ["anyfuse::apply_fused_ema_adamw_"] and taken < limit and peak < limit, (calls, taken, peak)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("ema_warmup", "foo"),
        ("step_mode", "x"),
        ("adam_w_mode", None),
        ("bias_correction", "row"),
        ("ema_dtype", torch.float64),
    ],
)
def test_choices_that_change_between_steps_are_looked_at(option: str, value: Any) -> None:
    weight = parameter(1.0)
    optimizer = EMAAdamW([weight])
    weight.grad = torch.ones(1)
    optimizer.step()
    before = weight.detach().clone()
    optimizer.param_groups[0][option] = value
    with pytest.raises((TypeError, ValueError), match=option):
        optimizer.step()
    assert torch.equal(weight, before)


@pytest.mark.parametrize(("updates", "error"), [(-5, ValueError), ("x", TypeError), (True, TypeError)])
def test_a_saved_count_of_updates_that_makes_no_sense_is_refused(updates: Any, error: type[Exception]) -> None:
    optimizer = EMAAdamW([parameter(1.0)])
    saved = optimizer.state_dict()
    saved["param_groups"][0]["ema_updates"] = updates
    with pytest.raises(error, match="ema_updates"):
        optimizer.load_state_dict(saved)


def test_a_state_loaded_while_the_ema_is_in_place_loses_no_trained_weights() -> None:
    model = optimizers.model()
    optimizer = EMAAdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, range(3))
    before, saved = values(model), snapshot(optimizer)
    with optimizer.swap_ema():
        optimizer.load_state_dict(saved)
        with pytest.raises(RuntimeError, match="inside swap_ema"):
            train(model, optimizer, [3])
    assert equal(model.parameters(), before)
    optimizer.store(model.parameters())
    optimizer.copy_to()
    optimizer.load_state_dict(saved)
    optimizer.restore(model.parameters())
    assert equal(model.parameters(), before)


def test_an_optimizer_copied_while_the_ema_is_in_place_holds_no_trained_weights() -> None:
    model = optimizers.model()
    optimizer = EMAAdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, range(3))
    with optimizer.swap_ema():
        copied, other = copy.deepcopy((model, optimizer))
    train(copied, other, [3])
    with other.swap_ema():
        pass
