"""What an operator tells about itself, so that tests, harness, benchmark and documents can loop over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._sampling import Draw


@dataclass(frozen=True)
class Sample:
    """One valid call: keyword arguments of the public function."""

    label: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class BadCall:
    """One invalid call, the exception it raises and a word its message holds (the argument's name)."""

    label: str
    arguments: dict[str, Any]
    error: type[Exception]
    names: str


@dataclass(frozen=True)
class OpSpec:
    """An operator. `name` is its stem in every layer.

    `function` is the public call, `schema` its `torch.library` schema, `document` the number of the document that
    defines it. `in_place` names the arguments that it updates, `outputs` what it returns, in order. `draw` makes a
    random valid call, `edges` are calls worth trying every time (the last of them large enough for several threads),
    `bad_calls` what must be refused.
    """

    name: str
    function: Callable[..., Any]
    schema: str
    document: str
    summary: str
    outputs: tuple[str, ...]
    draw: Callable[[Draw], Sample]
    bad_calls: Callable[[], Iterable[BadCall]]
    edges: Callable[[], Iterable[Sample]] = field(default=tuple)
    in_place: tuple[str, ...] = ()


REGISTRY: dict[str, OpSpec] = {}


def register(spec: OpSpec) -> OpSpec:
    if spec.name in REGISTRY:
        raise ValueError(f"operator {spec.name!r} is registered twice")
    REGISTRY[spec.name] = spec
    return spec
