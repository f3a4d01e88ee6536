"""mxRec's optimizer on tensors of torch and variables of TensorFlow."""

from __future__ import annotations

import importlib
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from anyfuse import compat

ROOT = Path(__file__).parent.parent


def sparse(ids: list[int], values: Tensor, rows: int = 3) -> Tensor:
    return torch.sparse_coo_tensor(
        torch.tensor([ids], dtype=torch.int64), values, (rows, values.shape[1]), check_invariants=False
    )


class Slices:
    """What has `values` and `indices`, as tf.IndexedSlices does. Its ids may be negative."""

    def __init__(self, ids: list[int], values: Tensor) -> None:
        self.indices, self.values = torch.tensor(ids, dtype=torch.int32), values


@pytest.mark.parametrize("fused", [True, False])
def test_lazy_adam_steps_named_rows(create_hash_optimizer: Any, fused: bool) -> None:
    optimizer = create_hash_optimizer(learning_rate=1e-3, use_fusion_optim=fused)
    table, other = torch.nn.Parameter(torch.ones(3, 8)), torch.ones(2, 4)
    count = torch.zeros((), dtype=torch.int64)
    gradients = [Slices([-1, 2], torch.full((2, 8), 0.5)), sparse([0, 0], torch.full((2, 4), 0.25), 2)]
    optimizer.apply_gradients(list(zip(gradients, (table, other), strict=True)), global_step=count)
    optimizer.apply_gradients([(None, other), (Slices([2], torch.full((1, 8), 0.5)), table)], global_step=count)
    assert torch.equal(table[:2].detach(), torch.ones(2, 8)) and torch.equal(other[1], torch.ones(4))
    assert count == 2 and optimizer.steps == 2
    # In float64: both steps of row 2, and the equal ids of the other table summed to 0.5 first.
    m = v = 0.0
    var = 1.0
    for t in (1, 2):
        m, v = 0.9 * m + 0.1 * 0.5, 0.999 * v + 0.001 * 0.25
        var -= 1e-3 * (1 - 0.999**t) ** 0.5 / (1 - 0.9**t) * m / (v**0.5 + 1e-8)
        if t == 1:
            torch.testing.assert_close(other[0], torch.full((4,), var), rtol=2**-23, atol=0)
    torch.testing.assert_close(table[2].detach(), torch.full((8,), var), rtol=2**-22, atol=0)


@pytest.mark.parametrize("fused", [True, False])
def test_case_o40_lazy_adam_without_ids(create_hash_optimizer: Any, fused: bool) -> None:
    optimizer = create_hash_optimizer(use_fusion_optim=fused)
    table = torch.ones(5, 8)
    for gradient in (Slices([], torch.ones(0, 8)), Slices([-1, -1], torch.ones(2, 8)), sparse([], torch.ones(0, 8), 5)):
        optimizer.apply_gradients([(gradient, table)])
    assert torch.equal(table, torch.ones(5, 8)) and optimizer.steps == 3


def test_lazy_adam_ways_differ_in_the_sign_of_v(create_hash_optimizer: Any) -> None:
    for fused, stored in ((True, 0.499249995), (False, -0.499249995)):  # E4 of test_lazy_adam.py
        optimizer = create_hash_optimizer(use_fusion_optim=fused)
        table = torch.ones(3, 8)
        optimizer.apply_gradients([(sparse([1], torch.zeros(1, 8)), table)])
        optimizer.get_slot(table, "v").fill_(-0.5)
        optimizer.apply_gradients([(sparse([0], torch.full((1, 8), 0.5)), table)])
        torch.testing.assert_close(optimizer.get_slot(table, "v")[0], torch.full((8,), stored), rtol=2**-23, atol=0)


@pytest.mark.parametrize("fused", [True, False])
def test_lazy_adam_ways_agree(create_hash_optimizer: Any, fused: bool) -> None:
    torch.manual_seed(1)
    ids = torch.randint(0, 50, (200,)).tolist()
    values = torch.randn(200, 4)
    tables = [torch.ones(50, 4), torch.ones(50, 4)]
    for table, way in zip(tables, (True, False), strict=True):
        optimizer = create_hash_optimizer(learning_rate=0.1, use_fusion_optim=way)
        for _ in range(5):
            optimizer.apply_gradients([(sparse(ids, values, 50), table)])
    # The ways round differently: a few fp32 roundings in each of 5 steps.
    torch.testing.assert_close(tables[0], tables[1], rtol=0, atol=5e-6)


