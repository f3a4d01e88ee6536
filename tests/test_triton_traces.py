"""What the GPU operators do around their kernels, traced on fake GPU tensors: nothing waits for the device or reads a
value from it, a captured step copies nothing from the host, and everything runs on the tensors' device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

import operators
import optimizers
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from anyfuse._bits import clone_with_storage
from anyfuse._opspec import OpSpec
from anyfuse.ops import _register
from anyfuse.optim import LazyAdam, _adamw_rows
from anyfuse.samples.draw import Draw

pytest.importorskip("triton")  # absent only where the test extra is not installed

from anyfuse.triton import _launch, _watch, check_device

GPU = torch.device("cuda", 0)


def on_gpu(value: Any) -> Any:
    """The like of an argument on a GPU, steps and rates too. Contiguous: a torch for CPUs copies no others there."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(on_gpu, value))
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty(value.shape, dtype=value.dtype, device=GPU)


class Traffic(TorchDispatchMode):
    """What crosses between host and device."""

    def __init__(self) -> None:
        super().__init__()
        self.crossed: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        devices = {t.device.type for t in operators.tensors_of([*args, result]) if isinstance(t, torch.Tensor)}
        reads = func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        if len(devices) > 1 or (reads and "cuda" in devices):
            self.crossed.append(str(func))
        return result


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU as far as the launchers see one: `launched` are their launches, `capturing` is whether a graph is made."""
    state = SimpleNamespace(capturing=False, launched=[], measured=0)

    def measure(plan: Any) -> float:
        state.measured += 1
        return 1.0

    address, storages = torch.Tensor.data_ptr, {}

    def fake_address(self: torch.Tensor) -> int:
        if not isinstance(self, FakeTensor):
            return address(self)
        return (1 + storages.setdefault(self.untyped_storage()._cdata, len(storages))) << 40

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state.capturing)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.Tensor, "data_ptr", fake_address)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    monkeypatch.setattr(_launch.Launch, "run", lambda self: state.launched.append(self))
    monkeypatch.setattr(_launch, "_time", measure)
    monkeypatch.setattr(_launch, "_tables", type(_launch._tables)())
    monkeypatch.setattr(_launch, "_captured", [])
    monkeypatch.setattr(_launch, "_fastest", {})
    return state


class Watch:
    """In place of `_watch.Watch`, which needs an event: says whether it was asked while a graph was made."""

    def __init__(self, state: SimpleNamespace) -> None:
        self.state, self.flags = state, torch.zeros(2, dtype=torch.int32, device=GPU)

    def look(self) -> None:
        assert not self.state.capturing

    raise_if_seen = look


def test_a_captured_step_waits_for_nothing(spec: OpSpec, gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module(f"anyfuse.triton.{spec.name}")
    launches, fake = 0, FakeTensorMode()
    for seed in range(12):
        sample = spec.samples.draw(Draw(seed))
        with operators.Recorder() as recorder:
            spec.function(**clone_with_storage(sample.arguments))
        ((_, args, _),) = recorder.calls
        with fake:
            call = module.Call(*map(on_gpu, args))
            monkeypatch.setitem(_watch._watches, GPU, Watch(gpu))
            gpu.capturing, gpu.launched, gpu.measured = False, [], 0
            with Traffic():  # the first step may copy tables and measure
                module.run(call)
            first, gpu.capturing, gpu.launched, gpu.measured = gpu.launched, True, [], 0
            with Traffic() as traffic:
                module.run(call)
        assert traffic.crossed == [], sample.label
        assert gpu.measured == 0
        kept = first[len(first) - len(gpu.launched) :]  # without the guides of maps, which were made before
        assert [(each.kernel, each.grid) for each in gpu.launched] == [(each.kernel, each.grid) for each in kept]
        for launch in gpu.launched:
            assert len(launch.grid) == 1 and 0 <= launch.grid[0] < 2**31
        launches += len(first)
    assert launches >= 6


def run_on_gpu(call: Any) -> Any:
    """A call that goes to the kernels, not to the implementation for fake tensors. Of those the host can read what
    torch.tensor makes, alone."""
    module = import_module(type(call).__module__.replace("ops", "triton"))
    rates = {"lr_tensor": [torch.tensor([0.1])]} if isinstance(call.lr_tensor, list) else {}
    return module.run(call._replace(step=[torch.tensor([2]) for _ in call.step], **rates))


@pytest.mark.parametrize("make", optimizers.VARIANTS.values(), ids=optimizers.VARIANTS.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_optimizers_step_parameters_of_a_gpu(
    make: Any, dtype: torch.dtype, gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their state lies there too, and all of a group's parameters go to the kernels in one call."""
    monkeypatch.setattr(_adamw_rows, "_code_of_zero", lambda qmap: 127)
    monkeypatch.setattr(_adamw_rows, "maps", lambda codebook, device: (torch.empty(256, device=device),) * 2)
    monkeypatch.setattr(_register, "run_together", lambda calls: False)  # of fake tensors it would trace
    monkeypatch.setattr(_register.Operator, "run", lambda self, call: run_on_gpu(call))
    shapes = (80, 70), (9,), (3, 2, 5)
    with FakeTensorMode():
        monkeypatch.setitem(_watch._watches, GPU, Watch(gpu))
        params = [torch.nn.Parameter(torch.empty(shape, dtype=dtype, device=GPU)) for shape in shapes]
        optimizer = make(params, lr=0.1)
        for _ in range(2):
            for param in params:
                param.grad = torch.empty_like(param)
            gpu.launched = []
            optimizer.step()
            assert gpu.launched
        for param in params:
            state = optimizer.state[param]
            assert all(value.device == GPU for key, value in state.items() if key != "step")
        saved = optimizer.state_dict()
        for state in saved["state"].values():
            state["step"] = 2  # that of a fake tensor is not known
        make(params).load_state_dict(saved)


