"""torch.npu: devices, options, memory figures, random numbers, streams, amp."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

import anyfuse


def test_torch_npu_namespace(torch_npu: Any) -> None:
    assert torch_npu.npu is torch.npu is importlib.import_module("torch.npu")
    assert torch.npu.is_available() and torch.npu.device_count() == 1 and torch.npu.current_device() == 0
    torch.npu.set_device("npu:0")
    torch.npu.set_device(torch.device("npu"))
    for wrong in (1, "npu:1", "cuda:0", -1):
        for call in (
            torch.npu.set_device,
            torch.npu.get_device_name,
            torch.npu.memory_allocated,
            torch.npu.synchronize,
        ):
            with pytest.raises(RuntimeError, match="accepted"):
                call(wrong)
    with torch.npu.device(0), torch.npu.device_of(torch.ones(1)):
        assert torch.npu.current_device() == 0
    with pytest.raises(RuntimeError, match="accepted: npu:0"), torch.npu.device("npu:1"):
        pass
    assert torch.npu.can_device_access_peer(0, 0) is False and torch.npu.get_device_capability() is None


def test_device_names_follow_the_profile(names: None) -> None:
    assert torch.npu.get_device_name() == torch.npu.get_device_name(0) == "CPU (no NPU is used)"
    with anyfuse.soc("ascend910b3"):
        assert torch.npu.get_device_name("npu:0") == torch.npu.get_device_properties(0).name == "Ascend910B"
    properties = torch.npu.get_device_properties()
    assert properties.total_memory == torch.npu.mem_get_info()[1] > 2**28
    with pytest.raises(AttributeError):
        _ = properties.cube_core_num


def test_options_of_the_compiler_are_kept(torch_npu: Any) -> None:
    for wanted in (True, False):
        torch_npu.npu.set_compile_mode(jit_compile=wanted)
        assert torch.npu.is_jit_compile_false() is not wanted
        torch.npu.set_mm_bmm_format_nd(wanted)
        assert torch.npu.get_mm_bmm_format_nd() is wanted
        torch.npu.config.allow_internal_format = wanted
        torch.npu.matmul.allow_hf32 = torch.npu.conv.allow_hf32 = wanted
        assert torch_npu.npu.config.allow_internal_format is torch_npu.npu.matmul.allow_hf32 is wanted
    with pytest.raises(AttributeError):
        torch.npu.config.no_such_option = True
    torch.npu.set_option({"ACL_PRECISION_MODE": "must_keep_origin_dtype"})
    with pytest.raises(TypeError, match="option is a list; accepted: a dict"):
        torch.npu.set_option([])
    x = torch.ones(2)
    assert torch.npu.enable_deterministic_with_backward(x) is torch.npu.disable_deterministic_with_backward(x) is x
    torch.npu.set_sync_debug_mode("warn")
    assert torch.npu.get_sync_debug_mode() == 0


def test_memory_figures(names: None) -> None:
    """The CPU's memory is not torch's to count: every figure of its allocator is 0."""
    x = torch.ones(1000, device="npu")
    for name in ("memory_allocated", "memory_reserved", "memory_cached"):
        assert getattr(torch.npu, name)() == getattr(torch.npu, f"max_{name}")(0) == 0
    assert torch.npu.memory_stats("npu:0")["allocated_bytes.all.peak"] == 0
    assert torch.npu.memory_stats_as_nested_dict() == {} and torch.npu.memory_snapshot() == []
    assert "CPU" in torch.npu.memory_summary()
    for name in ("peak_memory_stats", "accumulated_memory_stats", "max_memory_allocated", "max_memory_cached"):
        assert getattr(torch.npu, f"reset_{name}")() is None
    torch.npu.set_per_process_memory_fraction(0.5)
    torch.npu.empty_cache()
    torch.npu.ipc_collect()
    free, total = torch.npu.mem_get_info()
    assert 0 < free < total and x.is_npu


def test_random_numbers(names: None) -> None:
    draws = []
    for seed in (torch.npu.manual_seed, torch.npu.manual_seed_all, torch.manual_seed):
        seed(3)
        assert torch.npu.initial_seed() == 3
        draws.append(torch.rand(2))
    assert torch.equal(draws[0], draws[1]) and torch.equal(draws[0], draws[2])
    for get, put in (
        (torch.npu.get_rng_state, torch.npu.set_rng_state),
        (torch.npu.get_rng_state_all, torch.npu.set_rng_state_all),
    ):
        state = get()
        first = torch.rand(2, device="npu")
        put(state)
        assert torch.equal(torch.rand(2, device="npu"), first)
    before = torch.get_rng_state()
    with torch.random.fork_rng(devices=[0], device_type="npu"):
        torch.npu.seed()
        torch.npu.seed_all()
    assert torch.equal(torch.get_rng_state(), before)


def test_streams_and_events(names: None) -> None:
    stream, begin, end = torch.npu.Stream(), torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    with torch.npu.stream(stream), torch.npu.StreamContext(stream):
        begin.record()
        stream.wait_stream(torch.npu.current_stream())
        end.record(stream)
    torch.npu.set_stream(stream)
    stream.synchronize()
    assert stream.query() and begin.elapsed_time(end) >= 0.0 and torch.npu.is_current_stream_capturing() is False
    with pytest.raises(RuntimeError, match="recorded"):
        begin.elapsed_time(torch.npu.Event())
    for name in ("NPUGraph", "graph", "make_graphed_callables", "get_npu_overflow_flag", "utilization"):
        assert not hasattr(torch.npu, name)


@pytest.mark.parametrize("module", ["torch.npu.amp", "torch_npu.npu.amp"])
def test_amp(names: None, module: str) -> None:
    amp = importlib.import_module(module)
    assert torch.npu.amp is amp
    with amp.autocast():
        assert torch.npu.is_autocast_enabled() and torch.npu.get_autocast_dtype() == torch.float16
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float16

    @amp.autocast(dtype=torch.bfloat16)
    def product(x: Tensor) -> Tensor:
        return x @ x

    assert product(torch.ones(2, 2)).dtype == torch.bfloat16
    assert torch.npu.get_amp_supported_dtype() == [torch.float16, torch.bfloat16]
    before = torch.npu.get_autocast_dtype()
    torch.npu.set_autocast_dtype(torch.float16)
    torch.npu.set_autocast_enabled(True)
    assert product.__wrapped__(torch.ones(2, 2)).dtype == torch.float16
    torch.npu.set_autocast_enabled(False)
    torch.npu.set_autocast_dtype(before)
    with pytest.raises(RuntimeError, match="dynamic is False; accepted: True"):
        amp.GradScaler(dynamic=False)


def test_gradients_are_scaled(names: None) -> None:
    for scaler in (torch.npu.amp.GradScaler(init_scale=8.0), torch.amp.GradScaler("npu", init_scale=8.0)):
        weight = torch.nn.Parameter(torch.ones(2, device="npu"))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scaler.scale(weight.sum()).backward()
        assert weight.grad is not None and torch.equal(weight.grad, torch.full((2,), 8.0))
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(weight.detach(), torch.zeros(2))
        scaler.scale((weight * float("inf")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(weight.detach(), torch.zeros(2)) and scaler.get_scale() == 4.0


def test_custom_functions_under_autocast(names: None) -> None:
    amp = importlib.import_module("torch_npu.npu.amp")
    seen = []

    class Double(torch.autograd.Function):
        @staticmethod
        @amp.custom_fwd(cast_inputs=torch.float32)
        def forward(ctx: Any, x: Tensor) -> Tensor:
            seen.append(x.dtype)
            return x * 2

        @staticmethod
        @amp.custom_bwd
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 2

    x = torch.ones(2, dtype=torch.float16, requires_grad=True)
    with amp.autocast():
        Double.apply(x).sum().backward()
    assert seen == [torch.float32] and x.grad is not None and torch.equal(x.grad, torch.full((2,), 2.0).half())
