"""The modules of quantized inference: no transformers needed."""

import copy
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import anyfuse
from anyfuse.nn import AddRMSNormQuant, QuantizedRows, QuantLinear, QuantLinearPart, RMSNormQuant
from anyfuse.ops import quant_matmul_dequant as matmul


def linear(k: int, n: int, *, bias: bool = False, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(k, n, bias=bias, dtype=dtype).requires_grad_(False)


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return torch.cosine_similarity(a.double().flatten(), b.double().flatten(), dim=0).item()


def test_weights_have_one_symmetric_scale_for_each_output() -> None:
    layer = nn.Linear(3, 2, bias=False)
    layer.weight.data = torch.tensor([[1.27, -0.635, 0.0], [0.0, 0.0, 0.0]])
    quantized = QuantLinear.from_float(layer)
    assert quantized.packed_weight.to_nd().tolist() == [[127, -64, 0], [0, 0, 0]]  # -63.5 goes to the even neighbour
    assert quantized.weight_scale.tolist() == [pytest.approx(0.01), 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [False, True])
def test_a_float_activation_gives_what_the_operator_gives(dtype: torch.dtype, bias: bool) -> None:
    layer = linear(96, 50, bias=bias, dtype=dtype)
    quantized = QuantLinear.from_float(layer)
    x = torch.randn(2, 5, 96).to(dtype)
    expected = anyfuse.quant_matmul_dequant(x, quantized.packed_weight)
    expected = expected + layer.bias if bias else expected
    result = quantized(x)
    assert result.dtype == dtype and torch.equal(result, expected)
    # Half a step of 127 in x and in W, on 96 products of random signs: about 1 % of the outputs' size.
    assert (result - layer(x)).abs().max() < 0.05


def test_rows_are_not_quantized_again() -> None:
    norm, layer = AddRMSNormQuant(torch.rand(64) + 0.5), linear(64, 32)
    x, residual = torch.randn(3, 64), torch.randn(3, 64)
    total, rows = norm(x, residual)
    codes, _, plain_total, scale, _ = anyfuse.add_rms_norm_dynamic_quant(residual, x, norm.weight)
    assert torch.equal(total, plain_total) and torch.equal(rows.codes, codes) and torch.equal(rows.scale, scale)
    quantized = QuantLinear.from_float(layer)
    expected = anyfuse.quant_matmul_dequant(codes, quantized.packed_weight, x_scale=scale, out_dtype=torch.float32)
    assert torch.equal(quantized(rows), expected)


def test_a_plain_norm_is_one_without_residual() -> None:
    x = torch.randn(4, 64)
    norm, plain = AddRMSNormQuant(torch.ones(64), 1e-5), RMSNormQuant(torch.ones(64), 1e-5)
    rows = plain(x)
    assert torch.equal(rows.codes, norm(x, torch.zeros_like(x))[1].codes)
    assert cosine(rows.dequantize(), nn.functional.rms_norm(x, (64,), eps=1e-5)) > 0.9999


def test_smooth_scales_leave_the_product_and_save_its_small_columns() -> None:
    layer = linear(64, 32)
    gain = torch.ones(64)
    gain[3] = 100  # one column takes the whole range of codes
    norm, x = nn.functional.rms_norm, torch.randn(16, 64)
    exact = layer(norm(x, (64,), gain, 1e-6))
    smooth = 1 / gain.sqrt()  # half of the difficulty goes to the weights
    errors = []
    for scale in (None, smooth):
        rows = RMSNormQuant(gain, smooth_scale=scale)(x)
        errors.append((QuantLinear.from_float(layer, smooth_scale=scale)(rows) - exact).norm())
    assert errors[1] < 0.5 * errors[0]
    direct = QuantLinear.from_float(layer, smooth_scale=smooth)(norm(x, (64,), gain, 1e-6))
    assert (direct - exact).norm() < 0.5 * errors[0]


def test_a_static_scale_is_used_for_every_row() -> None:
    layer, x = linear(64, 32), torch.randn(4, 64)
    quantized = QuantLinear.from_float(layer, act=0.03)
    expected = anyfuse.quant_matmul_dequant(
        x, quantized.packed_weight, x_scale=torch.tensor([0.03]), quant_mode="pertensor"
    )
    assert torch.equal(quantized(x), expected)


def test_linears_of_one_activation_share_one_product() -> None:
    q, k, v = linear(64, 32, bias=True), linear(64, 16, seed=1), linear(64, 16, bias=True, seed=2)
    shared = QuantLinear.from_float([q, k, v])
    parts = [QuantLinearPart(shared, *span) for span in ((0, 32), (32, 48), (48, 64))]
    calls = []
    shared.register_forward_hook(lambda *_: calls.append(1))
    rows = RMSNormQuant(torch.ones(64))(torch.randn(5, 64))
    for part, layer in zip(parts, (q, k, v), strict=True):
        assert torch.equal(part(rows), QuantLinear.from_float(layer)(rows))
    assert len(calls) == 1
    assert sum(len(part.state_dict()) for part in parts) == 0  # the weights are registered where shared is


def test_a_copy_of_parts_reads_the_copied_weights() -> None:
    holder = nn.Module()
    holder.shared = QuantLinear.from_float(linear(8, 4))
    holder.part = QuantLinearPart(holder.shared, 0, 2)
    other = copy.deepcopy(holder)
    assert other.part.shared is other.shared and other.shared is not holder.shared


@pytest.mark.parametrize("shape", [(0, 64), (1, 64), (64,), (2, 3, 64)])
def test_any_leading_shape(shape: tuple[int, ...]) -> None:
    layer = QuantLinear.from_float(linear(64, 32))
    assert layer(torch.randn(shape)).shape == (*shape[:-1], 32)
    assert layer(RMSNormQuant(torch.ones(64))(torch.randn(shape))).shape == (*shape[:-1], 32)


def test_state_dict_holds_int8_weights_and_loads_into_an_empty_linear() -> None:
    layer = QuantLinear.from_float(linear(60, 30, bias=True), smooth_scale=torch.rand(60) + 0.5, act=0.05)
    state = layer.state_dict()
    assert state["weight"].dtype == torch.int8 and state["weight"].nbytes < 60 * 30 * 1.2
    empty = QuantLinear.empty(30, 60, bias=torch.float32, smooth=True, static=True)
    empty.load_state_dict(state)
    x = torch.randn(3, 60)
    assert torch.equal(empty(x), layer(x))
    with pytest.raises(RuntimeError, match="size mismatch"):
        QuantLinear.empty(30, 76, bias=torch.float32, smooth=True, static=True).load_state_dict(state)


def test_case_q15_a_chain_of_60_layers_keeps_its_direction_in_bf16() -> None:
    """Against the same chain in float64, without quantization (sgl-project/sglang #27540: 0.513 at layer 58)."""
    d, layers = 1024, 60
    torch.manual_seed(0)
    x = torch.randn(4, d).bfloat16()
    weights = [torch.randn(d, d) / d**0.5 for _ in range(layers)]
    gains = [1 + 0.1 * torch.randn(d) for _ in range(layers)]
    delta, residual = torch.zeros_like(x), x
    exact_delta, exact = torch.zeros(4, d, dtype=torch.float64), x.double()
    for weight, gain in zip(weights, gains, strict=True):
        layer = nn.Linear(d, d, bias=False, device="meta")
        layer.weight = nn.Parameter(weight, requires_grad=False)
        residual, rows = AddRMSNormQuant(gain)(delta, residual)
        delta = QuantLinear.from_float(layer)(rows)
        exact = exact + exact_delta
        exact_delta = nn.functional.rms_norm(exact, (d,), gain.double(), 1e-6) @ weight.double().T
    assert cosine(residual + delta, exact + exact_delta) >= 0.995
    assert cosine(delta, exact_delta) >= 0.99  # the last layer alone, which the residual does not help


def test_compiled_modules_give_the_same() -> None:
    norm, shared = AddRMSNormQuant(torch.ones(64)), QuantLinear.from_float(linear(64, 48))
    first, second = QuantLinearPart(shared, 0, 32), QuantLinearPart(shared, 32, 48)

    def block(x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total, rows = norm(x, residual)
        return total, first(rows), second(rows)

    x, residual = torch.randn(3, 64), torch.randn(3, 64)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    for ours, theirs in zip(compiled(x, residual), block(x, residual), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: QuantLinear.from_float(nn.Identity()), TypeError, "Identity"),
        (lambda: QuantLinear.from_float([]), ValueError, "empty"),
        (lambda: QuantLinear.from_float([linear(4, 4), linear(5, 4)]), ValueError, "inputs"),
        (lambda: QuantLinear.from_float(linear(4, 4), act="static"), ValueError, "act"),
        (lambda: QuantLinear.from_float(linear(4, 4), act=0.0), ValueError, "x_scale"),
        (lambda: QuantLinear.from_float(linear(4, 4), smooth_scale=torch.zeros(4)), ValueError, "smooth_scale"),
        (lambda: QuantLinear.from_float(linear(4, 4), smooth_scale=torch.ones(5)), ValueError, "smooth_scale"),
        (lambda: QuantLinear(torch.zeros(4, 4)), TypeError, "PackedWeight"),
        (lambda: QuantLinear(anyfuse.pack_weight(torch.zeros(4, 4, dtype=torch.int8))), ValueError, "scales"),
        (lambda: QuantLinear.empty(4, 4)(None), TypeError, "NoneType"),
        (lambda: QuantLinear.empty(4, 4)(torch.zeros(2, 5)), ValueError, "packed for"),
        (lambda: QuantLinearPart(QuantLinear.empty(4, 4), 2, 5), ValueError, "range"),
        (lambda: AddRMSNormQuant(torch.ones(2, 2)), ValueError, "weight"),
        (lambda: AddRMSNormQuant(torch.ones(2), -1.0), ValueError, "epsilon"),
        (lambda: AddRMSNormQuant(torch.ones(2), smooth_scale=torch.ones(3)), ValueError, "smooth_scale"),
        (lambda: AddRMSNormQuant(torch.ones(2))(torch.ones(1, 2), torch.ones(1, 3)), ValueError, "x2"),
        (lambda: QuantizedRows(torch.zeros(2, 3), torch.zeros(2), torch.float32), TypeError, "codes"),
        (lambda: QuantizedRows(torch.zeros(2, 3).to(torch.int8), torch.zeros(3), torch.float32), ValueError, "scale"),
        (lambda: QuantizedRows(torch.zeros(2, 3).to(torch.int8), torch.zeros(2), torch.int8), TypeError, "dtype"),
    ],
)
def test_errors_name_the_argument(make: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_weights_that_are_not_finite_are_refused() -> None:
    layer = linear(4, 4)
    layer.weight[1, 2] = float("nan")
    with pytest.raises(ValueError, match="infinity or a NaN"):
        QuantLinear.from_float(layer)


# ---- calls of the operators ----


class Seen(TorchDispatchMode):
    """Names of the operators that the dispatcher is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def same_when_watched(module: nn.Module, *arguments: Any) -> None:
    """A mode that watches operators sees them, and changes no number."""
    module(*arguments)
    direct = module(*arguments)
    with Seen() as seen:
        dispatched = module(*arguments)
    assert any("anyfuse" in name for name in seen.names)
    for a, b in zip(tensors(direct), tensors(dispatched), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, tuple):
        return [tensor for part in result for tensor in tensors(part)]
    return [result.codes, result.scale] if isinstance(result, QuantizedRows) else [result]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1, 64), (64,), (0, 64), (7, 64)])
def test_the_numbers_are_the_same(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, residual = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    smooth = torch.rand(64) + 0.5
    layer = linear(64, 40, bias=True, dtype=dtype)
    norm = AddRMSNormQuant(torch.rand(64) + 0.5, smooth_scale=smooth, bias=torch.rand(64))
    same_when_watched(norm, x, residual)
    for quantized in (
        QuantLinear.from_float(layer),
        QuantLinear.from_float(layer, smooth_scale=smooth),
        QuantLinear.from_float(layer, act=0.05),
    ):
        same_when_watched(quantized, x)
        same_when_watched(quantized, norm(x, residual)[1])


def test_changed_weights_are_used_and_wrong_ones_refused() -> None:
    layer, other = QuantLinear.from_float(linear(64, 32)), QuantLinear.from_float(linear(64, 32, seed=1))
    x = torch.randn(3, 64)
    layer(x)
    layer.load_state_dict(other.state_dict())
    assert torch.equal(layer(x), other(x))
    layer.weight = QuantLinear.from_float(linear(64, 32)).weight
    assert torch.equal(layer(x), anyfuse.quant_matmul_dequant(x, layer.packed_weight))
    layer(x)
    layer.weight.data = layer.weight[:1].clone()  # the same tensor object, of half the size
    with pytest.raises(ValueError, match="packed for"):
        layer(x)
    norm = AddRMSNormQuant(torch.ones(64))
    norm(x, x)
    for bad, name in ((x[:2], "x2"), (x.double(), "x2"), (x[:, :-1], "x2")):
        with pytest.raises((TypeError, ValueError), match=name):
            norm(bad, x)
    norm.half()
    with pytest.raises(TypeError, match="gamma"):
        norm(x, x)


@pytest.mark.parametrize(
    "cast",
    [
        nn.Module.half,
        nn.Module.bfloat16,
        lambda module: module.to("cpu", torch.bfloat16),
        lambda module: module.type(torch.float16),
    ],
)
@pytest.mark.parametrize("act", ["dynamic", 0.05])
def test_a_cast_leaves_the_scales_as_they_are(cast: Callable[[nn.Module], nn.Module], act: str | float) -> None:
    """A whole model is cast at once, `model.half()`, quantized linears among its layers."""
    layer = QuantLinear.from_float(linear(64, 32, bias=True), smooth_scale=torch.rand(64) + 0.5, act=act)
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    layer(torch.randn(3, 64))
    assert cast(nn.Sequential(layer))[0] is layer
    after = dict(layer.named_buffers())
    for name in before.keys() - {"bias"}:
        assert after[name].dtype == before[name].dtype and torch.equal(after[name], before[name]), name
    dtype = after["bias"].dtype
    assert dtype in (torch.float16, torch.bfloat16)
    x = torch.randn(3, 64).to(dtype)
    product = anyfuse.quant_matmul_dequant(
        x, layer.packed_weight, smooth_scale=layer.smooth_scale, x_scale=layer.x_scale,
        quant_mode="pertoken" if act == "dynamic" else "pertensor", out_dtype=dtype,
    )  # fmt: skip
    assert torch.equal(layer(x), product + after["bias"])
    assert layer.to("meta").weight_scale.is_meta  # a move is one, still


def test_strides_are_read_right() -> None:
    layer, norm = QuantLinear.from_float(linear(64, 32)), AddRMSNormQuant(torch.ones(64))
    x = torch.randn(64, 6)
    for rows in (x.t(), x.t().contiguous()):
        layer(rows), norm(rows, rows)
    assert torch.equal(layer(x.t()), layer(x.t().contiguous()))
    assert torch.equal(norm(x.t(), x.t())[1].codes, norm(x.t().contiguous(), x.t().contiguous())[1].codes)
    rows = norm(torch.randn(6, 64), torch.randn(6, 64))[1]
    strided = QuantizedRows(rows.codes[::2], rows.scale[::2], torch.float32)
    assert torch.equal(layer(strided), layer(rows)[::2])


def test_settings_hold() -> None:
    layer, x = QuantLinear.from_float(linear(64, 32)), torch.randn(3, 64)
    layer(x), layer(x)
    with anyfuse.soc("Ascend310P"), pytest.raises(TypeError, match="Ascend310P"):
        layer(x)
    calls: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matmul, "reference", lambda *_, **__: calls.append(1) or torch.zeros(3, 32))
        with anyfuse.backend("reference"):
            layer(x)
    assert calls == [1]
    with torch.autograd.profiler.profile() as profile:
        layer(x)
    assert any("quant_matmul_dequant" in event.name for event in profile.function_events)


def test_negated_views_are_read_right() -> None:
    """`torch._neg_view`, and the imaginary part of a conjugate: the memory holds the negatives of the values."""
    layer, norm, x = QuantLinear.from_float(linear(64, 32)), AddRMSNormQuant(torch.ones(64)), torch.randn(3, 64)
    for _ in range(2):
        layer(x), norm(x, x)
    assert torch.equal(layer(torch._neg_view(x)), layer(-x))
    assert torch.equal(norm(torch._neg_view(x), x)[0], torch.zeros(3, 64))


def cut(rows: QuantizedRows) -> None:
    rows.scale = rows.scale[:1]


def lengthen(rows: QuantizedRows) -> None:
    rows.codes = torch.zeros(500, 64, dtype=torch.int8)


def convert(rows: QuantizedRows) -> None:
    rows.scale = rows.scale.half()


def release(rows: QuantizedRows) -> None:
    rows.scale.untyped_storage().resize_(0)


@pytest.mark.parametrize("change", [cut, lengthen, convert, release])
def test_changed_rows_are_refused(change: Callable[[QuantizedRows], None]) -> None:
    layer, norm = QuantLinear.from_float(linear(64, 32)), RMSNormQuant(torch.ones(64))
    rows = norm(torch.randn(3, 64))
    for _ in range(2):
        layer(rows)
    change(rows)
    with pytest.raises((TypeError, ValueError), match="x_scale"):
        layer(rows)


def test_arguments_that_do_not_fit_are_refused_by_name() -> None:
    released = torch.randn(3, 64)
    released.untyped_storage().resize_(0)
    x = torch.randn(3, 64)
    layer, norm = QuantLinear.from_float(linear(64, 32)), AddRMSNormQuant(torch.ones(64))
    for _ in range(2):
        layer(x), norm(x, x)
    for bad, error, message in (
        (torch.tensor(1.0), ValueError, r"x has shape \(\)"),
        (released, TypeError, "x is a tensor whose memory has been released"),
        (torch.randn(3, 63), ValueError, "packed for"),
    ):
        with pytest.raises(error, match=message):
            layer(bad)
    with pytest.raises(TypeError, match="x2 is a tensor whose memory has been released"):
        norm(released, x)
    scales = layer.weight_scale.data
    layer.weight_scale.data = scales[:7]  # the same tensor object at the same address
    with pytest.raises(ValueError, match="packed for"):
        layer(x)
    layer.weight_scale.data = scales
    layer(x)
    layer.out_features = 4000
    with pytest.raises(ValueError, match="packed for"):
        layer(x)


def test_function_modes_see_the_operator() -> None:
    class Names(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    names: list[str] = []
    layer, x = QuantLinear.from_float(linear(64, 32)), torch.randn(3, 64)
    layer(x), layer(x)
    with Names():
        layer(x)
    assert any("quant_matmul_dequant" in name for name in names)


def test_buffers_that_a_module_no_longer_has_are_freed() -> None:
    """A model that moves to another device does not leave its weights on the first."""
    layer, norm, x = QuantLinear.from_float(linear(64, 32)), AddRMSNormQuant(torch.ones(64)), torch.randn(3, 64)
    for _ in range(2):
        layer(x), norm(x, x)
    left = [weakref.ref(buffer) for module in (layer, norm) for buffer in module.buffers()]
    layer.to("meta"), norm.to("meta")
    assert [reference() for reference in left] == [None] * len(left)


def test_an_empty_linear_has_float32_scales_whatever_the_default_dtype() -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        layer = QuantLinear.empty(32, 64, smooth=True, static=True)
    finally:
        torch.set_default_dtype(torch.float32)
    assert {buffer.dtype for buffer in layer.buffers()} == {torch.int8, torch.float32}
