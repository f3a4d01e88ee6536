"""The official names: examples of the documents, defaults and errors, devices, and scripts that know nothing of us."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import anyfuse
from anyfuse import compat
from anyfuse.compat import _device, _modules
from anyfuse.run import execute
from anyfuse_cli import main

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples" / "ascend"

# The call example of MindSpeed's document, as it is printed there.
CALL_OF_MINDSPEED = """\
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

# The usage lines of Rec SDK's document, as they are printed there.
USAGE_OF_REC_SDK = """\
from mx_rec.optimizers.lazy_adam import create_hash_optimizer

# 创建lazy_adam优化器时增加"use_fusion_optim=True"参数，表示使用融合算子实现。use_fusion_optim参数默认值为False。
# lazy_adam优化器详细使用指导请参考Rec SDK用户指南。
sparse_optimizer = create_hash_optimizer(learning_rate=0.001, use_fusion_optim=True)
"""


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


# ---- the documents' examples, and scripts ----


def test_call_example_of_document(names: None, tmp_path: Path) -> None:
    after = execute(written(tmp_path / "example.py", CALL_OF_MINDSPEED), [])
    # E1 of test_apply_fused_ema_adamw.py, in the order of the device; the formula's last digits differ.
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


def test_usage_of_rec_sdk(names: None, tmp_path: Path) -> None:
    optimizer = execute(written(tmp_path / "example.py", USAGE_OF_REC_SDK), [])["sparse_optimizer"]
    table = torch.ones(3, 8)
    gradient = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.full((1, 8), 0.5), (3, 8))
    optimizer.apply_gradients([(gradient, table)])
    assert torch.equal(table[[0, 2]], torch.ones(2, 8))
    assert torch.equal(table[1], torch.full((8,), 0.999000013))  # E2 of test_lazy_adam.py
    assert torch.equal(optimizer.get_slot(table, "m")[1], torch.full((8,), 0.0500000119))
    assert torch.equal(optimizer.get_slot(table, "v")[1], torch.full((8,), 0.000249996781))


