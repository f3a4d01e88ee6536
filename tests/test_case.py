"""Cases on disk: what is written, that other programs' files are judged, and that bad files do no harm."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import anyfuse
from anyfuse import _core
from anyfuse import _files as files
from anyfuse._files import Folder
from anyfuse._opspec import REGISTRY, OpSpec
from anyfuse.verify import cases, plain
from anyfuse_cli.app import app

EMA = "apply_fused_ema_adamw"


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """A small case whose goldens are there and whose outputs are not."""
    cases.generate(EMA, tmp_path / "case", sizes=(3, 5), settings={"lr": "0.1", "step": "4"})
    return tmp_path / "case"


def tree(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def floats(path: Path) -> list[float]:
    data = path.read_bytes()
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def edit(case: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads((case / "manifest.json").read_text())
    change(content)
    (case / "manifest.json").write_text(json.dumps(content))


# ---- generate ----


def test_files_are_raw_and_little_endian(case: Path) -> None:
    assert sorted(tree(case)) == sorted(
        ["manifest.json"]
        + [f"input/{name}.bin" for name in ("grad", "var", "m", "v", "s", "step")]
        + [f"output/golden_{name}.bin" for name in ("var", "m", "v", "s")]
    )
    assert (case / "input/step.bin").read_bytes() == (4).to_bytes(8, "little")
    names = ("grad", "var", "m", "v", "s")
    tensors = {name: torch.tensor(floats(case / f"input/{name}.bin")).view(3, 5) for name in names}
    with anyfuse.backend("reference"):
        results = anyfuse.apply_fused_ema_adamw_(**tensors, step=4, lr=0.1)
    for name, result in zip(("var", "m", "v", "s"), results, strict=True):
        assert floats(case / f"output/golden_{name}.bin") == result.flatten().tolist()


def test_manifest_tells_all(case: Path) -> None:
    content = json.loads((case / "manifest.json").read_text())
    assert content["operator"] == EMA and content["golden"] == "reference" and content["seed"] == 0
    assert (
        content["attributes"] | {"lr": 0.1, "beta2": 0.999, "mode": 1, "convention": "formula"} == content["attributes"]
    )
    assert "step" not in content["attributes"]
    digests = {name: hashlib.sha256((case / name).read_bytes()).hexdigest() for name in tree(case)}
    given = {"name": "grad", "file": "input/grad.bin", "dtype": "float32", "shape": [3, 5]}
    assert content["inputs"][0] == {**given, "sha256": digests["input/grad.bin"]}
    output = {"name": "var", "file": "output/var.bin", "dtype": "float32", "shape": [3, 5]}
    golden = "output/golden_var.bin"
    assert content["outputs"][0] == {**output, "golden": golden, "sha256": digests[golden]}


def test_a_seed_makes_the_same_case_again(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        cases.generate("lazy_adam", tmp_path / name, seed=seed)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert tree(tmp_path / "a")["input/m.bin"] != tree(tmp_path / "c")["input/m.bin"]


@pytest.mark.parametrize("golden", ["reference", "float64"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_operator_passes_its_own_case(spec: OpSpec, golden: str, dtype: str, tmp_path: Path) -> None:
    cases.generate(spec.name, tmp_path, dtype=dtype, golden=golden)
    for target in _core.available_targets():
        with _core.target(target):
            cases.run(tmp_path)
        results = cases.compare(tmp_path, lsb=1 if golden == "float64" else 0)
        assert [result.name for result in results] == list(spec.outputs)
        if golden == "reference":
            assert all(result.passed and result.bit_equal for result in results), results
        for result in results:
            assert result.passed or result.max_abs < 0.01 * peak(tmp_path, result.name), result


def peak(directory: Path, name: str) -> float:
    """A golden's largest magnitude. A code at a tie may fall to either side, and one code of 127 is less than 1 %."""
    folder, case = cases.load(directory)
    file = next(file for file in case.outputs if file.name == name)
    return float(folder.load(str(file.golden), file.dtype, file.shape).double().abs().max())


