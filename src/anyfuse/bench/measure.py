"""One case from set-up to figures: equality first, then times, then what can be concluded from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from statistics import median
from typing import Any

from torch import Tensor

from .._bits import clone_with_storage, same_bits
from .._opspec import OpSpec
from .._settings import backend
from . import memory, stream
from .case import Case, Goal, Peer, Runner, Work
from .timing import Neighbours, Timing, interleave, noisy, once, ratios, spread

OURS = "anyfuse"


@dataclass(frozen=True)
class Settings:
    rounds: int = 9
    spread_limit: float = 0.15
    neighbour_limit: float = 0.1
    peers: bool = True
    quick: bool = False
    threads: int = 2


def measure(
    spec: OpSpec, case: Case, settings: Settings, progress: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """The result of one case, as it stands in a results file."""
    progress("setting up")
    work = case.work(settings.quick)
    check_equal(spec, work.sample)
    runners: dict[str, Runner] = {OURS: work.ours}
    peers = []
    for peer in work.peers if settings.peers else ():
        started = start(peer)
        peers.append((peer, started))
        if isinstance(started, Runner):
            runners[peer.name] = started
    streams = stream.variants(work.traffic) if work.traffic is not None else {}
    runners |= streams

    first: dict[str, float] = {}
    failures: dict[str, str] = {}
    for name, runner in list(runners.items()):
        progress(f"first call of {name}")
        try:
            first[name] = once(runner)
        except Exception as error:  # a peer may fail in any way; it must not end the run
            if name == OURS or name in streams:
                raise
            failures[name] = f"failed: {_line(error)}"
            del runners[name]
    progress(f"{settings.rounds} rounds")
    with Neighbours() as neighbours:
        timings = interleave(runners, first, settings.rounds)
    kib = None
    if case.memory:
        progress("memory")
        kib = memory.transient_kib(spec.name, case.name, settings.quick, settings.threads)
    statuses = [(peer, failures.get(peer.name, started)) for peer, started in peers]
    return conclude(spec.name, case, work, statuses, timings, settings, kib, neighbours.share)


def start(peer: Peer) -> Runner | str:
    """A peer, set up, or why it cannot be."""
    try:
        return peer.start()
    except ImportError as error:
        return f"missing: {_line(error)}"
    except Exception as error:
        return f"failed: {_line(error)}"


def check_equal(spec: OpSpec, arguments: dict[str, Any]) -> None:
    """Raises RuntimeError unless native and reference give the same bits on this call, in place results included."""
    got: list[Tensor] = []
    expected: list[Tensor] = []
    for name, into in (("reference", expected), ("native", got)):
        call = clone_with_storage(arguments)
        with backend(name):
            results = spec.function(**call)
        into.extend(_tensors([results, *(call[changed] for changed in spec.in_place if changed in call)]))
    if len(got) != len(expected) or not all(map(same_bits, expected, got)):
        raise RuntimeError(f"{spec.name}: the native results differ from the reference; nothing was timed")


def conclude(
    operator: str,
    case: Case,
    work: Work,
    peers: list[tuple[Peer, Runner | str]],
    timings: Mapping[str, Timing],
    settings: Settings,
    transient_kib: float | None = None,
    neighbours: float | None = None,
) -> dict[str, Any]:
    """The figures of a case. A figure that rests on a side that scattered is marked, and no goal is judged by it."""
    ours = timings[OURS]
    streams = {name: timing for name, timing in timings.items() if name.startswith("stream ")}
    roof = min(streams, key=lambda name: streams[name].median, default=None)
    sides = {name: timing for name, timing in timings.items() if name not in streams or name == roof}
    unsure = noisy(sides, settings.spread_limit)
    crowded = neighbours is not None and neighbours > settings.neighbour_limit
    if crowded:
        unsure.append(f"other processes took {neighbours:.0%} of the processors")
    moved = work.traffic.bytes / work.traffic.calls if work.traffic is not None else None
    figures: dict[str, float] = {"us a call": ours.median * 1e6}
    rests_on: dict[str, set[str]] = {"us a call": {OURS}, "transient KiB": set()}
    if transient_kib is not None:
        figures["transient KiB"] = transient_kib

    result: dict[str, Any] = {
        "operator": operator,
        "case": case.name,
        "unit": work.unit,
        "units": work.units,
        "accuracy": dict(work.accuracy()) if work.accuracy is not None else None,
        "equality": "the reference's bits, on the sample that was run before timing",
        "ours": {**_times(ours, work.units), "gb_per_s": moved and moved / ours.median / 1e9},
        "bytes": moved,
        "stream": None,
        "transient_kib": transient_kib,
        "neighbours": neighbours,
        "peers": [],
    }
    if roof is not None and work.traffic is not None:
        share = stream.streamed_units(work.traffic)
        figures["of stream"] = median(ratios(ours, streams[roof], work.traffic.units / share / work.traffic.calls))
        rests_on["of stream"] = {OURS, roof}
        result["stream"] = {
            "variant": roof,
            **_times(streams[roof], work.units * work.traffic.calls * share / work.traffic.units),
            "gb_per_s": work.traffic.bytes / work.traffic.units * share / streams[roof].median / 1e9,
            "of_stream": figures["of stream"],
        }
    for peer, started in peers:
        row: dict[str, Any] = {"name": peer.name, "package": peer.package, "version": _version(peer.package)}
        if peer.name not in timings:
            result["peers"].append({**row, "status": started, "times": None, "ratio": None, "accuracy": None})
            continue
        units = started.units if isinstance(started, Runner) and started.units else work.units
        each = ratios(ours, timings[peer.name], work.units / units)
        figures[f"ratio {peer.name}"] = median(each)
        figures[f"excess {peer.name}"] = (ours.median / work.units - timings[peer.name].median / units) * 1e6
        rests_on[f"ratio {peer.name}"] = rests_on[f"excess {peer.name}"] = {OURS, peer.name}
        times = _times(timings[peer.name], units)
        accuracy = dict(peer.accuracy()) if peer.accuracy is not None else None
        result["peers"].append(
            {
                **row,
                "status": "measured",
                "times": times,
                "ratio": {"median": median(each), "spread": spread(each)},
                "accuracy": accuracy,
            }
        )
    result["goals"] = [judge(goal, figures, _rests(goal, rests_on, unsure, crowded), settings) for goal in case.goals]
    result["noisy"] = unsure
    result["conclusive"] = not unsure
    return result


def _rests(goal: Goal, rests_on: Mapping[str, set[str]], unsure: list[str], crowded: bool) -> bool:
    """Whether a goal's figure rests on a time that is not to be believed."""
    sides = rests_on.get(goal.figure, set())
    return bool(sides) and (crowded or bool(sides & set(unsure)))


def judge(goal: Goal, figures: Mapping[str, float], unsure: bool, settings: Settings) -> dict[str, Any]:
    got = figures.get(goal.figure)
    if settings.quick:
        verdict = "not judged: quick run"
    elif got is None:
        verdict = "not measured"
    elif unsure:
        verdict = "inconclusive: too noisy"
    elif (goal.least is not None and got < goal.least) or (goal.most is not None and got > goal.most):
        verdict = "missed"
    else:
        verdict = "met"
        if goal.aim is not None and (got >= goal.aim if goal.most is None else got <= goal.aim):
            verdict = "aim met"
    return {
        "figure": goal.figure,
        "least": goal.least,
        "most": goal.most,
        "aim": goal.aim,
        "got": got,
        "verdict": verdict,
    }


def _times(timing: Timing, units: float) -> dict[str, Any]:
    return {
        "median_s": timing.median,
        "best_s": min(timing.times),
        "spread": timing.spread,
        "first_call_s": timing.first,
        "rounds": len(timing.times),
        "calls_a_round": timing.repeats,
        "ns_per_unit": timing.median / units * 1e9,
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
