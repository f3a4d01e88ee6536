"""What every operator must do, looped over the registry: a new operator is tested by being registered."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import operators
import pytest
import torch
from bad_calls import bad_calls

import anyfuse
from anyfuse import _core
from anyfuse._bits import clone_with_storage
from anyfuse._opspec import OpSpec
from anyfuse.samples.draw import Draw


def test_every_operator_is_public(spec: OpSpec) -> None:
    assert getattr(anyfuse, spec.function.__name__) is spec.function
    assert spec.function.__name__.rstrip("_") == spec.name
    assert str(getattr(torch.ops.anyfuse, spec.function.__name__).default._schema).startswith(
        f"anyfuse::{spec.function.__name__}("
    )
    assert list(spec.samples.edges()), "an operator names the calls worth trying every time"


def test_docstring_tells_what_a_user_needs(spec: OpSpec) -> None:
    text = spec.function.__doc__ or ""
    for section in ("Args:", "Returns:", "Raises:"):
        assert section in text, section
    for argument in spec.function.__annotations__:
        assert argument == "return" or re.search(rf"\b{argument}\b", text), argument
    assert spec.document in (sys.modules[spec.function.__module__].__doc__ or "")


def test_native_equals_reference_bit_for_bit(spec: OpSpec, draws: int) -> None:
    """On every target, for random calls: results, memory outside views, and inputs."""
    for seed in range(draws):
        sample = spec.samples.draw(Draw(seed))
        with anyfuse.backend("reference"):
            expected, given = operators.run(spec, sample.arguments)
        assert operators.memory_outside_views_changed(spec, sample.arguments, given) is None, (seed, sample.label)
        for target in _core.available_targets():
            with _core.target(target):
                got, given = operators.run(spec, sample.arguments)
            where = f"seed {seed}, target {target}: {sample.label}"
            assert (problem := operators.difference(expected, got)) is None, f"{where}\n{problem}"
            changed = operators.memory_outside_views_changed(spec, sample.arguments, given)
            assert changed is None, f"{where}: {changed} changed outside what the operator may write"


def test_edges_equal_reference_on_any_number_of_threads(spec: OpSpec, target: str) -> None:
    before = torch.get_num_threads()
    try:
        for sample in spec.samples.edges():
            with anyfuse.backend("reference"):
                expected, _ = operators.run(spec, sample.arguments)
            for threads in (1, 2, 3, 7):
                torch.set_num_threads(threads)
                with _core.target(target):
                    got, _ = operators.run(spec, sample.arguments)
                problem = operators.difference(expected, got)
                assert problem is None, f"{sample.label}, {threads} threads: {problem}"
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_bad_calls_name_the_argument_and_write_nothing(spec: OpSpec, backend: str) -> None:
    for bad in bad_calls(spec.name):
        given = clone_with_storage(bad.arguments)
        with anyfuse.backend(backend), pytest.raises(bad.error, match=re.escape(bad.names)):
            spec.function(**given)
            pytest.fail(f"accepted: {bad.label}")
        for name, value in bad.arguments.items():
            for old, new in zip(operators.tensors_of(value), operators.tensors_of(given[name]), strict=True):
                assert operators.same_bits(old, new), f"{bad.label}: {name} was written"


def recorded(spec: OpSpec, count: int) -> list[tuple]:
    calls = []
    for seed in range(count):
        with operators.Recorder() as recorder:
            operators.run(spec, spec.samples.draw(Draw(seed)).arguments)
        calls += recorder.calls
    return calls


def test_opcheck(spec: OpSpec) -> None:
    """opcheck takes no NaN for equal to another, so that calls whose results hold one are left to the other tests."""
    calls = [call for call in recorded(spec, 12) if not _gives_nan(*call)]
    assert len(calls) >= 4
    for function, args, kwargs in calls[:4]:
        torch.library.opcheck(function, args, kwargs)


def _gives_nan(function: Callable[..., object], args: tuple, kwargs: dict) -> bool:
    args, kwargs = clone_with_storage((args, kwargs))
    results = operators.tensors_of([function(*args, **kwargs), *args, *kwargs.values()])
    return any(bool(tensor.isnan().any()) for tensor in results if tensor.dtype.is_floating_point)


def test_fake_gives_the_shapes_and_dtypes_of_the_real_one(spec: OpSpec) -> None:
    for function, args, kwargs in recorded(spec, 60):
        torch.library.opcheck(function, args, kwargs, test_utils="test_faketensor")


def test_compile_keeps_the_operator_and_its_bits(spec: OpSpec) -> None:
    torch._dynamo.reset()
    for seed in range(3):
        sample = spec.samples.draw(Draw(seed))
        expected, _ = operators.run(spec, sample.arguments)
        given = clone_with_storage(sample.arguments)
        compiled = torch.compile(lambda given=given: spec.function(**given), fullgraph=True, backend="aot_eager")
        got = operators.with_changed(spec, compiled(), given)
        assert (problem := operators.difference(expected, got)) is None, f"seed {seed}: {sample.label}\n{problem}"


def test_in_place_results_are_the_arguments(spec: OpSpec) -> None:
    if not spec.in_place:
        return
    given = clone_with_storage(spec.samples.draw(Draw(1)).arguments)
    results = spec.function(**given)
    for name, result in zip(spec.outputs, results, strict=True):
        assert result is given[name], name


def test_a_stale_backward_raises(spec: OpSpec) -> None:
    """A value saved for backward and then overwritten by an operator must not be used silently."""
    samples = [spec.samples.draw(Draw(seed)) for seed in range(100)]
    for name in spec.in_place:
        if not any(tensor.is_floating_point() for s in samples for tensor in operators.tensors_of(s.arguments[name])):
            continue  # codes take no part in a backward
        sample = next(s for s in samples if _differentiable(s.arguments[name]))
        given = clone_with_storage(sample.arguments)
        leaf = operators.tensors_of(given[name])[0].requires_grad_()
        loss = (leaf * leaf).sum()
        spec.function(**given)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def _differentiable(value: object) -> bool:
    tensors = operators.tensors_of(value)
    return bool(tensors) and tensors[0].dtype == torch.float32 and tensors[0].numel() > 0


def test_works_in_inference_mode(spec: OpSpec) -> None:
    with torch.inference_mode():
        operators.run(spec, spec.samples.draw(Draw(3)).arguments)


@pytest.mark.parametrize("forced", _core.targets())
def test_a_forced_target_takes_effect_or_is_refused(forced: str) -> None:
    code = "from anyfuse import _core; print(_core.current_target())"
    result = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "ANYFUSE_TARGET": forced}, capture_output=True, text=True
    )
    if forced in _core.available_targets():
        assert result.stdout.strip() == forced
    else:
        assert "cannot run here" in result.stderr


def test_an_unknown_target_is_refused() -> None:
    code = "import anyfuse"
    result = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "ANYFUSE_TARGET": "mmx"}, capture_output=True, text=True
    )
    assert result.returncode != 0
    assert "ANYFUSE_TARGET='mmx' cannot run here; available: base" in result.stderr
    with pytest.raises(RuntimeError, match="mmx"):
        _core.set_target("mmx")


FORK = """
import os, sys, torch, anyfuse
sys.path.insert(0, {tests!r})
import operators
from anyfuse._bits import clone_with_storage
torch.set_num_threads(2)
spec = anyfuse._REGISTRY[{name!r}]
sample = list(spec.samples.edges())[-1]
expected = operators.raw_bytes(operators.run(spec, sample.arguments)[0])
given = clone_with_storage(sample.arguments)
child = os.fork()
if child == 0:  # torch's own operators would hang here: only ours, and plain bytes
    got = operators.raw_bytes(operators.with_changed(spec, spec.function(**given), given))
    os._exit(0 if got == expected else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_operators_work_in_a_forked_child_after_the_parent_used_the_pool(spec: OpSpec) -> None:
    """A thread pool does not survive fork; a child that waits for it would hang."""
    code = FORK.format(tests=str(Path(__file__).parent), name=spec.name)
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


FORK_AFTER_TORCH = """
import os, sys
sys.path.insert(0, {tests!r})
import torch, operators, anyfuse
from anyfuse._bits import clone_with_storage

torch.set_num_threads(2)
spec = anyfuse._REGISTRY[{name!r}]
given = clone_with_storage(list(spec.samples.edges())[-1].arguments)
torch.ones(1 << 20).exp_()  # torch's threads, before anyfuse has used any
child = os.fork()
if child == 0:
    operators.with_changed(spec, spec.function(**given), given)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_operators_work_in_a_forked_child_whose_parent_used_the_pool_through_torch(spec: OpSpec) -> None:
    code = FORK_AFTER_TORCH.format(tests=str(Path(__file__).parent), name=spec.name)
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


SMALL_STACK = """
import sys, threading
sys.path.insert(0, {tests!r})
import torch, operators, anyfuse

torch.set_num_threads(2)
problems = []

def work():
    for spec in anyfuse._REGISTRY.values():
        sample = list(spec.samples.edges())[-1]
        operators.run(spec, sample.arguments)
    problems.append(None)

threading.stack_size(131072)
thread = threading.Thread(target=work)
thread.start()
thread.join()
sys.exit(0 if problems == [None] else 1)
"""


def test_operators_run_on_threads_with_small_stacks() -> None:
    """Python's own frames and torch's need most of 128 KiB; what the kernels need is in tests/c/surroundings.c."""
    code = SMALL_STACK.format(tests=str(Path(__file__).parent))
    environment = {**os.environ, "OMP_STACKSIZE": "64K"}
    assert subprocess.run([sys.executable, "-c", code], timeout=120, env=environment).returncode == 0


def test_unknown_backend_and_convention_are_refused() -> None:
    with (
        pytest.raises(ValueError, match="backend is 'cuda'; accepted: 'auto', 'native', 'reference'"),
        anyfuse.backend("cuda"),
    ):
        pass