def test_every_optional_tensor_can_be_had(spec: OpSpec, tmp_path: Path) -> None:
    optional = plain.describe(spec.name)["optional tensors"]
    case = cases.generate(spec.name, tmp_path, optional=optional)
    assert set(optional) <= {file.name for file in case.inputs}
    cases.run(tmp_path)
    assert all(result.bit_equal for result in cases.compare(tmp_path))


def test_float64_golden_is_the_same_rule_without_its_roundings(case: Path, tmp_path: Path) -> None:
    cases.generate(EMA, tmp_path / "exact", sizes=(3, 5), settings={"lr": "0.1", "step": "4"}, golden="float64")
    plain, exact = tree(case), tree(tmp_path / "exact")
    assert all(plain[name] == exact[name] for name in plain if name.startswith("input/"))
    g, var, m, v, s = (
        np.frombuffer(exact[f"input/{name}.bin"], "<f4").astype(np.float64) for name in ("grad", "var", "m", "v", "s")
    )
    m, v = 0.9 * m + (1 - 0.9) * g, 0.999 * v + (1 - 0.999) * g * g
    var = var - 0.1 * (m / (1 - 0.9**4) / (np.sqrt(v / (1 - 0.999**4)) + 1e-8))
    s = 0.9999 * s + (1 - 0.9999) * var
    for name, values in (("m", m), ("v", v), ("var", var), ("s", s)):
        np.testing.assert_array_equal(
            np.frombuffer(exact[f"output/golden_{name}.bin"], "<f4"), values.astype(np.float32)
        )
    assert plain["output/golden_var.bin"] != exact["output/golden_var.bin"]


@pytest.mark.parametrize(
    ("options", "outputs"),
    [
        ({"y_dtype": "int4"}, {"y1": ("uint8", [2, 8], "int4")}),
        ({"y_dtype": "hifloat8"}, {"y1": ("uint8", [2, 16], "hifloat8")}),
        ({"y_dtype": "float8_e5m2"}, {"y1": ("float8_e5m2", [2, 16], None)}),
        ({"output_mask": "false,true"}, {"y1": ("int8", [0], None), "y2": ("int8", [2, 16], None)}),
    ],
)
def test_outputs_of_other_kinds(
    options: dict[str, str], outputs: dict[str, tuple[str, list[int], str | None]], tmp_path: Path
) -> None:
    cases.generate("add_rms_norm_dynamic_quant", tmp_path, sizes=(2, 16), settings=options)
    content = {item["name"]: item for item in json.loads((tmp_path / "manifest.json").read_text())["outputs"]}
    for name, (dtype, shape, encoding) in outputs.items():
        assert (content[name]["dtype"], content[name]["shape"], content[name].get("encoding")) == (
            dtype,
            shape,
            encoding,
        )
    cases.run(tmp_path)
    assert all(result.bit_equal for result in cases.compare(tmp_path))


def test_the_official_case_of_lazy_adam(tmp_path: Path) -> None:
    sizes = {"rows": 500, "n": 141}
    case = cases.generate("lazy_adam", tmp_path, preset="official", axes=sizes)
    inputs = ["gradient", "indices", "inputM", "inputV", "inputVar", "learningRate"]
    assert sorted(tree(tmp_path)) == sorted(
        ["manifest.json", *(f"input/{name}.bin" for name in inputs)]
        + [f"output/goldenOutput{name}.bin" for name in ("M", "V", "Var")]
    )
    assert {file.name: file.shape for file in case.inputs}["indices"] == (141, 1)
    assert (tmp_path / "input/learningRate.bin").read_bytes() == struct.pack("<f", 0.001)
    assert (case.attributes["beta1"], case.attributes["beta2"], case.attributes["epsilon"]) == (0.9, 0.999, 1e-7)
    indices = np.fromfile(tmp_path / "input/indices.bin", "<i4")
    assert len(set(indices)) == 141 and indices.min() >= 0 and indices.max() < 500
    cases.run(tmp_path)
    assert {f"output/output{name}.bin" for name in ("M", "V", "Var")} <= set(tree(tmp_path))
    assert all(result.bit_equal for result in cases.compare(tmp_path))
    official_golden(tmp_path, indices)


