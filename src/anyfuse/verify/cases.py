"""Cases on disk: one call of an operator as raw files, so that any other program can take part in it.

    DIR/manifest.json        operator, attributes, and for each tensor its name, file, dtype and shape
    DIR/input/NAME.bin       inputs, raw and little-endian, row-major
    DIR/output/golden_NAME.bin, DIR/output/NAME.bin      what is expected, and what a run produced

`generate` makes inputs and goldens, `run` the outputs, `compare` judges them. The manifest is written last: a folder
without one is no case.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._opspec import REGISTRY, CaseSpec, OpSpec, Preset
from .._sampling import Draw
from .._settings import backend, convention_or_default, float64_reference
from . import compare as judge
from .compare import name_of
from .files import Folder, tensor_writer, text_writer

MANIFEST = "manifest.json"
MANIFEST_LIMIT = 1 << 20
FORMAT = "anyfuse case 1"
GOLDENS = ("reference", "float64")
ENCODINGS = (None, "int4", "hifloat8")

DTYPES = {
    name_of(dtype): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    )
}  # fmt: skip


@dataclass(frozen=True)
class File:
    """A tensor and the file that holds it; an output has the file of its golden too."""

    name: str
    file: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    golden: str | None = None
    encoding: str | None = None

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


# ---- generate ----


def operator(name: str) -> tuple[OpSpec, CaseSpec]:
    """An operator that cases can be made of, by its stem or the name of its function."""
    for spec in REGISTRY.values():
        if name in (spec.name, spec.function.__name__):
            return spec, spec.samples.case
    raise ValueError(f"operator {name!r} is unknown; accepted: {', '.join(known())}")


def known() -> list[str]:
    """The operators that cases can be made of."""
    return sorted(REGISTRY)


def describe(name: str) -> dict[str, Any]:
    """What `generate` takes for an operator."""
    spec, plan = operator(name)
    tensors = plan.inputs(Draw(0), plan.sizes, plan.dtypes[0], _defaults(spec))
    defaults = _defaults(spec)
    return {
        "operator": spec.name,
        "summary": spec.summary,
        "shape": ",".join(plan.axes) or "sizes of any number",
        "default shape": ",".join(map(str, plan.sizes)),
        "dtypes": [name_of(dtype) for dtype in plan.dtypes],
        "attributes": {key: value for key, value in defaults.items() if key not in tensors}
        | {
            key: value.item()
            for key, value in tensors.items()
            if defaults.get(key, 0) is not None and value.numel() == 1
        },
        "optional tensors": _optional(spec, tensors),
        "presets": {key: preset.summary for key, preset in plan.presets.items()},
        "outputs": list(spec.outputs),
    }


def generate(
    name: str,
    directory: str | os.PathLike[str],
    *,
    sizes: Sequence[int] | None = None,
    axes: Mapping[str, int] | None = None,
    dtype: str | None = None,
    settings: Mapping[str, str] | None = None,
    optional: Sequence[str] = (),
    preset: str | None = None,
    seed: int = 0,
    golden: str = "reference",
    overwrite: bool = False,
) -> Case:
    """Makes a case: inputs from `seed`, goldens from the reference, in fp32 as the contract has it or in float64.

    `sizes` are the numbers of the shape and `axes` single ones by name; `settings` are attributes as text; `optional`
    names optional tensors to include. Everything is checked, and computed, before the first file is written.
    """
    spec, plan = operator(name)
    ready = _preset(plan, preset)
    shape = _sizes(plan, sizes if sizes is not None else (ready.sizes if ready else plan.sizes), axes or {})
    chosen = _dtype(plan, dtype)
    _one_of("golden", golden, GOLDENS)
    folder = Folder(directory)
    if not overwrite and folder.size(MANIFEST) is not None:
        raise ValueError(f"{directory} holds a case already; accepted: another folder, or --overwrite")

    given = {**(ready.attributes if ready else {}), **_parse(spec, settings or {})}
    every = plan.inputs(Draw(seed), shape, chosen, {**_defaults(spec), **given})
    tensors, attributes = _arguments(spec, every, given, optional)
    with float64_reference() if golden == "float64" else backend("reference"):
        results = call(spec, {**attributes, **tensors})

    encodings = plan.encodings(attributes)
    inputs = tuple(
        File(key, f"input/{ready.inputs[key] if ready else key}.bin", value.dtype, tuple(value.shape))
        for key, value in tensors.items()
    )
    outputs = tuple(
        File(
            key,
            f"output/{ready.outputs[key] if ready else key}.bin",
            value.dtype,
            tuple(value.shape),
            f"output/{ready.goldens[key] if ready else 'golden_' + key}.bin",
            encodings.get(key),
        )
        for key, value in results.items()
    )
    case = Case(spec.name, attributes, inputs, outputs, golden, seed)
    files = {file.file: tensor_writer(tensors[file.name]) for file in inputs}
    files |= {file.golden: tensor_writer(results[file.name]) for file in outputs if file.golden}
    if not overwrite:
        for path in (*files, *(file.file for file in outputs)):
            if folder.size(path) is not None:
                raise ValueError(f"{path!r} exists in {directory}; accepted: another folder, or --overwrite")
    text = json.dumps(to_json(case), indent=2) + "\n"
    # The manifest goes first and comes last: until all is new, this is no case. Results of an older one go too.
    folder.write({**files, MANIFEST: text_writer(text)}, outdated=(MANIFEST, *(file.file for file in outputs)))
    return case


def everyday(spec: OpSpec, dtype: torch.dtype, seed: int) -> dict[str, Any]:
    """The arguments of an operator's plain call: default sizes and attributes, without optional tensors."""
    plan = spec.samples.case
    every = plan.inputs(Draw(seed), plan.sizes, dtype, _defaults(spec))
    tensors, attributes = _arguments(spec, every, {}, ())
    return {**attributes, **tensors}


