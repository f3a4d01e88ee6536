"""Runs GPU kernels in Triton's interpreter on CPU tensors: `python triton_interpreted.py` with TRITON_INTERPRET=1.

A process of its own, because Triton decides at its import whether kernels are interpreted. It prints one line of JSON
for an operator: its name, how many calls were compared with the CPU's, and the first difference.
"""

from __future__ import annotations

import json
import sys
import traceback
from importlib import import_module
from typing import Any
from unittest import mock

import operators
import torch

import anyfuse
from anyfuse._bits import clone_with_storage
from anyfuse._opspec import OpSpec
from anyfuse.formats import codebook
from anyfuse.ops import _register
from anyfuse.samples.draw import Draw
from anyfuse.samples.kinds import Sample

#: Random calls of each operator; more where there are more options.
DRAWS = {"lazy_adam": 90, "apply_adam_w_quant": 45}

#: Elements that the interpreter takes in a reasonable time: a program of lazy_adam steps few of them.
ELEMENTS = {"lazy_adam": 10_000, "quant_matmul_dequant": 15_000, "quant_grouped_matmul_dequant": 20_000}


def samples(spec: OpSpec) -> list[Sample]:
    drawn = [spec.samples.draw(Draw(seed)) for seed in range(DRAWS.get(spec.name, 32))]
    return [*drawn, *spec.samples.edges()]


def small(spec: OpSpec, arguments: dict[str, Any]) -> bool:
    elements = sum(tensor.numel() for tensor in operators.tensors_of(list(arguments.values())))
    return elements <= ELEMENTS.get(spec.name, 300_000)


def record_of(spec: OpSpec, overload: Any, args: Any) -> Any:
    """The arguments of a call as its record has them, in lists where it was one of one tensor."""
    operator = _register._operators[spec.name]
    return operator._listed(args) if overload is operator.one else args


def compare(spec: OpSpec, sample: Sample) -> str | None:
    """What differs between the CPU's results and the interpreted kernels', in-place arguments and returned tensors."""
    with operators.Recorder() as recorder:
        expected = spec.function(**clone_with_storage(sample.arguments))
    ((overload, args, kwargs),) = recorder.calls
    module = import_module(f"anyfuse.triton.{spec.name}")
    args = record_of(spec, overload, args)
    overload = _register._operators[spec.name].overload
    got = module.run(module.Call(*args, **kwargs))
    if spec.in_place:
        given = dict(zip((argument.name for argument in overload._schema.arguments), args, strict=True))
        got = [given[name] for name in spec.outputs]
    return operators.difference(operators.tensors_of(expected), operators.tensors_of(got))


def run(spec: OpSpec) -> dict[str, Any]:
    count = 0
    for sample in samples(spec):
        if not small(spec, sample.arguments):
            continue
        try:
            problem = compare(spec, sample)
        except Exception:
            problem = traceback.format_exc()
        if problem is not None:
            return {"name": spec.name, "count": count, "problem": f"{sample.label}\n{problem}"}
        count += 1
    return {"name": spec.name, "count": count, "problem": None}


# ---- what samples do not reach ----


def numbers_from_device_tensors() -> None:
    """Steps and learning rates on the device give the numbers that the host computes (here by the same pow)."""
    from anyfuse.triton import apply_adam_w_quant as adam
    from anyfuse.triton import apply_fused_ema_adamw as ema

    def call_at(steps: list[torch.Tensor], convention: str) -> Any:
        lists = [[torch.ones(1)] * len(steps) for _ in range(5)]
        options = (0.1, 0.99, 0.9, 0.999, 1e-8, 1, True, 0.01, convention, None, None, None, False, None)
        return ema.Call(*lists, steps, *options)

    cpu, steps = torch.device("cpu"), [torch.tensor([t]) for t in (1, 2, 7, 1000, 10**6)]
    for convention in ("formula", "device"):

        def both(convention: str = convention) -> list[torch.Tensor]:
            numbers = (0.01, 0.9, 0.999, 0.1, 1e-8, convention, cpu)
            lists = [adam.numbers_of_steps(steps, 5, *numbers), adam.numbers_of_steps(steps[:1], 3, *numbers)]
            return [*lists, ema.corrections(call_at(steps, convention), cpu)]

        expected = both()
        with mock.patch.object(adam, "on_host", lambda _: False), mock.patch.object(ema, "on_host", lambda _: False):
            problem = operators.difference(expected, both())
        assert problem is None, problem
        rate = torch.tensor([0.01], dtype=torch.float64)
        got = adam.numbers_of_steps(steps, 5, rate, 0.9, 0.999, 0.1, 1e-8, convention, cpu)
        assert operators.difference(expected[:1], [got]) is None


