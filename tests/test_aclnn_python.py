"""The two-phase calls in Python: the numbers of the operators, the codes of the C face, and nothing left behind."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor

import anyfuse
from anyfuse import aclnn
from anyfuse.aclnn import AclnnError, Described

HEADERS = Path(__file__).parent.parent / "csrc" / "aclnn" / "include"


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test begins the runtime with its own environment and ends it."""
    for name in ("ANYFUSE_SOC", "ANYFUSE_CONVENTION"):
        monkeypatch.delenv(name, raising=False)
    yield
    aclnn._ready()  # a test may not have begun it
    aclnn.aclFinalize()


def ema_tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    tensors = {name: torch.randn(6, 5) for name in ("grad", "varRef", "mRef", "vRef", "sRef")}
    tensors["vRef"].abs_()
    return tensors


NUMBERS = (0.1, 0.9, 0.9, 0.999, 1e-8, 1, True, 0.01)
NAMES = ("lr", "emaDecay", "beta1", "beta2", "eps", "mode", "biasCorrection", "weightDecay")


def stepped(tensors: dict[str, Tensor], **changes: Any) -> list[Tensor]:
    """What the operator makes of var, m, v and s."""
    copies = [tensor.clone() for tensor in tensors.values()]
    numbers = {"lr": 0.1, "ema_decay": 0.9, "weight_decay": 0.01, **changes}
    return list(anyfuse.apply_fused_ema_adamw_(*copies, step=3, **numbers))


def equal(one: Any, other: Tensor) -> bool:
    return torch.equal(torch.as_tensor(one), other)


def in_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.numpy()


def in_columns(tensor: Tensor) -> np.ndarray:
    return np.asfortranarray(tensor.numpy())


def in_gaps(tensor: Tensor) -> Tensor:
    wide = torch.zeros(tensor.shape[0] * 2, tensor.shape[1] * 3)
    return wide[::2, 1::3].copy_(tensor)


@pytest.mark.parametrize("held", [Tensor.clone, in_numpy, in_columns, in_gaps])
def test_both_phases_on_tensors_and_arrays(held: Callable[[Tensor], Any]) -> None:
    tensors = ema_tensors()
    expected = stepped(tensors)
    mine = [held(tensor.clone()) for tensor in tensors.values()]
    step = torch.tensor([3])
    size, executor = aclnn.aclnnApplyFusedEmaAdamGetWorkspaceSize(*mine, step, *NUMBERS)
    assert (size > 0) == (held in (in_columns, in_gaps))
    assert equal(mine[1], tensors["varRef"])  # phase 1 writes nothing
    aclnn.aclnnApplyFusedEmaAdam(aclnn.workspace(size), size, executor)
    assert all(equal(one, other) for one, other in zip(mine[1:], expected, strict=True))


def test_arguments_by_name_and_call() -> None:
    tensors = ema_tensors()
    expected = stepped(tensors)
    numbers = dict(zip(NAMES, NUMBERS, strict=True))
    aclnn.call("aclnnApplyFusedEmaAdam", **tensors, step=np.array([3]), **numbers)
    assert all(equal(one, other) for one, other in zip(list(tensors.values())[1:], expected, strict=True))
    with pytest.raises(ValueError, match="name is 'aclnnAdd'; accepted: aclnnApplyAdamWQuant"):
        aclnn.call("aclnnAdd")


def test_version_counters_move() -> None:
    tensors = ema_tensors()
    before = {name: tensor._version for name, tensor in tensors.items()}
    aclnn.call("aclnnApplyFusedEmaAdam", *tensors.values(), torch.tensor([3]), *NUMBERS)
    assert {name for name, tensor in tensors.items() if tensor._version > before[name]} == tensors.keys() - {"grad"}


def test_convention_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYFUSE_CONVENTION", "device")
    tensors = ema_tensors()
    expected = stepped(tensors, convention="device")
    assert not torch.equal(expected[2], stepped(tensors)[2])
    aclnn.call("aclnnApplyFusedEmaAdam", *tensors.values(), torch.tensor([3]), *NUMBERS)
    assert all(equal(one, other) for one, other in zip(list(tensors.values())[1:], expected, strict=True))


def test_bfloat16_in_numpy() -> None:
    tensors = {name: tensor.bfloat16() for name, tensor in ema_tensors().items()}
    expected = stepped(tensors)
    arrays = [tensor.view(torch.int16).numpy().copy().view(ml_dtypes.bfloat16) for tensor in tensors.values()]
    aclnn.call("aclnnApplyFusedEmaAdam", *arrays, np.array([3]), *NUMBERS)
    for array, tensor in zip(arrays[1:], expected, strict=True):
        assert torch.equal(torch.from_numpy(array.view(np.int16)), tensor.view(torch.int16))


