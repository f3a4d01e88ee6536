"""The operators on this machine's GPU: `python -m anyfuse.bench.gpu --quick`, alone and offline.

First equality: the registry's samples, options and all, on the GPU and on the CPU; the operators side by side, since
most of the time goes into compiling. Then speed, one after the other: each operator and what one could use instead, in
time, in bytes or operations a second, and against this GPU's copy bandwidth. A peer that is not installed, or that
fails, is named with the reason.

Times are those of a call in a CUDA graph, where the host costs nothing, and of a call from Python beside it; where a
call cannot be captured, the latter stands for both. Rates, and ratios to peers, are of the former where both have it.

Every part is a process of its own with a limit of time, so that one that crashes, hangs or spoils its CUDA context
costs the others nothing; what it had found by then is kept. `--quick` is over after 7.5 minutes, whatever happens, and
`--seconds` is another limit. The report is one JSON file and one Markdown table, written again after each part.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import __version__
from .._bits import clone_with_storage, same_bits
from .._checks import dtype_name
from .._opspec import REGISTRY, OpSpec
from .._saving import write_file
from ..ops.add_rms_norm_dynamic_quant import add_rms_norm_dynamic_quant
from ..ops.apply_adam_w_quant import apply_adam_w_quant_
from ..ops.apply_fused_ema_adamw import apply_fused_ema_adamw_
from ..ops.lazy_adam import lazy_adam_
from ..ops.quant_grouped_matmul_dequant import quant_grouped_matmul_dequant
from ..ops.quant_matmul_dequant import quant_matmul_dequant
from ..samples.draw import Draw
from ..samples.kinds import Sample
from . import add_rms_norm_dynamic_quant as norm_bench
from . import apply_adam_w_quant as adam8_bench
from . import quant_grouped_matmul_dequant as grouped_bench
from . import quant_matmul_dequant as matmul_bench

SCHEMA_NAME = "anyfuse-bench-gpu/3"

Call = Callable[[], object]
Clock = Callable[[Call], float]


# ---- equality ----


def to_device(value: Any, device: torch.device, storages: dict[int, torch.UntypedStorage] | None = None) -> Any:
    """A copy on another device that keeps strides, offsets and what lies around a view."""
    storages = {} if storages is None else storages
    if isinstance(value, dict):
        return {name: to_device(item, device, storages) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(to_device(item, device, storages) for item in value)
    if not isinstance(value, Tensor):
        return value.to(device) if hasattr(value, "state_tensors") else value
    storage = value.untyped_storage()
    key = storage.data_ptr()
    if key not in storages:
        flat = torch.empty(0, dtype=torch.uint8).set_(storage)
        storages[key] = flat.clone().to(device).untyped_storage()
    empty = torch.empty(0, dtype=value.dtype, device=device)
    return empty.set_(storages[key], value.storage_offset(), value.shape, value.stride())


def tensors_of(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for item in value for tensor in tensors_of(item)] if isinstance(value, (list, tuple)) else []


def samples(spec: OpSpec, draws: int) -> Iterator[Sample]:
    """Random calls and edges in turn, so that a limit of time leaves some of both."""
    edges = iter(spec.samples.edges())
    for seed in range(draws):
        yield spec.samples.draw(Draw(seed))
        edge = next(edges, None)
        if edge is not None:
            yield edge
    yield from edges


def equality(spec: OpSpec, device: torch.device, draws: int, seconds: float) -> Iterator[dict[str, Any]]:
    """After each sample: how many there were, how many gave the CPU's bits, what the first other one was."""
    result: dict[str, Any] = {"operator": spec.name, "compared": 0, "equal": 0, "first_difference": None}
    end = time.monotonic() + seconds
    for sample in samples(spec, draws):
        try:
            expected = tensors_of(spec.function(**clone_with_storage(sample.arguments)))
            got = tensors_of(spec.function(**to_device(sample.arguments, device)))
            same, why = all(same_bits(a, b.cpu()) for a, b in zip(expected, got, strict=True)), ""
        except Exception as error:  # a kernel that fails is a difference, too, and the report goes on
            same, why = False, f": {_line(error)}"
        result["compared"] += 1
        result["equal"] += same
        if not same and result["first_difference"] is None:
            result["first_difference"] = sample.label + why
        yield dict(result)
        if time.monotonic() > end:
            return


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


# ---- speed ----


@dataclass(frozen=True)
class Work:
    """One call of ours, what it moves or computes, and the peers: a name, and what makes their call."""

    operator: str
    case: str
    ours: Call
    bytes: int | None = None
    operations: int | None = None
    peers: dict[str, Callable[[], Call]] = field(default_factory=dict)


