"""Tensors on a real NPU go to torch_npu and MindSpeed: stand-ins record the calls."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch

import anyfuse

X1, X2 = torch.tensor([[1.0, 2, 3, 4] * 2]).half(), torch.tensor([[1.0, 0, -1, 4] * 2]).half()
ONES = torch.ones(8).half()


class Recorder:
    """A torch_npu or MindSpeed that computes nothing and remembers how it was called."""

    def __init__(self, *results: Any) -> None:
        self.results, self.calls = results, []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((args, kwargs))
        return self.results if len(self.results) > 1 else self.results[0]


@pytest.fixture
def on_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends the operators to their kernels for torch's private device type, as tensors there would be."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)
    for name in anyfuse._REGISTRY:
        module = importlib.import_module(f"anyfuse.ops.{name}")
        packet = getattr(torch.ops.anyfuse, anyfuse._REGISTRY[name].function.__name__)
        for caller in {"_op", "product", "_list", "_one"} & vars(module).keys():
            overload = packet.one if caller == "_one" else packet.default
            monkeypatch.setattr(module, caller, partial(overload.redispatch, keys))


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch, on_npu: None) -> Any:
    modules = {name: ModuleType(name) for name in ("torch_npu", "mindspeed", "mindspeed.ops")}
    modules["mindspeed.ops.npu_apply_fused_ema_adamw"] = ModuleType("npu_apply_fused_ema_adamw")
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return modules


def test_npu_tensors_go_to_torch_npus_norm(real: Any) -> None:
    y, words, scale, nothing = torch.ones(2, 8, dtype=torch.int8), torch.ones(2, 1).int(), torch.ones(2), torch.ones(())
    operator = real["torch_npu"].npu_add_rms_norm_dynamic_quant = Recorder(y, nothing, X1, scale, nothing)
    results = anyfuse.add_rms_norm_dynamic_quant(X1, X2, ONES, beta=ONES, epsilon=1e-5)
    ((args, kwargs),) = operator.calls
    assert all(torch.equal(one, other) for one, other in zip(args, (X1, X2, ONES), strict=True))
    assert torch.equal(kwargs.pop("beta"), ONES)
    assert kwargs == {
        "smooth_scale1": None, "smooth_scale2": None, "epsilon": 1e-5, "output_mask": None, "y_dtype": torch.int8
    }  # fmt: skip
    assert torch.equal(results[0], y) and results[1].shape == results[4].shape == (0,)
    operator.results = (nothing, words, X1, nothing, scale)
    results = anyfuse.add_rms_norm_dynamic_quant(X1, X2, ONES, output_mask=[False, True], y_dtype="int4")
    assert operator.calls[1][1]["output_mask"] == [False, True] and operator.calls[1][1]["y_dtype"] == 285
    assert results[1].dtype == torch.uint8 and results[1].shape == (2, 4) and results[0].shape == (0,)


@pytest.mark.parametrize("layout", ["(n, k)", "(k, n)", "packed", "blocks"])
def test_npu_tensors_go_to_torch_npus_matmul(real: Any, layout: str) -> None:
    n, k = 32, 64
    weight, scale = torch.randint(-128, 128, (n, k), dtype=torch.int8), torch.rand(n)
    operator = real["torch_npu"].npu_quant_matmul_dequant = Recorder(torch.ones(6, n).half())
    x, x_scale, smooth = torch.ones(2, 3, k).half(), torch.ones(2, 3), torch.ones(k).half()
    given = {
        "(n, k)": weight,
        "(k, n)": weight.t(),
        "packed": anyfuse.pack_weight(weight),
        "blocks": anyfuse.formats.nd_to_nz(weight),
    }[layout]
    out = anyfuse.quant_matmul_dequant(
        x, given, scale, x_scale=x_scale, smooth_scale=smooth, transpose_weight=layout != "(k, n)",
        out_dtype=torch.float32,
    )  # fmt: skip
    ((args, kwargs),) = operator.calls
    assert args[0].shape == (6, k) and torch.equal(args[1], weight) and args[1].is_contiguous()
    assert torch.equal(args[2], scale) and kwargs["bias"] is None and kwargs["quant_mode"] == "pertoken"
    assert kwargs["x_scale"].shape == (6,) and torch.equal(kwargs["smooth_scale"], smooth)
    assert out.shape == (2, 3, n) and out.dtype == torch.float32
    with pytest.raises(ValueError, match="accepted on an NPU: float16"):
        anyfuse.quant_matmul_dequant(x.to(torch.int8), given, scale, x_scale=x_scale, out_dtype=torch.float16)


@pytest.mark.parametrize("layout", ["(n, k)", "(k, n)", "packed", "blocks"])
def test_npu_tensors_go_to_torch_npus_grouped_matmul(real: Any, layout: str) -> None:
    n, k = 32, 64
    weight, scale = torch.randint(-128, 128, (3, n, k), dtype=torch.int8), torch.rand(3, n)
    operator = real["torch_npu"].npu_quant_grouped_matmul_dequant = Recorder(torch.ones(6, n).half())
    x, ends, smooth = torch.ones(2, 3, k).half(), torch.tensor([1, 4, 5]), torch.ones(k).half()
    given = {
        "(n, k)": weight,
        "(k, n)": weight.mT,
        "packed": anyfuse.pack_weight(weight),
        "blocks": torch.stack([anyfuse.formats.nd_to_nz(one) for one in weight]),
    }[layout]
    options = {"smooth_scale": smooth, "transpose_weight": layout != "(k, n)"}
    out = anyfuse.quant_grouped_matmul_dequant(x, given, scale, ends, **options)
    ((args, kwargs),) = operator.calls
    assert args[0].shape == (6, k) and torch.equal(args[1], weight) and args[1].is_contiguous()
    assert torch.equal(args[2], scale) and torch.equal(args[3], ends) and kwargs["x_scale"] is None
    assert out.shape == (2, 3, n) and out.reshape(6, n)[:5].all() and not out.reshape(6, n)[5].any()
    with pytest.raises(ValueError, match=r"smooth_scale .* accepted on an NPU: \(k,\)"):
        anyfuse.quant_grouped_matmul_dequant(x, given, scale, ends, **{**options, "smooth_scale": torch.ones(3, k)})


def test_npu_tensors_go_to_mindspeeds_adamw(real: Any) -> None:
    operator = Recorder(None)
    real["mindspeed.ops.npu_apply_fused_ema_adamw"].npu_apply_fused_ema_adamw = operator
    lists = [[torch.full((2,), float(i)), torch.full((3,), float(i))] for i in range(5)]
    numbers = (0.1, 0.99, 0.9, 0.999, 1e-8, 1, True, 0.01)
    anyfuse.apply_fused_ema_adamw_(*lists, 7, *numbers, grad_scale=torch.tensor([4.0]), maximize=True)
    assert len(operator.calls) == 2
    for i, (args, kwargs) in enumerate(operator.calls):
        assert not kwargs and torch.equal(args[0], lists[0][i] / -4)
        for one, other in zip(args[1:5], lists[1:], strict=True):
            assert one.data_ptr() == other[i].data_ptr()
        assert torch.equal(args[5], torch.tensor([7])) and args[6:] == numbers
    anyfuse.apply_fused_ema_adamw_(*lists, 7, torch.tensor([0.5]), found_inf=torch.tensor([0.0]))
    assert len(operator.calls) == 4 and operator.calls[3][0][6] == 0.5
    anyfuse.apply_fused_ema_adamw_(*lists, 7, *numbers, found_inf=torch.tensor([1.0]))
    assert len(operator.calls) == 4  # nothing is done


def test_operators_without_a_name_in_torch_npu_say_so(on_npu: None) -> None:
    one = torch.ones(1, 8)
    with pytest.raises(NotImplementedError, match="lazy_adam: torch_npu has no such operator"):
        anyfuse.lazy_adam_(one, torch.zeros(1).int(), one, one, one, 0.1)