def test_apply_adam_w_quant() -> None:
    torch.manual_seed(1)
    var, grad = torch.randn(300), torch.randn(300)
    m, v = torch.randint(0, 256, (2, 300), dtype=torch.uint8)
    maps = torch.linspace(-1, 1, 256), torch.linspace(0, 1, 256)
    absmax_m, absmax_v = torch.rand(2), torch.rand(2)
    copies = [tensor.clone() for tensor in (var, grad, m, v)], [absmax_m.clone(), absmax_v.clone()]
    step = torch.tensor([2])
    aclnn.call(
        "aclnnApplyAdamWQuant", var, grad, m, v, *maps, absmax_m, absmax_v, step,
        lr=0.01, beta1=0.9, beta2=0.999, weightDecay=0.1, eps=1e-8, gnormScale=0.5, blockSize=256,
    )  # fmt: skip
    anyfuse.apply_adam_w_quant_(*copies[0], *maps, *copies[1], step, lr=0.01, weight_decay=0.1, gnorm_scale=0.5)
    mine = (var, grad, m, v, absmax_m, absmax_v)
    assert all(torch.equal(one, other) for one, other in zip(mine, [*copies[0], *copies[1]], strict=True))


def test_lazy_adam() -> None:
    torch.manual_seed(2)
    m, v, var = torch.randn(9, 8), torch.rand(9, 8), torch.randn(9, 8)
    gradient, indices = torch.randn(4, 8), torch.tensor([[3], [-1], [3], [8]], dtype=torch.int32)
    copies = m.clone(), v.clone(), var.clone()
    aclnn.call("aclnnLazyAdam", gradient, indices, m, v, var, np.array([0.01], np.float32), 0.9, 0.999, 1e-8)
    anyfuse.lazy_adam_(gradient, indices, *copies, lr=0.01, convention="device")
    assert all(torch.equal(one, other) for one, other in zip((m, v, var), copies, strict=True))


@pytest.mark.parametrize("blocked", [False, True])
def test_quant_matmul_dequant(blocked: bool) -> None:
    torch.manual_seed(3)
    x, weight, scale = torch.randn(3, 64).half(), torch.randint(-128, 128, (32, 64), dtype=torch.int8), torch.rand(32)
    out = torch.empty(3, 32).half()
    given = Described(anyfuse.formats.nd_to_nz(weight), format="FRACTAL_NZ") if blocked else weight
    aclnn.call("aclnnQuantMatmulDequant", x, given, scale, xQuantMode="pertoken", transposeWeight=True, out=out)
    assert torch.equal(out, anyfuse.quant_matmul_dequant(x, weight, scale))


@pytest.mark.parametrize("entry", ["aclnnQuantGroupedMatmulDequant", "aclnnQuantGroupedMatmulDequantWeightNZ"])
def test_quant_grouped_matmul_dequant(entry: str) -> None:
    torch.manual_seed(3)
    x, weight = torch.randn(5, 64).half(), torch.randint(-128, 128, (2, 32, 64), dtype=torch.int8)
    scale, ends, out = torch.rand(2, 32), torch.tensor([1, 4]), torch.ones(5, 32).half()
    given = torch.stack([anyfuse.formats.nd_to_nz(one) for one in weight]) if entry.endswith("NZ") else weight
    aclnn.call(entry, x, given, scale, ends, xQuantMode="pertoken", transposeWeight=True, out=out)
    assert torch.equal(out, anyfuse.quant_grouped_matmul_dequant(x, weight, scale, ends))
    assert not out[4:].any()
    with pytest.raises(AclnnError, match="161002"):
        aclnn.call(entry, x, given, scale, ends.flip(0), xQuantMode="pertoken", transposeWeight=True, out=out)


