"""The official names: examples of the documents, defaults and errors, devices, and scripts that know nothing of us."""

from __future__ import annotations

import importlib
import inspect
import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import anyfuse
from anyfuse import compat
from anyfuse.cli import main
from anyfuse.compat import _device, _modules
from anyfuse.run import execute

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples" / "ascend"

# The call example of document 001, as it is printed there.
CALL_OF_DOCUMENT_001 = """\
import torch
import torch_npu
from mindspeed.ops.npu_apply_fused_ema_adamw import npu_apply_fused_ema_adamw


grad = torch.full((10, 10), 0.5).to(torch.float32).npu()
var = torch.full((10, 10), 0.5).to(torch.float32).npu()
m = torch.full((10, 10), 0.9).to(torch.float32).npu()
v = torch.full((10, 10), 0.9).to(torch.float32).npu()
s = torch.full((10, 10), 0.5).to(torch.float32).npu()
step = torch.full((1, ), 1).to(torch.int64).npu()
lr, ema_decay, beta1, beta2, eps, mode, bias_correction, weight_decay= \
1e-8, 0.9999, 0.9999, 0.9999, 1e-8, 1, True, 0.001
var, m, v, s = npu_apply_fused_ema_adamw(grad, var, m, v, s, step, lr, ema_decay, beta1, beta2, eps, mode,
                                         bias_correction, weight_decay)"""

# The usage lines of document 004, as they are printed there.
USAGE_OF_DOCUMENT_004 = """\
from mx_rec.optimizers.lazy_adam import create_hash_optimizer

# 创建lazy_adam优化器时增加"use_fusion_optim=True"参数，表示使用融合算子实现。use_fusion_optim参数默认值为False。
# lazy_adam优化器详细使用指导请参考Rec SDK用户指南。
sparse_optimizer = create_hash_optimizer(learning_rate=0.001, use_fusion_optim=True)
"""


@pytest.fixture
def names() -> Iterator[None]:
    """The official names, for one test."""
    compat.install()
    yield
    compat.uninstall()


@pytest.fixture
def torch_npu(names: None) -> Any:
    return importlib.import_module("torch_npu")


@pytest.fixture
def fused_ema_adamw(names: None) -> Any:
    return importlib.import_module("mindspeed.core.optimizer.fused_ema_adamw").FusedEmaAdamW


@pytest.fixture
def create_hash_optimizer(names: None) -> Any:
    return importlib.import_module("mx_rec.optimizers.lazy_adam").create_hash_optimizer


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


# ---- the documents' examples, and scripts ----


def test_call_example_of_document_001(names: None, tmp_path: Path) -> None:
    after = execute(written(tmp_path / "example.py", CALL_OF_DOCUMENT_001), [])
    # Operator file, E1. Its digits are those of the device's order; the formula's differ in the last ones.
    expected = {"var": 0.499999046, "m": 0.899959981, "v": 0.899935007, "s": 0.5}
    for name, value in expected.items():
        assert after[name].shape == (10, 10)
        torch.testing.assert_close(after[name], torch.full((10, 10), value), rtol=2**-23, atol=0)
    again = {
        name: torch.full((10, 10), 0.5 if name in ("grad", "var", "s") else 0.9) for name in "grad var m v s".split()
    }
    anyfuse.apply_fused_ema_adamw_(
        **again, step=1, lr=1e-8, ema_decay=0.9999, beta1=0.9999, beta2=0.9999, eps=1e-8, weight_decay=0.001
    )
    for name in expected:
        assert torch.equal(after[name], again[name])


def test_usage_of_document_004(names: None, tmp_path: Path) -> None:
    optimizer = execute(written(tmp_path / "example.py", USAGE_OF_DOCUMENT_004), [])["sparse_optimizer"]
    table = torch.ones(3, 8)
    gradient = sparse([1], torch.full((1, 8), 0.5))
    optimizer.apply_gradients([(gradient, table)])
    assert torch.equal(table[[0, 2]], torch.ones(2, 8))
    assert torch.equal(table[1], torch.full((8,), 0.999000013))  # operator file, E2
    assert torch.equal(optimizer.get_slot(table, "m")[1], torch.full((8,), 0.05))  # 1 - beta is rounded once: E2's
    assert torch.equal(optimizer.get_slot(table, "v")[1], torch.full((8,), 0.00025))  # digits are the device's


