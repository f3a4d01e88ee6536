"""The logic of the GPU kernels, in Triton's interpreter, equals the CPU's operators bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import operators
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import anyfuse
from anyfuse._bits import clone_with_storage
from anyfuse._opspec import OpSpec
from anyfuse.ops import _register
from anyfuse.samples.draw import Draw
from anyfuse.samples.kinds import Sample

pytest.importorskip("triton")  # absent only where the test extra is not installed

TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    """What `triton_interpreted.py` found, for each operator. One process: importing torch takes longer than a check."""
    path = os.pathsep.join([str(Path(anyfuse.__file__).parents[1]), str(TESTS)])  # built or installed
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    command = [sys.executable, "-W", "ignore", str(TESTS / "triton_interpreted.py")]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return {result["name"]: result for result in map(json.loads, run.stdout.splitlines())}


def test_interpreted_kernels_equal_the_cpu(spec: OpSpec, results: dict[str, dict[str, Any]]) -> None:
    result = results[spec.name]
    assert result["problem"] is None, result["problem"]
    assert result["count"] >= 15


def test_every_operator_is_registered_for_gpus(spec: OpSpec) -> None:
    name = f"anyfuse::{spec.function.__name__}"
    assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA")


def on_gpu(value: Any) -> Any:
    """The like of an argument on a GPU, where fake tensors are made."""
    if isinstance(value, dict):
        return {name: on_gpu(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(on_gpu, value))
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")


def traced_sample(spec: OpSpec) -> Sample:
    """A call with options, whose tensors are all plain ones."""
    for seed in range(1000):
        sample = spec.samples.draw(Draw(seed))
        weight = sample.arguments.get("weight", torch.empty(0))
        chance = sample.arguments.get("stochastic_rounding", 0)
        if isinstance(weight, torch.Tensor) and chance is not None:
            return sample
    raise AssertionError("no draw has the options")


def test_compiled_calls_on_gpu_tensors_trace_to_the_operators(spec: OpSpec) -> None:
    arguments, graphs = traced_sample(spec).arguments, []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        graphs.append(graph.graph)
        return graph.forward

    expected = operators.tensors_of(spec.function(**clone_with_storage(arguments)))
    with FakeTensorMode():
        results = torch.compile(spec.function, backend=backend, fullgraph=True)(**on_gpu(arguments))
    (graph,) = graphs
    ours = [node.target for node in graph.nodes if str(node.target).startswith("anyfuse")]
    packet = getattr(torch.ops.anyfuse, spec.function.__name__)
    is_one = spec.in_place and isinstance(arguments["var"], torch.Tensor)
    assert ours == [packet.one if is_one else packet.default]
    got = operators.tensors_of(results)
    assert {tensor.device.type for tensor in got} == {"cuda"}
    assert [(t.shape, t.dtype) for t in got] == [(t.shape, t.dtype) for t in expected]


def test_the_reference_of_gpu_tensors_runs_on_copies(spec: OpSpec) -> None:
    """`through_cpu`, here with CPU tensors on both sides: what was written and what was returned comes back."""
    for seed in range(20):
        sample = spec.samples.draw(Draw(seed))
        with operators.Recorder() as recorder:
            expected = operators.tensors_of(spec.function(**clone_with_storage(sample.arguments)))
        ((overload, args, _),) = recorder.calls
        op, operator = sys.modules[spec.function.__module__], _register._operators[spec.name]
        args = operator._listed(args) if overload is operator.one else args
        overload = operator.overload
        got = _register.through_cpu(overload, op._general, op.Call(*args))
        if spec.in_place:
            given = dict(zip((argument.name for argument in overload._schema.arguments), args, strict=True))
            got = [given[name] for name in spec.outputs]
        assert (problem := operators.difference(expected, operators.tensors_of(got))) is None, problem


def test_importing_anyfuse_does_not_import_triton() -> None:
    code = "import sys, anyfuse; sys.exit('triton' in sys.modules or 'anyfuse.triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
