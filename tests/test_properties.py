"""Properties that hold for every operator and every input, valid or not, looked for by hypothesis.

Ordinary runs try the same inputs each time; `longer.py` says how to try more. What fails is printed in a form that
repeats it (`@reproduce_failure`), each example with `--hypothesis-verbosity=verbose`, and how many calls were refused
with `--hypothesis-show-statistics`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import operators
import pytest
import torch
from hypothesis import event, given, note
from hypothesis import strategies as st
from longer import search
from torch import Tensor

import anyfuse
from anyfuse import _core
from anyfuse._bits import clone_with_storage, same_bits, storage_bytes
from anyfuse._opspec import OpSpec
from anyfuse.samples.draw import Draw

SPECS = list(anyfuse._REGISTRY.values())

SEEDS = st.integers(0, 2**63 - 1)
TARGETS = st.sampled_from(_core.available_targets())
THREADS = st.integers(1, 8)
ODD_NUMBERS = (math.nan, math.inf, -math.inf, 0.0, -0.0, -1.0, 5e-324, 1e-45, 1e300, -1e300, 1.0)
ODD_INTEGERS = (0, -1, 1, 2, 255, 2**31, -(2**31) - 1, 2**62, -(2**63), 2**63, 10**400)


def outcome(spec: OpSpec, arguments: dict[str, Any], backend: str) -> tuple[Any, dict[str, Any]]:
    """The tensors of a call, or its exception; and the arguments it was given."""
    given = clone_with_storage(arguments)
    try:
        with anyfuse.backend(backend):
            return operators.with_changed(spec, spec.function(**given), given), given
    except (TypeError, ValueError, IndexError) as error:
        return error, given


def whole_memory_equal(before: dict[str, Any], after: dict[str, Any]) -> bool:
    pairs = zip(operators.tensors_of(list(before.values())), operators.tensors_of(list(after.values())), strict=True)
    return all(torch.equal(storage_bytes(old), storage_bytes(new)) for old, new in pairs)


def names_an_argument(spec: OpSpec, error: Exception) -> bool:
    return any(name in str(error) for name in inspect.signature(spec.function).parameters)


def native_equals_reference(spec: OpSpec, arguments: dict[str, Any], target: str, threads: int) -> bool:
    """Both give the same bits and keep to their memory, or both refuse with one message and write nothing. True where
    the call was accepted."""
    before = torch.get_num_threads()
    expected, _ = outcome(spec, arguments, "reference")
    torch.set_num_threads(threads)
    try:
        with _core.target(target):
            got, given = outcome(spec, arguments, "native")
    finally:
        torch.set_num_threads(before)
    if isinstance(got, Exception) or isinstance(expected, Exception):
        assert (type(got), str(got)) == (type(expected), str(expected)), f"native {got!r}, reference {expected!r}"
        assert names_an_argument(spec, got), repr(got)
        assert whole_memory_equal(arguments, given), f"written before {got!r}"
        return False
    assert (problem := operators.difference(expected, got)) is None, problem
    assert (changed := operators.memory_outside_views_changed(spec, arguments, given)) is None, changed
    return True


@pytest.mark.parametrize("name", [spec.name for spec in SPECS])
@search(80)
@given(seed=SEEDS, target=TARGETS, threads=THREADS)
def test_valid_calls(name: str, seed: int, target: str, threads: int) -> None:
    spec = anyfuse._REGISTRY[name]
    sample = spec.samples.draw(Draw(seed))
    note(sample.label)
    assert native_equals_reference(spec, sample.arguments, target, threads)


# ---- one thing changed ----


def odd_attribute(spec: OpSpec, arguments: dict[str, Any], draw: Draw) -> str | None:
    """Gives one number of a call an odd value."""
    names = [name for name, value in arguments.items() if type(value) in (int, float)]
    if not names:
        return None
    name = draw.choice(names)
    arguments[name] = draw.choice(ODD_NUMBERS if isinstance(arguments[name], float) else ODD_INTEGERS)
    return f"{name}={arguments[name]!r:.30}"


RESHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "flat": lambda t: t.reshape(-1),
    "row": lambda t: t.unsqueeze(0),
    "column": lambda t: t.unsqueeze(-1),
    "12 dimensions": lambda t: t.reshape((1,) * (12 - t.dim()) + tuple(t.shape)),
    "rank 0": lambda t: t.new_zeros(()),
    "empty": lambda t: t.new_zeros((0, 5, 0)),
    "transposed": lambda t: t.transpose(0, -1) if t.dim() else t,
    "one more": lambda t: t.new_zeros([size + 1 for size in t.shape]),
    "halved": lambda t: t[..., ::2] if t.dim() else t,
    "expanded": lambda t: t.new_zeros((1,) * t.dim()).expand(t.shape),
    "windows": lambda t: t.new_zeros(t.numel() + 1).unfold(0, 1, 1)[: t.numel()].reshape(t.shape) if t.numel() else t,
}


def reshaped(spec: OpSpec, arguments: dict[str, Any], draw: Draw) -> str:
    """Gives one tensor, or all tensors of one shape, another shape or layout."""
    name = draw.choice([name for name, value in arguments.items() if operators.tensors_of(value)])
    change = draw.choice(list(RESHAPES))
    like = operators.tensors_of(arguments[name])[0].shape
    together = draw.chance(0.5)
    for other, value in arguments.items():
        tensors = operators.tensors_of(value)
        if other == name or (together and tensors and tensors[0].shape == like):
            changed = [RESHAPES[change](tensors[0]), *tensors[1:]]
            arguments[other] = changed[0] if isinstance(value, Tensor) else changed
    return f"{change} {name}{' and all of its shape' if together else ''}"


def retyped(spec: OpSpec, arguments: dict[str, Any], draw: Draw) -> str:
    """Gives one tensor another dtype."""
    name = draw.choice([name for name, value in arguments.items() if operators.tensors_of(value)])
    dtype = draw.choice((torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8,
                         torch.int32, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn))  # fmt: skip
    tensors = operators.tensors_of(arguments[name])
    changed = [torch.zeros(tensors[0].shape, dtype=dtype), *tensors[1:]]
    arguments[name] = changed[0] if isinstance(arguments[name], Tensor) else changed
    return f"{name} of {dtype}"


def specials(spec: OpSpec, arguments: dict[str, Any], draw: Draw) -> str:
    """Puts infinities, NaN, zeros and extremes into a float tensor, or extremes into one of integers."""
    name = draw.choice([name for name, value in arguments.items() if operators.tensors_of(value)])
    tensor = draw.choice(operators.tensors_of(arguments[name]))
    flat = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    if tensor.is_floating_point():
        draw.special(flat)
    elif flat.numel():
        extremes = (0, 1)
        if tensor.dtype != torch.bool:
            info = torch.iinfo(tensor.dtype)
            extremes = (info.min, info.max, 0, 1)
        flat[draw.integer(0, flat.numel())] = draw.choice(extremes)
    return f"specials in {name}"


CHANGES = {"attribute": odd_attribute, "shape": reshaped, "dtype": retyped, "values": specials}


@pytest.mark.parametrize("name", [spec.name for spec in SPECS])
@search(80)
@given(seed=SEEDS, change=st.sampled_from(list(CHANGES)), target=TARGETS, threads=THREADS)
def test_calls_with_one_thing_changed(name: str, seed: int, change: str, target: str, threads: int) -> None:
    """They may still be valid. Either way native and reference agree."""
    spec = anyfuse._REGISTRY[name]
    draw = Draw(seed)
    arguments = dict(spec.samples.draw(draw).arguments)
    if "assume_unique" in arguments:
        arguments["assume_unique"] = False  # a promise that the change may break
    note(str(CHANGES[change](spec, arguments, draw)))
    accepted = native_equals_reference(spec, arguments, target, threads)
    event(f"{change}: {'accepted' if accepted else 'refused'}")


# ---- arguments of a wrong kind ----


def wrong_values(like: Tensor | None) -> Iterator[tuple[str, Any]]:
    yield from {
        "a string": "abc",
        "bytes": b"x",
        "an array": np.ones(3),
        "a nested list": [[torch.ones(2)]],
        "a list with None": [torch.ones(2), None],
        "an empty list": [],
        "a dict": {},
        "an object": object(),
        "a dtype": torch.float64,
        "a complex number": 1j,
        "10^400": 10**400,
    }.items()
    if like is None:
        yield "a complex tensor", torch.zeros(3, 4, dtype=torch.complex64)
    else:
        yield from wrong_tensors(like)


def wrong_tensors(like: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Tensors of the right shape that a kernel cannot read as they lie."""
    plain = torch.zeros(like.shape, dtype=like.dtype)
    yield "complex", torch.zeros(like.shape, dtype=torch.complex64)
    yield "a conjugate", torch.zeros(like.shape, dtype=torch.complex64).conj()
    yield "quantized", torch.quantize_per_tensor(torch.zeros(like.shape), 0.1, 0, torch.qint8)
    yield "nested", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    if like.dim() > 0:
        yield "sparse", plain.to_sparse()
    if like.numel() > 0:
        yield "meta", torch.empty(like.shape, dtype=like.dtype, device="meta")
    if like.numel() > 1:
        released = plain.clone()
        released.untyped_storage().resize_(0)
        yield "released", released


