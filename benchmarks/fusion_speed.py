"""Plain PyTorch under `torch.compile` with the pass of `anyfuse.fusion` against without it.

    python benchmarks/fusion_speed.py --threads 2 --json fusion_speed.json

A decoder block (two norms, attention, SwiGLU three times as wide as its rows, seven int8 linears of `torch._int_mm`)
at several widths and numbers of rows, a residual sum with its norm and quantization alone, and a step of AdamW with an
EMA of the weights. Both sides are compiled with fixed shapes, run in turn, and give near outputs (the steps: equal
weights) before they are timed. Status 3 says that other processes took more than a tenth of the processors.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn
from torch.nn import functional as F

from anyfuse import fusion
from anyfuse._machine import machine
from anyfuse.bench.case import Runner
from anyfuse.bench.timing import Neighbours, interleave, once, ratios

NEIGHBOUR_LIMIT = 0.1
BLOCKS = ((512, 16), (512, 128), (1024, 16), (1024, 128), (2048, 16), (2048, 128))
NORMS = ((512, 2048), (512, 4096), (2048, 4096))
WIDTHS, ROWS = (256, 512, 1024, 4096), (1, 64, 1024)
STEPS = ((1, 1 << 16), (1, 1 << 20), (1, 1 << 24), (100, 1 << 10), (100, 1 << 12), (100, 1 << 14), (100, 1 << 16))

Call = Callable[[], Any]


def quantize(rows: Tensor) -> tuple[Tensor, Tensor]:
    scale = rows.abs().amax(-1, keepdim=True) / 127
    return (rows / scale).round().clamp(-128, 127).to(torch.int8), scale


class Linear(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (out, width), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(out) * 1e-3)

    def forward(self, codes: Tensor, scale: Tensor) -> Tensor:
        return torch._int_mm(codes, self.weight.t()).float() * self.scale * scale


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.RMSNorm(width, 1e-6), nn.RMSNorm(width, 1e-6)
        self.query, self.key, self.value, self.out = (Linear(width, width) for _ in range(4))
        self.gate, self.up, self.down = Linear(width, 3 * width), Linear(width, 3 * width), Linear(3 * width, width)

    def forward(self, residual: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        residual = residual + delta
        rows = quantize(self.first(residual))
        heads = [f(*rows).unflatten(-1, (self.heads, -1)).transpose(0, 1) for f in (self.query, self.key, self.value)]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(0, 1).flatten(-2)
        residual = residual + self.out(*quantize(mixed))
        rows = quantize(self.second(residual))
        return residual, self.down(*quantize(F.silu(self.gate(*rows)) * self.up(*rows)))


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, 1e-6)

    def forward(self, residual: Tensor, delta: Tensor) -> tuple[Tensor, ...]:
        residual = residual + delta
        return *quantize(self.norm(residual)), residual


class Step(nn.Module):
    """AdamW and the EMA as the operator's document writes them; the number of the step is a tensor."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        for name in ("grad", "weight", "first", "second", "average"):
            for i in range(count):
                self.register_buffer(f"{name}{i}", torch.randn(size).abs_())
        self.register_buffer("number", torch.zeros(()))
        self.count = count

    def forward(self) -> tuple[Tensor, ...]:
        self.number += 1
        correction1, correction2 = 1 - 0.9**self.number, 1 - 0.999**self.number
        for i in range(self.count):
            names = ("grad", "weight", "first", "second", "average")
            g, w, m, v, s = (getattr(self, f"{name}{i}") for name in names)
            m.mul_(0.9).add_(g, alpha=1 - 0.9)
            v.mul_(0.999).add_((1 - 0.999) * g * g)
            w.sub_(1e-3 * ((m / correction1) / ((v / correction2).sqrt() + 1e-8) + 0.01 * w))
            s.mul_(0.9999).add_(w, alpha=1 - 0.9999)
        return ()


Case = tuple[str, nn.Module, tuple[Tensor, ...]]


def norms() -> Iterator[Case]:
    for rows in ROWS:
        for width in WIDTHS:
            yield f"sum, norm, quantization, {rows} x {width}", Norm(width), pair(rows, width)


