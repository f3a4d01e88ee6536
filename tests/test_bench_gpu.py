"""The GPU benchmark without a GPU: its cases and its comparison run on the CPU, and it says when there is no GPU."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

import anyfuse
from anyfuse._opspec import OpSpec
from anyfuse._sampling import Draw
from anyfuse.bench import gpu

CPU = torch.device("cpu")


def clock(call: gpu.Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_it_says_that_there_is_no_gpu(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--quick", "--output", str(tmp_path)]) == 2
    assert "No GPU here" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_equality_counts_samples_and_names_the_first_difference(spec: OpSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    result = gpu.equality(spec, CPU, draws=6, seconds=1.0)
    assert result["compared"] == result["equal"] > 0
    monkeypatch.setattr(gpu, "same_bits", lambda a, b: False)
    result = gpu.equality(spec, CPU, draws=1, seconds=60.0)
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
    for work in gpu.works(CPU, small=True):
        work.peers.pop("torch.compile of the formula", None)  # takes seconds to compile, and runs in `test_bench.py`
        results.append(gpu.speed(work, 1e9, clock))
    assert {result["operator"] for result in results} == set(anyfuse._REGISTRY)
    statuses = {peer["name"]: peer["status"] for result in results for peer in result["peers"]}
    for name in ("torch AdamW(fused) + lerp", "torch SparseAdam", "torch._int_mm alone", "F.linear bf16"):
        assert statuses[name] == "ran"
    report = {
        "date": "2026-01-01",
        "machine": {"gpu": "a GPU", "runtime": "CUDA 0", "versions": {"torch": "0", "bitsandbytes": None}},
        "copy_gb_per_s": 1.0,
        "equality": [{"operator": "one", "compared": 3, "equal": 2, "first_difference": "a sample"}],
        "speed": results,
    }
    page = gpu.markdown(json.loads(json.dumps(report)))
    assert "| one | 3 | 2 | a sample |" in page
    assert all(result["case"] in page for result in results)


def test_a_failing_peer_is_named_with_its_reason() -> None:
    def broken() -> gpu.Call:
        raise ModuleNotFoundError("No module named 'peer'")

    work = gpu.Work("op", "case", lambda: None, bytes=8, peers={"peer": broken})
    result = gpu.speed(work, None, clock)
    assert result["peers"] == [
        {"name": "peer", "seconds": None, "times_ours": None, "status": "ModuleNotFoundError: No module named 'peer'"}
    ]
    assert result["of_copy"] is None and result["gb_per_s"] > 0