#: What an argument accepts although it is odd: a truth value (as torch takes one).
ACCEPTED_ODDITIES = {("a complex number", bool), ("10^400", bool)}


def samples_with_many_elements(spec: OpSpec) -> Iterator[dict[str, Any]]:
    """A call with tensors and, where the operator takes them, one with lists."""
    seen = set()
    for seed in range(400):
        arguments = spec.samples.draw(Draw(seed)).arguments
        kinds = any(isinstance(value, list) for value in arguments.values())
        sizes = [tensors[0].numel() for value in arguments.values() if (tensors := operators.tensors_of(value))]
        if kinds not in seen and max(sizes) > 8 and min(sizes) > 0:
            seen.add(kinds)
            yield arguments


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_arguments_of_a_wrong_kind_are_refused_by_name(spec: OpSpec, backend: str) -> None:
    """TypeError, ValueError or IndexError with the argument's name, and nothing written: no error of torch's dispatcher
    comes through, and no call is taken to another device, where it would do nothing."""
    for arguments in samples_with_many_elements(spec):
        for name, parameter in inspect.signature(spec.function).parameters.items():
            value = arguments.get(name, parameter.default)
            tensors = operators.tensors_of(value)
            for label, wrong in wrong_values(tensors[0] if tensors else None):
                if (label, type(value)) in ACCEPTED_ODDITIES:
                    continue
                bad = [wrong, *value[1:]] if isinstance(value, list) and isinstance(wrong, Tensor) else wrong
                rest = {key: item for key, item in arguments.items() if key != name}
                given = clone_with_storage(rest)
                try:
                    with anyfuse.backend(backend):
                        spec.function(**given, **{name: bad})
                except (TypeError, ValueError, IndexError) as error:
                    assert name in str(error), f"{name} is {label}: {error!r}"
                else:
                    pytest.fail(f"accepted: {name} is {label}")
                assert whole_memory_equal(rest, given), f"{name} is {label}: written before the error"


