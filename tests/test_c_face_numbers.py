"""The C face computes what the Python operators compute, bit for bit: random calls of each operator through both."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import anyfuse
from anyfuse import acl_config

CODES = {
    torch.float32: 0,
    torch.float16: 1,
    torch.int8: 2,
    torch.int32: 3,
    torch.uint8: 4,
    torch.int64: 9,
    torch.bfloat16: 27,
    torch.float8_e5m2: 35,
    torch.float8_e4m3fn: 36,
}
ND, NZ = 2, 29
INT4, HIFLOAT8 = 29, 34

Argument = Tensor | float | int | bool | bytes | None


class Face:
    """The two phases by ctypes, over tensors of torch. The names are those of the C functions."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(str(acl_config.LIBRARY))
        for name in ("aclCreateTensor", "aclCreateBoolArray"):
            getattr(self.library, name).restype = ctypes.c_void_p
        self.library.aclGetRecentErrMsg.restype = ctypes.c_char_p
        self.ok(self.library.aclInit(None))
        self.ok(self.library.aclrtSetDevice(0))

    def close(self) -> None:
        self.ok(self.library.aclrtResetDevice(0))
        self.ok(self.library.aclFinalize())

    def ok(self, code: int) -> None:
        assert code == 0, self.library.aclGetRecentErrMsg().decode()

    def tensor(self, value: Tensor, dtype: int | None, format_: int) -> ctypes.c_void_p:
        shape = list(value.shape)
        strides = list(value.stride())
        if dtype == INT4:  # two to a byte
            shape[-1], strides = shape[-1] * 2, [stride * 2 for stride in strides[:-1]] + [1]
        dims, steps = (ctypes.c_int64 * len(shape))(*shape), (ctypes.c_int64 * len(shape))(*strides)
        rank, code = ctypes.c_uint64(len(shape)), CODES[value.dtype] if dtype is None else dtype
        start = ctypes.c_void_p(value.data_ptr())
        handle = self.library.aclCreateTensor(dims, rank, code, steps, ctypes.c_int64(0), format_, dims, rank, start)
        assert handle, self.library.aclGetRecentErrMsg().decode()
        return ctypes.c_void_p(handle)

    def mask(self, values: Sequence[bool]) -> ctypes.c_void_p:
        array = (ctypes.c_bool * len(values))(*values)
        return ctypes.c_void_p(self.library.aclCreateBoolArray(array, ctypes.c_uint64(len(values))))

    def __call__(
        self,
        name: str,
        *arguments: Argument | list[bool],
        dtype: int | None = None,
        format_: dict[int, int] | None = None,
    ) -> None:
        """`dtype` replaces that of the tensors of bytes (packed or coded), `format_` the format by position."""
        handles: list[ctypes.c_void_p] = []
        words: list[Any] = []
        for position, value in enumerate(arguments):
            if isinstance(value, Tensor):
                code = dtype if value.dtype == torch.uint8 else None
                handles.append(self.tensor(value, code, (format_ or {}).get(position, ND)))
                words.append(handles[-1])
            elif isinstance(value, bool):
                words.append(ctypes.c_bool(value))
            elif isinstance(value, list):
                words.append(self.mask(value))
            elif isinstance(value, float):
                words.append(ctypes.c_double(value))
            elif isinstance(value, int):
                words.append(ctypes.c_int64(value))
            else:
                words.append(value)
        size, executor = ctypes.c_uint64(), ctypes.c_void_p()
        phase1 = getattr(self.library, f"{name}GetWorkspaceSize")
        self.ok(phase1(*words, ctypes.byref(size), ctypes.byref(executor)))
        workspace = torch.empty(size.value, dtype=torch.uint8)
        self.ok(getattr(self.library, name)(ctypes.c_void_p(workspace.data_ptr()), size, executor, None))
        self.ok(self.library.aclrtSynchronizeStream(None))
        for handle in handles:
            self.ok(self.library.aclDestroyTensor(handle))


@pytest.fixture(params=["formula", "device"])
def face(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Face, str]]:
    monkeypatch.setenv("ANYFUSE_CONVENTION", request.param)
    monkeypatch.setenv("ANYFUSE_SOC", "any")
    face = Face()
    yield face, request.param
    face.close()