def ema(device: torch.device, size: int) -> Work:
    var, m, v, s, grad = (torch.rand(size, device=device) * 1e-2 for _ in range(5))
    step = torch.ones(1, dtype=torch.int64, device=device)

    def fused_and_lerp() -> Call:
        parameter = torch.nn.Parameter(var.clone())
        parameter.grad = grad
        optimizer, average = torch.optim.AdamW([parameter], lr=1e-3, fused=True, capturable=True), var.clone()

        def run() -> None:
            optimizer.step()
            torch._foreach_lerp_([average], [parameter.detach()], 1e-4)

        return run

    return Work(
        "apply_fused_ema_adamw", f"fp32, {size} elements",
        lambda: apply_fused_ema_adamw_(grad, var, m, v, s, step, weight_decay=0.01),
        bytes=size * 4 * 9, peers={"torch AdamW(fused) + lerp": fused_and_lerp},
    )  # fmt: skip


def adam8(device: torch.device, size: int, dtype: torch.dtype) -> Work:
    given = to_device(adam8_bench.call(size, dtype), device)
    step = torch.ones(1, dtype=torch.int64, device=device)

    def optimizer(make: Callable[[torch.nn.Parameter], torch.optim.Optimizer]) -> Callable[[], Call]:
        def start() -> Call:
            parameter = torch.nn.Parameter(given["var"].clone())
            parameter.grad = given["grad"]
            return make(parameter).step

        return start

    peers = {"bitsandbytes AdamW8bit": adam8_bench.bitsandbytes, "torch AdamW(fused), 32-bit": adam8_bench.fused}
    return Work(
        "apply_adam_w_quant", f"{dtype_name(dtype)}, {size} elements",
        lambda: apply_adam_w_quant_(**{**given, "step": step}),
        bytes=size * (3 * dtype.itemsize + 4) + size // 256 * 16,
        peers={name: optimizer(make) for name, make in peers.items()},
    )  # fmt: skip


def norm(device: torch.device, rows: int, cols: int) -> Work:
    given = to_device(norm_bench.call(rows, cols, torch.bfloat16), device)
    return Work(
        "add_rms_norm_dynamic_quant", f"bf16, {rows} x {cols}, two int8 outputs",
        lambda: add_rms_norm_dynamic_quant(**given),
        bytes=rows * cols * (3 * 2 + 2),
        peers={"torch.compile of the formula": lambda: norm_bench.composed(norm_bench.compiled, given).run},
    )  # fmt: skip


def lazy(device: torch.device, rows: int, n: int) -> Work:
    dim = 64
    var, m, v = (torch.rand(rows, dim, device=device) for _ in range(3))
    gradient, ids = torch.rand(n, dim, device=device), torch.randperm(rows, device=device)[:n]

    def sparse() -> Call:
        parameter = torch.nn.Parameter(var.clone())
        parameter.grad = torch.sparse_coo_tensor(ids.unsqueeze(0), gradient, (rows, dim))
        return torch.optim.SparseAdam([parameter]).step

    return Work(
        "lazy_adam", f"fp32, {n} of {rows} rows of {dim}",
        lambda: lazy_adam_(gradient, ids, m, v, var, 1e-3),
        bytes=n * dim * 4 * 7, peers={"torch SparseAdam": sparse},
    )  # fmt: skip


def matmul(device: torch.device, m: int, size: int) -> Work:
    given = to_device(matmul_bench.tensors(m, size, size, torch.bfloat16), device)
    codes = torch.randint(-127, 128, (m, size), dtype=torch.int8).to(device)
    weight, plain = given["weight"].t(), matmul_bench.dequantized(given).to(torch.bfloat16)
    peers: dict[str, Callable[[], Call]] = {
        "F.linear bf16": lambda: lambda: torch.nn.functional.linear(given["x"], plain),
    }
    if m > 16:  # what torch._int_mm takes
        peers["torch._int_mm alone"] = lambda: lambda: torch._int_mm(codes, weight)
    return Work(
        "quant_matmul_dequant", f"bf16 dynamic, m = {m}, n = k = {size}",
        lambda: quant_matmul_dequant(**given),
        bytes=size * size if m <= 16 else None, operations=2 * m * size * size, peers=peers,
    )  # fmt: skip