def test_a_lazily_negated_tensor_works_or_is_refused_by_name(spec: OpSpec) -> None:
    """torch keeps the sign of such a view beside its memory."""
    arguments = next(samples_with_many_elements(spec))
    for name, value in arguments.items():
        if not isinstance(value, Tensor) or not value.dtype.is_floating_point:
            continue
        given = clone_with_storage(arguments)
        expected = clone_with_storage(arguments)
        given[name] = torch._neg_view(given[name])
        expected[name] = -expected[name]
        try:
            got = spec.function(**given)
        except (TypeError, ValueError) as error:
            assert name in str(error)
        else:
            wanted = operators.tensors_of(spec.function(**expected))
            assert all(map(same_bits, wanted, (t.resolve_neg() for t in operators.tensors_of(got)))), name


def test_vmap_over_an_operator_that_writes_is_refused_by_name(spec: OpSpec) -> None:
    """It has no memory of one call to write to."""
    if not spec.in_place:
        return
    arguments = next(a for a in samples_with_many_elements(spec) if isinstance(a["var"], Tensor))
    named = [name for name, value in arguments.items() if isinstance(value, Tensor) and value.numel() > 1]
    given = {name: torch.stack([arguments[name]] * 2) for name in named}
    with pytest.raises(TypeError, match=f"({'|'.join(named)}) is a tensor that torch.func.vmap"):
        torch.func.vmap(lambda changed: spec.function(**{**arguments, **changed}))(given)


