"""The GPU benchmark without a GPU: its cases and its comparison run on the CPU, and it says when there is no GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import anyfuse
from anyfuse._opspec import OpSpec
from anyfuse.bench import gpu
from anyfuse.samples.draw import Draw

CPU = torch.device("cpu")


def test_it_says_that_there_is_no_gpu(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--quick", "--output", str(tmp_path)]) == 2
    assert "No GPU here" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_equality_counts_samples_and_names_the_first_difference(spec: OpSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, result = gpu.equality(spec, CPU, draws=6, seconds=0.3)
    assert result["compared"] == result["equal"] > 0
    monkeypatch.setattr(gpu, "same_bits", lambda a, b: False)
    *_, result = gpu.equality(spec, CPU, draws=1, seconds=0.3)
    assert result["equal"] < result["compared"] and result["first_difference"] is not None


def test_a_copy_keeps_views(spec: OpSpec) -> None:
    arguments = spec.samples.draw(Draw(2)).arguments
    copied = gpu.to_device(arguments, CPU)
    for old, new in zip(gpu.tensors_of(list(arguments.values())), gpu.tensors_of(list(copied.values())), strict=True):
        assert old.stride() == new.stride() and old.storage_offset() == new.storage_offset()
        assert old.numel() == 0 or old.data_ptr() != new.data_ptr()
        assert gpu.same_bits(old, new)


def test_every_case_runs_and_fills_the_report() -> None:
    results = []
    for _, make in gpu.cases(CPU, small=True):
        work = make()
        work.peers.pop("torch.compile of the formula", None)  # takes seconds to compile, and runs in `test_bench.py`
        results += gpu.latest(list(gpu.speed(work, 1e9, gpu.once, gpu.once)))
    assert {result["operator"] for result in results} == set(anyfuse._REGISTRY)
    statuses = {peer["name"]: peer["status"] for result in results for peer in result["peers"]}
    for name in ("torch AdamW(fused) + lerp", "torch SparseAdam", "torch._int_mm alone", "F.linear bf16"):
        assert statuses[name] == "ran"
    report = {
        "date": "2026-01-01",
        "machine": gpu.machine(CPU),
        "copy_gb_per_s": 1.0,
        "equality": [{"operator": "one", "compared": 3, "equal": 2, "first_difference": "a sample"}],
        "speed": results,
        "parts": {"equality one": "complete", "speed one": "ended with -11: Segmentation fault"},
    }
    page = gpu.markdown(json.loads(json.dumps(report)))
    assert "| one | 3 | 2 | a sample |" in page
    assert all(result["case"] in page for result in results)
    assert "- speed one: ended with -11: Segmentation fault" in page and "- equality one" not in page


def test_a_failing_peer_is_named_with_its_reason() -> None:
    def broken() -> gpu.Call:
        raise ModuleNotFoundError("No module named 'peer'")

    work = gpu.Work("op", "case", lambda: None, bytes=8, peers={"peer": broken})
    *_, result = gpu.speed(work, None, gpu.once, gpu.once)
    (peer,) = result["peers"]
    assert peer["status"] == "ModuleNotFoundError: No module named 'peer'"
    assert peer["eager_seconds"] is peer["graph_seconds"] is peer["times_ours"] is None
    assert result["of_copy"] is None and result["gb_per_s"] > 0


def test_what_cannot_be_captured_is_compared_from_python() -> None:
    """Ours in a graph and a peer that is not: the peer is compared with ours from Python, and rates are a graph's."""

    def capture(call: gpu.Call) -> float:
        if call is peer:
            raise RuntimeError("operation not permitted when stream is capturing")
        return 0.5

    def peer() -> None:
        pass

    work = gpu.Work("op", "case", lambda: None, bytes=8, peers={"one": lambda: peer, "two": lambda: lambda: None})
    *_, result = gpu.speed(work, 32.0, lambda call: 4.0 if call is peer else 2.0, capture)
    assert result["seconds"] == 0.5 and result["eager_seconds"] == 2.0 and result["of_copy"] == 0.5
    one, two = result["peers"]
    assert one["times_ours"] == 2.0 and one["graph"].startswith("RuntimeError: operation not permitted")
    assert two["times_ours"] == 1.0 and two["graph"] == "ran"


def test_a_failing_case_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory() -> gpu.Work:
        raise torch.OutOfMemoryError("out of memory")

    fine = gpu.Work("op", "fine", lambda: None, bytes=8)
    monkeypatch.setattr(
        gpu, "cases", lambda device, small: [("op", no_memory), ("other", no_memory), ("op", lambda: fine)]
    )
    failed, *_, ran = gpu.results_of(gpu.Part("speed", "op", 9.0, device="cpu"), None, gpu.once, gpu.once)
    assert failed["failed"] == "OutOfMemoryError: out of memory" and ran["case"] == "fine"


PARTS_THAT_GO_WRONG = """
import sys, time
print('{"operator": "one", "compared": 1}', flush=True)
print('{"operator": "one", "compared": 2}', flush=True)
print('{"oper', end="", flush=True)
time.sleep(60) if sys.argv[1] == "hang" else sys.exit("CUDA error: an illegal memory access")
"""


@pytest.mark.parametrize(("how", "status"), [("hang", "stopped after 1 s"), ("exit", "ended with 1: CUDA error")])
def test_a_part_that_goes_wrong_leaves_what_it_had_found(
    how: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = subprocess.run
    command = [sys.executable, "-c", PARTS_THAT_GO_WRONG, how]
    monkeypatch.setattr(subprocess, "run", lambda given, **options: run(command, **options))
    results, ended = gpu.run(gpu.Part("equality", "one", 1.0 if how == "hang" else 60.0), None)
    assert gpu.latest(results) == [{"operator": "one", "compared": 2}]
    assert ended.startswith(status)


def test_the_report_is_kept_after_each_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The whole flow with the parts in this process; one of them does not end."""

    def run(part: gpu.Part, copies: float | None) -> tuple[list[dict[str, Any]], str]:
        assert part.seconds <= (100.0 if part.kind == "equality" else 450.0)
        part = replace(part, draws=2, device="cpu", seconds=0.2)
        results = list(gpu.results_of(part, copies, gpu.once, gpu.once)) if part.kind != "speed" else [FIGURES]
        return results, "complete" if part.name != "equality lazy_adam" else "stopped after 9 s"

    monkeypatch.setattr(gpu, "run", run)
    pages: list[str] = []
    report = gpu.measured(True, "cpu", lambda report: pages.append(gpu.markdown(report)))
    assert len(pages) == 1 + 2 * len(anyfuse._REGISTRY)
    assert {row["operator"] for row in report["equality"]} == set(anyfuse._REGISTRY)
    assert all(row["compared"] == row["equal"] > 0 for row in report["equality"])
    assert "- equality lazy_adam: stopped after 9 s" in pages[-1] and not gpu.all_is_well(report)
    report["parts"]["equality lazy_adam"] = "complete"
    assert gpu.all_is_well(report)
    report["equality"][0]["equal"] -= 1
    assert not gpu.all_is_well(report)


FIGURES = {
    "operator": "op", "case": "a case", "seconds": 1e-3, "eager_seconds": 2e-3, "gb_per_s": None, "of_copy": None,
    "tera_operations_per_s": 2.0, "peers": [],
}  # fmt: skip
