"""What a case's manifest says: written, and read from a file that anyone may have written."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .._checks import dtype_name, one_of
from .._files import Folder
from .._opspec import REGISTRY, OpSpec
from .plain import DTYPES, operator, parameters

MANIFEST = "manifest.json"
MANIFEST_LIMIT = 1 << 20
FORMAT = "anyfuse case 1"
GOLDENS = ("reference", "float64")
ENCODINGS = (None, "int4", "hifloat8")


@dataclass(frozen=True)
class File:
    """A tensor and the file that holds it; an output has the file of its golden too. `sha256` is that of the input's or
    the golden's file: a manifest of another case beside it is refused. Other writers of manifests may leave it out."""

    name: str
    file: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    golden: str | None = None
    encoding: str | None = None
    sha256: str | None = None

    @property
    def nbytes(self) -> int:
        count = self.dtype.itemsize
        for length in self.shape:
            count *= length
        return count


@dataclass(frozen=True)
class Case:
    """What a manifest says."""

    operator: str
    attributes: dict[str, Any]
    inputs: tuple[File, ...]
    outputs: tuple[File, ...]
    golden: str
    seed: int

    @property
    def spec(self) -> OpSpec:
        return REGISTRY[self.operator]


def to_json(case: Case) -> dict[str, Any]:
    def entry(file: File) -> dict[str, Any]:
        values = {"name": file.name, "file": file.file, "dtype": dtype_name(file.dtype), "shape": list(file.shape)}
        return {**values, **{key: getattr(file, key) for key in ("golden", "encoding", "sha256") if getattr(file, key)}}

    attributes = {
        key: str(value) if isinstance(value, torch.dtype) else value for key, value in case.attributes.items()
    }
    return {
        "format": FORMAT,
        "operator": case.operator,
        "seed": case.seed,
        "golden": case.golden,
        "attributes": attributes,
        "inputs": [entry(file) for file in case.inputs],
        "outputs": [entry(file) for file in case.outputs],
    }


def load(directory: str | os.PathLike[str]) -> tuple[Folder, Case]:
    """Reads and checks a manifest; looks at no other file."""
    folder = Folder(directory)
    text = folder.read(MANIFEST, MANIFEST_LIMIT)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:  # bad characters, syntax, numbers, depth
        raise ValueError(f"{MANIFEST} in {directory} cannot be read as JSON: {error}") from None
    return folder, _Reader(folder).case(content)


class _Reader:
    """Turns a manifest that anyone may have written into a `Case`, or raises a ValueError that names the entry."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.paths = {folder.path(MANIFEST)}

    def case(self, content: Any) -> Case:
        self.expect("the content", content, dict)
        one_of(f"format in {MANIFEST}", content.get("format"), (FORMAT,))
        spec = operator(self.entry(content, "operator", str))
        inputs = self.files(content, "inputs", tuple(parameters(spec)), goldens=False)
        outputs = self.files(content, "outputs", spec.outputs, goldens=True)
        missing = sorted(set(spec.outputs) - {file.name for file in outputs})
        if missing:
            raise ValueError(f"outputs in {MANIFEST} lack {', '.join(missing)}")
        attributes = self.attributes(spec, self.entry(content, "attributes", dict), {file.name for file in inputs})
        golden = one_of(f"golden in {MANIFEST}", content.get("golden"), GOLDENS)
        return Case(spec.name, attributes, inputs, outputs, golden, self.entry(content, "seed", int))

    def attributes(self, spec: OpSpec, values: dict[str, Any], inputs: set[str]) -> dict[str, Any]:
        for name in values:
            one_of(f"an attribute in {MANIFEST}", name, [key for key in parameters(spec) if key not in inputs])
        given = {*values, *inputs}
        for name, parameter in parameters(spec).items():
            required = parameter.default is inspect.Parameter.empty or name in spec.samples.case.always
            if required and name not in given:
                raise ValueError(f"{MANIFEST} has neither an input nor an attribute {name!r}")
        return {name: self.attribute(value) for name, value in values.items()}

    def attribute(self, value: Any) -> Any:
        dtype = isinstance(value, str) and value.startswith("torch.")
        return DTYPES[one_of(f"a dtype in {MANIFEST}", value[6:], tuple(DTYPES))] if dtype else value

    def files(self, content: dict[str, Any], key: str, names: Sequence[str], goldens: bool) -> tuple[File, ...]:
        result: dict[str, File] = {}
        for item in self.entry(content, key, list):
            self.expect(f"an entry of {key}", item, dict)
            name = one_of(f"a name in {key} of {MANIFEST}", self.entry(item, "name", str), names)
            if name in result:
                raise ValueError(f"{key} in {MANIFEST} name {name!r} twice")
            result[name] = File(
                name,
                self.path(self.entry(item, "file", str)),
                DTYPES[one_of(f"dtype of {name!r} in {MANIFEST}", self.entry(item, "dtype", str), tuple(DTYPES))],
                self.shape(name, self.entry(item, "shape", list)),
                self.path(self.entry(item, "golden", str)) if goldens else None,
                one_of(f"encoding of {name!r} in {MANIFEST}", item.get("encoding"), ENCODINGS),
                self.expect("'sha256'", item["sha256"], str) if item.get("sha256") is not None else None,
            )
        return tuple(result.values())

    def path(self, name: str) -> str:
        """A file of the folder that no other entry names."""
        path = self.folder.path(name)
        if path in self.paths:
            raise ValueError(f"{MANIFEST} names the file {name!r} twice; accepted: a file for each entry")
        self.paths.add(path)
        return name

    def shape(self, name: str, values: list[Any]) -> tuple[int, ...]:
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 48:
                raise ValueError(f"shape of {name!r} in {MANIFEST} is {values}; accepted: sizes of 0 to 2^48")
        if len(values) > 64:
            raise ValueError(f"shape of {name!r} in {MANIFEST} has {len(values)} dimensions; accepted: at most 64")
        return tuple(values)

    def entry(self, content: dict[str, Any], key: str, kind: type) -> Any:
        if key not in content:
            raise ValueError(f"{MANIFEST} lacks {key!r}")
        return self.expect(repr(key), content[key], kind)

    def expect(self, what: str, value: Any, kind: type) -> Any:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ValueError(f"{what} in {MANIFEST} is a {type(value).__name__}; accepted: a {kind.__name__}")
        return value