def grouped(device: torch.device, m: int, groups: int, size: int) -> Work:
    given = to_device(grouped_bench.tensors(grouped_bench.even(m, groups), size, size), device)
    x = given["x"] = given["x"].to(torch.bfloat16)
    plain = (given["weight"].float() * given["weight_scale"].unsqueeze(-1)).to(torch.bfloat16).mT
    return Work(
        "quant_grouped_matmul_dequant", f"bf16 dynamic, m = {m} evenly over {groups} experts, n = k = {size}",
        lambda: quant_grouped_matmul_dequant(**given),
        bytes=groups * size * size if m <= 16 * groups else None, operations=2 * m * size * size,
        peers={"torch.bmm bf16": lambda: lambda: torch.bmm(x.view(groups, m // groups, size), plain)},
    )  # fmt: skip


def cases(device: torch.device, small: bool) -> list[tuple[str, Callable[[], Work]]]:
    """The operators and what makes their cases. `small`: to try them, not to time them."""
    size = 4096 if small else 64 * 2**20
    result: list[tuple[str, Callable[[], Work]]] = [
        ("apply_fused_ema_adamw", partial(ema, device, size)),
        ("apply_adam_w_quant", partial(adam8, device, size, torch.float32)),
        ("apply_adam_w_quant", partial(adam8, device, size, torch.bfloat16)),
        ("add_rms_norm_dynamic_quant", partial(norm, device, 4 if small else 16384, 4096)),
        ("lazy_adam", partial(lazy, device, 300 if small else 2_000_000, 100 if small else 564_096)),
    ]
    for m in (1, 16, 1024, 4096):
        shape = (min(m, 32), 64) if small else (m, 4096)
        result.append(("quant_matmul_dequant", partial(matmul, device, *shape)))
    for m in (64, 4096):
        sizes = (64, 8, 64) if small else (m, 8, 2048)
        result.append(("quant_grouped_matmul_dequant", partial(grouped, device, *sizes)))
    return result


def seconds(call: Call) -> float:
    """The median of about a tenth of a second of calls, with a cold L2 cache each; compiled and measured before."""
    from triton.testing import do_bench

    return float(do_bench(call, warmup=25, rep=100, return_mode="median")) / 1e3


def in_graph(call: Call, repeats: int = 10, replays: int = 10) -> float:
    """The median time of a call in a CUDA graph, with a cold L2 cache: what a graph of calls and the writing of a
    buffer larger than that cache takes, less what the writing takes. The call has run before."""
    buffer = torch.empty(256 * 2**20, dtype=torch.uint8, device="cuda")

    def took(*calls: Call) -> float:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(repeats):
                for each in calls:
                    each()
        times: list[float] = []
        for _ in range(replays):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        return statistics.median(times) / repeats / 1e3

    return max(took(buffer.zero_, call) - took(buffer.zero_), 1e-7)


def once(call: Call) -> float:
    """The time of one call, where there is no GPU and the figures do not matter."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def copy_rate(device: torch.device, clock: Clock) -> float:
    """Bytes a second of a copy, read and written ones counted."""
    source = torch.empty(64 * 2**20 if device.type == "cuda" else 2**16, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / clock(lambda: target.copy_(source))


def tried(clock: Clock, call: Call) -> tuple[float | None, str]:
    try:
        return clock(call), "ran"
    except Exception as error:  # whatever a call raises is its result
        return None, _line(error)


def speed(work: Work, copies: float | None, clock: Clock, graph: Clock) -> Iterator[dict[str, Any]]:
    """The figures of one case, again after each measurement; `copies` is the copy bandwidth. Ours come first, then the
    peers from Python, then the peers in a graph: a capture that fails may spoil what comes after it."""
    result: dict[str, Any] = {"operator": work.operator, "case": work.case, "eager_seconds": clock(work.ours)}
    peers: list[dict[str, Any]] = []
    result |= {"graph": "not measured", "graph_seconds": None, "peers": peers}
    yield _with_rates(result, work, copies)
    result["graph_seconds"], result["graph"] = tried(graph, work.ours)
    yield _with_rates(result, work, copies)
    started: list[tuple[dict[str, Any], Call]] = []
    for name, start in work.peers.items():
        peer: dict[str, Any] = {"name": name, "eager_seconds": None, "graph_seconds": None, "graph": "not measured"}
        try:
            call = start()
            peer |= {"eager_seconds": clock(call), "status": "ran"}
            started.append((peer, call))
        except Exception as error:  # not installed, or whatever it raises
            peer["status"] = _line(error)
        peers.append(peer)
        yield _with_rates(result, work, copies)
    for peer, call in started:
        peer["graph_seconds"], peer["graph"] = tried(graph, call)
        yield _with_rates(result, work, copies)


def _with_rates(result: dict[str, Any], work: Work, copies: float | None) -> dict[str, Any]:
    """What follows from the times."""
    took = result["graph_seconds"] or result["eager_seconds"]
    rate = None if work.bytes is None else work.bytes / took
    result |= {
        "seconds": took,
        "gb_per_s": None if rate is None else rate / 1e9,
        "of_copy": None if rate is None or copies is None else rate / copies,
        "tera_operations_per_s": None if work.operations is None else work.operations / took / 1e12,
    }
    for peer in result["peers"]:
        kind = "graph_seconds" if result["graph_seconds"] and peer["graph_seconds"] else "eager_seconds"
        peer["times_ours"] = None if peer[kind] is None else peer[kind] / result[kind]
    return result


# ---- parts ----


@dataclass(frozen=True)
class Part:
    """What one process finds out, and for how long it may try."""

    kind: str  # "copy", "equality" or "speed"
    operator: str
    seconds: float
    draws: int = 0
    device: str = "cuda"

    @property
    def name(self) -> str:
        return f"{self.kind} {self.operator}".strip()


def results_of(part: Part, copies: float | None, clock: Clock, graph: Clock) -> Iterator[dict[str, Any]]:
    """What a part finds, as it finds it; a later result of the same operator and case stands for the earlier one."""
    device = torch.device(part.device)
    if part.kind == "copy":
        yield {"machine": machine(device), "copy_gb_per_s": copy_rate(device, clock) / 1e9}
    elif part.kind == "equality":
        yield from equality(REGISTRY[part.operator], device, part.draws, 0.8 * part.seconds)
    else:
        copies = copies or copy_rate(device, clock)  # where the part that measures it did not end
        for i, (operator, make) in enumerate(cases(device, small=device.type == "cpu")):
            if operator != part.operator:
                continue
            try:
                yield from speed(make(), copies, clock, graph)
            except Exception as error:  # the next case may do
                yield {"operator": operator, "case": f"case {i}, which failed", "failed": _line(error), "peers": []}


def run(part: Part, copies: float | None) -> tuple[list[dict[str, Any]], str]:
    """The results a process has when it ends, or when its time is over, and how it ended."""
    command = [sys.executable, "-m", "anyfuse.bench.gpu", "--part", json.dumps([asdict(part), copies])]
    try:
        done = subprocess.run(command, capture_output=True, timeout=max(part.seconds, 0.0), check=False)
        printed, said = done.stdout, done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        status = "complete" if done.returncode == 0 else f"ended with {done.returncode}: {said}"
    except subprocess.TimeoutExpired as stopped:
        printed, status = stopped.stdout or b"", f"stopped after {part.seconds:.0f} s"
    lines = printed.decode(errors="replace").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")], status


def work_on(part: Part, copies: float | None) -> None:
    """Prints a part's results, a line of JSON each."""
    clock, graph = (seconds, in_graph) if part.device == "cuda" else (once, once)
    for result in results_of(part, copies, clock, graph):
        print(json.dumps(result), flush=True)


def latest(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last result of each operator and case."""
    return list({(result.get("operator"), result.get("case")): result for result in results}.values())


def measured(
    quick: bool, device: str, keep: Callable[[dict[str, Any]], None], whole: float | None = None
) -> dict[str, Any]:
    """The report after at most `whole` seconds, `keep` called with it after each part. Nothing here touches the GPU
    itself."""
    draws, longest = (40, 450.0) if quick else (400, 3600.0)
    whole = longest if whole is None else whole
    begin = time.monotonic()
    report: dict[str, Any] = {
        "schema": SCHEMA_NAME,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": None,
        "quick": quick,
        "copy_gb_per_s": None,
        "equality": [],
        "speed": [],
        "parts": {},
        "part_seconds": {},
    }

    def finish(part: Part, copies: float | None = None) -> list[dict[str, Any]]:
        start = time.monotonic()
        results, report["parts"][part.name] = run(part, copies)
        report["part_seconds"][part.name] = round(time.monotonic() - start, 1)
        return latest(results)

    for result in finish(Part("copy", "", 0.13 * whole, device=device)):
        report |= result
    keep(report)
    side_by_side = max((os.cpu_count() or 2) // 2, 1)
    each = min(0.22 * whole, 0.5 * whole / -(-len(REGISTRY) // side_by_side))
    parts = [Part("equality", name, each, draws, device) for name in REGISTRY]
    with ThreadPoolExecutor(side_by_side) as pool:
        for results in pool.map(finish, parts):
            report["equality"] += results
            keep(report)
    copies = None if report["copy_gb_per_s"] is None else report["copy_gb_per_s"] * 1e9
    for i, name in enumerate(REGISTRY):
        share = (begin + whole - time.monotonic()) / (len(REGISTRY) - i)  # what one leaves over is the next one's
        report["speed"] += finish(Part("speed", name, share, device=device), copies)
        keep(report)
    return report


# ---- report ----


def machine(device: torch.device) -> dict[str, Any]:
    versions: dict[str, str | None] = {}
    for package in ("torch", "triton", "bitsandbytes"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    result = {"python": platform.python_version(), "versions": {"anyfuse": __version__, **versions}}
    if device.type != "cuda":
        return {"gpu": "no GPU", "memory_gib": None, "processors": None, "runtime": "CPU", **result}
    properties = torch.cuda.get_device_properties(device)
    return {
        "gpu": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "processors": properties.multi_processor_count,
        "runtime": f"CUDA {torch.version.cuda}" if torch.version.cuda else f"HIP {torch.version.hip}",
        **result,
    }


def markdown(report: dict[str, Any]) -> str:
    """The report as a page: what was equal, a table of speeds, and which parts did not end."""
    about = report["machine"] or {"gpu": "An unknown GPU", "runtime": "unknown runtime", "versions": {}}
    versions = "".join(f", {name} {version}" for name, version in about["versions"].items() if version)
    lines = [
        f"# {about['gpu']}, {report['date']}",
        "",
        f"{about['runtime']}{versions}. Copy bandwidth {_figure(report['copy_gb_per_s'], '.0f')} GB/s.",
        "",
        "| operator | samples | equal to the CPU, bit for bit | first difference |",
        "|---|--:|--:|---|",
    ]
    for row in report["equality"]:
        lines.append(f"| {row['operator']} | {row['compared']} | {row['equal']} | {row['first_difference'] or '—'} |")
    lines += [
        "",
        "| operator | case | ms | ms from Python | GB/s | of copy | TOP/s | peers: their time over ours |",
        "|---|---|--:|--:|--:|--:|--:|---|",
    ]
    for row in report["speed"]:
        peers = "; ".join(
            f"{peer['name']} {peer['status'] if peer['times_ours'] is None else format(peer['times_ours'], '.2f')}"
            for peer in row["peers"]
        )
        figures = (
            *(_figure(row[key] * 1e3 if row.get(key) else None, ".3f") for key in ("seconds", "eager_seconds")),
            _figure(row.get("gb_per_s"), ".0f"),
            _figure(row.get("of_copy"), ".0%"),
            _figure(row.get("tera_operations_per_s"), ".0f"),
        )
        notes = row.get("failed") or peers
        lines.append(f"| {row['operator']} | {row['case']} | {' | '.join(figures)} | {notes} |")
    unended = [f"- {name}: {status}" for name, status in report["parts"].items() if status != "complete"]
    return "\n".join([*lines, *([""] if unended else []), *unended]) + "\n"


def _figure(value: float | None, form: str) -> str:
    return "—" if value is None else format(value, form)


def all_is_well(report: dict[str, Any]) -> bool:
    """Whether every part ended by itself, every sample of every operator was equal, and no case failed."""
    complete = all(status == "complete" for status in report["parts"].values())
    equal = [row["operator"] for row in report["equality"] if row["equal"] == row["compared"] > 0]
    return complete and equal == list(REGISTRY) and not any("failed" in row for row in report["speed"])


def main(arguments: list[str] | None = None) -> int:
    """0 when all is well, 1 when something differed, failed or did not end, 2 without a GPU."""
    parser = argparse.ArgumentParser(prog="python -m anyfuse.bench.gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="7.5 minutes at most, instead of an hour")
    parser.add_argument("--seconds", type=float, help="another limit of time")
    parser.add_argument("--output", type=Path, default=Path(), help="folder for gpu.json and gpu.md")
    parser.add_argument("--device", default="cuda", help="cpu: small cases, to try the flow")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.part is not None:
        part, copies = json.loads(options.part)
        work_on(Part(**part), copies)
        return 0
    if options.device == "cuda" and not torch.cuda.is_available():
        print("No GPU here: torch.cuda.is_available() is False. Nothing was measured.", file=sys.stderr)
        return 2

    def keep(report: dict[str, Any]) -> None:
        write_file(options.output / "gpu.json", (json.dumps(report, indent=2) + "\n").encode())
        write_file(options.output / "gpu.md", markdown(report).encode())

    report = measured(options.quick, options.device, keep, options.seconds)
    print(markdown(report))
    return 0 if all_is_well(report) else 1


if __name__ == "__main__":
    sys.exit(main())