def test_trans_matmul_weight() -> None:
    weight = torch.randint(-128, 128, (32, 64), dtype=torch.int8)
    blocks = anyfuse.formats.nd_to_nz(weight)
    aclnn.call("aclnnTransMatmulWeight", weight)
    assert torch.equal(weight.reshape(blocks.shape), blocks)


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [((32, 64), torch.int8, 32 * 64), ((17, 33), torch.int8, 32 * 64), ((17, 33), "bfloat16", 32 * 48)],
)
def test_calculate_matmul_weight_size(shape: tuple[int, int], dtype: Any, expected: int) -> None:
    assert aclnn.aclnnCalculateMatmulWeightSizeV2(shape, dtype) == expected
    assert aclnn.aclnnCalculateMatmulWeightSizeV2((3, *shape), dtype) == 3 * expected
    if dtype == torch.int8:
        assert anyfuse.formats.nd_to_nz(torch.ones(shape, dtype=dtype)).numel() == expected
    else:
        assert aclnn.aclnnCalculateMatmulWeightSize(shape) == expected


def test_calculate_matmul_weight_size_refuses() -> None:
    with pytest.raises(AclnnError, match="FLOAT16, BF16, INT8"):
        aclnn.aclnnCalculateMatmulWeightSizeV2([16, 16], torch.float32)
    with pytest.raises(AclnnError, match="2 to 6 dimensions"):
        aclnn.aclnnCalculateMatmulWeightSizeV2([16], torch.int8)
    with pytest.raises(TypeError, match="dataType is 'int5'"):
        aclnn.aclnnCalculateMatmulWeightSizeV2([16, 16], "int5")
    with pytest.raises(TypeError, match="tensorShape is"):
        aclnn.aclnnCalculateMatmulWeightSizeV2([16.0, 16.0], torch.int8)  # type: ignore[list-item]