@pytest.mark.parametrize(("first", "second"), [("cuda:0", "cpu"), ("cpu", "cuda:0")])
def test_parameters_of_two_devices_in_a_group_are_refused(
    first: str, second: str, gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for make in optimizers.VARIANTS.values():
        with FakeTensorMode():
            params = [torch.nn.Parameter(torch.empty(4, device=device)) for device in (first, second)]
            optimizer = make(params)
            for param in params:
                param.grad = torch.empty_like(param)
            with pytest.raises(ValueError, match=f"a parameter lies on {second}; accepted: {first}"):
                optimizer.step()


def test_rows_of_a_gpus_table_alone_go_to_its_kernels(gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """No parameter has a gradient of its own, which would tell where the step runs."""
    calls: list[str] = []
    monkeypatch.setattr(_register, "run_together", lambda calls: False)
    monkeypatch.setattr(_register.Operator, "run", lambda self, call: calls.append("operator"))
    with FakeTensorMode():
        table = torch.nn.Parameter(torch.empty(6, 4, device=GPU))
        ids = torch.empty(2, dtype=torch.int64, device=GPU)
        LazyAdam([table]).step(rows={table: (ids, torch.empty(2, 4, device=GPU))})
    assert calls == ["operator"]


def test_what_a_graph_needs_from_the_host_lies_in_pinned_memory(
    gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that was not seen before the capture: its table is the graph's alone, and is copied at each replay."""
    pinned: list[torch.Tensor] = []

    def pin(self: torch.Tensor) -> torch.Tensor:
        pinned.append(self.clone())
        return pinned[-1]

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    with FakeTensorMode():
        gpu.capturing = True
        made = _launch.table(GPU, [1, 2], [3, 4])
        assert made.device == GPU and made.shape == (2, 2)
        assert len(pinned) == 1 and _launch._captured[0] is pinned[0]
        assert not _launch._tables
        gpu.capturing = False
        kept = _launch.table(GPU, [1, 2], [3, 4])
        assert _launch.table(GPU, [1, 2], [3, 4]) is kept and len(pinned) == 1
        gpu.capturing = True
        assert _launch.table(GPU, [1, 2], [3, 4]) is kept and _launch._captured[-1] is kept


def test_a_table_that_another_stream_reads_is_kept_for_it(
    gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: "the other stream")
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: told.append(stream))
    with FakeTensorMode():
        _launch.table(GPU, [1, 2])
    assert told == ["the other stream"]


def test_nothing_is_measured_without_memory_for_it(gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(plan: Any) -> float:
        raise torch.OutOfMemoryError("out of memory")

    plans: list[Any] = [("first",), ("second",)]
    monkeypatch.setattr(_launch, "_time", no_memory)
    assert _launch.fastest("key", plans) == ("first",)
    monkeypatch.setattr(_launch, "_time", lambda plan: 1.0 if plan == ("first",) else 0.5)
    assert _launch.fastest("key", plans) == ("second",)


class Given(NamedTuple):
    values: list[torch.Tensor]
    step: torch.Tensor


def test_kernels_run_on_the_device_of_the_tensors(spec: OpSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []

    @contextmanager
    def device(which: torch.device) -> Iterator[None]:
        current.append(which)
        yield
        current.pop()

    module = SimpleNamespace(run=lambda call: list(current))
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    name = spec.function.__name__
    monkeypatch.setitem(sys.modules, f"anyfuse.triton.{name.rstrip('_')}", module)
    with FakeTensorMode():
        tensors = [torch.empty(3, device="cuda:1")]
        operator = _register.Operator(Given, getattr(torch.ops.anyfuse, name).default, None)
        ran_on = _register._on_gpu(operator, lambda call: None)(Given(tensors, torch.zeros(1, dtype=torch.int64)))
    assert ran_on == [torch.device("cuda", 1)] and current == []


@pytest.mark.parametrize(("capability", "accepted"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_a_gpu_that_triton_has_no_code_for_is_named(
    capability: tuple[int, int], accepted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Tesla T4")
    check_device.cache_clear()
    if accepted:
        check_device(GPU)
    else:
        with pytest.raises(RuntimeError, match=r"cuda:0 is a Tesla T4, compute capability 7.5; accepted: 8.0"):
            check_device(GPU)
    check_device.cache_clear()
