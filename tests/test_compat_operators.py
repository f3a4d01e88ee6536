"""torch_npu's operators under their official names: signatures, results, errors."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor


def parameters(function: Any) -> str:
    """Names, kinds and defaults, without annotations."""
    signature = inspect.signature(function)
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def test_official_signatures(torch_npu: Any, fused_ema_adamw: Any, create_hash_optimizer: Any) -> None:
    assert parameters(torch_npu.npu_add_rms_norm_dynamic_quant) == (
        "(x1, x2, gamma, *, smooth_scale1=None, smooth_scale2=None, beta=None, epsilon=1e-06, output_mask=None, "
        "y_dtype=None)"
    )
    assert parameters(torch_npu.npu_quant_matmul_dequant) == (
        "(x, quantized_weight, weight_scale, *, bias=None, x_scale=None, x_offset=None, smooth_scale=None, "
        "quant_mode='pertoken')"
    )
    assert parameters(torch_npu.npu_quant_grouped_matmul_dequant) == (
        "(x, quantized_weight, weight_scale, group_list, *, bias=None, x_scale=None, x_offset=None, smooth_scale=None, "
        "quant_mode='pertoken')"
    )
    assert parameters(torch_npu.npu_apply_fused_ema_adamw) == (
        "(grad, var, m, v, s, step, lr=0.001, ema_decay=0.9999, beta1=0.9, beta2=0.999, eps=1e-08, mode=1, "
        "bias_correction=True, weight_decay=0.0)"
    )
    for name in ("npu_format_cast", "npu_format_cast_"):
        assert parameters(getattr(torch_npu, name)) == "(self, acl_format)"
    assert parameters(torch_npu.npu_dynamic_quant) == "(input, *, smooth_scales=None, group_index=None, dst_type=None)"
    assert parameters(torch_npu.npu_quantize) == "(self, scales, zero_points, dtype, axis=1, div_mode=True)"
    assert parameters(torch_npu.npu_rms_norm) == "(self, gamma, epsilon=1e-06)"
    assert parameters(torch_npu.npu_add_rms_norm) == "(x1, x2, gamma, epsilon=1e-06)"
    assert parameters(torch_npu.npu_swiglu) == "(self, dim=-1)"
    assert parameters(fused_ema_adamw) == (
        "(params, lr=0.001, eps=1e-08, betas=(0.9, 0.999), weight_decay=0.01, ema_decay=0.9999, amsgrad=False, *, "
        "maximize=False, use_num_updates=True, bias_correction=True, adam_w_mode=True, set_grad_none=True)"
    )
    assert parameters(create_hash_optimizer) == (
        "(learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-08, name='LazyAdam', use_fusion_optim=False)"
    )


X1, X2 = torch.tensor([[1.0, 2, 3, 4] * 2]).half(), torch.tensor([[1.0, 0, -1, 4] * 2]).half()
ONES = torch.ones(8).half()


def test_add_rms_norm_absent_outputs_have_no_dimension(torch_npu: Any) -> None:
    y1, y2, x, scale1, scale2 = torch_npu.npu_add_rms_norm_dynamic_quant(X1, X2, ONES)
    assert torch.equal(y1, torch.tensor([[32, 32, 32, 127] * 2], dtype=torch.int8))
    assert torch.equal(x, X1 + X2) and scale1.shape == (1,)
    assert y2.shape == scale2.shape == () and y2.dtype == torch.int8 and scale2.dtype == torch.float32
    masked = torch_npu.npu_add_rms_norm_dynamic_quant(X1, X2, ONES, output_mask=[False, True])
    assert masked[0].shape == masked[3].shape == ()
    for numbers in ([0, 1], (0, 1)):
        assert all(
            map(
                torch.equal,
                torch_npu.npu_add_rms_norm_dynamic_quant(X1, X2, ONES, output_mask=numbers)[1:3],
                masked[1:3],
            )
        )
    with pytest.raises(RuntimeError, match="output_mask is"):
        torch_npu.npu_add_rms_norm_dynamic_quant(X1, X2, ONES, output_mask=[0, 2])
    assert torch.equal(masked[1], y1) and torch.equal(masked[4], scale1)
    both = torch_npu.npu_add_rms_norm_dynamic_quant(
        X1, X2, ONES, smooth_scale1=ONES, smooth_scale2=ONES, output_mask=[]
    )
    assert torch.equal(both[0], y1) and torch.equal(both[1], y1)


def test_add_rms_norm_int4_in_words(torch_npu: Any) -> None:
    for y_dtype in (torch_npu.int4, torch.quint4x2, 16):
        y1, y2, *_ = torch_npu.npu_add_rms_norm_dynamic_quant(X1, X2, ONES, y_dtype=y_dtype)
        assert y1.dtype == y2.dtype == torch.int32 and y1.shape == (1, 1) and y2.shape == ()
        assert y1.item() == 0x72227222  # codes 2, 2, 2, 7, twice; the first in the low nibble
    with pytest.raises(RuntimeError, match="accepted with int4: a multiple of 8"):
        torch_npu.npu_add_rms_norm_dynamic_quant(X1[:, :4], X2[:, :4], ONES[:4], y_dtype=torch_npu.int4)


@pytest.mark.parametrize(
    ("name", "dtype", "codes"),
    [
        ("float8_e4m3fn", torch.float8_e4m3fn, [110, 110, 110, 126]),
        ("float8_e5m2", torch.float8_e5m2, [115, 115, 115, 123]),
        ("hifloat8", torch.uint8, [0x6A, 0x6A, 0x6A, 0x6E]),
    ],
)
def test_add_rms_norm_8_bit_floats(torch_npu: Any, name: str, dtype: torch.dtype, codes: list[int]) -> None:
    y1 = torch_npu.npu_add_rms_norm_dynamic_quant(X1, X2, ONES, y_dtype=getattr(torch_npu, name))[0]
    assert y1.dtype == dtype and y1.view(torch.uint8).tolist() == [codes * 2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"output_mask": [False, False]}, "output_mask"),
        ({"x1": X1[0], "x2": X2[0]}, "accepted: 2 to 8"),
        ({"x2": X2[:, :4]}, "x2 has shape"),
        ({"gamma": ONES[:4]}, "gamma"),
        ({"smooth_scale2": ONES}, "smooth_scale2"),
        ({"y_dtype": torch.float32}, "y_dtype is torch.float32"),
        ({"y_dtype": "int4"}, "y_dtype is 'int4'"),
        ({"x1": X1.double(), "x2": X2.double()}, "x1 has dtype float64"),
        ({"x1": [1.0]}, "x1 is a list"),
    ],
)
def test_add_rms_norm_refuses_with_runtime_errors(torch_npu: Any, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(RuntimeError, match=says):
        torch_npu.npu_add_rms_norm_dynamic_quant(**{"x1": X1, "x2": X2, "gamma": ONES, **arguments})


def test_operators_under_torch_compile(torch_npu: Any) -> None:
    weight, scale = torch.ones(16, 8, dtype=torch.int8), torch.ones(16)

    def block(x: Tensor) -> tuple[Tensor, ...]:
        results = torch_npu.npu_add_rms_norm_dynamic_quant(x, x, ONES)
        return *results, torch_npu.npu_quant_matmul_dequant(results[2], weight, scale)

    compiled = torch.compile(block, backend="eager", fullgraph=True)
    for one, other in zip(compiled(X1), block(X1), strict=True):
        assert one.shape == other.shape and (one.dim() == 0 or torch.equal(one, other))


def test_quant_matmul_dequant(torch_npu: Any) -> None:
    x, weight = torch.zeros(2, 16).half(), torch.zeros(16, 16, dtype=torch.int8)
    x[0, :4] = torch.tensor([1, -2, 0.5, 0.25])
    weight[0, :4], weight[1, :4] = torch.tensor([1, 1, 1, 1]), torch.tensor([127, -128, 3, -4])
    scale = torch.full((16,), 0.5)
    out = torch_npu.npu_quant_matmul_dequant(x, weight, scale)
    assert out.dtype == torch.float16 and out.shape == (2, 16)
    assert torch.equal(out[0, :2], torch.tensor([-0.11810303, 192.25]).half())  # E1 of test_quant_matmul_dequant.py
    fixed = torch_npu.npu_quant_matmul_dequant(x, weight, scale, x_scale=torch.tensor([0.01]), quant_mode="pertensor")
    assert torch.equal(fixed[0, :2], torch.tensor([0.23498535, 145.625]).half())  # E2
    turned = torch_npu.npu_quant_matmul_dequant(x, weight, scale, x_scale=-torch.ones(1), quant_mode="pertensor")
    codes = (x[0] / -1).round().clamp(-128, 127).float()
    assert torch.equal(turned[0], (codes @ weight.float().T * scale * -1.0).half()) and turned[0, 1] > 0
    for wrong, says in (
        ({"x": x[0]}, "x has 1 dimensions"),
        ({"x_offset": scale}, "x_offset is given"),
        ({"quant_mode": "perchannel"}, "quant_mode"),
        ({"quantized_weight": weight.half()}, "weight has dtype float16"),
        ({"weight_scale": scale[:8]}, "weight has shape"),
    ):
        with pytest.raises(RuntimeError, match=says):
            torch_npu.npu_quant_matmul_dequant(**{"x": x, "quantized_weight": weight, "weight_scale": scale, **wrong})


def test_quant_grouped_matmul_dequant(torch_npu: Any) -> None:
    x, weight = torch.randn(7, 32).half(), torch.randint(-128, 128, (3, 16, 32), dtype=torch.int8)
    scale, ends = torch.rand(3, 16) / 100, torch.tensor([2, 2, 6])
    out = torch_npu.npu_quant_grouped_matmul_dequant(x, weight, scale, ends)
    assert out.dtype == torch.float16 and out.shape == (7, 16) and not out[6].any()
    assert torch.equal(out[:2], torch_npu.npu_quant_matmul_dequant(x[:2], weight[0], scale[0]))
    assert torch.equal(out[2:6], torch_npu.npu_quant_matmul_dequant(x[2:6], weight[2], scale[2]))
    for wrong, says in (
        ({"x": x[0]}, "x has 1 dimensions"),
        ({"x_offset": scale}, "x_offset is given"),
        ({"group_list": torch.tensor([2, 1, 6])}, r"group_list\[1\] is 1"),
        ({"group_list": ends.int()}, "group_list has dtype int32"),
        ({"weight_scale": scale[:2]}, "weight_scale has shape"),
    ):
        given = {"x": x, "quantized_weight": weight, "weight_scale": scale, "group_list": ends, **wrong}
        with pytest.raises(RuntimeError, match=says):
            torch_npu.npu_quant_grouped_matmul_dequant(**given)


def test_apply_fused_ema_adamw_refuses_with_runtime_errors(torch_npu: Any) -> None:
    def call(**changes: Any) -> Any:
        tensors = {name: torch.ones(3) for name in "grad var m v s".split()}
        return torch_npu.npu_apply_fused_ema_adamw(**{**tensors, "step": torch.tensor([1]), **changes})

    assert [tuple(tensor.shape) for tensor in call()] == [(3,)] * 4
    for changes, says in (
        ({"grad": torch.ones(4)}, "grad has shape"),
        ({"m": torch.ones(3).double()}, "m has dtype float64"),
        ({"mode": 2}, "mode is 2"),
        ({"step": 1}, "step is a int"),
        ({"step": torch.tensor([1.0])}, "step has dtype"),
    ):
        with pytest.raises(RuntimeError, match=says):
            call(**changes)
