"""Quantized models on disk: files that anyone may have written, and processes that end while they save."""

from __future__ import annotations

import copy
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzz.readers import PARTS, make_quantized, parts_of, read_quantized, replaced, with_header
from hypothesis import event, given
from hypothesis import strategies as st
from longer import search
from test_fuzz_manifest import VALUES, places
from test_process_life import files_of, largest_file

import anyfuse

pytest.importorskip("transformers", reason="extra hf is not installed")

import quantized_endings
from quantized_endings import model_of, number_of

CORPUS = Path(__file__).parent / "fuzz" / "corpus" / "quantized"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quantized") / "model"
    make_quantized(folder)
    return folder


# ---- reading ----


@pytest.mark.parametrize("part", ["header", "recipe", "config"])
@search(40)
@given(data=st.data())
def test_a_model_with_a_few_values_changed(saved: Path, part: str, data: st.DataObject) -> None:
    content = json.loads(parts_of(saved)[part])
    for _ in range(data.draw(st.integers(1, 2))):
        container, key = data.draw(st.sampled_from(places(content)))
        if isinstance(container, list) and key >= len(container):
            continue
        if data.draw(st.booleans()):
            container[key] = data.draw(VALUES)
        else:
            container.pop(key, None) if isinstance(container, dict) else container.pop(key)
    text = json.dumps(content).encode(errors="surrogatepass")
    read_quantized(saved, bytes([PARTS.index(part)]) + text, event)


def test_inputs_that_the_fuzzer_has_found(saved: Path) -> None:
    paths = sorted(CORPUS.iterdir())
    assert paths
    for path in paths:
        read_quantized(saved, path.read_bytes())


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"num_hidden_layers": 500}, "too few for 500 layers"),
        ({"intermediate_size": 10**6}, "too few for [0-9]+ weights"),
        ({"hidden_size": "wide"}, "."),
        ({"auto_map": {"AutoConfig": "code.Config"}, "model_type": "own"}, "."),
    ],
)
def test_a_config_that_asks_for_more_than_the_file_has(saved: Path, changes: dict[str, Any], message: str) -> None:
    """Refused before memory is asked for; no code of the folder is run."""
    config = {**json.loads((saved / "config.json").read_text()), **changes}
    (saved / "code.py").write_text("raise SystemExit('run')")
    with replaced(saved / "config.json", json.dumps(config).encode()), pytest.raises(ValueError, match=message):
        anyfuse.load_quantized(saved)


def test_a_recipe_that_names_no_model(saved: Path) -> None:
    for kind in ("pipeline", "AutoModel", "Trainer", "LlamaConfig", "__name__", ""):
        parts = parts_of(saved)
        header = json.loads(parts["header"])
        recipe = {**json.loads(parts["recipe"]), "kind": kind}
        header["__metadata__"]["recipe"] = json.dumps(recipe)
        changed = with_header(parts["file"], json.dumps(header).encode())
        with replaced(saved / "anyfuse.safetensors", changed), pytest.raises(ValueError, match="accepted: Llama"):
            anyfuse.load_quantized(saved)


@pytest.mark.parametrize("length", [0, 7, 8, 100, -1])
def test_a_file_that_is_cut_short(saved: Path, length: int) -> None:
    content = (saved / "anyfuse.safetensors").read_bytes()[:length]
    with replaced(saved / "anyfuse.safetensors", content), pytest.raises(ValueError, match="cannot be read"):
        anyfuse.load_quantized(saved)


def test_a_header_longer_than_the_file(saved: Path) -> None:
    for size in (2**20, 2**63, 2**64 - 1):
        with (
            replaced(saved / "anyfuse.safetensors", struct.pack("<Q", size) + b"{}"),
            pytest.raises(ValueError, match="cannot be read"),
        ):
            anyfuse.load_quantized(saved)


# ---- saving ----


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_ends_while_it_saves_leaves_one_model_or_none(number: int, tmp_path: Path) -> None:
    command = [sys.executable, quantized_endings.__file__, str(tmp_path), str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("calls", range(1, 6))
def test_an_end_between_two_files_leaves_no_model_of_two(
    calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same at each step that makes a file appear or go: a kill rarely meets them."""
    anyfuse.save_quantized(model_of(1), tmp_path)
    model, left = model_of(2), calls

    def counted(step: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
            return step(*args, **options)

        return count

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", counted(os.replace))
        patch.setattr(Path, "unlink", counted(Path.unlink))
        with pytest.raises(KeyboardInterrupt):
            anyfuse.save_quantized(model, tmp_path)
    number_of(tmp_path)


TWO = """
import sys
import anyfuse
from quantized_endings import model_of
model = model_of(int(sys.argv[2]))
for _ in range(15):
    anyfuse.save_quantized(model, sys.argv[1])
"""


def test_two_processes_that_save_to_one_folder_leave_one_model(tmp_path: Path) -> None:
    """As all ranks of a training do."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    both = [subprocess.Popen([sys.executable, "-c", TWO, str(tmp_path), x], env=environment) for x in "12"]
    assert [process.wait(300) for process in both] == [0, 0]
    assert number_of(tmp_path) in (1, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "anyfuse.safetensors", "config.json", "generation_config.json"
    ]  # fmt: skip


def test_a_config_beside_the_tensors_of_another_model_is_refused(tmp_path: Path, saved: Path) -> None:
    """However it came there. A folder of another writer, without digests, loads (as the fixture's does)."""
    for number in (1, 2):
        anyfuse.save_quantized(model_of(number), tmp_path / str(number))
    other = (tmp_path / "2" / "config.json").read_bytes()
    with (
        replaced(tmp_path / "1" / "config.json", other),
        pytest.raises(ValueError, match=r"1/config\.json is not the one"),
    ):
        anyfuse.load_quantized(tmp_path / "1")
    assert number_of(tmp_path / "1") == 1
    header = json.loads(parts_of(tmp_path / "1")["header"])
    assert json.loads(header["__metadata__"]["companions"]).keys() == {"config.json", "generation_config.json"}
    for companions in ("[", "[1]", "7", '"x"'):
        header["__metadata__"]["companions"] = companions
        changed = with_header(parts_of(tmp_path / "1")["file"], json.dumps(header).encode())
        with (
            replaced(tmp_path / "1" / "anyfuse.safetensors", changed),
            pytest.raises(ValueError, match="has unreadable companions"),
        ):
            anyfuse.load_quantized(tmp_path / "1")
    anyfuse.load_quantized(saved)


def test_what_is_saved_is_readable_for_transformers(tmp_path: Path) -> None:
    import transformers

    model = model_of(1)
    anyfuse.save_quantized(model, tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path, local_files_only=True)
    assert type(config) is type(model.config) and config.rms_norm_eps == model.config.rms_norm_eps


def test_a_full_disk_is_named_and_loses_nothing(tmp_path: Path) -> None:
    model = model_of(1)
    anyfuse.save_quantized(model, tmp_path)
    before = files_of(tmp_path)
    other = copy.deepcopy(model)
    other.config.rms_norm_eps = 2.0
    with largest_file(2000), pytest.raises(OSError, match=r"\.safetensors"):
        anyfuse.save_quantized(other, tmp_path)
    assert files_of(tmp_path) == before and number_of(tmp_path) == 1


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "model", Path("/proc/anyfuse")):
        with pytest.raises(OSError, match=str(folder)):
            anyfuse.save_quantized(model_of(1), folder)
