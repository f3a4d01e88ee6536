"""What samples are made of: valid calls, and the plan of a plain one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .draw import Draw


@dataclass(frozen=True)
class Sample:
    """One valid call: keyword arguments of the public function."""

    label: str
    arguments: dict[str, Any]


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

    inputs: Callable[[Draw, tuple[int, ...], torch.dtype, Mapping[str, Any]], dict[str, Tensor]]
    sizes: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    axes: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    presets: Mapping[str, Preset] = field(default_factory=dict)
    encodings: Callable[[Mapping[str, Any]], Mapping[str, str]] = field(default=lambda attributes: {})


@dataclass(frozen=True)
class Samples:
    """Calls of an operator. `draw` makes a random valid one, `edges` are those worth trying every time (the last of
    them large enough for several threads), `case` describes a plain one for cases on disk. `unfused` makes that one as
    PyTorch's own operators give it, one after another: a function of the call's arguments, which it may overwrite, that
    returns its outputs in order.
    """

    draw: Callable[[Draw], Sample]
    edges: Callable[[], Iterable[Sample]]
    case: CaseSpec
    unfused: Callable[[Mapping[str, Any]], tuple[Tensor, ...]] | None = None
