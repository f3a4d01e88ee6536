"""Step time of 2 ranks, each with half of every parameter, against 1 rank with the whole.

    python benchmarks/sharded_step.py --json sharded_step.json

Two processes (gloo, CPU). In each round both step their halves on one thread each, at the same time, and the slower
one counts; then rank 0 steps the whole on one thread, and on two, while the other waits. Ratios are taken within each
round; printed are medians, and the middle half of the rounds; status 3 says that other processes took more than a tenth
of the processors. On a machine of two cores the two ranks have a core each, as the two threads have: 2.0 and 1.0 are
what sharding that costs nothing would give, where the memory keeps up with two cores.

`step()` communicates nothing, so that no time of a network is missing here.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from anyfuse.bench.measure import Settings
from anyfuse.bench.timing import Neighbours
from anyfuse.cli import machine
from anyfuse.optim import AdamW8bit, EMAAdamW, LazyAdam

SIDE, COUNT = 1024, 16
ROWS, DIM, IDS = 1_000_000, 64, 65_536
#: Seconds; OpenMP's second thread spins for a few milliseconds after its work, on the core of the other rank.
PAUSE = 0.02
NEIGHBOUR_LIMIT = Settings.neighbour_limit

Step = Callable[[], Any]
Make = Callable[[DeviceMesh | None], Step]


def dense(optimizer: Callable[..., Any], dtype: torch.dtype, mesh: DeviceMesh | None) -> Step:
    """16 matrices of 1024 × 1024, or a rank's rows of them."""
    rows = SIDE if mesh is None else SIDE // mesh.size()
    params = []
    for _ in range(COUNT):
        weight, grad = torch.randn(rows, SIDE).to(dtype), (torch.randn(rows, SIDE) * 1e-2).to(dtype)
        param = nn.Parameter(as_sharded(weight, mesh))
        param.grad = as_sharded(grad, mesh)
        params.append(param)
    return optimizer(params, lr=1e-3).step


def table(optimizer: Callable[..., Any], mesh: DeviceMesh | None) -> Step:
    """65 536 distinct rows of a table of 1 000 000, or a rank's half of both."""
    parts = 1 if mesh is None else mesh.size()
    param = nn.Parameter(as_sharded(torch.randn(ROWS // parts, DIM), mesh))
    ids, grads = torch.randperm(ROWS // parts)[: IDS // parts], torch.randn(IDS // parts, DIM)
    step = optimizer([param], lr=1e-3).step
    return lambda: step(rows={param: (ids, grads)})


def as_sharded(tensor: Tensor, mesh: DeviceMesh | None) -> Tensor:
    return tensor if mesh is None else DTensor.from_local(tensor, mesh, [Shard(0)], run_check=False)


CASES: dict[str, Make] = {
    "AdamW8bit, fp32": lambda mesh: dense(AdamW8bit, torch.float32, mesh),
    "AdamW8bit, bf16": lambda mesh: dense(AdamW8bit, torch.bfloat16, mesh),
    "EMAAdamW, fp32": lambda mesh: dense(EMAAdamW, torch.float32, mesh),
    "EMAAdamW, bf16": lambda mesh: dense(EMAAdamW, torch.bfloat16, mesh),
    "LazyAdam, table": lambda mesh: table(LazyAdam, mesh),
}


def seconds(step: Step, threads: int) -> float:
    torch.set_num_threads(threads)
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def rounds_of(make: Make, mesh: DeviceMesh, rounds: int) -> list[tuple[float, float, float]]:
    """Each round's seconds: halves at the same time, the whole on one thread, the whole on two."""
    first = dist.get_rank() == 0
    half, whole = make(mesh), make(None) if first else None
    found = []
    for number in range(rounds + 2):
        time.sleep(PAUSE)
        dist.barrier()
        took = torch.tensor(seconds(half, 1), dtype=torch.float64)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        if whole is not None:
            order = (1, 2) if number % 2 else (2, 1)
            alone = {threads: seconds(whole, threads) for threads in order}
            found.append((float(took), alone[1], alone[2]))
        dist.barrier()
    return found[2:]  # the first rounds make the state


def summary(found: list[tuple[float, float, float]]) -> dict[str, Any]:
    result: dict[str, Any] = {"milliseconds": [1e3 * median(column) for column in zip(*found, strict=True)]}
    for name, at in (("against 1 thread", 1), ("against 2 threads", 2)):
        ratios = [times[at] / times[0] for times in found]
        low, _, high = quantiles(ratios, n=4)
        result[name] = {"ratio": median(ratios), "low": low, "high": high}
    return result


def run(rank: int, folder: Path, rounds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    results = {name: rounds_of(make, mesh, rounds) for name, make in CASES.items()}
    if rank == 0:
        (folder / "results").write_text(json.dumps({name: summary(found) for name, found in results.items()}))
    dist.destroy_process_group()


def main(
    rounds: Annotated[int, typer.Option(min=4, help="Rounds of each case.")] = 40,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here.")] = None,
) -> None:
    with tempfile.TemporaryDirectory() as name, Neighbours() as neighbours:
        pids = []
        for rank in range(2):
            pid = os.fork()
            if pid == 0:
                run(rank, Path(name), rounds)
                os._exit(0)
            pids.append(pid)
        if any([os.waitpid(pid, 0)[1] for pid in pids]):
            raise SystemExit("a rank failed")
        cases = json.loads(Path(name, "results").read_text())
    for case, result in cases.items():
        ratios = (result["against 1 thread"], result["against 2 threads"])
        said = ["{ratio:.2f} ({low:.2f}-{high:.2f})".format(**ratio) for ratio in ratios]
        print(f"{case:16} 2 ranks on halves are {said[0]} and {said[1]} times as fast as 1 rank on 1 and on 2 threads")
    share = neighbours.share
    if json_file is not None:
        told = {"machine": machine(), "date": date.today().isoformat(), "rounds": rounds, "neighbours": share}
        json_file.write_text(json.dumps({**told, "cases": cases}, indent=1) + "\n")
    if share is not None and share > NEIGHBOUR_LIMIT:
        print(f"inconclusive: other processes took {share:.0%} of the processors")
        raise SystemExit(3)


if __name__ == "__main__":
    typer.run(main)