def numbers_of_lazy_adam_from_device_tensors() -> None:
    """So do those of `lazy_adam`, which are made of products, quotients and square roots alone."""
    from anyfuse.triton import lazy_adam

    spec = anyfuse._REGISTRY["lazy_adam"]
    drawn = (spec.samples.draw(Draw(seed)) for seed in range(1000, 1100))
    corrected = [
        sample for sample in drawn if sample.arguments.get("bias_correction") and small(spec, sample.arguments)
    ]
    with mock.patch.object(lazy_adam, "on_host", lambda _: False):
        for sample in corrected[:8]:
            assert (problem := compare(spec, sample)) is None, problem
    assert len(corrected) >= 8


def guides_are_proposals() -> None:
    """The usual maps need no search, and a guide of another map, or of none, changes no code."""
    from anyfuse.triton import apply_adam_w_quant as adam

    for kind in codebook.KINDS:
        for signed in (True, False):
            qmap = codebook.create_codebook(kind, signed)
            assert len((qmap.view(torch.int32) >> 16).unique()) == 256  # no two entries share one of a guide
    guide = adam.guide_of(qmap)
    assert adam.guide_of(qmap) is guide
    qmap.mul_(0.5)
    assert not torch.equal(adam.guide_of(qmap), guide)
    spec = anyfuse._REGISTRY["apply_adam_w_quant"]
    drawn = (spec.samples.draw(Draw(seed)) for seed in range(1000, 1100))
    coded = [sample for sample in drawn if small(spec, sample.arguments) and _has_codes(sample)]
    noise = torch.from_numpy(Draw(0).rng.integers(0, 256, adam.GUIDE, dtype="uint8"))
    for guide in (torch.zeros_like(noise), noise, torch.full_like(noise, 255)):
        with mock.patch.object(adam, "guide_of", lambda _, guide=guide: guide):
            for sample in coded[:2]:
                assert (problem := compare(spec, sample)) is None, problem


def _has_codes(sample: Sample) -> bool:
    return any(m.dtype == torch.uint8 and m.numel() for m in operators.tensors_of([sample.arguments["m"]]))


def found_inf_changes_nothing() -> None:
    from anyfuse.triton import apply_fused_ema_adamw as ema

    lists = [[torch.rand(2000)] for _ in range(5)]
    before = clone_with_storage(lists)
    for found, changes in ((1.0, False), (0.0, True)):
        arguments = (0.1, 0.9, 0.9, 0.99, 1e-8, 1, True, 0.1, "formula", None, None, torch.tensor([found]), False, None)
        ema.run(ema.Call(*lists, [torch.tensor([1])], *arguments))
        assert torch.equal(lists[1][0], before[1][0]) is not changes


def refused_ids_are_skipped_and_told() -> None:
    from anyfuse.triton import lazy_adam

    m, v, var = (torch.zeros(3, 4) for _ in range(3))
    for wrong, options in (((3, 99), {}), ((-2, -7), {"refuse_negative": True, "padding_idx": -1})):
        with operators.Recorder() as recorder:
            tables = m.clone(), v.clone(), var.clone()
            anyfuse.lazy_adam_(torch.ones(3, 4), torch.tensor([1, 0, 2]), *tables, 0.1, **options)
        ((overload, args, _),) = recorder.calls
        args = record_of(anyfuse._REGISTRY["lazy_adam"], overload, args)
        state = m.clone(), v.clone(), var.clone()
        call = lazy_adam.Call(*args)._replace(indices=[torch.tensor([1, *wrong])], m=[state[0]], v=[state[1]])
        lazy_adam.run(call._replace(var=[state[2]]))
        assert [bool(row.any()) for row in state[2]] == [False, True, False]
        for told in (True, False):
            try:
                lazy_adam.raise_out_of_range("cpu")
            except IndexError as error:
                assert told and ("negative" in str(error)) == bool(options)
            else:
                assert not told


CHECKS = (
    numbers_from_device_tensors,
    numbers_of_lazy_adam_from_device_tensors,
    guides_are_proposals,
    found_inf_changes_nothing,
    refused_ids_are_skipped_and_told,
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or list(anyfuse._REGISTRY):
        print(json.dumps(run(anyfuse._REGISTRY[name])), flush=True)
    for check in CHECKS:
        check()