def test_anyfuse_run_says_what_it_does(tmp_path: Path) -> None:
    script = written(
        tmp_path / "example.py", CALL_OF_DOCUMENT_001 + "\nimport sys\nprint(var[0, 0].item(), sys.argv)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(anyfuse.__file__).parents[1])}  # built or installed
    command = [sys.executable, "-m", "anyfuse", "run", "--device", "cpu", script, "--epochs", "3"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split(maxsplit=1)[0] == "0.4999990463256836"
    assert result.stdout.endswith(f"[{script!r}, '--epochs', '3']\n")
    assert result.stderr.count("no NPU is used; the CPU stands in for it") == 1
    assert len(result.stderr.splitlines()) == 1


def test_anyfuse_run_without_the_gpu_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says what is missing and what is accepted, and the script has not begun."""
    script, mark = tmp_path / "script.py", tmp_path / "begun"
    script.write_text(f"open({str(mark)!r}, 'w')\n")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device, says in (
        ("cuda", "device is 'cuda', but torch finds no GPU here; accepted: 'cpu'"),
        ("tpu", "device is 'tpu'; accepted: 'cpu', 'cuda'"),
    ):
        monkeypatch.setattr(sys, "argv", ["anyfuse", "run", "--device", device, str(script)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2 and capsys.readouterr().err == f"anyfuse: {says}\n"
        assert not mark.exists() and compat.installed() is None


def test_anyfuse_run_shows_the_scripts_traceback(
    names: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from anyfuse.run import run

    script = written(tmp_path / "wrong.py", "import torch_npu\n\n\ndef f():\n    torch_npu.npu_swiglu()\n\n\nf()\n")
    with pytest.raises(SystemExit) as ended:
        run(Path(script))
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert "torch_npu.npu_swiglu is not provided by anyfuse, and no NPU is used" in error
    assert 'wrong.py", line 5, in f' in error and "runpy" not in error


def test_anyfuse_run_passes_exit_codes_on(names: None, tmp_path: Path) -> None:
    from anyfuse.run import run

    before = list(sys.argv), list(sys.path)
    with pytest.raises(SystemExit) as ended:
        run(Path(written(tmp_path / "exit.py", "import sys\nsys.exit(len(sys.argv))\n")), ["a", "b"])
    assert ended.value.code == 3
    assert (sys.argv, sys.path) == before


@pytest.mark.parametrize("name", ["mindspeed_training", "mxrec_sparse", "torch_npu_inference"])
def test_examples(names: None, name: str) -> None:
    script = EXAMPLES / f"{name}.py"
    code = script.read_text().partition('"""\n\n')[2]
    assert "anyfuse" not in code
    after = execute(str(script), [])
    if name == "torch_npu_inference":
        assert after["error"] < 0.02  # int8 on both sides: about 1 % of the norm
    else:
        assert after["losses"][-1] < 0.7 * after["losses"][0]
    if name == "mindspeed_training":
        assert after["averaged"] < after["losses"][0]
        assert after["averaged"] != after["current"]


# ---- installing ----


def test_nothing_happens_unasked() -> None:
    assert compat.installed() is None
    assert not {"torch_npu", "mindspeed", "mx_rec", "torch.npu"} & sys.modules.keys()
    assert not hasattr(torch, "npu") and not hasattr(Tensor, "npu") and not hasattr(torch.nn.Module, "npu")
    with pytest.raises(ImportError):
        importlib.import_module("torch_npu")


def test_uninstall_leaves_nothing() -> None:
    before = set(sys.modules), list(sys.meta_path), torch.set_default_device, torch.autocast.__init__
    compat.install()
    compat.install()
    assert compat.installed() == "cpu"
    compat.uninstall()
    compat.uninstall()
    new = {name for name in set(sys.modules) - before[0] if not name.startswith("anyfuse.")}
    assert not new
    assert (before[1], before[2], before[3]) == (sys.meta_path, torch.set_default_device, torch.autocast.__init__)
    test_nothing_happens_unasked()
    with pytest.raises(RuntimeError, match="call anyfuse"):
        _device.stand_in()


def test_the_notice_comes_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(compat, "_said", False)
    for _ in range(2):
        compat.install()
        compat.uninstall()
    assert capsys.readouterr().err == (
        "anyfuse: no NPU is used; the CPU stands in for it, and anyfuse for torch_npu, mindspeed and mx_rec.\n"
    )


def test_never_over_a_real_torch_npu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written(tmp_path / "torch_npu.py", "")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        with pytest.raises(RuntimeError, match="torch_npu is installed here"):
            compat.install()
    assert compat.installed() is None and "torch_npu" not in sys.modules


def test_a_real_mindspeed_keeps_its_other_modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mindspeed" / "ops").mkdir(parents=True)
    written(tmp_path / "mindspeed" / "__init__.py", "real = True\n")
    written(tmp_path / "mindspeed" / "ops" / "__init__.py", "")
    written(tmp_path / "mindspeed" / "ops" / "npu_apply_fused_ema_adamw.py", "raise ImportError('needs an NPU')\n")
    monkeypatch.syspath_prepend(tmp_path)
    compat.install()
    try:
        assert importlib.import_module("mindspeed").real
        operator = importlib.import_module("mindspeed.ops.npu_apply_fused_ema_adamw")
        assert operator.npu_apply_fused_ema_adamw is compat.mindspeed.npu_apply_fused_ema_adamw
    finally:
        compat.uninstall()
        for name in ("mindspeed", "mindspeed.ops"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize(("device", "error"), [("cuda", RuntimeError), ("npu", ValueError), ("cuda:0", ValueError)])
def test_devices_that_cannot_stand_in(monkeypatch: pytest.MonkeyPatch, device: str, error: type[Exception]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(error, match="accepted: 'cpu'"):
        compat.install(device)
    assert compat.installed() is None


def test_another_device_needs_uninstall(names: None) -> None:
    with pytest.raises(RuntimeError, match="cpu stands in for the NPU already"):
        compat.install("cuda")


def test_what_is_not_provided_is_named(torch_npu: Any) -> None:
    for owner, name in ((torch_npu, "npu_fusion_attention"), (torch.npu, "memory_allocated")):
        with pytest.raises(_modules.NotProvidedError, match=rf"\.{name} is not provided by anyfuse"):
            getattr(owner, name)
        assert not hasattr(owner, name)
    with pytest.raises(ImportError, match="npu_rotary_mul"):
        exec("from torch_npu import npu_rotary_mul")
    for module in ("torch_npu.contrib", "mindspeed.megatron_adaptor", "mx_rec.core.asc"):
        with pytest.raises(ModuleNotFoundError, match="is not provided by anyfuse, and no NPU is used; provided: "):
            importlib.import_module(module)
    with pytest.raises(_modules.NotProvidedError, match=r"mindspeed\.ops\.npu_swiglu is not provided"):
        _ = importlib.import_module("mindspeed.ops").npu_swiglu


def test_every_provided_name_exists(torch_npu: Any) -> None:
    for module in (torch_npu, torch.npu):
        for name in module._PROVIDED:
            assert getattr(module, name) is not None
    for name, contents in _modules._contents().items():
        for key, value in contents.items():
            assert getattr(importlib.import_module(name), key) is value


# ---- the device ----


def test_tensors_go_to_npu(names: None) -> None:
    x = torch.ones(2)
    for moved in (x.npu(), x.npu(0), x.npu("npu:0"), x.to("npu"), x.to("npu:0"), x.to(device="npu"), x.to(0)):
        assert moved.is_npu and moved.device.type == "cpu" and torch.equal(moved, x)
        assert moved.data_ptr() != x.data_ptr()
    assert x.to(torch.device("npu", 0), torch.float16, non_blocking=True).dtype == torch.float16
    assert x.to(torch.float32) is x and x.to(x) is x
    assert x.cpu().data_ptr() != x.data_ptr() and x.to("cpu").data_ptr() != x.data_ptr()
    with pytest.raises(RuntimeError, match="accepted: an NPU"):
        x.npu("cuda")
    leaf = torch.ones(2, requires_grad=True)
    leaf.npu().sum().backward()
    assert leaf.grad is not None


@pytest.mark.parametrize("device", ["npu", "npu:0", torch.device("meta"), "cpu"])
def test_factories(names: None, device: Any) -> None:
    made = [
        torch.zeros(2, device=device),
        torch.tensor([1.0, 2.0], device=device),
        torch.arange(2, device=device),
        torch.empty_like(torch.ones(2), device=device),
        torch.ones(1).new_zeros(2, device=device),
        torch.nn.Linear(2, 2, device=device).weight,
    ]
    for tensor in made:
        assert tensor.device.type == ("meta" if isinstance(device, torch.device) else "cpu")


def test_default_devices_and_autocast(names: None) -> None:
    with torch.device("npu"):
        assert torch.ones(2).is_npu
    torch.set_default_device("npu")
    assert torch.ones(2).is_npu
    torch.set_default_device(None)
    with torch.autocast("npu", dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16


def test_modules_go_to_npu(names: None) -> None:
    module = torch.nn.Linear(2, 2)
    weight = module.weight
    assert module.npu() is module and module.to("npu") is module and module.weight is weight
    assert module.weight.is_npu
    assert torch.einsum("npu,npu->n", torch.ones(2, 3, 4), torch.ones(2, 3, 4)).tolist() == [12.0, 12.0]


def test_files_from_an_npu_are_loaded(names: None, tmp_path: Path) -> None:
    torch.save({"x": torch.ones(2)}, tmp_path / "x.pt")
    assert torch.load(tmp_path / "x.pt", map_location="npu:0")["x"].is_npu


def test_torch_npu_namespace(torch_npu: Any) -> None:
    assert torch_npu.npu is torch.npu
    assert torch.npu.is_available() and torch.npu.device_count() == 1 and torch.npu.current_device() == 0
    torch.npu.set_device("npu:0")
    torch.npu.set_device(torch.device("npu"))
    for wrong in (1, "npu:1", "cuda:0"):
        with pytest.raises(RuntimeError, match="accepted"):
            torch.npu.set_device(wrong)
    draws = []
    for seed in (torch.npu.manual_seed, torch.npu.manual_seed_all, torch.manual_seed):
        seed(3)
        draws.append(torch.rand(2))
    assert torch.equal(draws[0], draws[1]) and torch.equal(draws[0], draws[2])
    torch.npu.empty_cache()
    stream, begin, end = torch.npu.Stream(), torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    with torch.npu.stream(stream):
        begin.record()
        stream.wait_stream(torch.npu.current_stream())
        end.record(stream)
    stream.synchronize()
    assert stream.query() and begin.elapsed_time(end) >= 0.0
    with pytest.raises(RuntimeError, match="recorded"):
        begin.elapsed_time(torch.npu.Event())


def test_the_name_is_no_accelerator(names: None) -> None:
    """torch takes a named private device type for an accelerator, and would ask it for streams and pinned memory."""
    assert torch.device("npu:0").type == "npu"
    if not torch.cuda.is_available():
        assert torch.accelerator.current_accelerator() is None and not torch.accelerator.is_available()
        assert torch._C._get_accelerator().type == "cpu"
    compiled = torch.compile(lambda x: x.to("npu") + torch.ones(3, device="npu"), backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))


def test_npu_method_in_another_thread(names: None) -> None:
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(torch.ones(2).npu().is_npu))
    thread.start()
    thread.join()
    assert results == [True]


# ---- torch_npu's operators ----


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
    assert torch.equal(y1, torch.tensor([[32, 32, 32, 127] * 2], dtype=torch.int8))  # operator file, E1
    assert torch.equal(x, X1 + X2) and scale1.shape == (1,)
    assert y2.shape == scale2.shape == () and y2.dtype == torch.int8 and scale2.dtype == torch.float32
    masked = torch_npu.npu_add_rms_norm_dynamic_quant(X1, X2, ONES, output_mask=[False, True])
    assert masked[0].shape == masked[3].shape == ()
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
    assert y1.dtype == dtype and y1.view(torch.uint8).tolist() == [codes * 2]  # operator file, E5


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
    assert torch.equal(out[0, :2], torch.tensor([-0.11810303, 192.25]).half())  # operator file, E1
    fixed = torch_npu.npu_quant_matmul_dequant(x, weight, scale, x_scale=torch.tensor([0.01]), quant_mode="pertensor")
    assert torch.equal(fixed[0, :2], torch.tensor([0.23498535, 145.625]).half())  # E2
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


# ---- MindSpeed's optimizer ----


def document_001(
    grad: Tensor, var: Tensor, m: Tensor, v: Tensor, s: Tensor, step: int, lr: float, decay: float, wd: float, mode: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The update rule of document 001, in float64."""
    grad = grad + wd * var * (1 - mode)
    m = 0.9 * m + (1 - 0.9) * grad
    v = 0.999 * v + (1 - 0.999) * grad * grad
    update = m / (1 - 0.9**step) / ((v / (1 - 0.999**step)).sqrt() + 1e-8) + wd * var * mode
    var = var - lr * update
    return var, m, v, decay * s + (1 - decay) * var


@pytest.mark.parametrize("use_num_updates", [True, False])
@pytest.mark.parametrize("adam_w_mode", [True, False])
def test_fused_ema_adamw_follows_the_document(fused_ema_adamw: Any, use_num_updates: bool, adam_w_mode: bool) -> None:
    torch.manual_seed(0)
    params = [
        torch.nn.Parameter(torch.randn(5, 3)),
        torch.nn.Parameter(torch.randn(7)),
        torch.nn.Parameter(torch.ones(1)),
    ]
    optimizer = fused_ema_adamw(
        params, lr=0.1, weight_decay=0.2, ema_decay=0.3, use_num_updates=use_num_updates, adam_w_mode=adam_w_mode
    )
    mine = [(p.detach().double(), *[torch.zeros_like(p).double()] * 2, p.detach().double()) for p in params[:2]]
    for n in range(1, 9):
        for i in (0, 1):
            params[i].grad = torch.randn_like(params[i])
            decay = min(0.3, (1 + n) / (10 + n)) if use_num_updates else 0.3
            mine[i] = document_001(params[i].grad.double(), *mine[i], n, 0.1, decay, 0.2, int(adam_w_mode))
        optimizer.step()
    assert torch.equal(optimizer.param_groups[0]["step"], torch.tensor([8])) and optimizer.num_updates == 8
    assert params[2] not in optimizer.state or not optimizer.state[params[2]]
    for param, values in zip(params, mine, strict=False):
        state = optimizer.state[param]
        found = (param, state["exp_avg"], state["exp_avg_sq"], state["ema_params"])
        for one, other in zip(found, values, strict=True):
            # 1 - 0.999 has a relative error of 3e-5 in fp32, its root half of that; 8 steps of about lr = 0.1.
            torch.testing.assert_close(one.double(), other, rtol=0, atol=8 * 0.1 * 1.5e-5)


def test_fused_ema_adamw_swaps_weights(fused_ema_adamw: Any) -> None:
    module = torch.nn.Linear(4, 2)
    optimizer = fused_ema_adamw(module.parameters(), lr=0.1)
    for _ in range(3):
        module(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert module.weight.grad is None
    trained = module.weight.detach().clone()
    optimizer.store(optimizer.param_groups)
    optimizer.copy_to()
    assert torch.equal(module.weight, optimizer.state[module.weight]["ema_params"])
    assert not torch.equal(module.weight, trained)
    optimizer.restore(optimizer.param_groups)
    assert torch.equal(module.weight, trained)
    with pytest.raises(RuntimeError, match="restore"):
        optimizer.restore(optimizer.param_groups)


def test_fused_ema_adamw_goes_on_from_a_checkpoint_case_32(fused_ema_adamw: Any) -> None:
    def run(steps: int, resume: dict[str, Any] | None = None, weights: Tensor | None = None) -> tuple[Any, Any]:
        param = torch.nn.Parameter(torch.linspace(-1, 1, 9) if weights is None else weights.clone())
        optimizer = fused_ema_adamw([param], lr=0.1)
        if resume is not None:
            optimizer.load_state_dict(resume)
        for _ in range(steps):
            param.grad = param.detach().square()
            optimizer.step()
        return param, optimizer

    half, optimizer = run(3)
    resumed, theirs = run(3, optimizer.state_dict(), half.detach())
    whole, mine = run(6)
    assert torch.equal(resumed, whole)
    assert torch.equal(theirs.state[resumed]["ema_params"], mine.state[whole]["ema_params"])


def test_fused_ema_adamw_keeps_its_steps_by_group_case_21(fused_ema_adamw: Any) -> None:
    """A parameter whose first gradient comes at step 10 is corrected as at step 10; a group counts once a step."""
    early, late = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1).bfloat16())
    optimizer = fused_ema_adamw([early, late], lr=1.0, weight_decay=0.0)
    for step in range(1, 11):
        early.grad = torch.ones(1)
        late.grad = torch.ones(1).bfloat16() if step == 10 else None
        optimizer.step()
    assert torch.equal(optimizer.param_groups[0]["step"], torch.tensor([10]))
    torch.testing.assert_close(late.float().detach(), torch.tensor([-0.4844]), rtol=2**-8, atol=0)  # bfloat16
    assert early.item() == pytest.approx(-10.0, rel=1e-4)


def test_fused_ema_adamw_decay_case_29(fused_ema_adamw: Any) -> None:
    param = torch.nn.Parameter(torch.zeros(1))
    optimizer = fused_ema_adamw([param], lr=1.0, ema_decay=0.9999)
    average = 0.0
    for decay in (0.181818, 0.25, 0.307692, 0.357143):
        param.grad = torch.ones(1)
        optimizer.step()
        average = decay * average + (1 - decay) * param.item()
        assert optimizer.state[param]["ema_params"].item() == pytest.approx(average, rel=1e-5)
    assert optimizer.ema_decay == optimizer.param_groups[0]["ema_decay"] == 0.9999


def test_fused_ema_adamw_errors(fused_ema_adamw: Any) -> None:
    params = [torch.nn.Parameter(torch.ones(2))]
    for arguments, error in (
        ({"amsgrad": True}, RuntimeError),
        ({"maximize": True}, RuntimeError),
        ({"lr": -1.0}, ValueError),
        ({"eps": -1.0}, ValueError),
        ({"betas": (1.0, 0.9)}, ValueError),
        ({"betas": (0.9, -0.1)}, ValueError),
        ({"weight_decay": -1.0}, ValueError),
        ({"weight_decay": float("nan")}, ValueError),
    ):
        with pytest.raises(error, match="accepted"):
            fused_ema_adamw(params, **arguments)
    double = torch.nn.Parameter(torch.ones(2).double())
    double.grad = torch.ones(2).double()
    with pytest.raises(RuntimeError, match="float64"):
        fused_ema_adamw([double]).step()
    table = torch.nn.Embedding(3, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    before = table.weight.detach().clone()
    with pytest.raises(RuntimeError, match="sparse"):
        fused_ema_adamw(table.parameters()).step()
    assert torch.equal(table.weight, before)
    keeping = fused_ema_adamw(params, set_grad_none=False)
    params[0].grad = torch.ones(2)
    keeping.zero_grad()
    assert torch.equal(params[0].grad, torch.zeros(2))
    assert keeping.step(lambda: 5.0) == 5.0


# ---- mxRec's optimizer ----


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
def test_lazy_adam_without_ids_case_40(create_hash_optimizer: Any, fused: bool) -> None:
    optimizer = create_hash_optimizer(use_fusion_optim=fused)
    table = torch.ones(5, 8)
    for gradient in (Slices([], torch.ones(0, 8)), Slices([-1, -1], torch.ones(2, 8)), sparse([], torch.ones(0, 8), 5)):
        optimizer.apply_gradients([(gradient, table)])
    assert torch.equal(table, torch.ones(5, 8)) and optimizer.steps == 3


def test_lazy_adam_ways_differ_in_the_sign_of_v(create_hash_optimizer: Any) -> None:
    for fused, stored in ((True, 0.499249995), (False, -0.499249995)):  # operator file, E4
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


# ---- a real NPU ----


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
        overload = getattr(torch.ops.anyfuse, module.SCHEMA.partition("(")[0]).default
        monkeypatch.setattr(module, "_op", partial(overload.redispatch, keys))


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
    with pytest.raises(NotImplementedError, match="lazy_adam_: torch_npu has no such operator"):
        anyfuse.lazy_adam_(one, torch.zeros(1).int(), one, one, one, 0.1)