def test_anyfuse_run_says_what_it_does(tmp_path: Path) -> None:
    script = written(tmp_path / "example.py", CALL_OF_MINDSPEED + "\nimport sys\nprint(var[0, 0].item(), sys.argv)\n")
    environment = {**os.environ, "PYTHONPATH": str(Path(anyfuse.__file__).parents[1])}  # built or installed
    command = [sys.executable, "-m", "anyfuse", "run", "--device", "cpu", script, "--epochs", "3"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split(maxsplit=1)[0] == "0.4999990463256836"
    assert result.stdout.endswith(f"[{script!r}, '--epochs', '3']\n")
    assert result.stderr.count("no NPU is used; the CPU stands in for it") == 1
    assert len(result.stderr.splitlines()) == 1


def test_anyfuse_run_from_a_pipe() -> None:
    """`cat script.py | anyfuse run /dev/stdin` runs it, once, as __main__, and shows its traceback."""
    environment = {**os.environ, "PYTHONPATH": str(Path(anyfuse.__file__).parents[1])}
    command = [sys.executable, "-m", "anyfuse", "run", "/dev/stdin", "a"]
    script = (
        "import pickle, sys, torch_npu\nclass Kept: pass\npickle.dumps(Kept())\n"
        "if __name__ == '__main__':\n    print(sys.argv, __file__)\n    torch_npu.no_such()\n"
    )
    result = subprocess.run(command, input=script, capture_output=True, text=True, env=environment)
    assert result.stdout == "['/dev/stdin', 'a'] /dev/stdin\n" and result.returncode == 1
    assert '"/dev/stdin", line 6' in result.stderr and "torch_npu.no_such is not provided" in result.stderr


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
    from anyfuse_cli.run import run

    script = written(tmp_path / "wrong.py", "import torch_npu\n\n\ndef f():\n    torch_npu.npu_moe()\n\n\nf()\n")
    with pytest.raises(SystemExit) as ended:
        run(Path(script))
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert "torch_npu.npu_moe is not provided by anyfuse, and no NPU is used" in error
    assert 'wrong.py", line 5, in f' in error and "runpy" not in error


def test_anyfuse_run_ends_with_130_after_ctrl_c(
    names: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from anyfuse_cli.run import run

    with pytest.raises(SystemExit) as ended:
        run(Path(written(tmp_path / "long.py", "raise KeyboardInterrupt\n")))
    assert ended.value.code == 130 and "KeyboardInterrupt" in capsys.readouterr().err


def test_anyfuse_run_passes_exit_codes_on(names: None, tmp_path: Path) -> None:
    from anyfuse_cli.run import run

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
    """Its operator alone is replaced, and found by each form of an import; a whole tree is in tests/clients/python."""
    (tmp_path / "mindspeed" / "ops").mkdir(parents=True)
    written(tmp_path / "mindspeed" / "__init__.py", "real = True\n")
    written(tmp_path / "mindspeed" / "ops" / "__init__.py", "")
    written(tmp_path / "mindspeed" / "ops" / "npu_apply_fused_ema_adamw.py", "raise ImportError('needs an NPU')\n")
    written(tmp_path / "mindspeed" / "ops" / "npu_swiglu.py", "real = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    compat.install()
    try:
        found: dict[str, Any] = {}
        exec("import mindspeed.ops.npu_apply_fused_ema_adamw", found)
        assert found["mindspeed"].real
        assert found["mindspeed"].ops.npu_apply_fused_ema_adamw.npu_apply_fused_ema_adamw is (
            compat.mindspeed.npu_apply_fused_ema_adamw
        )
        assert importlib.import_module("mindspeed.ops.npu_swiglu").real
        with pytest.raises(ModuleNotFoundError, match=r"No module named 'mindspeed\.core'"):
            importlib.import_module("mindspeed.core.optimizer.fused_ema_adamw")
        compat.uninstall()
        assert not hasattr(sys.modules["mindspeed.ops"], "npu_apply_fused_ema_adamw")
        with pytest.raises(ImportError, match="needs an NPU"):
            importlib.import_module("mindspeed.ops.npu_apply_fused_ema_adamw")
    finally:
        compat.uninstall()
        for name in [name for name in sys.modules if name.partition(".")[0] == "mindspeed"]:
            del sys.modules[name]


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
    for owner, name in ((torch_npu, "npu_fusion_attention"), (torch.npu, "mstx"), (torch.npu, "NPUGraph")):
        with pytest.raises(_modules.NotProvidedError, match=rf"\.{name} is not provided by anyfuse"):
            getattr(owner, name)
        assert not hasattr(owner, name)
    with pytest.raises(ImportError, match="npu_rotary_mul"):
        exec("from torch_npu import npu_rotary_mul")
    for module in ("torch_npu.profiler", "torch.npu.graphs", "mindspeed.megatron_adaptor", "mx_rec.core.asc"):
        with pytest.raises(ModuleNotFoundError, match="is not provided by anyfuse, and no NPU is used; provided: "):
            importlib.import_module(module)
    with pytest.raises(ModuleNotFoundError, match=r'torch_npu\.contrib .*; transfer_to_npu .* write "npu" for "cuda"'):
        importlib.import_module("torch_npu.contrib.transfer_to_npu")
    with pytest.raises(AttributeError, match=r"NPUGraph .*; a graph replays launches"):
        _ = torch.npu.NPUGraph
    with pytest.raises(AttributeError, match=r"mindspeed\.ops\.npu_swiglu is not provided .*provided: npu_apply_fused"):
        _ = importlib.import_module("mindspeed.ops").npu_swiglu


def test_every_provided_name_exists(names: None) -> None:
    for name, contents in {**compat._ALWAYS, **compat._ABSENT}.items():
        module = importlib.import_module(name)
        if isinstance(contents, str):
            assert module is importlib.import_module(contents)
        else:
            assert all(getattr(module, key) is value for key, value in contents.items())


def test_every_provided_name_is_on_the_page() -> None:
    """docs/migration-ascend.md lists them, and README sends its readers there."""
    page = (ROOT / "docs" / "migration-ascend.md").read_text()
    for name, contents in {**compat._ALWAYS, **compat._ABSENT}.items():
        if isinstance(contents, str) or name == "mindspeed.core.optimizer.fused_ema_adamw":
            continue
        for key in contents:
            if not key.startswith("_"):
                assert f"`{key}`" in page or f".{key}`" in page, (name, key)
    for readme in ("README.md", "README.zh-CN.md"):
        assert "docs/migration-ascend.md" in (ROOT / readme).read_text()


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


def test_a_second_device_is_refused(names: None, tmp_path: Path) -> None:
    torch.save(torch.ones(2), tmp_path / "x.pt")
    x, second = torch.ones(2), torch.device("npu:1")
    for call in (
        lambda: torch.empty(1, device="npu:1"),
        lambda: torch.empty(1, device=second),
        lambda: torch.nn.Linear(2, 2, device="npu:1"),
        lambda: torch.nn.Linear(2, 2).to("npu:1"),
        lambda: torch.nn.Linear(2, 2).npu(1),
        lambda: x.to("npu:1"),
        lambda: x.to(1),
        lambda: x.to(device=second),
        lambda: x.npu(1),
        lambda: x.new_zeros(2, device="npu:1"),
        lambda: torch.set_default_device("npu:1"),
        lambda: torch.load(tmp_path / "x.pt", map_location="npu:1"),
        lambda: torch.npu.set_device(1),
    ):
        with pytest.raises(RuntimeError, match=r"device is .*1.*; accepted: npu:0$"):
            call()


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