def blocks() -> Iterator[Case]:
    for rows in ROWS:
        for width in WIDTHS:
            yield f"block, width {width}, {rows} rows", Block(width), pair(rows, width)


def steps() -> Iterator[Case]:
    for count, size in STEPS:
        yield f"AdamW with EMA, {count} x {size}", Step(count, size), ()


def usual() -> Iterator[Case]:
    for rows, width in NORMS:
        yield f"sum, norm, quantization, {rows} x {width}", Norm(width), pair(rows, width)
    for width, rows in BLOCKS:
        yield f"block, width {width}, {rows} rows", Block(width), pair(rows, width)


CASES = {"usual": usual, "norms": norms, "blocks": blocks, "steps": steps}


def pair(rows: int, width: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, width), torch.randn(rows, width)


def compiled(module: nn.Module, given: tuple[Tensor, ...], fused: bool, always: bool) -> tuple[Call, dict[str, int]]:
    """The compiled module with its inputs, and what was replaced in it."""
    fusion.report(reset=True)
    with fusion.enabled(always=always) if fused else nullcontext():
        call = torch.compile(module, fullgraph=True, dynamic=False)
        call(*given)
    return lambda: call(*given), dict(fusion.report().fused)


def compare(module: nn.Module, given: tuple[Tensor, ...], rounds: int, always: bool) -> dict[str, Any]:
    torch._dynamo.reset()  # a class's guards are of all its objects
    twin = copy.deepcopy(module)
    plain, _ = compiled(twin, given, fused=False, always=always)
    fused, replaced = compiled(module, given, fused=True, always=always)
    for a, b in zip(twin.buffers(), module.buffers(), strict=True):
        assert torch.equal(a, b), "a step left other weights"
    for a, b in zip(plain(), fused(), strict=True):  # a code on a tie moves an output by one code's worth of a weight
        away = (a.float() - b.float()).abs() > max(1.0, float(a.abs().max()) * 1e-2)
        assert away.float().mean() < 1e-3, "other outputs"
    runners = {"without": Runner(plain), "with": Runner(fused)}
    timings = interleave(runners, {name: once(runner) for name, runner in runners.items()}, rounds)
    times = {name: 1e3 * timing.median for name, timing in timings.items()}
    ratio = median(ratios(timings["with"], timings["without"]))
    return {"replaced": replaced, "milliseconds": times, "ratio": ratio}


def main(
    cases: Annotated[str, typer.Option(help=f"Which cases: {', '.join(CASES)}.")] = "usual",
    only: Annotated[str, typer.Option(help="Cases whose name holds this.")] = "",
    always: Annotated[bool, typer.Option(help="Replace also where it is not expected to win.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads of both sides.")] = 2,
    rounds: Annotated[int, typer.Option(min=3, help="Rounds of each case.")] = 15,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here.")] = None,
) -> None:
    torch.set_num_threads(threads)
    torch._dynamo.config.recompile_limit = 100
    torch.manual_seed(0)
    results = {}
    with torch.no_grad(), Neighbours() as neighbours:
        for name, module, given in CASES[cases]():
            if only not in name:
                continue
            results[name] = found = compare(module, given, rounds, always)
            times = found["milliseconds"]
            said = ", ".join(f"{count} {what}" for what, count in found["replaced"].items()) or "nothing"
            print(f"{name:42} {times['without']:8.3f} {times['with']:8.3f} ms {found['ratio']:5.2f}x  replaced: {said}")
    if json_file is not None:
        told = {"machine": machine(), "date": date.today().isoformat(), "threads": threads, "rounds": rounds}
        json_file.write_text(json.dumps({**told, "neighbours": neighbours.share, "cases": results}, indent=1) + "\n")
    if neighbours.share is not None and neighbours.share > NEIGHBOUR_LIMIT:
        print(f"inconclusive: other processes took {neighbours.share:.0%} of the processors")
        raise SystemExit(3)


if __name__ == "__main__":
    typer.run(main)