def official_golden(directory: Path, indices: np.ndarray) -> None:
    """numpy's fp32 arithmetic, step by step, gives the golden files' bytes."""
    read = {
        name: np.fromfile(directory / f"input/{name}.bin", "<f4")
        for name in ("gradient", "inputM", "inputV", "inputVar")
    }
    g, m, v, var = (values.reshape(-1, 32) for values in read.values())
    one, b1, b2, lr, eps = (np.float32(value) for value in (1, 0.9, 0.999, 0.001, 1e-7))
    m_new = m[indices] * b1 + g * (one - b1)
    v_new = v[indices] * b2 + g * g * (one - b2)
    var_new = var[indices] + m_new * -lr / (np.sqrt(v_new) + eps)
    for name, table, rows in (("M", m, m_new), ("V", v, v_new), ("Var", var, var_new)):
        table[indices] = rows
        assert (directory / f"output/goldenOutput{name}.bin").read_bytes() == table.tobytes()


def test_the_official_sizes() -> None:
    preset = REGISTRY["lazy_adam"].samples.case.presets["official"]
    assert preset.sizes == (2_000_000, 32, 564_096)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "adam"}, "operator 'adam' is unknown; accepted: add_rms"),
        ({"dtype": "float64"}, "dtype is 'float64'; accepted: 'float32'"),
        ({"sizes": (2, -1)}, "accepted: sizes of 0 and more"),
        ({"golden": "float16"}, "golden is 'float16'; accepted: 'reference', 'float64'"),
        ({"preset": "official"}, "preset 'official' is unknown"),
        ({"axes": {"rows": 4}}, "size 'rows' is unknown"),
        ({"settings": {"rate": "1"}}, "has no argument 'rate'; accepted: grad, var"),
        ({"settings": {"grad": "1"}}, "grad is a tensor of shape"),
        ({"settings": {"step": "1.5"}}, "step is 1.5; accepted: a whole number"),
        ({"settings": {"mode": "2"}}, "mode is 2; accepted: 0"),
        ({"optional": ("beta",)}, "optional tensor 'beta' is unknown; accepted: grad_scale, found_inf"),
        ({"name": "lazy_adam", "sizes": (2, 3)}, "shape has 2 sizes; accepted: rows,dim,n"),
    ],
)
def test_generate_refuses_and_writes_nothing(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        cases.generate(**{"name": EMA, "directory": tmp_path / "case", **options})
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_generate_keeps_what_is_there(case: Path) -> None:
    before = tree(case)
    with pytest.raises(ValueError, match="holds a case already; accepted: another folder, or --overwrite"):
        cases.generate(EMA, case)
    (case / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"'input/grad.bin' exists"):
        cases.generate(EMA, case)
    assert tree(case).items() <= before.items()


def test_overwrite_takes_old_results_away(case: Path) -> None:
    cases.run(case)
    (case / "notes.txt").write_text("mine")
    cases.generate(EMA, case, sizes=(2,), overwrite=True)
    with pytest.raises(ValueError, match=r"'output/var.bin' is missing .* has the case been run"):
        cases.compare(case)
    assert (case / "notes.txt").read_text() == "mine"


# ---- compare ----


def test_a_wrong_result_fails(case: Path) -> None:
    cases.run(case)
    values = floats(case / "output/v.bin")
    values[7] += 0.5
    (case / "output/v.bin").write_bytes(struct.pack("<15f", *values))
    results = {result.name: result for result in cases.compare(case)}
    assert [name for name, result in results.items() if not result.passed] == ["v"]
    assert (results["v"].different, results["v"].max_abs) == (1, pytest.approx(0.5, rel=1e-6))
    assert all(result.passed for result in cases.compare(case, loss=0.6))
    assert all(result.passed for result in cases.compare(case, count_loss=0.07))  # 15 · 0.07 > 1


def test_a_result_of_another_size_fails(case: Path) -> None:
    cases.run(case)
    for content in (b"", b"\0" * 56, b"\0" * 64):
        (case / "output/m.bin").write_bytes(content)
        result = cases.compare(case, loss=1e30, count_loss=1.0)[1]
        assert not result.passed and result.reason == f"the file has {len(content)} bytes, the golden 60"


# ---- files that are not what they should be ----


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor may be read: what is wrong must be seen before."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a file was read")

    monkeypatch.setattr(files.np, "fromfile", refuse)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "too short: it has 0 bytes; accepted: 60"), (b"\0" * 59, "too short"), (b"\0" * 61, "too long"),
     (None, "'input/grad.bin' is missing")],
)  # fmt: skip
@pytest.mark.usefixtures("unread")
def test_inputs_of_another_size(case: Path, content: bytes | None, message: str) -> None:
    (case / "input/grad.bin").unlink()
    if content is not None:
        (case / "input/grad.bin").write_bytes(content)
    before = tree(case)
    with pytest.raises(ValueError, match=message):
        cases.run(case)
    assert tree(case) == before


