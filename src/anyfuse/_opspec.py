"""What an operator tells about itself, so that tests, harness, benchmark and documents can loop over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from ._sampling import Draw
    from ._soc import Profiles


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
class Preset:
    """A case that is known elsewhere: its sizes, attributes and file names (argument or output name to file)."""

    summary: str
    sizes: tuple[int, ...]
    attributes: Mapping[str, Any]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    goldens: Mapping[str, str]


@dataclass(frozen=True)
class CaseSpec:
    """How `anyfuse case` makes one plain call of an operator.

    `inputs(draw, sizes, dtype, attributes)` returns every tensor that the operator can take, contiguous, with everyday
    values; those whose default is None stay out of a case unless it asks for them, or `always` names them. `sizes` are
    the numbers of a case's shape: one for each name in `axes` or, where that is empty, a shape of any rank; here stand
    the default ones. `dtypes` are the choices, the default first. `encodings(attributes)` names the outputs that hold
    packed or coded values in another dtype ("int4", "hifloat8").
    """

    inputs: Callable[[Draw, tuple[int, ...], torch.dtype, Mapping[str, Any]], dict[str, torch.Tensor]]
    sizes: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    axes: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    presets: Mapping[str, Preset] = field(default_factory=dict)
    encodings: Callable[[Mapping[str, Any]], Mapping[str, str]] = field(default=lambda attributes: {})


@dataclass(frozen=True)
class Samples:
    """Calls of an operator. `draw` makes a random valid one, `edges` are those worth trying every time (the last of
    them large enough for several threads), `bad_calls` must be refused, `case` describes a plain one for cases on disk.
    """

    draw: Callable[[Draw], Sample]
    edges: Callable[[], Iterable[Sample]]
    bad_calls: Callable[[], Iterable[BadCall]]
    case: CaseSpec


def samples_of(name: str) -> Samples:
    """Those of the module of an operator's name; imported when first asked for, so that `import anyfuse` is not longer
    for them."""
    samples: Samples = import_module(f"anyfuse.samples.{name}").SAMPLES
    return samples


@dataclass(frozen=True)
class OpSpec:
    """An operator. `name` is its stem in every layer.

    `function` is the public call, `document` the name under which the vendor's
    document defines it. `in_place` names the arguments that it updates, `outputs` what it returns, in order. `profiles`
    is what each product takes (None: no product limits it), `convention` the numbers that it gives when nobody asks for others, `load` gives the samples.
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
