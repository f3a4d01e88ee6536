"""Where the pass hangs in inductor. Everything that depends on torch's inner workings but the names of ATen operators.

The hook is `torch._inductor.config.joint_custom_pre_pass`: a graph of ATen operators, decomposed and functional, that
inductor has not rewritten yet. Its later passes drop roundings to 16 bits, which the matcher has to see.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from . import _report

#: Versions of torch whose graphs the tests of this package have seen.
TESTED = ("2.13",)

#: Differences that `enabled(accept=...)` knows by name.
DIFFERENCES = {
    "rounding": "values that the code rounds to 16 bits between its operations stay unrounded",
    "clamp": "a lower bound of a row's absmax or scale is left out",
    "order": "factors of an optimizer's step are multiplied and rounded in the operator's order",
}


def unusable() -> str | None:
    """Why nothing can be fused with this torch; None if it can."""
    version = ".".join(torch.__version__.split(".")[:2])
    if version not in TESTED:
        return f"torch {version} is not known to the pass; known: {', '.join(TESTED)}"
    try:
        from torch._inductor import config
        from torch._inductor.custom_graph_pass import CustomGraphPass  # noqa: F401
    except ImportError as error:
        return f"torch has no custom graph passes: {error}"
    return None if hasattr(config, "joint_custom_pre_pass") else "torch's inductor has no joint_custom_pre_pass"


@contextlib.contextmanager
def enabled(*, accept: Collection[str] = (), matmul: bool = True, always: bool = False) -> Iterator[None]:
    """While active, `torch.compile` with inductor replaces what it finds of the operators' arithmetic.

    Functions that are wrapped by `torch.compile` inside keep the pass, whenever they are compiled. Functions that are
    compiled inside (at their first call) are fused, too. `torch.compile` is replaced for the whole process meanwhile.
    Compiled graphs with the pass are not kept in inductor's cache of graphs, so that every process reports what it did.

    A replaced int8 matmul keeps a packed copy of its weight, for as long as the weight lives and does not change.

    Args:
        accept: names of `DIFFERENCES` that a replacement may have from the code as written: "rounding", "clamp".
        matmul: replace int8 matmuls, too.
        always: replace also where it is likely to be slower: small tensors (a call costs more than inductor's kernel
            takes), a norm that is computed unquantized as well, and int8 matmuls of one row, of small weights or of
            many rows. Sizes are those of the call that is compiled.

    Raises:
        ValueError: an unknown name in accept.
    """
    unknown = set(accept) - DIFFERENCES.keys()
    if unknown:
        raise ValueError(f"accept holds {sorted(unknown)}; accepted: {', '.join(DIFFERENCES)}")
    reason = unusable()
    if reason is not None:
        _report.current.misses.append(_report.Miss("", reason, "torch"))
        yield
        return
    from torch._inductor import config

    run = make_pass(frozenset(accept), matmul, always, config.joint_custom_pre_pass)
    original = torch.compile
    with config.patch(joint_custom_pre_pass=run):
        torch.compile = _with_pass(original, run)
        try:
            yield
        finally:
            torch.compile = original


def make_pass(accept: frozenset[str], matmul: bool, always: bool, before: Any = None) -> Any:
    """The pass as inductor takes it, run after those that the user has set already."""
    from torch._inductor.custom_graph_pass import CustomGraphPass

    from ._pass import fuse

    first = [] if before is None else list(before) if isinstance(before, (list, tuple)) else [before]

    class FusionPass(CustomGraphPass):
        def __call__(self, graph: torch.fx.Graph) -> None:
            for other in first:
                other(graph)
            fuse(graph, accept, matmul, always)

        def uuid(self) -> None:
            return None

    return FusionPass()


def _with_pass(compile: Callable[..., Any], run: Any) -> Callable[..., Any]:
    """`torch.compile` with the pass among its options."""

    @functools.wraps(compile)
    def wrapped(
        model: Any = None, *, backend: Any = "inductor", mode: str | None = None, options: Any = None, **rest: Any
    ) -> Any:
        if backend in (None, "inductor"):
            if mode is not None and options is None:
                from torch._inductor import list_mode_options

                options, mode = list_mode_options(mode, rest.get("dynamic")), None
            options = {"joint_custom_pre_pass": run, **(options or {})}
        return compile(model, backend=backend, mode=mode, options=options, **rest)

    return wrapped