def same(one: Sequence[Tensor], other: Sequence[Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def scattered(value: Tensor) -> Tensor:
    """The same values in a view with gaps and turned strides."""
    wide = torch.zeros(*(2 * size + 1 for size in reversed(value.shape)), dtype=value.dtype)
    view = wide.permute(*range(value.dim() - 1, -1, -1))[tuple(slice(1, 2 * size, 2) for size in value.shape)]
    return view.copy_(value)


VIEWS: list[Callable[[Tensor], Tensor]] = [Tensor.clone, scattered]


def views(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.parametrize("view", VIEWS, ids=["contiguous", "scattered"])(test)


@views
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", [0, 1])
def test_apply_fused_ema_adamw(
    face: tuple[Face, str], dtype: torch.dtype, mode: int, view: Callable[[Tensor], Tensor]
) -> None:
    call, convention = face
    torch.manual_seed(mode)
    values = [torch.randn(37, 41).to(dtype) for _ in range(5)]
    values[3] = values[3].abs()
    step = torch.tensor([7])
    mine, theirs = [view(value) for value in values], [value.clone() for value in values]
    call("aclnnApplyFusedEmaAdam", *mine, step, 1e-2, 0.99, 0.9, 0.999, 1e-8, mode, True, 0.1)
    names = ("grad", "var", "m", "v", "s")
    anyfuse.apply_fused_ema_adamw_(
        **dict(zip(names, theirs, strict=True)),
        step=step,
        lr=1e-2,
        ema_decay=0.99,
        beta1=0.9,
        beta2=0.999,
        eps=1e-8,
        mode=mode,
        bias_correction=True,
        weight_decay=0.1,
        convention=convention,
    )
    same(mine, theirs)


@views
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_apply_adam_w_quant(face: tuple[Face, str], dtype: torch.dtype, view: Callable[[Tensor], Tensor]) -> None:
    call, convention = face
    torch.manual_seed(1)
    shape = (13, 57)
    maps = [torch.linspace(-1, 1, 256), torch.linspace(0, 1, 256)]
    values = {
        "var": torch.randn(shape).to(dtype),
        "grad": torch.randn(shape).to(dtype),
        "m": torch.randint(0, 256, shape, dtype=torch.uint8),
        "v": torch.randint(0, 256, shape, dtype=torch.uint8),
        "absmax_m": torch.rand(3),
        "absmax_v": torch.rand(3),
    }
    mine = {name: view(value) for name, value in values.items()}
    theirs = {name: value.clone() for name, value in values.items()}
    step = torch.tensor([3])
    call(
        "aclnnApplyAdamWQuant",
        *(mine[name] for name in ("var", "grad", "m", "v")),
        *maps,
        mine["absmax_m"],
        mine["absmax_v"],
        step,
        1e-2,
        0.9,
        0.999,
        0.1,
        1e-8,
        0.5,
        b"BLOCKWISE",
        256,
    )
    anyfuse.apply_adam_w_quant_(
        **theirs,
        qmap_m=maps[0],
        qmap_v=maps[1],
        step=step,
        lr=1e-2,
        beta1=0.9,
        beta2=0.999,
        weight_decay=0.1,
        eps=1e-8,
        gnorm_scale=0.5,
        convention=convention,
    )
    same(list(mine.values()), list(theirs.values()))


@views
def test_lazy_adam(face: tuple[Face, str], view: Callable[[Tensor], Tensor]) -> None:
    call, convention = face
    torch.manual_seed(2)
    tables = [torch.randn(50, 24), torch.rand(50, 24), torch.randn(50, 24)]
    gradient = torch.randn(40, 24)
    indices = torch.randint(-3, 50, (40, 1), dtype=torch.int32)
    lr = torch.tensor([0.01])
    mine, theirs = [view(table) for table in tables], [table.clone() for table in tables]
    call("aclnnLazyAdam", view(gradient), view(indices), *mine, lr, 0.9, 0.999, 1e-8)
    anyfuse.lazy_adam_(gradient, indices, *theirs, lr, beta1=0.9, beta2=0.999, epsilon=1e-8, convention=convention)
    same(mine, theirs)


@views
@pytest.mark.parametrize("blocked", [False, True], ids=["ND", "NZ"])
def test_quant_matmul_dequant(face: tuple[Face, str], blocked: bool, view: Callable[[Tensor], Tensor]) -> None:
    call, convention = face
    torch.manual_seed(3)
    m, n, k = 5, 40, 72
    x, smooth = torch.randn(m, k).half(), torch.rand(k).half()
    weight, scale = torch.randint(-128, 128, (n, k), dtype=torch.int8), torch.rand(n)
    expected = anyfuse.quant_matmul_dequant(x, weight, scale, smooth_scale=smooth, convention=convention)
    given = weight
    if blocked:
        padded = torch.full((48, 96), 99, dtype=torch.int8)
        padded[:n, :k] = weight
        given = padded.view(3, 16, 3, 32).permute(2, 0, 1, 3).contiguous()
    out = torch.empty(m, n).half()
    arguments = (view(x), given, view(scale), None, None, None, view(smooth), b"pertoken", True, out)
    call("aclnnQuantMatmulDequant", *arguments, format_={1: NZ} if blocked else None)
    same([out], [expected])


@pytest.mark.parametrize("scales", ["pertoken", "pertensor", "int64"])
def test_quant_matmul_dequant_static(face: tuple[Face, str], scales: str) -> None:
    call, convention = face
    torch.manual_seed(4)
    x, weight = torch.randn(5, 64).half(), torch.randint(-128, 128, (32, 64), dtype=torch.int8)
    scale = torch.rand(32)
    x_scale = torch.rand(5) / 10 if scales == "pertoken" else torch.tensor([0.02])
    if scales == "int64":
        x_scale = x_scale.half()
        scale = (scale * x_scale.float()).view(torch.int32).long()
    mode = "pertoken" if scales == "pertoken" else "pertensor"
    expected = anyfuse.quant_matmul_dequant(x, weight, scale, x_scale=x_scale, quant_mode=mode, convention=convention)
    out = torch.empty(5, 32).half()
    call("aclnnQuantMatmulDequant", x, weight, scale, None, x_scale, None, None, mode.encode(), True, out)
    same([out], [expected])


@views
@pytest.mark.parametrize("blocked", ["", "WeightNZ", "FRACTAL_NZ"])
def test_quant_grouped_matmul_dequant(face: tuple[Face, str], blocked: str, view: Callable[[Tensor], Tensor]) -> None:
    call, convention = face
    torch.manual_seed(6)
    groups, m, n, k = 3, 9, 40, 72
    x, smooth = torch.randn(m, k).half(), torch.rand(k).half()
    weight, scale = torch.randint(-128, 128, (groups, n, k), dtype=torch.int8), torch.rand(groups, n)
    ends = torch.tensor([2, 2, 7])
    expected = anyfuse.quant_grouped_matmul_dequant(x, weight, scale, ends, smooth_scale=smooth, convention=convention)
    given = weight
    if blocked:
        padded = torch.full((groups, 48, 96), 99, dtype=torch.int8)
        padded[:, :n, :k] = weight
        given = padded.view(groups, 3, 16, 3, 32).permute(0, 3, 1, 2, 4).contiguous()
    out = torch.full((m, n), 9.0).half()
    arguments = (view(x), given, view(scale), view(ends), None, None, None, view(smooth), b"pertoken", True, out)
    entry = f"aclnnQuantGroupedMatmulDequant{blocked if blocked == 'WeightNZ' else ''}"
    call(entry, *arguments, format_={1: NZ} if blocked == "FRACTAL_NZ" else None)
    same([out], [expected])


@views
def test_quant_grouped_matmul_dequant_static(face: tuple[Face, str], view: Callable[[Tensor], Tensor]) -> None:
    call, convention = face
    torch.manual_seed(7)
    x, weight = torch.randn(6, 64).half(), torch.randint(-128, 128, (2, 32, 64), dtype=torch.int8)
    x_scale = torch.tensor([0.02]).half()
    scale = (torch.rand(2, 32) * x_scale.float()).view(torch.int32).long()
    ends, bias = torch.tensor([4, 6]), torch.randint(-999, 999, (2, 32), dtype=torch.int32)
    expected = anyfuse.quant_grouped_matmul_dequant(
        x, weight, scale, ends, x_scale=x_scale, bias=bias, quant_mode="pertensor", convention=convention
    )
    out = torch.empty(6, 32).half()
    words = (view(x), weight, view(scale), ends, view(bias), x_scale, None, None, b"pertensor", True, out)
    call("aclnnQuantGroupedMatmulDequant", *words)
    same([out], [expected])


@views
@pytest.mark.parametrize("y_dtype", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2, "hifloat8", "int4"], ids=str)
def test_add_rms_norm_dynamic_quant(
    face: tuple[Face, str], y_dtype: torch.dtype | str, view: Callable[[Tensor], Tensor]
) -> None:
    call, convention = face
    torch.manual_seed(5)
    rows, cols = (3, 7), 96
    x1, x2 = torch.randn(*rows, cols).bfloat16(), torch.randn(*rows, cols).bfloat16()
    gamma, beta, smooth1, smooth2 = (torch.randn(cols).bfloat16() for _ in range(4))
    expected = anyfuse.add_rms_norm_dynamic_quant(
        x1,
        x2,
        gamma,
        smooth_scale1=smooth1,
        smooth_scale2=smooth2,
        beta=beta,
        epsilon=1e-6,
        y_dtype=y_dtype,
        convention=convention,
    )
    outputs = [torch.zeros_like(value) for value in expected]
    if y_dtype != "int4":  # packed bytes have no view of single codes
        outputs = [view(value) for value in outputs]
    code = {"hifloat8": HIFLOAT8, "int4": INT4}.get(y_dtype) if isinstance(y_dtype, str) else None
    y1, y2, x, scale1, scale2 = outputs
    inputs = (view(x1), view(x2), view(gamma), view(smooth1), view(smooth2), view(beta), 1e-6)
    call("aclnnAddRmsNormDynamicQuantV2", *inputs, [True, True], y1, y2, x, scale1, scale2, dtype=code)
    same(outputs, expected)