#: Calls whose tensors have one element, where torch lets them lie on several devices.
ONE_ELEMENT: dict[str, dict[str, Any]] = {
    "add_rms_norm_dynamic_quant": {"x1": torch.ones(1, 1), "x2": torch.ones(1, 1), "gamma": torch.ones(1)},
    "apply_adam_w_quant": {
        "var": torch.ones(1), "grad": torch.ones(1), "m": torch.zeros(1), "v": torch.zeros(1),
        "qmap_m": torch.linspace(-1, 1, 256), "qmap_v": torch.linspace(0, 1, 256),
        "absmax_m": torch.zeros(0), "absmax_v": torch.zeros(0), "step": 1, "lr": 0.1,
    },
    "apply_fused_ema_adamw": {**{name: torch.ones(1) for name in ("grad", "var", "m", "v", "s")}, "step": 1},
    "lazy_adam": {
        "gradient": torch.ones(1, 1), "indices": torch.tensor([0]),
        **{name: torch.ones(1, 1) for name in ("m", "v", "var")}, "lr": torch.tensor(0.1),
    },
    "quant_grouped_matmul_dequant": {
        "x": torch.ones(1, 1), "weight": torch.ones(1, 1, 1, dtype=torch.int8),
        "weight_scale": torch.ones(1, 1), "group_list": torch.tensor([1]),
    },
    "quant_matmul_dequant": {
        "x": torch.ones(1, 1), "weight": torch.ones(1, 1, dtype=torch.int8), "weight_scale": torch.ones(1),
    },
}  # fmt: skip


def test_one_element_on_meta_among_others_is_refused(spec: OpSpec) -> None:
    """Instead of a call of the shapes alone, whose results would be memory of no values."""
    arguments = ONE_ELEMENT[spec.name]
    spec.function(**clone_with_storage(arguments))
    names = [name for name, value in arguments.items() if isinstance(value, Tensor) and value.numel() == 1]
    for name in names[1:]:
        given = clone_with_storage(arguments)
        with pytest.raises(ValueError, match="lies on"):
            spec.function(**{**given, name: torch.empty_like(given[name], device="meta")})
        assert whole_memory_equal(arguments, given)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_grad_scale_of_zero_is_refused(spec: OpSpec, backend: str) -> None:
    """0 stands for "none" in the C API, and divides in the reference."""
    arguments = next(samples_with_many_elements(spec))
    if "grad_scale" not in inspect.signature(spec.function).parameters:
        return
    given = clone_with_storage(arguments)
    changed = {"grad_scale": torch.zeros(1), "found_inf": None}
    with anyfuse.backend(backend), pytest.raises(ValueError, match="grad_scale holds 0"):
        spec.function(**{**given, **changed})
    assert whole_memory_equal(arguments, given)
