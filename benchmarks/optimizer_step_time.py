"""What `step()` of the optimizers costs beside their operator: one large tensor, a model's list, many small tensors.

    python benchmarks/optimizer_step_time.py --threads 2 --json benchmarks/results/NAME.json

Sides of a case run in turn (benchmarks/README.md says how, and when nothing is concluded):

- ours: `optimizer.step()`, with gradients that are new tensor objects at each step, as after `zero_grad()`;
- "bare operator": one call of the public operator on the optimizer's own tensors;
- "one large tensor": the step of one parameter with as many elements, per element;
- torch's AdamW(fused=True) on the same parameters and gradients, for comparison (without an average of the weights).

Before a case is timed, three steps in small must leave the same bits as three calls of the operator.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import Tensor, nn

from anyfuse import apply_adam_w_quant_, apply_fused_ema_adamw_, lazy_adam_
from anyfuse._bits import same_bits
from anyfuse._machine import machine
from anyfuse.bench import plot
from anyfuse.bench import results as files
from anyfuse.bench.case import Case, Goal, Peer, Runner, Work
from anyfuse.bench.measure import OURS, Settings, conclude
from anyfuse.bench.timing import Neighbours, interleave, once
from anyfuse.formats import create_codebook
from anyfuse.optim import AdamW8bit, EMAAdamW, LazyAdam
from anyfuse_cli.bench import conclude as end
from anyfuse_cli.bench import show

BARE, LARGE, TORCH = "bare operator", "one large tensor", "torch AdamW(fused=True)"
SMALL_STEPS = 3
MAPS = {"qmap_m": create_codebook("dynamic", signed=True), "qmap_v": create_codebook("dynamic", signed=False)}
COMMON: dict[str, Any] = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "convention": "formula"}
Shapes = list[tuple[int, ...]]
#: A call of the operator on parameters, gradients and the optimizer's states.
Bare = Callable[[list[Tensor], list[Tensor], list[dict[str, Any]], int], object]


def column(states: Sequence[dict[str, Any]], key: str) -> list[Tensor]:
    return [state[key] for state in states]


def bare_ema(params: list[Tensor], grads: list[Tensor], states: list[dict[str, Any]], step: int) -> object:
    moments = {"m": column(states, "exp_avg"), "v": column(states, "exp_avg_sq"), "s": column(states, "ema")}
    return apply_fused_ema_adamw_(
        grads, params, **moments, step=step, eps=1e-8, weight_decay=1e-2, ema_decay=0.9999, **COMMON
    )


def bare_8bit(
    params: list[Tensor], grads: list[Tensor], states: list[dict[str, Any]], step: int, ema: bool = False
) -> object:
    none = torch.zeros(0)
    return apply_adam_w_quant_(
        params, grads, column(states, "exp_avg"), column(states, "exp_avg_sq"), **MAPS,
        absmax_m=[state.get("absmax_exp_avg", none) for state in states],
        absmax_v=[state.get("absmax_exp_avg_sq", none) for state in states],
        step=step, eps=1e-8, weight_decay=1e-2, nonzero_v=True, **COMMON,
        **({"s": column(states, "ema"), "ema_decay": 0.9999} if ema else {}),
    )  # fmt: skip


def bare_lazy(params: list[Tensor], grads: list[Tensor], states: list[dict[str, Any]], step: int) -> object:
    def tables(tensors: list[Tensor]) -> list[Tensor]:
        return [tensor.view(len(tensor), -1) for tensor in tensors]

    return lazy_adam_(
        tables(grads), [None] * len(grads), tables(column(states, "exp_avg")), tables(column(states, "exp_avg_sq")),
        tables(params), step=step, epsilon=1e-8, bias_correction="global", eps_mode="outside", refuse_negative=True,
        **COMMON,
    )  # fmt: skip


@dataclass(frozen=True)
class Side:
    """An optimizer with its operator."""

    make: Callable[[Any], Any]
    bare: Bare


SIDES = {
    "EMAAdamW": Side(partial(EMAAdamW, ema_warmup=False), bare_ema),
    "AdamW8bit": Side(AdamW8bit, bare_8bit),
    "EMAAdamW(state_bits=8)": Side(partial(EMAAdamW, ema_warmup=False, state_bits=8), partial(bare_8bit, ema=True)),
    "LazyAdam, dense": Side(LazyAdam, bare_lazy),
}


def model_shapes(quick: bool) -> Shapes:
    """A Llama of 29 blocks with a tied head: 263 tensors, 100.1 M elements."""
    width, hidden, vocabulary, blocks = (16, 44, 64, 2) if quick else (512, 1376, 16384, 29)
    block = [(width,), *[(width, width)] * 4, (width,), (hidden, width), (hidden, width), (width, hidden)]
    return [(vocabulary, width), *block * blocks, (width,)]


CASES: dict[str, tuple[Callable[[bool], Shapes], tuple[Goal, ...]]] = {
    "16 Mi elements in one tensor": (
        lambda quick: [(1 << (12 if quick else 18), 64)],
        (Goal(f"ratio {BARE}", least=1 / 1.1),),
    ),
    "a model's 263 tensors, 100 M elements": (model_shapes, (Goal(f"ratio {BARE}", least=1 / 1.2),)),
    "1000 tensors of 4096": (
        lambda quick: [(64, 64)] * (20 if quick else 1000),
        (Goal(f"ratio {LARGE}", least=1 / 1.3),),
    ),
}


class Training:
    """Parameters, gradients, and an optimizer over them that has taken a step."""

    def __init__(self, make: Callable[[Any], Any], shapes: Shapes) -> None:
        generator = torch.Generator().manual_seed(1)
        self.params = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
        self.grads = [torch.randn(shape, generator=generator) * 1e-2 for shape in shapes]
        self.optimizer = make(self.params)
        self.give()
        self.optimizer.step()

    @property
    def numel(self) -> int:
        return sum(param.numel() for param in self.params)

    def give(self) -> None:
        """Gradients as after a backward pass: other tensor objects at each step."""
        for param, grad in zip(self.params, self.grads, strict=True):
            param.grad = grad.detach()

    def bare(self, call: Bare, step: int) -> None:
        states = [self.optimizer.state[param] for param in self.params]
        call([param.detach() for param in self.params], self.grads, states, step)

    def steps(self) -> Runner:
        return Runner(self.optimizer.step, prepare=self.give, units=self.numel)

    def calls(self, call: Bare) -> Runner:
        states = [self.optimizer.state[param] for param in self.params]
        return Runner(partial(call, [param.detach() for param in self.params], self.grads, states, 10))

    def peer(self) -> Runner:
        return Runner(torch.optim.AdamW(self.params, fused=True).step, prepare=self.give)


def check_equal(side: Side, shapes: Shapes) -> None:
    """RuntimeError unless steps and calls of the operator leave the same bits."""
    one = Training(side.make, shapes)
    two = copy.deepcopy(one)
    for step in range(2, 2 + SMALL_STEPS):
        one.give()
        one.optimizer.step()
        two.bare(side.bare, step)
    for a, b in zip(one.params, two.params, strict=True):
        pairs = [(a, b), *zip(one.optimizer.state[a].values(), two.optimizer.state[b].values(), strict=True)]
        if not all(same_bits(x.detach(), y.detach()) for x, y in pairs if isinstance(x, Tensor)):
            raise RuntimeError("step() and the bare operator leave different bits; nothing was timed")


def measure(name: str, side: Side, title: str, settings: Settings) -> dict[str, Any]:
    shapes_of, goals = CASES[title]
    check_equal(side, shapes_of(True))
    training = Training(side.make, shapes_of(settings.quick))
    runners = {OURS: training.steps(), BARE: training.calls(side.bare)}
    if settings.peers:
        runners[TORCH] = training.peer()
    if any(goal.figure.endswith(LARGE) for goal in goals):
        runners[LARGE] = Training(side.make, [(training.numel // 64, 64)]).steps()
    first = {key: once(runner) for key, runner in runners.items()}
    with Neighbours() as neighbours:
        timings = interleave(runners, first, settings.rounds)
    work = Work(ours=runners.pop(OURS), units=training.numel, unit="element", sample={})
    package = {TORCH: "torch"}
    peers = [(Peer(key, lambda: work.ours, package.get(key, "anyfuse")), runner) for key, runner in runners.items()]
    case = Case(title, lambda quick: work, goals)
    result = conclude(f"{name}.step", case, work, peers, timings, settings, None, neighbours.share)
    result["equality"] = f"the bits of the operator, after {SMALL_STEPS} steps in small that were run before timing"
    return result


def main(
    names: Annotated[list[str] | None, typer.Argument(metavar="[OPTIMIZER]...", help=", ".join(SIDES))] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of all sides; default: torch's.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which every side runs once.")] = 9,
    case: Annotated[str, typer.Option(help="Only cases whose name contains this.")] = "",
    peers: Annotated[bool, typer.Option(help="Time torch's AdamW, too.")] = True,
    quick: Annotated[bool, typer.Option(help="Tiny sizes: shows that everything runs; judges nothing.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the results to this file.")] = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", help="Draw the results into this file.")] = None,
) -> None:
    torch.set_num_threads(threads or torch.get_num_threads())
    settings = Settings(rounds=rounds, peers=peers, quick=quick, threads=torch.get_num_threads())
    console = Console()
    results = []
    for name in names or SIDES:
        for title in CASES:
            if case in title:
                results.append(measure(name, SIDES[name], title, settings))
                show(results[-1], console)
    whole = files.assemble(machine(), asdict(settings), results)
    if json_file is not None:
        files.write(whole, json_file)
    if plot_file is not None:
        plot.draw(whole, plot_file)
    end(whole, console)


if __name__ == "__main__":
    typer.run(main)
