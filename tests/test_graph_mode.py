"""The operators in compiled and exported graphs: one graph for all numbers of rows, without breaks, with equal bits."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import operators
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch.overrides import TorchFunctionMode

import anyfuse
from anyfuse._bits import clone_with_storage
from anyfuse._opspec import OpSpec
from anyfuse.formats import pack_scale_int64
from anyfuse.samples.draw import Draw

COLS, OUT = 32, 40  # a size of 2 would be taken for the number of rows of the first call


def norm_quant(m: int) -> dict[str, Any]:
    return {"x1": torch.randn(m, COLS), "x2": torch.randn(m, COLS), "gamma": torch.rand(COLS), "beta": torch.rand(COLS)}


def matmul(m: int, **changes: Any) -> dict[str, Any]:
    weight = torch.arange(OUT * COLS).remainder(251).sub(125).to(torch.int8).reshape(OUT, COLS)
    return {"x": torch.randn(m, COLS), "weight": weight, "weight_scale": torch.linspace(0.01, 0.1, OUT), **changes}


def packed(m: int) -> dict[str, Any]:
    given = matmul(m)
    weight = anyfuse.pack_weight(given["weight"], given["weight_scale"])
    return {"x": given["x"], "weight": weight}


def int64_scales(m: int) -> dict[str, Any]:
    given = matmul(m, x_scale=torch.tensor([0.05]).half(), quant_mode="pertensor")
    return {**given, "x": given["x"].half(), "weight_scale": pack_scale_int64(given["weight_scale"])}


def codes(m: int) -> dict[str, Any]:
    given = matmul(m, x_scale=torch.rand(m), out_dtype=torch.bfloat16)
    return {**given, "x": given["x"].mul(40).to(torch.int8)}


def grouped(m: int) -> dict[str, Any]:
    """Six groups: no number of rows that is tried. All ends are rows that one row has, too."""
    given = [matmul(m) for _ in range(6)]
    weights = {name: torch.stack([one[name] for one in given]) for name in ("weight", "weight_scale")}
    return {"x": given[0]["x"], **weights, "group_list": torch.tensor([0, 1, 1, 1, 1, 1])}


def grouped_packed(m: int) -> dict[str, Any]:
    given = grouped(m)
    return {**given, "weight": anyfuse.pack_weight(given["weight"], given["weight_scale"]), "weight_scale": None}


def lazy_adam(m: int) -> dict[str, Any]:
    table = {name: torch.rand(11, 8) for name in ("m", "v", "var")}
    return {"gradient": torch.randn(m, 8), "indices": torch.arange(m), **table, "lr": 0.01}


def ema(m: int) -> dict[str, Any]:
    return {name: torch.rand(m, 7) for name in ("grad", "var", "m", "v", "s")} | {"step": torch.tensor([3])}


def adam_quant(m: int) -> dict[str, Any]:
    """Two blocks of 256 a row, so that the number of blocks is symbolic, too."""
    given = {"var": torch.rand(m, 512), "grad": torch.randn(m, 512)}
    given |= {name: torch.randint(0, 256, (m, 512), dtype=torch.uint8) for name in ("m", "v")}
    given |= {"qmap_m": torch.linspace(-1, 1, 256), "qmap_v": torch.linspace(0, 1, 256)}
    given |= {name: torch.rand(2 * m) for name in ("absmax_m", "absmax_v")}
    return {**given, "step": torch.tensor([2]), "lr": 0.01}


CALLS: dict[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
    "add_rms_norm_dynamic_quant": ("add_rms_norm_dynamic_quant", norm_quant),
    "matmul": ("quant_matmul_dequant", matmul),
    "matmul, PackedWeight": ("quant_matmul_dequant", packed),
    "matmul, int64 scales": ("quant_matmul_dequant", int64_scales),
    "matmul, int8 rows": ("quant_matmul_dequant", codes),
    "grouped matmul": ("quant_grouped_matmul_dequant", grouped),
    "grouped matmul, PackedWeight": ("quant_grouped_matmul_dequant", grouped_packed),
    "lazy_adam": ("lazy_adam", lazy_adam),
    "apply_fused_ema_adamw": ("apply_fused_ema_adamw", ema),
    "apply_adam_w_quant": ("apply_adam_w_quant", adam_quant),
}


def test_every_operator_is_tried() -> None:
    assert {name for name, _ in CALLS.values()} == anyfuse._REGISTRY.keys()


@pytest.mark.parametrize("name", CALLS)
def test_case_q46_one_graph_for_all_numbers_of_rows_but_one(name: str) -> None:
    spec, make = anyfuse._REGISTRY[CALLS[name][0]], CALLS[name][1]
    torch._dynamo.reset()

    def call(given: dict[str, Any]) -> Any:
        return spec.function(**given)

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for m in (2, 4, 5, 1, 3):
        arguments = make(m)
        expected, _ = operators.run(spec, arguments)
        given = clone_with_storage(arguments)
        got = operators.with_changed(spec, compiled(given), given)
        assert (problem := operators.difference(expected, got)) is None, f"m = {m}: {problem}"
    variants = _debug_get_cache_entry_list(call.__code__)
    assert len(variants) <= 2, "one graph, and one more for m = 1"


class Call(nn.Module):
    """An operator with its weights and attributes inside and its tensors of rows as inputs."""

    def __init__(self, spec: OpSpec, fixed: dict[str, Any], names: list[str]) -> None:
        super().__init__()
        self.spec, self.fixed, self.names = spec, fixed, names

    def forward(self, *rows: Tensor) -> Any:
        return self.spec.function(**self.fixed, **dict(zip(self.names, rows, strict=True)))


def saved_and_loaded(program: torch.export.ExportedProgram) -> nn.Module:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()


@pytest.mark.parametrize("name", [name for name, (spec, _) in CALLS.items() if not anyfuse._REGISTRY[spec].in_place])
def test_exported_saved_and_loaded_it_gives_the_same_bits(name: str) -> None:
    spec, make = anyfuse._REGISTRY[CALLS[name][0]], CALLS[name][1]
    first = make(3)
    rows = {key: value for key, value in first.items() if isinstance(value, Tensor) and value.shape[:1] == (3,)}
    fixed = {key: value for key, value in first.items() if key not in rows}
    batch = torch.export.Dim("m", min=1, max=1000)
    dims = {"rows": tuple({0: batch} for _ in rows)}
    loaded = saved_and_loaded(
        torch.export.export(Call(spec, fixed, list(rows)), tuple(rows.values()), dynamic_shapes=dims)
    )
    for m in (3, 1, 7):
        fresh = make(m)
        given = {key: fresh[key] for key in rows}
        expected = operators.tensors_of(spec.function(**fixed, **given))
        assert operators.difference(expected, operators.tensors_of(loaded(*given.values()))) is None


def test_exported_steps_of_the_optimizers_write_their_arguments() -> None:
    """Export makes functions of in-place operators; its module puts back what they write."""
    for name in ("lazy_adam", "apply_fused_ema_adamw", "apply_adam_w_quant"):
        spec, make = anyfuse._REGISTRY[name], CALLS[name][1]
        arguments = make(3)
        rows = {key: value for key, value in arguments.items() if isinstance(value, Tensor)}
        fixed = {key: value for key, value in arguments.items() if key not in rows}
        expected, _ = operators.run(spec, arguments)
        given = clone_with_storage(rows)
        loaded = saved_and_loaded(torch.export.export(Call(spec, fixed, list(rows)), tuple(rows.values())))
        got = operators.with_changed(spec, loaded(*given.values()), given)
        assert (problem := operators.difference(expected, got)) is None, f"{name}: {problem}"
        assert all(operators.same_bits(given[key], value) for key, value in zip(spec.outputs, got, strict=False))


def test_inductor_keeps_all_operators_in_one_graph() -> None:
    """Compiling C++ takes seconds, so that one graph holds all of them."""
    chosen = [name for name in CALLS if name != "matmul"]

    def model(given: dict[str, dict[str, Any]]) -> list[Any]:
        return [anyfuse._REGISTRY[CALLS[name][0]].function(**given[name]) for name in chosen]

    arguments = {name: CALLS[name][1](3) for name in chosen}
    plain = {name: clone_with_storage(value) for name, value in arguments.items()}
    given = {name: clone_with_storage(value) for name, value in arguments.items()}
    expected = operators.tensors_of(model(plain))
    torch._dynamo.reset()
    got = operators.tensors_of(torch.compile(model, fullgraph=True, dynamic=True)(given))
    assert operators.difference(expected, got) is None
    for name in chosen:
        written = zip(plain[name].values(), given[name].values(), strict=True)
        assert all(operators.same_bits(a, b) for a, b in written if isinstance(a, Tensor))


def test_fakes_take_symbolic_shapes() -> None:
    """Random calls, whose sizes are all symbols, in one trace each."""
    for spec in anyfuse._REGISTRY.values():
        for seed in range(3):
            given = clone_with_storage(spec.samples.draw(Draw(seed)).arguments)
            expected, _ = operators.run(spec, given)
            torch._dynamo.reset()
            compiled = torch.compile(
                lambda given, spec=spec: spec.function(**given), fullgraph=True, dynamic=True, backend="eager"
            )
            got = operators.with_changed(spec, compiled(given), given)
            assert (problem := operators.difference(expected, got)) is None, f"{spec.name}, seed {seed}: {problem}"


# ---- the native door ----


def step_arguments(overload: str) -> tuple[Any, ...]:
    tensors = [torch.rand(4, 3) for _ in range(5)]
    lists = [[t] for t in tensors] if overload == "default" else tensors
    step = torch.tensor([2])
    numbers = 0.01, 0.9, 0.9, 0.99, 1e-8, 1, True, 0.0, "formula"
    return (
        *lists,
        [step] if overload == "default" else step,
        *numbers,
        None,
        None,
        None,
        False,
        None,
        None,
        None,
        None,
    )


def step(overload: str) -> Any:
    return getattr(torch.ops.anyfuse.apply_fused_ema_adamw_, overload)


def norm(x1: Tensor, x2: Tensor | None, gamma: Tensor) -> Any:
    return torch.ops.anyfuse.add_rms_norm_dynamic_quant.default(
        x1, x2, gamma, None, None, None, 1e-6, True, False, "int8", "formula"
    )


@pytest.mark.parametrize("overload", ["default", "one"])
def test_both_overloads_are_proper_operators(overload: str) -> None:
    torch.library.opcheck(step(overload), step_arguments(overload))


def test_who_bumps_version_counters() -> None:
    """The public function does, and a compiled graph does by itself; direct callers of torch.ops do it themselves."""
    var = torch.rand(3)
    rest = [torch.rand(3) for _ in range(4)]
    before = var._version
    anyfuse.apply_fused_ema_adamw_(rest[0], var, *rest[1:], step=1)
    assert var._version == before + 1
    arguments = step_arguments("one")
    before = arguments[1]._version
    step("one")(*arguments)
    assert arguments[1]._version == before
    torch._dynamo.reset()
    compiled = torch.compile(lambda *given: step("one")(*given), fullgraph=True, backend="aot_eager")
    compiled(*arguments)
    assert arguments[1]._version > before


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_graph_refuses_values_with_the_operators_text(backend: str) -> None:
    shared = torch.rand(6)
    lists = [[torch.rand(6)], [shared], [shared], [torch.rand(6)], [torch.rand(6)]]

    def call(lists: list[list[Tensor]]) -> None:
        step("default")(*lists, *step_arguments("default")[5:])

    torch._dynamo.reset()
    with pytest.raises((RuntimeError, ValueError), match=r"(m|var) shares memory with (m|var)"):
        torch.compile(call, backend=backend)(lists)
    assert torch.equal(lists[1][0], lists[2][0])


def test_fake_and_meta_tensors_have_shapes_alone() -> None:
    x = torch.empty(5, 8, device="meta")
    codes, _, total, scale, _ = norm(x, x, torch.empty(8, device="meta"))
    assert (codes.shape, codes.dtype, total.shape, scale.shape) == ((5, 8), torch.int8, (5, 8), (5,))
    with torch._subclasses.FakeTensorMode():
        x = torch.empty(5, 8)
        assert norm(x, None, torch.empty(8))[2].shape == (0,)


def test_functionalize_gives_the_same_bits() -> None:
    """Of operators that return; torch functionalizes no other custom operator that writes outside of its compiler."""
    given = torch.rand(2, 8), torch.rand(2, 8), torch.rand(8)
    for got, expected in zip(torch.func.functionalize(norm)(*given), norm(*given), strict=True):
        assert torch.equal(got, expected)


def test_gradients_of_the_sum_pass_in_func_grad() -> None:
    x, other, gamma = torch.rand(2, 8), torch.rand(2, 8), torch.rand(8)
    gradient = torch.func.grad(lambda x: (anyfuse.add_rms_norm_dynamic_quant(x, other, gamma)[2] ** 2).sum())
    torch.testing.assert_close(gradient(x), 2 * (x + other))


def test_profilers_and_function_modes_see_direct_calls() -> None:
    class Names(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    names: list[str] = []
    x = torch.rand(2, 8)
    with Names():
        norm(x, x, torch.rand(8))
    assert "anyfuse.add_rms_norm_dynamic_quant.default" in names
    with torch.autograd.profiler.profile() as profile:
        norm(x, x, torch.rand(8))
    assert any("add_rms_norm_dynamic_quant" in event.name for event in profile.function_events)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the resident set is read from /proc")
def test_12000_refused_and_general_calls_keep_no_memory() -> None:
    """50 bytes for each string that leaks would be 1 MiB and more here."""
    x, gamma = torch.rand(2, 8), torch.rand(8)

    def calls(count: int) -> None:
        for _ in range(count):
            with contextlib.suppress(ValueError):
                norm(x, x, gamma[:4])
            norm(x.t().contiguous().t(), None, gamma)

    calls(2000)
    before = resident()
    calls(6000)
    assert resident() - before < 1 << 19