def call(spec: OpSpec, arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """Runs an operator on copies of its tensors and names its results."""
    return _call(spec, {key: value.clone() if isinstance(value, Tensor) else value for key, value in arguments.items()})


def _preset(plan: CaseSpec, name: str | None) -> Preset | None:
    if name is None:
        return None
    if name not in plan.presets:
        raise ValueError(f"preset {name!r} is unknown; accepted: {', '.join(plan.presets) or 'none for this operator'}")
    return plan.presets[name]


def _sizes(plan: CaseSpec, sizes: Sequence[int], axes: Mapping[str, int]) -> tuple[int, ...]:
    words = ",".join(plan.axes) if plan.axes else "any number of sizes"
    if plan.axes and len(sizes) != len(plan.axes):
        raise ValueError(f"shape has {len(sizes)} sizes; accepted: {words}")
    for name in axes:
        if name not in plan.axes:
            raise ValueError(f"size {name!r} is unknown; accepted: {', '.join(plan.axes) or '--shape'}")
    result = tuple(axes.get(name, size) for name, size in zip(plan.axes, sizes, strict=True)) if plan.axes else sizes
    if min(result, default=0) < 0:
        raise ValueError(f"shape is {tuple(result)}; accepted: sizes of 0 and more")
    return tuple(result)


def _dtype(plan: CaseSpec, name: str | None) -> torch.dtype:
    dtypes = {name_of(dtype): dtype for dtype in plan.dtypes}
    return plan.dtypes[0] if name is None else dtypes[_one_of("dtype", name, tuple(dtypes))]


def _parameters(spec: OpSpec) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(spec.function).parameters


def _parse(spec: OpSpec, settings: Mapping[str, str]) -> dict[str, Any]:
    """Attributes from their text: numbers, true, false, none, names of dtypes where one is taken, otherwise strings."""
    hints = typing.get_type_hints(spec.function)
    result = {}
    for name, text in settings.items():
        if name not in hints or name == "return":
            accepted = ", ".join(_parameters(spec))
            raise ValueError(f"{spec.function.__name__} has no argument {name!r}; accepted: {accepted}")
        result[name] = _parse_value(text, torch.dtype in typing.get_args(hints[name]))
    return result


def _parse_value(text: str, dtypes: bool) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    if dtypes and text in DTYPES:
        return DTYPES[text]
    if "," in text:
        return [_parse_value(part, dtypes) for part in text.split(",")]
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    return text


def _arguments(
    spec: OpSpec, tensors: Mapping[str, Tensor], given: Mapping[str, Any], optional: Sequence[str]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The call: its tensors (those required, those asked for) and its attributes. A number given for a one-element
    tensor (a step, a learning rate) fills that tensor."""
    defaults = _defaults(spec)
    can = _optional(spec, tensors)
    for name in optional:
        if name not in can:
            raise ValueError(f"optional tensor {name!r} is unknown; accepted: {', '.join(can) or 'none'}")
    wanted = {*optional, *(name for name, value in given.items() if value is not None)}
    chosen = {name: tensor for name, tensor in tensors.items() if name not in can or name in wanted}
    for name in given:
        if name in chosen:
            chosen[name] = _filled(name, chosen[name], given[name])
    attributes = {name: value for name, value in {**defaults, **given}.items() if name not in chosen}
    return chosen, attributes


def _optional(spec: OpSpec, tensors: Mapping[str, Tensor]) -> list[str]:
    """The tensors that a case can do without."""
    defaults, always = _defaults(spec), spec.samples.case.always
    return [name for name in tensors if defaults.get(name, ...) is None and name not in always]


def _defaults(spec: OpSpec) -> dict[str, Any]:
    """The default attributes, written out in every manifest: a case must not change with those of a later version."""
    parameters = _parameters(spec).items()
    result = {name: item.default for name, item in parameters if item.default is not inspect.Parameter.empty}
    if "convention" in result:
        result["convention"] = convention_or_default(result["convention"], spec.convention)
    return result


def _filled(name: str, tensor: Tensor, value: Any) -> Tensor:
    whole = not tensor.dtype.is_floating_point
    if tensor.numel() != 1:
        raise ValueError(f"{name} is a tensor of shape {tuple(tensor.shape)}; accepted: values for attributes only")
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        kind = "a whole number" if whole else "a number"
        raise ValueError(f"{name} is {value!r}; accepted: {kind}, as it is a tensor of {name_of(tensor.dtype)}")
    return torch.full_like(tensor, value)


def _call(spec: OpSpec, arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """Runs an operator and names its results."""
    results = spec.function(**arguments)
    return dict(zip(spec.outputs, results if isinstance(results, tuple) else (results,), strict=True))


def _one_of(what: str, value: Any, accepted: Sequence[Any]) -> Any:
    if value not in accepted:
        raise ValueError(f"{what} is {value!r}; accepted: {', '.join(map(str, accepted))}")
    return value


# ---- the manifest ----


def to_json(case: Case) -> dict[str, Any]:
    def entry(file: File) -> dict[str, Any]:
        values = {"name": file.name, "file": file.file, "dtype": name_of(file.dtype), "shape": list(file.shape)}
        return {**values, **{key: getattr(file, key) for key in ("golden", "encoding") if getattr(file, key)}}

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
        _one_of(f"format in {MANIFEST}", content.get("format"), (FORMAT,))
        spec, _ = operator(self.entry(content, "operator", str))
        inputs = self.files(content, "inputs", tuple(_parameters(spec)), goldens=False)
        outputs = self.files(content, "outputs", spec.outputs, goldens=True)
        missing = sorted(set(spec.outputs) - {file.name for file in outputs})
        if missing:
            raise ValueError(f"outputs in {MANIFEST} lack {', '.join(missing)}")
        attributes = self.attributes(spec, self.entry(content, "attributes", dict), {file.name for file in inputs})
        golden = _one_of(f"golden in {MANIFEST}", content.get("golden"), GOLDENS)
        return Case(spec.name, attributes, inputs, outputs, golden, self.entry(content, "seed", int))

    def attributes(self, spec: OpSpec, values: dict[str, Any], inputs: set[str]) -> dict[str, Any]:
        for name in values:
            _one_of(f"an attribute in {MANIFEST}", name, [key for key in _parameters(spec) if key not in inputs])
        given = {*values, *inputs}
        for name, parameter in _parameters(spec).items():
            required = parameter.default is inspect.Parameter.empty or name in spec.samples.case.always
            if required and name not in given:
                raise ValueError(f"{MANIFEST} has neither an input nor an attribute {name!r}")
        return {name: self.attribute(value) for name, value in values.items()}

    def attribute(self, value: Any) -> Any:
        dtype = isinstance(value, str) and value.startswith("torch.")
        return DTYPES[_one_of(f"a dtype in {MANIFEST}", value[6:], tuple(DTYPES))] if dtype else value

    def files(self, content: dict[str, Any], key: str, names: Sequence[str], goldens: bool) -> tuple[File, ...]:
        result: dict[str, File] = {}
        for item in self.entry(content, key, list):
            self.expect(f"an entry of {key}", item, dict)
            name = _one_of(f"a name in {key} of {MANIFEST}", self.entry(item, "name", str), names)
            if name in result:
                raise ValueError(f"{key} in {MANIFEST} name {name!r} twice")
            result[name] = File(
                name,
                self.path(self.entry(item, "file", str)),
                DTYPES[_one_of(f"dtype of {name!r} in {MANIFEST}", self.entry(item, "dtype", str), tuple(DTYPES))],
                self.shape(name, self.entry(item, "shape", list)),
                self.path(self.entry(item, "golden", str)) if goldens else None,
                _one_of(f"encoding of {name!r} in {MANIFEST}", item.get("encoding"), ENCODINGS),
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


# ---- run ----


def run(directory: str | os.PathLike[str]) -> Case:
    """Executes a case with the backend and target in use and writes its outputs."""
    folder, case = load(directory)
    for file in case.inputs:
        folder.check_size(file.file, file.nbytes)
    _check_memory(case.inputs)
    tensors = {file.name: folder.load(file.file, file.dtype, file.shape) for file in case.inputs}
    results = _call(case.spec, {**case.attributes, **tensors})
    for file in case.outputs:
        got = results[file.name]
        if (got.dtype, tuple(got.shape)) != (file.dtype, file.shape):
            raise ValueError(
                f"{MANIFEST} has {file.name!r} as {name_of(file.dtype)} of shape {file.shape}; "
                f"{case.operator} returned {name_of(got.dtype)} of shape {tuple(got.shape)}"
            )
    names = [file.file for file in case.outputs]  # results of an earlier run
    folder.write({file.file: tensor_writer(results[file.name]) for file in case.outputs}, outdated=names)
    return case


def _check_memory(files: Sequence[File]) -> None:
    """A sparse file can pretend any size; tensors beyond the machine's memory are refused before one is read."""
    needed = sum(file.nbytes for file in files)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise ValueError(f"the case has tensors of {needed:,} bytes; accepted: {memory:,}, this machine's memory")


# ---- compare ----


def compare(
    directory: str | os.PathLike[str],
    *,
    loss: float | None = None,
    count_loss: float = judge.COUNT_LOSS,
    lsb: int = 0,
) -> list[judge.Comparison]:
    """Judges a case's outputs by its goldens. An output of another size fails; one that is missing is a ValueError."""
    folder, case = load(directory)
    for file in case.outputs:
        folder.check_size(str(file.golden), file.nbytes)
        if folder.size(file.file) is None:
            raise ValueError(f"{file.file!r} is missing in {directory}: has the case been run?")
    _check_memory(case.outputs)
    results = []
    for file in case.outputs:
        size = folder.size(file.file)
        if size != file.nbytes:
            reason = f"the file has {size} bytes, the golden {file.nbytes}"
            name = file.encoding or name_of(file.dtype)
            results.append(judge.Comparison(file.name, name, file.nbytes // file.dtype.itemsize, reason=reason))
            continue
        out = folder.load(file.file, file.dtype, file.shape)
        golden = folder.load(str(file.golden), file.dtype, file.shape)
        judged = judge.compare(
            file.name, out, golden, loss=loss, count_loss=count_loss, lsb=lsb, encoding=file.encoding
        )
        results.append(judged)
    return results