@pytest.mark.parametrize("fused", [True, False])
def test_lazy_adam_refuses_before_it_writes(create_hash_optimizer: Any, fused: bool) -> None:
    optimizer = create_hash_optimizer(use_fusion_optim=fused)
    good, table = torch.ones(3, 8), torch.ones(3, 8)
    fine = (sparse([1], torch.ones(1, 8)), good)
    for gradient, error, says in (
        (torch.ones(3, 8), NotImplementedError, "dense"),
        (object(), NotImplementedError, "sparse gradients"),
        (Slices([3], torch.ones(1, 8)), IndexError, "holds 3"),
        (Slices([1], torch.ones(2, 8)), ValueError, "values has shape"),
        (Slices([1], torch.ones(1, 8).double()), TypeError, "float64"),
    ):
        with pytest.raises(error, match=says):
            optimizer.apply_gradients([fine, (gradient, table)])
        assert torch.equal(good, torch.ones(3, 8)) and torch.equal(table, good) and optimizer.steps == 0
    for pairs in ([], [(None, table)]):
        with pytest.raises(ValueError, match="no gradient"):
            optimizer.apply_gradients(pairs)
    with pytest.raises(TypeError, match="a table is a list"):
        optimizer.apply_gradients([(Slices([0], torch.ones(1, 8)), [[1.0]])])


@pytest.mark.parametrize(
    "arguments",
    [
        {"learning_rate": -0.1},
        {"learning_rate": 10.5},
        {"learning_rate": torch.ones(2)},
        {"learning_rate": "fast"},
        {"beta1": 0.0},
        {"beta1": 1.0},
        {"beta2": -0.1},
        {"beta2": 1.1},
        {"epsilon": 0.0},
        {"epsilon": 1.1},
        {"name": ""},
        {"name": "n" * 201},
        {"use_fusion_optim": 1},
    ],
)
def test_create_hash_optimizer_validates(create_hash_optimizer: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(arguments))} is .*accepted"):
        create_hash_optimizer(**arguments)
    bounds = {"learning_rate": 10.0, "beta2": 1.0, "epsilon": 1.0, "name": "n" * 200}
    assert create_hash_optimizer(**bounds).get_name() == "n" * 200
    assert create_hash_optimizer(learning_rate=torch.tensor(0.5)).get_slot_names() == ["m", "v"]