@pytest.mark.parametrize("content", [b"\0" * 8, b"\0" * 64, None])
def test_goldens_of_another_size(case: Path, content: bytes | None) -> None:
    cases.run(case)
    (case / "output/golden_s.bin").unlink()
    if content is not None:
        (case / "output/golden_s.bin").write_bytes(content)
    with pytest.raises(ValueError, match=r"'output/golden_s.bin'"):
        cases.compare(case)


def at(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    """Sets an entry of a manifest; a value of Ellipsis removes it."""

    def change(content: dict[str, Any]) -> None:
        where: Any = content
        for key in path[:-1]:
            where = where[key]
        if value is ...:
            del where[path[-1]]
        else:
            where[path[-1]] = value

    return change


MANIFESTS: list[tuple[str, Callable[[dict[str, Any]], None], str]] = [
    ("no format", at("format", value=...), "format in manifest.json is None; accepted: 'anyfuse case 1'"),
    ("a later format", at("format", value="anyfuse case 2"), "accepted: 'anyfuse case 1'"),
    ("an unknown operator", at("operator", value="rm"), "operator 'rm' is unknown"),
    ("operator a number", at("operator", value=3), "'operator' in manifest.json is a int"),
    ("no inputs", at("inputs", value=...), "lacks 'inputs'"),
    ("inputs an object", at("inputs", value={}), "'inputs' in manifest.json is a dict"),
    ("an input missing", at("inputs", 0, value=...), "neither an input nor an attribute 'grad'"),
    ("an input twice", at("inputs", 1, "name", value="grad"), "name 'grad' twice"),
    ("an unknown input", at("inputs", 0, "name", value="gradient"), "accepted: 'grad', 'var'"),
    ("an input a string", at("inputs", 0, value="grad"), "an entry of inputs in manifest.json is a str"),
    ("an output missing", at("outputs", 2, value=...), "outputs in manifest.json lack v"),
    ("an unknown output", at("outputs", 0, "name", value="grad"), "accepted: 'var', 'm', 'v', 's'"),
    ("an unknown dtype", at("inputs", 0, "dtype", value="float8"), "dtype of 'grad' in manifest.json is 'float8'"),
    ("dtype a list", at("inputs", 0, "dtype", value=["float32"]), "'dtype' in manifest.json is a list"),
    ("a dtype of another size", at("inputs", 0, "dtype", value="float16"), "too long: it has 60 bytes; accepted: 30"),
    ("an unknown encoding", at("outputs", 0, "encoding", value="int3"), "encoding of 'var'"),
    ("encoding a list", at("outputs", 0, "encoding", value=[]), "encoding of 'var'"),
    ("a negative size", at("inputs", 0, "shape", value=[-3, -5]), "sizes of 0 to 2^48"),
    ("half a size", at("inputs", 0, "shape", value=[1.5, 10]), "sizes of 0 to 2^48"),
    ("a size true", at("inputs", 0, "shape", value=[True, 15]), "sizes of 0 to 2^48"),
    ("an absurd size", at("inputs", 0, "shape", value=[2**47, 2**47]), "too short: it has 60 bytes"),
    ("an impossible size", at("inputs", 0, "shape", value=[10**30]), "sizes of 0 to 2^48"),
    ("absurdly many dimensions", at("inputs", 0, "shape", value=[1] * 65 + [15]), "at most 64"),
    ("another shape", at("inputs", 0, "shape", value=[15]), "grad has shape (15,)"),
    ("output of another shape", at("outputs", 0, "shape", value=[5, 3]), "returned float32 of shape (3, 5)"),
    ("an unknown attribute", at("attributes", "rate", value=1), "an attribute in manifest.json is 'rate'"),
    ("an input as attribute", at("attributes", "grad", value=1), "an attribute in manifest.json is 'grad'"),
    ("an attribute out of range", at("attributes", "mode", value=7), "mode is 7"),
    ("an unknown torch dtype", at("attributes", "convention", value="torch.load"), "manifest.json is 'load'"),
    ("a seed of another kind", at("seed", value="x"), "'seed' in manifest.json is a str"),
    ("an unknown golden", at("golden", value="exact"), "accepted: 'reference', 'float64'"),
    ("up and out", at("inputs", 0, "file", value="../secret.bin"), "leads out of the folder"),
    ("up from within", at("inputs", 0, "file", value="input/../../secret.bin"), "leads out of the folder"),
    ("an absolute path", at("inputs", 0, "file", value="/etc/hostname"), "leads out of the folder"),
    ("an empty path", at("inputs", 0, "file", value=""), "leads out of the folder"),
    ("the folder itself", at("inputs", 0, "file", value="."), "leads out of the folder"),
    ("a null byte", at("inputs", 0, "file", value="input/grad.bin\0x"), "leads out of the folder"),
    ("an output outside", at("outputs", 0, "file", value="../secret.bin"), "leads out of the folder"),
    ("a golden outside", at("outputs", 0, "golden", value="../secret.bin"), "leads out of the folder"),
    ("output onto the manifest", at("outputs", 0, "file", value="manifest.json"), "file 'manifest.json' twice"),
    ("output onto an input", at("outputs", 0, "file", value="input/grad.bin"), "file 'input/grad.bin' twice"),
    ("output onto a golden", at("outputs", 0, "file", value="./output/golden_m.bin"), "twice"),
    ("a folder", at("inputs", 0, "file", value="input"), "no regular file"),
    ("below a file", at("inputs", 0, "file", value="input/var.bin/x"), "missing"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), [row[1:] for row in MANIFESTS], ids=[row[0] for row in MANIFESTS])
def test_manifests_that_are_refused(case: Path, change: Callable[[dict[str, Any]], None], message: str) -> None:
    secret = case.parent / "secret.bin"
    secret.write_bytes(b"\x55" * 60)
    edit(case, change)
    before = tree(case.parent)
    with pytest.raises((ValueError, TypeError)) as caught:
        cases.run(case)
    assert message in str(caught.value), caught.value
    assert tree(case.parent) == before


NO_MANIFESTS = {
    "empty": b"",
    "half": b"{",
    "list": b"[]",
    "null": b"null",
    "binary": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "digits": b'{"format": ' + b"9" * 5000 + b"}",
    "long": b" " * (1 << 20) + b"{}",
}


@pytest.mark.parametrize("content", NO_MANIFESTS.values(), ids=NO_MANIFESTS)
def test_manifests_that_are_no_manifests(case: Path, content: bytes) -> None:
    (case / "manifest.json").write_bytes(content)
    for action in (cases.run, cases.compare):
        with pytest.raises(ValueError, match=r"manifest\.json"):
            action(case)


@pytest.mark.usefixtures("unread")
def test_a_sparse_file_of_absurd_size(case: Path) -> None:
    """The size fits the manifest, and no machine."""
    size = 1 << 43
    edit(case, at("inputs", 0, "shape", value=[size // 4]))
    os.truncate(case / "input/grad.bin", size)
    with pytest.raises(ValueError, match="this machine's memory"):
        cases.run(case)


def test_links_that_lead_out(case: Path) -> None:
    outside = case.parent / "outside"
    outside.mkdir()
    (outside / "grad.bin").write_bytes(b"\0" * 60)
    (case / "input/grad.bin").unlink()
    (case / "input/grad.bin").symlink_to(outside / "grad.bin")
    with pytest.raises(ValueError, match=r"'input/grad.bin' is no file of .* leads out"):
        cases.run(case)
    (case / "input/grad.bin").unlink()
    (case / "input/grad.bin").symlink_to("var.bin")  # within: the same file under two names
    with pytest.raises(ValueError, match="twice"):
        cases.run(case)


def test_a_folder_that_leads_out(case: Path) -> None:
    outside = case.parent / "outside"
    (case / "output").rename(outside)
    (case / "output").symlink_to(outside)
    before = tree(outside)
    for action in (cases.run, cases.compare):
        with pytest.raises(ValueError, match="leads out"):
            action(case)
    with pytest.raises(ValueError, match="leads out"):
        cases.generate(EMA, case, overwrite=True)
    assert tree(outside) == before


def test_a_manifest_that_leads_out(case: Path) -> None:
    (case / "manifest.json").rename(case.parent / "manifest.json")
    (case / "manifest.json").symlink_to("../manifest.json")
    with pytest.raises(ValueError, match="leads out"):
        cases.run(case)


def test_a_pipe_is_not_waited_for(case: Path) -> None:
    (case / "input/grad.bin").unlink()
    os.mkfifo(case / "input/grad.bin")
    with pytest.raises(ValueError, match="no regular file"):
        cases.run(case)


def test_the_folder_may_be_a_link(case: Path) -> None:
    link = case.parent / "link"
    link.symlink_to(case)
    cases.run(link)
    assert all(result.bit_equal for result in cases.compare(link))


# ---- whole files or none ----


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=["full", "interrupted"])
def test_an_interrupted_write_leaves_no_part(case: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tree(case)
    written = 0

    def broken(tensor: torch.Tensor) -> files.Writer:
        nonlocal written
        written += 1
        count = written

        def write(file: Any) -> None:
            file.write(b"\1" * 10)
            if count == 3:
                raise error

        return write

    monkeypatch.setattr(cases, "tensor_writer", broken)
    with pytest.raises(type(error)):
        cases.run(case)
    assert tree(case) == before
    with pytest.raises(type(error)):
        written = 0
        cases.generate(EMA, case.parent / "new")
    assert tree(case.parent / "new") == {}


def test_an_interrupted_overwrite_leaves_no_case(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old inputs beside new goldens would be a wrong case: without its manifest it is none."""

    def interrupted(source: Any, target: Any, replace: Callable[..., None] = os.replace) -> None:
        if str(target).endswith("golden_m.bin"):
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(files.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cases.generate(EMA, case, sizes=(2,), overwrite=True)
    assert "manifest.json" not in tree(case)
    assert not [name for name in tree(case) if name.endswith(".part")]
    with pytest.raises(ValueError, match=r"'manifest.json' is missing"):
        cases.run(case)


def test_files_can_be_read_by_others(case: Path) -> None:
    mask = os.umask(0)
    os.umask(mask)
    assert (case / "manifest.json").stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize("dtype", sorted(plain.DTYPES))
def test_files_of_every_dtype(dtype: str, tmp_path: Path) -> None:
    kind = plain.DTYPES[dtype]
    raw = torch.arange(48 * kind.itemsize, dtype=torch.uint8)
    tensor = (raw % 2).view(torch.bool) if kind == torch.bool else raw.view(kind)
    folder = Folder(tmp_path)
    folder.write({"a/b.bin": files.tensor_writer(tensor.view(6, 8).t())}, "a/b.bin")
    assert sys.byteorder == "big" or (tmp_path / "a/b.bin").read_bytes() == bytes(
        tensor.view(6, 8).t().contiguous().view(torch.uint8).flatten().tolist()
    )
    again = folder.load("a/b.bin", kind, (8, 6))
    assert again.dtype == kind and torch.equal(
        again.t().contiguous().view(torch.uint8), tensor.view(6, 8).view(torch.uint8)
    )


# ---- the commands ----


def invoke(*words: str) -> Any:
    return CliRunner().invoke(app, ["case", *words])


def test_commands(tmp_path: Path) -> None:
    where = str(tmp_path / "c")
    made = invoke("gen", "lazy_adam", where, "--rows", "40", "--n=7", "--set", "lr=0.5", "--seed", "3", "--json")
    assert made.exit_code == 0, made.output
    content = json.loads(made.stdout)
    assert content["inputs"][0]["shape"] == [7, 32] and content["seed"] == 3
    assert invoke("compare", where).exit_code == 1
    ran = invoke("run", where, "--backend", "reference", "--json")
    assert json.loads(ran.stdout)["outputs"] == ["output/m.bin", "output/v.bin", "output/var.bin"]
    good = invoke("compare", where, "--json")
    assert good.exit_code == 0 and json.loads(good.stdout)["passed"]
    Path(where, "output/m.bin").write_bytes(b"\xff" * 40 * 32 * 4)
    bad = invoke("compare", where, "--json")
    assert bad.exit_code == 1 and json.loads(bad.stdout)["outputs"][0]["max_abs"] == "inf"
    text = invoke("compare", where)
    assert text.exit_code == 1 and "FAIL" in text.stdout and "m (float32): 1,280 absolute" in text.stdout


def test_commands_print_tables(tmp_path: Path) -> None:
    where = str(tmp_path)
    made = invoke("gen", EMA, where, "--shape", "2,3", "--dtype", "bfloat16", "--with", "grad_scale")
    assert made.exit_code == 0 and "input/grad_scale.bin" in made.stdout and "2 × 3" in made.stdout
    assert "wrote output/var.bin" in invoke("run", where, "--target", "base", "--threads", "1").stdout
    assert "bit-equal" in invoke("compare", where).stdout
    assert EMA in invoke("options").stdout
    assert "grad_scale, found_inf" in invoke("options", EMA).stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gen", "lazy_adam", "DIR", "--row", "5"), "size 'row' is unknown; accepted: rows, dim, n"),
        (("gen", "lazy_adam", "DIR", "--rows", "many"), "'--rows many' is no option"),
        (("gen", "lazy_adam", "DIR", "extra"), "'extra' is no option"),
        (("gen", EMA, "DIR", "--shape", "2x3"), "--shape is '2x3'; accepted: whole numbers"),
        (("gen", EMA, "DIR", "--set", "lr"), "--set is 'lr'; accepted: NAME=VALUE"),
        (("run", "DIR"), "'manifest.json' is missing"),
        (("run", "DIR", "--backend", "gpu"), "backend is 'gpu'; accepted: 'auto', 'native', 'reference'"),
        (("run", "DIR", "--target", "gpu"), "target 'gpu' cannot run here; available: base"),
        (("compare", "DIR"), "'manifest.json' is missing"),
    ],
)
def test_commands_refuse(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = invoke(*(str(tmp_path / "x") if word == "DIR" else word for word in words))
    assert result.exit_code == 1 and message in str(result.exception)
    assert list(tmp_path.iterdir()) == []
