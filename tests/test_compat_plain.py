"""Functions of torch_npu around the operators: layouts, quantization, norms, activation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anyfuse.formats import unpack_int4


def test_layouts(torch_npu: Any) -> None:
    """On an NPU a cast changes neither shape nor values; `get_npu_format` tells the layout."""
    weight = torch.randint(-128, 128, (32, 64), dtype=torch.int8).npu()
    blocked = torch_npu.npu_format_cast(weight, 29)
    assert torch.equal(blocked, weight) and blocked.data_ptr() != weight.data_ptr()
    formats = [
        torch_npu.get_npu_format(x) for x in (weight, blocked, torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1, 1))
    ]
    assert formats == [2, 29, 0, 30] and torch_npu.Format.FRACTAL_NZ == 29
    assert torch_npu.npu_format_cast(blocked, torch_npu.Format.FRACTAL_NZ) is blocked
    back = torch_npu.npu_format_cast(blocked, 2)
    assert torch_npu.get_npu_format(back) == 2 and torch.equal(back, weight)
    assert torch_npu.npu_format_cast_(weight, 29) is weight and torch_npu.get_npu_format(weight) == 29
    x, scale = torch.randn(4, 64).half(), torch.rand(32)
    out = torch_npu.npu_quant_matmul_dequant(x, blocked, scale)
    assert torch.equal(out, torch_npu.npu_quant_matmul_dequant(x, back, scale))
    for call, says in (
        (lambda: torch_npu.npu_format_cast(weight, 1000), "1000 is not a valid Format"),
        (lambda: torch_npu.npu_format_cast(torch.ones(3), 29), "self has 1 dimensions; accepted: 2 or more"),
    ):
        with pytest.raises(RuntimeError, match=says):
            call()


def test_dynamic_quant(torch_npu: Any) -> None:
    x = torch.tensor([[1.0, -2.0, 0.5, 0.25], [0.0, 0.0, 0.0, 0.0]]).half()
    y, scale = torch_npu.npu_dynamic_quant(x.unsqueeze(0))
    assert y.dtype == torch.int8 and y.tolist() == [[[64, -127, 32, 16], [0, 0, 0, 0]]]
    assert torch.equal(scale, torch.tensor([[2 / 127, 0.0]]))
    smooth = torch.tensor([2.0, 0.5, 1.0, 1.0]).half()
    y, scale = torch_npu.npu_dynamic_quant(x, smooth_scales=smooth, dst_type=torch.int8)
    assert y[0].tolist() == [127, -64, 32, 16] and scale[0] == torch.tensor(2 / 127)
    y, scale = torch_npu.npu_dynamic_quant(x.repeat(1, 2), dst_type=torch.quint4x2)
    assert y.dtype == torch.int32 and y.shape == (2, 1) and scale[0] == torch.tensor(2 / 7)
    assert unpack_int4(y)[0].tolist() == [3, -7, 2, 1] * 2  # 1 / fp32(2/7) is a little below 3.5
    for wrong, says in (({"group_index": scale}, "group_index"), ({"dst_type": torch.float8_e5m2}, "dst_type is")):
        with pytest.raises(RuntimeError, match=says):
            torch_npu.npu_dynamic_quant(x, **wrong)


def test_dynamic_quant_is_the_norms_quantization(torch_npu: Any) -> None:
    """The golden of scripts: norm, then dynamic quantization, equal to the fused operator but for rounding ties."""
    torch.manual_seed(0)
    x1, x2, gamma = torch.randn(16, 256), torch.randn(16, 256), torch.rand(256)
    fused = torch_npu.npu_add_rms_norm_dynamic_quant(x1, x2, gamma)
    normed, rstd, x = torch_npu.npu_add_rms_norm(x1, x2, gamma)
    y, scale = torch_npu.npu_dynamic_quant(normed)
    assert torch.equal(x, fused[2]) and rstd.shape == (16, 1)
    torch.testing.assert_close(scale, fused[3], rtol=2**-21, atol=0)
    assert (y.int() - fused[0].int()).abs().max() <= 1 and (y != fused[0]).sum() < 5


@pytest.mark.parametrize(
    ("dtype", "carrier", "codes"),
    [
        (torch.qint8, torch.int8, [-128, -2, 2, 127]),
        (torch.quint8, torch.uint8, [0, 0, 2, 255]),
        (torch.qint32, torch.int32, [-2000, -2, 2, 2000]),
    ],
)
def test_quantize(torch_npu: Any, dtype: torch.dtype, carrier: torch.dtype, codes: list[int]) -> None:
    x = torch.tensor([[-1000.0, -1.25, 0.75, 1000.0]])  # -2.5 and 1.5 go to even
    y = torch_npu.npu_quantize(x, torch.tensor([0.5]), None, dtype)
    assert y.dtype == carrier and y.tolist() == [codes]
    assert torch.equal(torch_npu.npu_quantize(x, torch.tensor(2.0), None, dtype, div_mode=False), y)


def test_quantize_along_an_axis(torch_npu: Any) -> None:
    x, scales, zero = torch.ones(2, 3), torch.tensor([1.0, 0.5, 0.25]), torch.tensor([0, 1, -1])
    assert torch_npu.npu_quantize(x, scales, zero, torch.qint8, axis=-1).tolist() == [[1, 3, 3]] * 2
    assert torch_npu.npu_quantize(x, scales[:2], None, torch.qint8, 0).tolist() == [[1] * 3, [2] * 3]
    words = torch_npu.npu_quantize(torch.arange(-4.0, 4.0)[None] * 3, torch.ones(1), None, torch.quint4x2)
    assert unpack_int4(words).tolist() == [[-8, -8, -6, -3, 0, 3, 6, 7]]
    for wrong, says in (
        ((x, scales, None, torch.qint8, 0), r"scales has shape \(3,\); accepted: \(1,\) or \(2,\)"),
        ((x, scales, scales[:2], torch.qint8), "zero_points has shape"),
        ((x, scales, None, torch.float32), "dtype is torch.float32; accepted"),
        ((x, scales, None, torch.quint4x2), "accepted"),
    ):
        with pytest.raises(RuntimeError, match=says):
            torch_npu.npu_quantize(*wrong)


def test_norms(torch_npu: Any) -> None:
    torch.manual_seed(0)
    x, gamma = torch.randn(4, 3, 8).half(), torch.rand(3, 8).half()
    y, rstd = torch_npu.npu_rms_norm(x, gamma, epsilon=1e-5)
    exact = 1 / (x.double().square().mean((1, 2), keepdim=True) + 1e-5).sqrt()
    assert rstd.shape == (4, 1, 1) and rstd.dtype == torch.float32 and y.dtype == torch.float16
    torch.testing.assert_close(rstd.double(), exact, rtol=2**-21, atol=0)
    torch.testing.assert_close(y.double(), x.double() * exact * gamma.double(), rtol=2**-10, atol=0)
    sums = torch_npu.npu_add_rms_norm(x, x, gamma, 1e-5)
    assert torch.equal(sums[2], x + x) and sums[1].shape == (4, 1, 1)
    with pytest.raises(RuntimeError, match=r"gamma has shape \(8,\); accepted: the end of \(4, 3, 4\)"):
        torch_npu.npu_rms_norm(x[..., :4], gamma[0])


def test_swiglu(torch_npu: Any) -> None:
    x = torch.randn(4, 6).bfloat16()
    a, b = x.double().chunk(2, 0)
    y = torch_npu.npu_swiglu(x, dim=0)
    assert y.shape == (2, 6) and y.dtype == torch.bfloat16
    torch.testing.assert_close(y.double(), torch.nn.functional.silu(a) * b, rtol=2**-7, atol=0)
    with pytest.raises(RuntimeError, match="self has 5 entries in dimension -1; accepted: an even number"):
        torch_npu.npu_swiglu(x[:, :5])
