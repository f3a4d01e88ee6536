"""torch_npu.testing: its rule of closeness, its inputs and its decorators."""

from __future__ import annotations

import importlib
import unittest
from typing import Any

import numpy as np
import pytest
import torch

import anyfuse


@pytest.fixture
def case(names: None) -> Any:
    return importlib.import_module("torch_npu.testing.testcase").TestCase()


@pytest.fixture
def utils(names: None) -> Any:
    return importlib.import_module("torch_npu.testing.common_utils")


def test_close_by_the_official_rule(case: Any) -> None:
    """A failure takes more than n·prec elements beyond prec in the absolute error, and as many in the relative one."""
    x = torch.ones(1000)
    few, many = x.clone(), x.clone()
    few[0], many[:2] = 2.0, 2.0
    case.assertRtolEqual(x, few, prec=1e-3)  # 1 of 1000
    with pytest.raises(AssertionError, match=r"result error: 2 of 1000 elements are beyond 0\.001"):
        case.assertRtolEqual(x, many, prec=1e-3)
    case.assertRtolEqual(x * 1e6, x * 1e6 + 1)  # relatively close
    case.assertRtolEqual(x * 1e-6, x * 2e-6)  # absolutely close
    case.assertRtolEqual(x.half(), x.half() * 1.001)
    with pytest.raises(AssertionError):
        case.assertRtolEqual(x.half(), x.half() * 1.01)
    with pytest.raises(AssertionError):
        case.assertRtolEqual(x, x * float("nan"))


def test_what_is_compared(case: Any) -> None:
    x = np.arange(3, dtype=np.uint8)
    case.assertRtolEqual(x, x.copy())
    case.assertRtolEqual([torch.ones(2), 1.0], (torch.ones(2), 1.0))
    case.assertRtolEqual(torch.ones(2), [1.0, 1.0])
    case.assertRtolEqual(torch.ones(2).half(), torch.ones(2), auto_trans_dtype=True)
    for one, other, says in (
        (x, x[:2], "shape error"),
        (torch.ones(2), torch.ones(2).half(), "dtype error: float32 and float16; accepted"),
        (np.zeros(2, complex), np.zeros(2, complex), "dtype error: complex128"),
        (x, x[::-1], "result error"),  # 0 - 2 is not 254
        (torch.tensor([True, False]), torch.tensor([True, True]), "not true"),
    ):
        with pytest.raises(AssertionError, match=says):
            case.assertRtolEqual(one, other)


def test_equal_within_a_precision(case: Any) -> None:
    x, inf = torch.tensor([1.0, float("nan"), float("inf")]), float("inf")
    case.assertEqual(x, x.clone())
    case.assertEqual(x[:1], x[:1] + 0.1, 0.2)
    case.assertEqual(x[:1].half(), x[:1])
    case.assertEqual({"a": [x, 1], "b": "c"}, {"a": [x, 1.000001], "b": "c"})
    case.assertEqual(x[0], 1)
    case.assertEqual(inf, inf, allow_inf=True)
    sparse = torch.eye(2).to_sparse()
    case.assertEqual(sparse, torch.eye(2).to_sparse())
    for one, other, options in (
        (x[:1], x[:1] + 0.1, {}),
        (x, x[:2], {}),
        (x[:1], x[1:2], {}),
        (x[:1].half(), x[:1], {"exact_dtype": True}),
        ([x], [x, x], {}),
        ("a", "b", {}),
        (inf, inf, {}),
        (1.0, 1.1, {"prec": "by a message"}),
    ):
        with pytest.raises(AssertionError, match=options.get("prec")):
            case.assertEqual(one, other, **options)


def test_tests_begin_with_a_seed_and_a_device(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = []
    for seed in (None, "666", "7"):
        if seed is not None:
            monkeypatch.setenv("SEED", seed)
        case.setUp()
        draws.append(torch.rand(2))
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    type(case).setUpClass()
    assert case.npu_device == "npu:0"
    monkeypatch.setenv("SET_NPU_DEVICE", "1")
    with pytest.raises(RuntimeError, match="device is 'npu:1'; accepted: npu:0"):
        type(case).setUpClass()


def test_inputs(utils: Any, torch_npu: Any) -> None:
    cpu, npu = utils.create_common_tensor([np.float16, 29, (4, 16)], -2, 3)
    assert torch.equal(cpu, npu) and npu.is_npu and cpu.dtype == torch.float16 and torch_npu.get_npu_format(npu) == 29
    assert -2 <= cpu.min() < cpu.max() <= 3 and cpu.data_ptr() != npu.data_ptr()
    assert torch_npu.get_npu_format(utils.create_common_tensor([np.int8, -1, (4,)], 0, 5)[1]) == 2
    for dtype, stored in ((torch.bool, torch.bool), (torch.half, torch.half), (torch.int64, torch.int32)):
        cpu, npu = utils.create_dtype_tensor((50,), dtype, no_zero=dtype != torch.bool)
        assert cpu.dtype == npu.dtype == stored and torch.equal(cpu, npu) and (dtype == torch.bool or cpu.all())
    assert list(utils.iter_indices(torch.ones(2, 2))) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert list(utils.iter_indices(torch.ones(2))) == [0, 1] and not list(utils.iter_indices(torch.ones(())))
    assert utils.is_iterable([]) and not utils.is_iterable(1)
    with utils.freeze_rng_state():
        first = torch.rand(2)
    assert torch.equal(torch.rand(2), first)


@pytest.mark.parametrize(
    ("names_", "product", "runs"),
    [
        (["Ascend910B"], "any", True),
        (["Ascend910B"], "Ascend910B", True),
        (["Ascend910B1", "Ascend310P"], "Ascend910B", True),
        (["Ascend910_"], "Ascend910_93", True),
        (["Ascend910_95"], "Ascend950", True),
        (["Ascend310P"], "Ascend910B", False),
        (["Ascend910A"], "Ascend910B", False),
    ],
)
def test_supported_devices(utils: Any, names_: list[str], product: str, runs: bool) -> None:
    test = utils.SupportedDevices(names_)(lambda: "ran")
    with anyfuse.soc(product):
        if runs:
            assert test() == "ran"
        else:
            with pytest.raises(unittest.SkipTest, match=f"the product is {product}"):
                test()
    assert utils.SkipIfNotGteCANNVersion("9.0.0")(test) is test


def test_tests_for_each_dtype_and_layout(names: None) -> None:
    decorator = importlib.import_module("torch_npu.testing.decorator")
    seen = []

    @decorator.instantiate_tests
    class Tests:
        @decorator.Dtypes(torch.float16, torch.float32)
        @decorator.Formats(2, 29)
        def test_all(self, device: str, dtype: torch.dtype, npu_format: int) -> None:
            seen.append((device, dtype, npu_format))

        @decorator.graph_mode
        def test_alone(self) -> None:
            seen.append(())

    names_ = sorted(name for name in vars(Tests) if name.startswith("test"))
    endings = "all_float16_2 all_float16_29 all_float32_2 all_float32_29 alone".split()
    assert names_ == [f"test_{ending}" for ending in endings]
    for name in names_:
        getattr(Tests(), name)()
    assert seen == [("npu", dtype, layout) for dtype in (torch.float16, torch.float32) for layout in (2, 29)] + [()]
