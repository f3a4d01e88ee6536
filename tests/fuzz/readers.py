"""Readers of files that anyone may have written, on any bytes: what they name is read, or refused in words.

As a program, a coverage-guided search by Atheris (`pip install atheris`), which takes options of libFuzzer; `run.sh`
starts it:

    python tests/fuzz/readers.py manifest|quantized PROGRAM [CORPUS] [-max_total_time=600]

PROGRAM starts the same again with other options, which `-merge=1` does.
"""

from __future__ import annotations

import contextlib
import json
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

Note = Callable[[str], object]


def ignore(note: str) -> None:
    pass


@contextlib.contextmanager
def replaced(path: Path, content: bytes) -> Iterator[None]:
    """Another content for a while. Nothing may appear beside the file's folder meanwhile."""
    before, good = set(path.parent.parent.iterdir()), path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(good)
    assert set(path.parent.parent.iterdir()) == before


# ---- manifest.json ----


def make_case(folder: Path) -> None:
    from anyfuse.verify import cases

    cases.generate("lazy_adam", folder, sizes=(20, 4, 7))


def read_manifest(folder: Path, content: bytes, note: Note = ignore) -> None:
    """All that reads a manifest, on the given one."""
    from anyfuse.verify import cases

    with replaced(folder / cases.MANIFEST, content):
        for step in (cases.load, cases.compare, cases.run):
            try:
                step(folder)
                note(f"{step.__name__}: accepted")
            except (ValueError, TypeError, IndexError, OSError) as error:
                note(f"{step.__name__}: {type(error).__name__}")
                assert str(error), "an error without a word"
                assert step is cases.run or isinstance(error, (ValueError, OSError)), repr(error)


# ---- a quantized model ----

SIZES = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2,
         "num_key_value_heads": 1, "max_position_embeddings": 16}  # fmt: skip
PARTS = ("file", "header", "recipe", "config")


def make_quantized(folder: Path) -> None:
    import transformers

    import anyfuse

    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    anyfuse.quantize_(model, calibration=None)
    anyfuse.save_quantized(model, folder)


def parts_of(folder: Path) -> dict[str, bytes]:
    """The parts of a saved model that a fuzzed input replaces one of."""
    from anyfuse.models.storage import FILE

    file = (folder / FILE).read_bytes()
    header = file[8 : 8 + struct.unpack("<Q", file[:8])[0]]
    recipe = json.loads(header)["__metadata__"]["recipe"].encode()
    config = (folder / "config.json").read_bytes()
    return {"file": file, "header": header, "recipe": recipe, "config": config}


def with_header(file: bytes, header: bytes) -> bytes:
    old = struct.unpack("<Q", file[:8])[0]
    return struct.pack("<Q", len(header)) + header + file[8 + old :]


def read_quantized(folder: Path, content: bytes, note: Note = ignore) -> None:
    """A saved model of which one part, by the first byte, is the rest of the bytes."""
    import anyfuse
    from anyfuse.models.storage import FILE

    part, value = PARTS[content[0] % len(PARTS) if content else 0], content[1:]
    good = (folder / FILE).read_bytes()
    path = folder / ("config.json" if part == "config" else FILE)
    if part == "recipe":
        header = json.loads(parts_of(folder)["header"])
        header["__metadata__"]["recipe"] = value.decode(errors="replace")
        value = json.dumps(header).encode()
    with replaced(path, value if part in ("file", "config") else with_header(good, value)):
        try:
            anyfuse.load_quantized(folder)
            note(f"{part}: accepted")
        except (ValueError, OSError) as error:
            note(f"{part}: {type(error).__name__}")
            assert str(error), "an error without a word"


HARNESSES: dict[str, tuple[Callable[[Path], None], Callable[[Path, bytes], None]]] = {
    "manifest": (make_case, read_manifest),
    "quantized": (make_quantized, read_quantized),
}


def main(name: str, command: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(include=["anyfuse.verify", "anyfuse._files", "anyfuse.models", "json"]):
        import json.decoder
        import json.scanner

        import anyfuse.models.storage
        import anyfuse.verify.cases  # noqa: F401
    json.scanner.make_scanner = json.scanner.py_make_scanner  # the one whose branches are seen
    json._default_decoder = json.JSONDecoder()
    make, read = HARNESSES[name]
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "inside"
        folder.mkdir()
        make(folder)
        # libFuzzer ends the process itself
        atheris.Setup(command, lambda data: read(folder, data))
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
