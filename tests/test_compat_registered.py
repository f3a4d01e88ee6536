"""torch.ops.npu.*: the functions of torch_npu as operators of torch, eager, compiled and on fake tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from anyfuse import compat
from anyfuse.compat import _registered

NAMES = [schema.partition("(")[0] for schema in _registered._SCHEMAS]


def calls() -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """A call of each function."""
    torch.manual_seed(0)
    x1, x2, ones = torch.randn(6, 32).half(), torch.randn(6, 32).half(), torch.ones(32).half()
    weight, scale = torch.randint(-128, 128, (16, 32), dtype=torch.int8), torch.rand(16) / 100
    return {
        "npu_add_rms_norm_dynamic_quant": ((x1, x2, ones), {"epsilon": 1e-5, "output_mask": [True, False]}),
        "npu_quant_matmul_dequant": ((x1, weight, scale), {"smooth_scale": ones * 2}),
        "npu_quant_grouped_matmul_dequant": (
            (x1, torch.stack([weight, weight]), torch.stack([scale, scale]), torch.tensor([2, 6])),
            {"quant_mode": "pertoken"},
        ),
        "npu_format_cast": ((weight, 29), {}),
        "npu_format_cast_": ((weight, 29), {}),
        "get_npu_format": ((weight,), {}),
        "npu_dynamic_quant": ((x1,), {"smooth_scales": ones * 2}),
        "npu_quantize": ((x1, scale[:1], None, torch.qint8), {"div_mode": False}),
        "npu_rms_norm": ((x1, ones), {"epsilon": 1e-5}),
        "npu_add_rms_norm": ((x1, x2, ones), {}),
        "npu_swiglu": ((x1,), {"dim": 0}),
    }


def flat(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def same(one: Any, other: Any) -> bool:
    """Absent outputs are 0-dim, and their values mean nothing."""
    if not isinstance(one, Tensor):
        return bool(one == other)
    return one.shape == other.shape and one.dtype == other.dtype and (one.dim() == 0 or torch.equal(one, other))


def test_every_function_is_registered(torch_npu: Any) -> None:
    assert set(NAMES) == calls().keys()
    provided = {name for name in vars(torch_npu) if name.startswith(("npu_", "get_npu_"))}
    assert provided - set(NAMES) == {"npu_apply_fused_ema_adamw"}  # MindSpeed's, which is no operator of torch


@pytest.mark.parametrize("name", NAMES)
def test_schemas_are_the_signatures(torch_npu: Any, name: str) -> None:
    schema = getattr(torch.ops.npu, name).default._schema
    signature = inspect.signature(getattr(torch_npu, name)).parameters.values()
    assert [argument.name for argument in schema.arguments] == [parameter.name for parameter in signature]
    for argument, parameter in zip(schema.arguments, signature, strict=True):
        assert argument.kwarg_only == (parameter.kind is inspect.Parameter.KEYWORD_ONLY)
        default = None if parameter.default is inspect.Parameter.empty else parameter.default
        assert argument.default_value == default


@pytest.mark.parametrize("name", NAMES)
def test_eager(torch_npu: Any, name: str) -> None:
    args, kwargs = calls()[name]
    results = flat(getattr(torch.ops.npu, name)(*args, **kwargs))
    assert all(map(same, results, flat(getattr(torch_npu, name)(*args, **kwargs))))
    assert all(map(same, results, flat(getattr(torch.ops.npu, name).default(*args, **kwargs))))


@pytest.mark.parametrize("name", [name for name in NAMES if "format" not in name])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(torch_npu: Any, name: str, dynamic: bool) -> None:
    args, kwargs = calls()[name]

    def call(*args: Any) -> Any:
        return getattr(torch.ops.npu, name)(*args, **kwargs)

    torch._dynamo.reset()
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    assert all(map(same, flat(compiled(*args)), flat(call(*args))))


def test_a_block_compiled_by_inductor(torch_npu: Any) -> None:
    args, kwargs = calls()["npu_add_rms_norm_dynamic_quant"]
    (_, weight, scale), _ = calls()["npu_quant_matmul_dequant"]

    def block(x1: Tensor, x2: Tensor, gamma: Tensor) -> tuple[Tensor, ...]:
        y, _, x, row_scale, _ = torch.ops.npu.npu_add_rms_norm_dynamic_quant(x1, x2, gamma, **kwargs)
        out = torch.ops.npu.npu_quant_matmul_dequant(x, torch.ops.npu.npu_format_cast(weight, 29), scale)
        return y, row_scale, out

    compiled = torch.compile(block, fullgraph=True)
    assert all(map(same, compiled(*args), block(*args)))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "get_npu_format"])
def test_fake_tensors(torch_npu: Any, name: str) -> None:
    args, kwargs = calls()[name]
    with FakeTensorMode() as mode:
        turn: Callable[[Any], Any] = lambda x: mode.from_tensor(x) if isinstance(x, Tensor) else x  # noqa: E731
        fake = flat(
            getattr(torch.ops.npu, name)(*map(turn, args), **{key: turn(value) for key, value in kwargs.items()})
        )
    real = flat(getattr(torch.ops.npu, name)(*args, **kwargs))
    assert [(x.shape, x.dtype) for x in fake] == [(x.shape, x.dtype) for x in real]


def test_y_dtypes_and_masks(torch_npu: Any) -> None:
    x = torch.randn(2, 16).half()
    call = torch.ops.npu.npu_add_rms_norm_dynamic_quant
    for y_dtype in (None, torch.int8, torch.float8_e5m2, torch.quint4x2, torch_npu.int4, torch_npu.hifloat8, 1):
        one = call(x, x, torch.ones(16).half(), y_dtype=y_dtype)
        other = torch_npu.npu_add_rms_norm_dynamic_quant(x, x, torch.ones(16).half(), y_dtype=y_dtype)
        assert one[0].dtype == other[0].dtype and same(one[0].view(torch.uint8), other[0].view(torch.uint8))
    assert call(x, x, torch.ones(16).half(), output_mask=[0, 1])[0].shape == ()
    with pytest.raises(RuntimeError, match=r"output_mask is \(False, False\)"):
        call(x, x, torch.ones(16).half(), output_mask=[False, False])
    with pytest.raises(RuntimeError, match="y_dtype is 3; accepted"):
        call(x, x, torch.ones(16).half(), y_dtype=3)


def test_gradients_go_through_what_is_plain(torch_npu: Any) -> None:
    x = torch.randn(3, 8, requires_grad=True)
    torch.ops.npu.npu_swiglu(x).sum().backward()
    a = x.detach()[:, :4]
    assert x.grad is not None
    torch.testing.assert_close(x.grad[:, 4:], torch.nn.functional.silu(a))


def test_they_come_and_go() -> None:
    assert not hasattr(torch.ops.npu, "npu_swiglu")
    for _ in range(2):
        compat.install()
        assert torch.ops.npu.npu_swiglu(torch.ones(1, 2)).shape == (1, 1)
        compat.uninstall()
        assert not hasattr(torch.ops.npu, "npu_swiglu")