@pytest.mark.parametrize(("variable", "convention"), [("", "device"), ("formula", "formula"), ("device", "device")])
def test_lazy_adam_computes_as_its_documents_own_test(
    variable: str, convention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its golden computes 1 - beta in float32: the default here; a convention that is set wins."""
    monkeypatch.setenv("ANYFUSE_CONVENTION", variable)
    torch.manual_seed(5)
    gradient, ids = torch.rand(50, 32) * 10 + 10, torch.randperm(100)[:50].int()
    m, v, var, lr = torch.zeros(100, 32), torch.rand(100, 32) + 1, torch.rand(100, 32), torch.tensor([0.001])
    results = [value.clone() for value in (m, v, var)]
    aclnn.call("aclnnLazyAdam", gradient, ids, *results, lr, 0.9, 0.999, 1e-7)
    for one in ("formula", "device"):
        tables = [value.clone() for value in (m, v, var)]
        anyfuse.lazy_adam_(gradient, ids, *tables, lr, 0.9, 0.999, 1e-7, convention=one)
        assert all(torch.equal(a, b) for a, b in zip(tables, results, strict=True)) == (one == convention)


@pytest.mark.parametrize("y_dtype", [torch.int8, torch.float8_e5m2, "hifloat8", "int4"])
def test_add_rms_norm_dynamic_quant_v2(y_dtype: Any) -> None:
    torch.manual_seed(4)
    x1, x2, gamma, beta = (
        torch.randn(5, 16).half(),
        torch.randn(5, 16).half(),
        torch.ones(16).half(),
        torch.ones(16).half(),
    )
    expected = anyfuse.add_rms_norm_dynamic_quant(x1, x2, gamma, beta=beta, output_mask=[True, False], y_dtype=y_dtype)
    out = [torch.zeros_like(value) if value.numel() else torch.full((1,), 7, dtype=value.dtype) for value in expected]
    named = [Described(y, y_dtype) if isinstance(y_dtype, str) else y for y in out[:2]]
    if y_dtype == "int4":
        named[1] = Described(out[1], "int4")
    aclnn.call(
        "aclnnAddRmsNormDynamicQuantV2", x1, x2, gamma, betaOptional=beta, epsilon=1e-6,
        outputMaskOptional=[True, False], y1Out=named[0], y2Out=named[1], xOut=out[2], scale1Out=out[3],
        scale2Out=out[4],
    )  # fmt: skip
    for one, other in zip(out, expected, strict=True):
        if other.numel():
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
        else:
            assert one.float().item() == 7.0  # not produced, not touched


def test_add_rms_norm_dynamic_quant_v1() -> None:
    x1, x2, gamma = torch.randn(5, 16).half(), torch.randn(5, 16).half(), torch.ones(16).half()
    y1, y2, x, scale1, scale2 = (
        torch.zeros(5, 16, dtype=torch.int8), torch.zeros(1, dtype=torch.int8), torch.zeros(5, 16).half(),
        torch.zeros(5), torch.zeros(1),
    )  # fmt: skip
    aclnn.call("aclnnAddRmsNormDynamicQuant", x1, x2, gamma, None, None, 1e-6, y1, y2, x, scale1, scale2)
    expected = anyfuse.add_rms_norm_dynamic_quant(x1, x2, gamma)
    assert torch.equal(y1, expected[0]) and torch.equal(x, expected[2]) and torch.equal(scale1, expected[3])


# ---- errors ----


def refused(code: int, says: str, *changes: tuple[int, Any]) -> None:
    tensors = list(ema_tensors().values())
    arguments: list[Any] = [*tensors, torch.tensor([3]), *NUMBERS]
    before = [tensor.clone() for tensor in tensors]
    for position, value in changes:
        arguments[position] = value
    with pytest.raises(AclnnError, match=says) as raised:
        aclnn.aclnnApplyFusedEmaAdamGetWorkspaceSize(*arguments)
    assert raised.value.code == code and raised.value.name == aclnn.STATUS_NAMES[code]
    assert raised.value.message in str(raised.value) and str(code) in str(raised.value)
    assert all(torch.equal(one, other) for one, other in zip(tensors, before, strict=True))


def test_codes_of_phase_1() -> None:
    refused(161001, "varRef is null", (1, None))
    refused(161002, "mRef", (2, torch.ones(6, 5).double()))
    refused(161002, "step", (5, torch.tensor([1.0])))
    refused(561002, "sRef", (4, torch.ones(5, 6)))
    refused(161002, "stride", (0, np.ones((6, 5), np.float32)[::-1]))
    assert issubclass(AclnnError, RuntimeError)


def test_codes_of_phase_2() -> None:
    table = [torch.ones(3, 8) for _ in range(3)]
    beyond = torch.tensor([1, 3], dtype=torch.int32)
    size, executor = aclnn.aclnnLazyAdamGetWorkspaceSize(
        torch.ones(2, 8), beyond, *table, torch.tensor([0.1]), 0.9, 0.999, 1e-8
    )
    with pytest.raises(AclnnError) as raised:
        aclnn.aclnnLazyAdam(aclnn.workspace(size), size, executor)
    assert raised.value.code == 161002
    assert all(torch.equal(tensor, torch.ones(3, 8)) for tensor in table)
    with pytest.raises(AclnnError) as raised:
        aclnn.aclnnLazyAdam(None, 0, executor)  # it has run
    assert raised.value.code == 561103 and raised.value.name == "ACLNN_ERR_INNER_NULLPTR"


def test_product_profile_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYFUSE_SOC", "Ascend310P")
    with pytest.raises(AclnnError, match="Ascend310P"):
        aclnn.aclnnApplyFusedEmaAdamGetWorkspaceSize(*ema_tensors().values(), torch.tensor([3]), *NUMBERS)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({0: [1.0]}, TypeError, "grad is a list; accepted: a torch tensor"),
        ({6: "fast"}, TypeError, "lr is a str; accepted: int or float"),
        ({6: True}, TypeError, "lr is a bool"),
        ({11: 1.0}, TypeError, "mode is a float; accepted: int"),
        ({12: 1}, TypeError, "biasCorrection is a int; accepted: bool"),
        ({0: torch.ones(6, 5, device="meta")}, ValueError, "grad is on meta"),
        ({1: torch.ones(6, 5, requires_grad=True)}, ValueError, "varRef requires a gradient"),
        ({0: np.ones((6, 5), "S4")}, TypeError, "grad has dtype bytes32"),
        ({0: np.ones(6, [("a", "f4"), ("b", "i1")])["a"]}, ValueError, "grad has strides"),
        ({0: np.ones((6, 5), np.dtype("f4").newbyteorder())}, TypeError, "grad has dtype .*byte order"),
        ({0: torch._neg_view(torch.ones(6, 5))}, ValueError, "grad is a lazily negated"),
        ({11: 2**64 + 1}, ValueError, "mode is beyond 63 bits"),
        ({6: 10**400}, ValueError, "lr is beyond 1023 bits"),
    ],
)
def test_what_python_refuses(changes: dict[int, Any], error: type[Exception], says: str) -> None:
    arguments: list[Any] = [*ema_tensors().values(), torch.tensor([3]), *NUMBERS]
    for position, value in changes.items():
        arguments[position] = value
    with pytest.raises(error, match=says):
        aclnn.aclnnApplyFusedEmaAdamGetWorkspaceSize(*arguments)


def test_read_only_arrays_are_not_written() -> None:
    arrays = [tensor.numpy().copy() for tensor in ema_tensors().values()]
    arrays[2].flags.writeable = False
    with pytest.raises(ValueError, match="mRef is a read-only array"):
        aclnn.aclnnApplyFusedEmaAdamGetWorkspaceSize(*arrays, np.array([3]), *NUMBERS)
    arrays[2].flags.writeable = True
    arrays[0].flags.writeable = False  # a gradient is only read
    aclnn.call("aclnnApplyFusedEmaAdam", *arrays, np.array([3]), *NUMBERS)


def test_arguments_that_do_not_fit_the_function() -> None:
    for args, kwargs, says in (
        ((), {}, "lacks mmWeightRef"),
        ((1, 2), {}, "takes 1 arguments; got 2"),
        ((1,), {"mmWeightRef": 1}, "no argument 'mmWeightRef' left"),
        ((), {"weight": 1}, "no argument 'weight' left; it takes mmWeightRef"),
    ):
        with pytest.raises(TypeError, match=says):
            aclnn.aclnnTransMatmulWeightGetWorkspaceSize(*args, **kwargs)
    for arguments, error in (((torch.ones(1), "int5"), TypeError), ((torch.ones(1), None, "NCHW"), ValueError)):
        with pytest.raises(error, match="accepted"):
            Described(*arguments)
    x = torch.zeros(4, 4, dtype=torch.uint8)
    for mask, error, says in (("yes", TypeError, "outputMaskOptional"), ([1, 0], TypeError, "outputMaskOptional")):
        with pytest.raises(error, match=says):
            aclnn.call("aclnnAddRmsNormDynamicQuantV2", x, x, x, None, None, None, 1e-6, mask, x, x, x, x, x)
    with pytest.raises(ValueError, match="y1Out holds int4"):
        y1 = Described(x.t(), "int4")
        aclnn.call("aclnnAddRmsNormDynamicQuantV2", x, x, x, None, None, None, 1e-6, [True, True], y1, x, x, x, x)
    with pytest.raises(TypeError, match="xQuantMode is a int"):
        aclnn.call("aclnnQuantMatmulDequant", x, x, x, xQuantMode=1, transposeWeight=True, out=x)


# ---- executors ----


def test_a_repeatable_executor_runs_again_and_again() -> None:
    tensors = ema_tensors()
    expected = tensors
    step = torch.tensor([3])
    for _ in range(3):
        values = stepped(expected)
        expected = dict(zip(expected, [expected["grad"], *values], strict=True))
    size, executor = aclnn.aclnnApplyFusedEmaAdamGetWorkspaceSize(*tensors.values(), step, *NUMBERS)
    executor.set_repeatable()
    for _ in range(3):
        aclnn.aclnnApplyFusedEmaAdam(aclnn.workspace(size), size, executor)
    assert all(torch.equal(tensors[name], expected[name]) for name in tensors)
    executor.destroy()
    executor.destroy()
    with pytest.raises(AclnnError) as raised:
        aclnn.aclnnApplyFusedEmaAdam(None, 0, executor)
    assert raised.value.code == 561103


def test_a_workspace_that_is_too_small() -> None:
    tensors = [in_gaps(tensor) for tensor in ema_tensors().values()]
    size, executor = aclnn.aclnnApplyFusedEmaAdamGetWorkspaceSize(*tensors, torch.tensor([3]), *NUMBERS)
    with pytest.raises(ValueError, match=f"workspace has 1 bytes; accepted: {size}"):
        aclnn.aclnnApplyFusedEmaAdam(torch.empty(1, dtype=torch.uint8), size, executor)
    with pytest.raises(TypeError, match="executor is a int"):
        aclnn.aclnnApplyFusedEmaAdam(None, 0, 5)
    with pytest.raises(TypeError, match="workspace is a bytes"):
        aclnn.aclnnApplyFusedEmaAdam(b"", size, executor)
    aclnn.aclnnApplyFusedEmaAdam(np.empty(size, np.uint8), size, executor)


def test_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is described is forgotten again: after a run, after a refusal, and with a forgotten executor."""
    counts = {"made": 0, "destroyed": 0}
    add, destroy = aclnn.Arguments._add_handle, aclnn.Arguments.destroy

    def adding(self: Any, handle: Any, end: str, kept: Any) -> None:
        add(self, handle, end, kept)
        counts["made"] += 1

    def destroying(self: Any) -> None:
        counts["destroyed"] += len(self._ends)
        destroy(self)

    monkeypatch.setattr(aclnn.Arguments, "_add_handle", adding)
    monkeypatch.setattr(aclnn.Arguments, "destroy", destroying)
    arguments: list[Any] = [*ema_tensors().values(), torch.tensor([3]), *NUMBERS]
    aclnn.call("aclnnApplyFusedEmaAdam", *arguments)
    assert counts == {"made": 6, "destroyed": 6}
    _, executor = aclnn.aclnnApplyFusedEmaAdamGetWorkspaceSize(*arguments)
    del executor
    gc.collect()
    assert counts == {"made": 12, "destroyed": 12}
    with pytest.raises(AclnnError):
        aclnn.call("aclnnApplyFusedEmaAdam", *arguments[:4], torch.ones(3), *arguments[5:])
    with pytest.raises(TypeError):
        aclnn.call("aclnnApplyFusedEmaAdam", *arguments[:-1], "much")
    assert counts == {"made": 24, "destroyed": 24}


def test_tensors_live_as_long_as_their_executor() -> None:
    tensors = ema_tensors()
    expected = stepped(tensors)
    size, executor = aclnn.aclnnApplyFusedEmaAdamGetWorkspaceSize(
        tensors["grad"].clone(), *list(tensors.values())[1:], torch.tensor([3]), *NUMBERS
    )
    gc.collect()
    trash = [torch.full((6, 5), 1e30) for _ in range(50)]  # would take the place of the gradient and the step
    aclnn.aclnnApplyFusedEmaAdam(aclnn.workspace(size), size, executor)
    assert len(trash) == 50
    assert all(torch.equal(one, other) for one, other in zip(list(tensors.values())[1:], expected, strict=True))


def test_other_threads_get_a_context() -> None:
    tensors = ema_tensors()
    expected = stepped(tensors)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            aclnn.call("aclnnApplyFusedEmaAdam", *tensors.values(), torch.tensor([3]), *NUMBERS)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failures
    assert all(torch.equal(one, other) for one, other in zip(list(tensors.values())[1:], expected, strict=True))


# ---- the table ----

KINDS = {"aclTensor*": "tensor", "aclBoolArray*": "mask", "char*": "char*"}


def in_headers(name: str) -> list[tuple[str, str]]:
    """The arguments of phase 1 of an operator, without those of the workspace, from the shipped headers."""
    for header in sorted((HEADERS / "aclnnop").glob("*.h")):
        found = re.search(rf"\b{name}GetWorkspaceSize\(([^)]*)\)", header.read_text())
        if found:
            break
    else:
        raise AssertionError(f"no header has {name}")
    arguments = []
    for text in found[1].split(",")[:-2]:
        kind, word = re.sub(r"\s+", " ", text.replace("const ", "").replace("*", "* ")).strip().rsplit(" ", 1)
        kind = kind.replace(" *", "*")
        arguments.append((KINDS.get(kind, kind), word))
    return arguments


@pytest.mark.parametrize("name", aclnn.PROTOTYPES)
def test_prototypes_are_those_of_the_headers(name: str) -> None:
    assert aclnn.PROTOTYPES[name] == in_headers(name)
    assert getattr(aclnn, f"{name}GetWorkspaceSize").__name__ == f"{name}GetWorkspaceSize"


def test_every_operator_of_the_headers_is_here() -> None:
    text = "".join(header.read_text() for header in (HEADERS / "aclnnop").glob("*.h"))
    assert set(re.findall(r"\b(aclnn\w+)GetWorkspaceSize\(", text)) == aclnn.PROTOTYPES.keys()


def test_names_and_numbers_are_those_of_the_headers() -> None:
    text = "".join(header.read_text() for header in HEADERS.rglob("*.h"))
    codes = re.findall(r"const (?:int|int32_t|aclnnStatus) (ACL\w*_ERR\w*) = ([1-9]\d*);", text)
    assert {str(code): name for code, name in aclnn.STATUS_NAMES.items()} == {code: name for name, code in codes}
    assert aclnn.STATUS_NAMES[561119] == "ACLNN_ERR_INNER_STATIC_BLOCK_DIM_INVALID"
    numbers = dict(re.findall(r"ACL_(\w+) = (\d+)", text))
    spelled = {"float32": "FLOAT", "float64": "DOUBLE", "bfloat16": "BF16"}
    for name, number in aclnn.DTYPES.items():
        assert numbers[spelled.get(name, name.upper())] == str(number)
    for name, number in aclnn.FORMATS.items():
        assert numbers[f"FORMAT_{name}"] == str(number)
