"""The demo: its vocabulary, model and optimizers, and a short run of the whole command."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_process_life import largest_file
from typer.testing import CliRunner

import anyfuse
from anyfuse.demo import picture, study
from anyfuse.demo.inference import W8A8, QuantizedNorm, generate
from anyfuse.demo.model import FLOAT, Config, Model, loss, rotate, rotations
from anyfuse.demo.text import Vocabulary, build_vocabulary, corpus
from anyfuse.demo.training import (
    BETAS,
    LAZY_LR,
    LazyAdam,
    Scheduled,
    draw_batches,
    eight_bit_and_lazy,
    ema_adamw,
    learning_rate,
    torch_adamw,
    windows,
)
from anyfuse_cli.app import app

CONFIG = Config(vocabulary=300, width=32, layers=2, heads=2, hidden=48, context=16)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return build_vocabulary(corpus()[0], 600)


# ---- text ----


def test_no_paragraph_is_both_trained_on_and_held_out() -> None:
    training, held_out = (set(text.split("\n\n")) - {""} for text in corpus())
    assert len(training) > 1000 and len(held_out) > 100
    assert not training & held_out


def test_vocabulary_is_the_same_every_time(vocabulary: Vocabulary) -> None:
    again = build_vocabulary(corpus()[0], 600)
    assert again.merges == vocabulary.merges and len(vocabulary) == 600
    assert len(vocabulary.encode(" the statement")) <= 3


@settings(max_examples=30, deadline=None)
@given(st.text())
def test_every_text_has_an_encoding(vocabulary: Vocabulary, text: str) -> None:
    assert vocabulary.decode(vocabulary.encode(text).tolist()) == text


def test_merges_by_hand() -> None:
    made = build_vocabulary("abab abab abc", 258)  # "ab" six times, then "abab" twice and " abab"'s " ab" twice
    assert made.pieces[256] == b"ab"
    assert made.encode("abc").tolist() == [256, ord("c")]
    assert len(build_vocabulary("abc", 300)) == 256  # nothing occurs twice
    with pytest.raises(ValueError, match="size is 255"):
        build_vocabulary("", 255)


# ---- model ----


def ids(seed: int = 0, rows: int = 3) -> torch.Tensor:
    return torch.randint(CONFIG.vocabulary, (rows, CONFIG.context), generator=torch.Generator().manual_seed(seed))


def test_weights_come_from_the_seed_alone() -> None:
    one, same, other = Model(CONFIG, 1), Model(CONFIG, 1, sparse=True), Model(CONFIG, 2)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.head.weight, other.head.weight)


def test_no_token_sees_a_later_one() -> None:
    model, tokens = Model(CONFIG, 0), ids()
    changed = tokens.clone()
    changed[:, 10] = (changed[:, 10] + 1) % CONFIG.vocabulary
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :10], after[:, :10])  # sums of other lengths may round otherwise
    assert (before[:, 10] - after[:, 10]).abs().max() > 0.01


def test_rotation_depends_on_distances_only() -> None:
    query, key = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    cos, sin = rotations(20, 8)
    turned = [rotate(x.expand(20, 8), (cos, sin)) for x in (query, key)]
    products = turned[0] @ turned[1].T
    # float32 rounding of sums of 8 products of magnitude 1
    torch.testing.assert_close(products[5, 2], products[15, 12], rtol=0, atol=1e-5)
    torch.testing.assert_close(turned[0].norm(dim=1), query.norm().expand(20))


def test_sparse_gradient_is_the_dense_one() -> None:
    dense, sparse = Model(CONFIG, 0), Model(CONFIG, 0, sparse=True)
    for model in (dense, sparse):
        loss(model(ids()), ids(1)).backward()
    gradient = sparse.embedding.weight.grad
    assert gradient.is_sparse
    torch.testing.assert_close(gradient.to_dense(), dense.embedding.weight.grad)


def test_quantized_arithmetic_is_close_to_float() -> None:
    model = Model(CONFIG, 0)
    with torch.no_grad():
        exact, norm, w8a8 = (model(ids(), how) for how in (FLOAT, QuantizedNorm(), W8A8(model)))
    # int8 rows and weights carry errors of half a step, 1/254 of the largest value, that add up like noise.
    for approximate in (norm, w8a8):
        error = (approximate - exact).norm() / exact.norm()
        assert 0 < error < 0.03


def test_w8a8_calls_the_operators_for_every_norm_and_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    called = {"add_rms_norm_dynamic_quant": 0, "quant_matmul_dequant": 0}

    def counting(name: str) -> Any:
        function = getattr(anyfuse, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            called[name] += 1
            return function(*args, **kwargs)

        return call

    for name in called:
        monkeypatch.setattr(anyfuse, name, counting(name))
    model = Model(CONFIG, 0)
    how = W8A8(model)
    with torch.no_grad():
        model(ids(), how)
    assert called == {
        "add_rms_norm_dynamic_quant": 2 * CONFIG.layers + 1,
        "quant_matmul_dequant": 4 * CONFIG.layers + 1,
    }


def test_generated_text_comes_from_the_seed() -> None:
    model, prompt = Model(CONFIG, 0), torch.tensor([1, 2, 3])
    text = generate(model, prompt, 30, seed=5)
    assert len(text) == 33 and torch.equal(text[:3], prompt)
    assert torch.equal(text, generate(model, prompt, 30, seed=5))
    assert not torch.equal(text, generate(model, prompt, 30, seed=6))


# ---- training ----


def test_learning_rate_rises_and_falls() -> None:
    rates = [learning_rate(step, 100) for step in range(1, 101)]
    top = rates.index(max(rates))
    assert top == 9 and rates[:10] == sorted(rates[:10]) and rates[9:] == sorted(rates[9:], reverse=True)
    assert 0 < rates[-1] < rates[top] / 50
    assert learning_rate(1, 1) > 0


def test_batches_and_windows() -> None:
    tokens = torch.arange(1000)
    batches = draw_batches(tokens, 5, 4, CONFIG, 0)
    assert len(batches) == 5 and all(batch.shape == (4, CONFIG.context + 1) for batch in batches)
    assert all(bool((batch.diff() == 1).all()) for batch in batches)
    inputs, targets = windows(tokens, 16)
    assert torch.equal(inputs.flatten(), tokens[:992]) and torch.equal(targets, inputs + 1)


def steps_of(model: Model, optimizer: Any, count: int = 5) -> None:
    for step in range(1, count + 1):
        loss(model(ids(step)), ids(step + 100)).backward()
        optimizer.step(step, 1e-3)


def test_fused_ema_adamw_steps_as_torch_does() -> None:
    models = Model(CONFIG, 0), Model(CONFIG, 0)
    ema = ema_adamw(models[1])
    steps_of(models[0], torch_adamw(models[0]))
    steps_of(models[1], Scheduled(ema))
    # Another order of roundings. Where a gradient is near 0 that can turn an update: up to 2·lr for each of 5 steps.
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert (one - other).abs().max() < 1e-2 and (one - other).abs().mean() < 1e-5
    averages = ema.ema_state_dict(models[1])
    assert any(not torch.equal(p, averages[name]) for name, p in models[1].named_parameters())
    assert all(p.grad is None for p in models[1].parameters())


def test_lazy_adam_leaves_other_rows_alone() -> None:
    model, fresh = Model(CONFIG, 0, sparse=True), Model(CONFIG, 0)
    optimizer, lazy = eight_bit_and_lazy(model)
    steps_of(model, optimizer, 2)
    touched = torch.zeros(CONFIG.vocabulary, dtype=torch.bool)
    touched[torch.cat((ids(1), ids(2))).flatten()] = True
    moved = (model.embedding.weight != fresh.embedding.weight).any(1)
    assert torch.equal(moved, touched)
    shares = [len(ids(step).unique()) / CONFIG.vocabulary for step in (1, 2)]
    assert lazy.share_touched == pytest.approx(sum(shares) / 2)


def test_first_lazy_step_by_hand() -> None:
    table = torch.nn.Parameter(torch.zeros(3, 8))
    ids, rows = torch.tensor([[1, 1]]), torch.full((2, 8), 0.25)
    table.grad = torch.sparse_coo_tensor(ids, rows, (3, 8), check_invariants=True)
    lazy = LazyAdam(table)
    lazy.step(1, 0.1)
    # Adam's first step is the learning rate, whatever the gradient (the equal ids are one row).
    rate = 0.1 * LAZY_LR
    torch.testing.assert_close(table[1], torch.full((8,), -rate), rtol=1e-5, atol=0)
    assert table[0].abs().sum() == table[2].abs().sum() == 0
    torch.testing.assert_close(lazy.state()[0][1], torch.full((8,), 0.5 * (1 - BETAS[0])))


def test_state_of_the_8bit_training_is_small() -> None:
    model = Model(CONFIG, 0, sparse=True)
    optimizer, lazy = eight_bit_and_lazy(model)
    steps_of(model, optimizer, 1)
    rest = optimizer.parts[0]
    params = rest.optimizer.param_groups[0]["params"]
    coded, small = (sum(p.numel() for p in params if (p.numel() >= 4096) == large) for large in (True, False))
    size = sum(t.nbytes for t in rest.state())
    assert 2 * coded + 8 * small < size < 2.04 * coded + 8 * small + 8 * len(params)
    assert {id(p) for p in params} | {id(lazy.table)} == {id(p) for p in model.parameters()}


def test_step_without_gradient_is_refused() -> None:
    with pytest.raises(ValueError, match="no gradient"):
        LazyAdam(Model(CONFIG, 0).embedding.weight).step(1, 1e-3)


# ---- the command ----


def run(out: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["demo", "--steps", "4", "--out", str(out), *arguments])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    training, held_out = corpus()
    monkeypatch.setattr(study, "corpus", lambda: (training[:20000], held_out[:2000]))
    monkeypatch.setattr(study, "VOCABULARY", 500)
    monkeypatch.setattr(study, "GENERATED", 8)


@pytest.mark.usefixtures("small")
def test_short_run(tmp_path: Path) -> None:
    result = run(tmp_path / "a", "--json", "--seed", "3")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed == json.loads((tmp_path / "a" / "demo.json").read_text())
    assert (tmp_path / "a" / "demo.png").read_bytes().startswith(b"\x89PNG")
    figures = printed["figures"]
    assert figures["seed"] == 3 and figures["steps"] == 4
    torch_run, fused, lowbit = figures["trainings"].values()
    assert torch_run["state_bytes_per_parameter"] == 8 and fused["state_bytes_per_parameter"] == 12
    assert lowbit["state_bytes_per_parameter"] < 8
    for training in (torch_run, fused, lowbit):
        losses = [value for _, value in training["curves"]["validation_loss"]]
        assert len(losses) == len(training["curves"]["training_loss"]) == 4
        assert losses[0] > losses[-1] == training["validation_loss"]
    assert 0 < figures["embedding_rows_touched"] < 1
    assert figures["text"]["float"].startswith(figures["text"]["prompt"])
    assert [check["passed"] for check in printed["checks"]] == [True] * 4

    again = json.loads(run(tmp_path / "b", "--json", "--seed", "3").stdout)
    assert again["figures"] == figures and again["checks"] == printed["checks"]


@pytest.mark.usefixtures("small")
def test_missed_figure_and_missing_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(study.LIMITS, "W8A8 against float", 0.0)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    result = run(tmp_path)
    assert result.exit_code == 1
    assert "missed: W8A8 against float" in result.stderr and result.stderr.count("missed") == 1
    assert "pip install 'anyfuse[demo]'" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["demo.json"]
    for word in ("torch AdamW", "EMA weights", "8-bit", "quantized norm", "✗ W8A8", "✓ quantized norm"):
        assert word in result.stdout


@pytest.mark.parametrize("name", ["demo.json", "demo.png"])
@pytest.mark.usefixtures("small")
def test_a_full_disk_after_all_the_work_keeps_the_good_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "demo.json":
        monkeypatch.setattr(picture, "draw", lambda *_: None)
    (tmp_path / name).write_text("good")
    with largest_file(1000):
        result = run(tmp_path)
    assert isinstance(result.exception, OSError) and name in str(result.exception), result.output
    assert (tmp_path / name).read_text() == "good" and len(list(tmp_path.iterdir())) == 1


def test_nan_is_a_missed_figure() -> None:
    assert not study.Check("loss", float("nan"), 0.01).passed
