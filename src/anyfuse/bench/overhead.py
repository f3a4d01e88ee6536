"""What a call costs beside its arithmetic: whole Python calls at tiny sizes, and long lists of small tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .case import Case, Goal, Peer, Runner, Work

TENSORS, NUMEL = 1000, 4096
LARGE = "one large tensor"


def tiny(
    function: Callable[..., Any], arguments: Callable[[], dict[str, Any]], most_us: float | None, name: str
) -> Case:
    """One call on inputs whose arithmetic costs nothing: validation, dispatch and the way into the library and back."""

    def work(quick: bool) -> Work:
        call = arguments()
        return Work(ours=Runner(partial(function, **call)), units=1, unit="call", sample=arguments())

    return Case(name, work, goals=() if most_us is None else (Goal("us a call", most=most_us),))


def many(
    function: Callable[..., Any],
    arguments: Callable[[list[int]], dict[str, Any]],
    most_us: float = 5.0,
    tensors: int = TENSORS,
    numel: int = NUMEL,
) -> Case:
    """A list of small tensors in one call, beside one tensor of as many elements.

    `arguments(sizes)` makes a call on a list of tensors with so many elements each.
    """

    def work(quick: bool) -> Work:
        count = 20 if quick else tensors
        listed, large = arguments([numel] * count), arguments([numel * count])
        return Work(
            ours=Runner(partial(function, **listed)),
            units=count,
            unit="tensor",
            sample=arguments([numel] * 3),
            peers=(Peer(LARGE, lambda: Runner(partial(function, **large)), package="anyfuse"),),
        )

    return Case(f"{tensors} tensors of {numel} in one call", work, goals=(Goal(f"excess {LARGE}", most=most_us),))
