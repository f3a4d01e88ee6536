"""Cases on disk: one call of an operator as raw files, so that any other program can take part in it.

    DIR/manifest.json        operator, attributes, and for each tensor its name, file, dtype and shape
    DIR/input/NAME.bin       inputs, raw and little-endian, row-major
    DIR/output/golden_NAME.bin, DIR/output/NAME.bin      what is expected, and what a run produced

`generate` makes inputs and goldens, `run` the outputs, `compare` judges them. The manifest is written last: a folder
without one is no case.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .._checks import dtype_name, one_of
from .._files import Folder, digest_of, tensor_writer, text_writer
from .._settings import backend, float64_reference
from ..samples.draw import Draw
from . import compare as judge
from . import plain
from .manifest import GOLDENS, MANIFEST, Case, File, load, to_json


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
    spec = plain.operator(name)
    plan = spec.samples.case
    ready = plain.preset_of(plan, preset)
    shape = plain.sizes_of(plan, sizes if sizes is not None else (ready.sizes if ready else plan.sizes), axes or {})
    chosen = plain.dtype_of(plan, dtype)
    one_of("golden", golden, GOLDENS)
    folder = Folder(directory)
    if not overwrite and folder.size(MANIFEST) is not None:
        raise ValueError(f"{directory} holds a case already; accepted: another folder, or --overwrite")

    given = {**(ready.attributes if ready else {}), **plain.parse(spec, settings or {})}
    every = plan.inputs(Draw(seed), shape, chosen, {**plain.defaults(spec), **given})
    tensors, attributes = plain.arguments_of(spec, every, given, optional)
    with float64_reference() if golden == "float64" else backend("reference"):
        results = plain.call(spec, {**attributes, **tensors})

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
    files = {file.file: tensor_writer(tensors[file.name]) for file in inputs}
    files |= {str(file.golden): tensor_writer(results[file.name]) for file in outputs}
    inputs = tuple(replace(file, sha256=digest_of(files[file.file])) for file in inputs)
    outputs = tuple(replace(file, sha256=digest_of(files[str(file.golden)])) for file in outputs)
    case = Case(spec.name, attributes, inputs, outputs, golden, seed)
    if not overwrite:
        for path in (*files, *(file.file for file in outputs)):
            if folder.size(path) is not None:
                raise ValueError(f"{path!r} exists in {directory}; accepted: another folder, or --overwrite")
    text = json.dumps(to_json(case), indent=2) + "\n"
    # The manifest goes first and comes last: until all is new, this is no case. Results of an older one go too.
    folder.write({**files, MANIFEST: text_writer(text)}, MANIFEST, outdated=(file.file for file in outputs))
    return case


def run(directory: str | os.PathLike[str]) -> Case:
    """Executes a case with the backend and target in use and writes its outputs."""
    folder, case = load(directory)
    for file in case.inputs:
        folder.check_size(file.file, file.nbytes)
    _check_memory(case.inputs)
    tensors = {file.name: folder.load(file.file, file.dtype, file.shape, file.sha256) for file in case.inputs}
    results = plain.named(case.spec, {**case.attributes, **tensors})
    for file in case.outputs:
        got = results[file.name]
        if (got.dtype, tuple(got.shape)) != (file.dtype, file.shape):
            raise ValueError(
                f"{MANIFEST} has {file.name!r} as {dtype_name(file.dtype)} of shape {file.shape}; "
                f"{case.operator} returned {dtype_name(got.dtype)} of shape {tuple(got.shape)}"
            )
    names = [file.file for file in case.outputs]  # results of an earlier run
    folder.write({file.file: tensor_writer(results[file.name]) for file in case.outputs}, names[-1], outdated=names)
    return case


def _check_memory(files: Sequence[File]) -> None:
    """A sparse file can pretend any size; tensors beyond the machine's memory are refused before one is read."""
    needed = sum(file.nbytes for file in files)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise ValueError(f"the case has tensors of {needed:,} bytes; accepted: {memory:,}, this machine's memory")


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
            name = file.encoding or dtype_name(file.dtype)
            results.append(judge.Comparison(file.name, name, file.nbytes // file.dtype.itemsize, reason=reason))
            continue
        out = folder.load(file.file, file.dtype, file.shape)
        golden = folder.load(str(file.golden), file.dtype, file.shape, file.sha256)
        judged = judge.compare(
            file.name, out, golden, loss=loss, count_loss=count_loss, lsb=lsb, encoding=file.encoding
        )
        results.append(judged)
    return results