class Eager:
    """A number as TensorFlow's tensors and variables hold it: `numpy` gives an array or a scalar of NumPy."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def numpy(self) -> Any:
        return self.value


@pytest.mark.parametrize(
    "rate",
    [
        np.float32(0.5),
        np.array([0.5]),
        np.array(0.5, np.float16),
        np.int64(1),
        torch.tensor([0.5]),
        torch.tensor(0.5, requires_grad=True),
        torch.nn.Parameter(torch.tensor(0.5, dtype=torch.bfloat16)),
        Eager(np.float32(0.5)),
        Eager(np.array([0.5], np.float32)),
    ],
)
def test_learning_rates_of_other_libraries(create_hash_optimizer: Any, rate: Any) -> None:
    number = 1.0 if isinstance(rate, np.int64) else 0.5
    tables = []
    for given in (rate, number):
        tables.append(torch.ones(3, 8))
        optimizer = create_hash_optimizer(learning_rate=given, beta1=np.float64(0.9), use_fusion_optim=True)
        optimizer.apply_gradients([(sparse([1], torch.ones(1, 8)), tables[-1])])
    assert torch.equal(*tables) and not torch.equal(tables[0], torch.ones(3, 8))


@pytest.mark.parametrize("rate", [np.float32(11), np.ones(2), Eager(np.float32(-1)), Eager("x"), np.bool_(True), True])
def test_learning_rates_out_of_range(create_hash_optimizer: Any, rate: Any) -> None:
    with pytest.raises(ValueError, match=r"learning_rate is .*accepted: 0 to 10"):
        create_hash_optimizer(learning_rate=rate)


def test_learning_rates_that_change_are_read_at_each_step(create_hash_optimizer: Any) -> None:
    rate, table = Eager(np.float32(0.0)), torch.ones(3, 8)
    optimizer = create_hash_optimizer(learning_rate=rate)
    optimizer.apply_gradients([(sparse([1], torch.ones(1, 8)), table)])
    assert torch.equal(table, torch.ones(3, 8))
    rate.value = np.float32(0.1)
    optimizer.apply_gradients([(sparse([1], torch.ones(1, 8)), table)])
    assert not torch.equal(table, torch.ones(3, 8))


def test_the_class_takes_arguments_in_the_official_order(names: None) -> None:
    cls = importlib.import_module("mx_rec.optimizers.lazy_adam").CustomizedLazyAdam
    optimizer = cls(0.001, 0.9, 0.999, 1e-8, False, "Lazy", True)
    assert optimizer.get_name() == "Lazy" and optimizer.use_fusion_optim


@pytest.mark.parametrize("fused", [True, False])
def test_numbers_are_rec_sdks_unless_the_variable_says_otherwise(fused: bool) -> None:
    """1 - beta in fp32 with moments that are not small, on both ways; ANYFUSE_CONVENTION is read at the start."""
    script = (
        "import torch, anyfuse.compat.mx_rec as r\n"
        f"o, t = r.create_hash_optimizer(use_fusion_optim={fused}), torch.ones(3, 8)\n"
        "g = torch.sparse_coo_tensor([[1]], torch.full((1, 8), 15.0), (3, 8))\n"
        "o.apply_gradients([(g, t)])\n"
        "print(o.get_slot(t, 'm')[1, 0].item(), o.get_slot(t, 'v')[1, 0].item())\n"
    )
    one = np.float32(1)
    fp32 = one - np.float32(0.9), one - np.float32(0.999)
    rounded_once = np.float32(1 - 0.9), np.float32(1 - 0.999)
    assert fp32 != rounded_once
    for convention, (rest1, rest2) in ((None, fp32), ("device", fp32), ("formula", rounded_once)):
        environment = {key: value for key, value in os.environ.items() if key != "ANYFUSE_CONVENTION"}
        environment |= {"ANYFUSE_CONVENTION": convention} if convention else {}
        result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
        expected = np.float32(15) * rest1, np.float32(225) * rest2
        assert tuple(map(float, result.stdout.split())) == tuple(map(float, expected)), result.stderr


class TensorFlow(ModuleType):
    """The few functions of TensorFlow that tables in its variables take, on NumPy."""

    float32 = np.dtype(np.float32)

    class IndexedSlices:
        def __init__(self, values: Any, indices: Any) -> None:
            self.values, self.indices = values, indices

    class Variable:
        def __init__(self, value: Any, trainable: bool = True, name: str = "") -> None:
            self.value = np.array(value)
            self.dtype, self.shape = self.value.dtype, self.value.shape

        def numpy(self) -> np.ndarray:
            return self.value

        def assign_add(self, value: int) -> None:
            self.value = self.value + value

        def scatter_update(self, slices: Any) -> None:
            self.value[slices.indices] = slices.values

    @staticmethod
    def executing_eagerly() -> bool:
        return True

    @staticmethod
    def gather(variable: Any, ids: Any) -> np.ndarray:
        return variable.value[ids]

    @staticmethod
    def zeros_like(variable: Any) -> np.ndarray:
        return np.zeros_like(variable.value)


@pytest.fixture
def tensorflow(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = TensorFlow("tensorflow")
    monkeypatch.setitem(sys.modules, "tensorflow", module)
    monkeypatch.delitem(sys.modules, "anyfuse.compat._tensorflow", raising=False)
    yield module
    sys.modules.pop("anyfuse.compat._tensorflow", None)  # it holds the stand-in


@pytest.mark.parametrize("fused", [True, False])
def test_lazy_adam_on_variables_of_tensorflow(tensorflow: Any, fused: bool) -> None:
    script = runpy.run_path(str(ROOT / "tests" / "with_tensorflow" / "lazy_adam.py"))
    assert script["compare"](tensorflow, fused) == 4
    script["refuses"](tensorflow)


def test_lazy_adam_in_a_graph_of_tensorflow(tensorflow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorflow, "executing_eagerly", lambda: False, raising=False)
    variable = tensorflow.Variable(np.ones((3, 8), np.float32))
    pairs = [(tensorflow.IndexedSlices(np.ones((1, 8), np.float32), np.array([0])), variable)]
    with pytest.raises(RuntimeError, match="accepted: eager execution"):
        compat.mx_rec.create_hash_optimizer().apply_gradients(pairs)
