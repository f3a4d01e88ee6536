"""What an operator tells about itself, so that tests, harness, benchmark and documents can loop over all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._soc import Profiles
    from .samples.kinds import Samples


def samples_of(name: str) -> Samples:
    """Those of the module of an operator's name; imported when first asked for, so that `import anyfuse` is not longer
    for them."""
    samples: Samples = import_module(f"anyfuse.samples.{name}").SAMPLES
    return samples


@dataclass(frozen=True)
class OpSpec:
    """An operator. `name` is its stem in every layer.

    `function` is the public call, `document` the name under which the vendor's document defines it. `in_place` names
    the arguments that it updates, `outputs` what it returns, in order. `profiles` is what each product takes (None: no
    product limits it), `convention` the default numbers, `load` gives the samples.
    """

    name: str
    function: Callable[..., Any]
    document: str
    summary: str
    outputs: tuple[str, ...]
    in_place: tuple[str, ...] = ()
    profiles: Profiles | None = None
    convention: str = "formula"
    load: Callable[[str], Samples] = samples_of

    @cached_property
    def samples(self) -> Samples:
        return self.load(self.name)


REGISTRY: dict[str, OpSpec] = {}


def register(spec: OpSpec) -> OpSpec:
    if spec.name in REGISTRY:
        raise ValueError(f"operator {spec.name!r} is registered twice")
    REGISTRY[spec.name] = spec
    return spec
