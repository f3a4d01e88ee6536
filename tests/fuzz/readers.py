"""Readers of files that anyone may have written, on any bytes: what they name is read, or refused in words.

As a program, a coverage-guided search by Atheris (`pip install atheris`), which takes options of libFuzzer; `run.sh`
starts it:

    python tests/fuzz/readers.py manifest|quantized|float PROGRAM [CORPUS] [-max_total_time=600]

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
from typing import Any

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
    """As another writer would: without digests, which would refuse every other config before it is read."""
    import transformers

    import anyfuse
    from anyfuse.models.storage import FILE

    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    anyfuse.quantize_(model, calibration=None)
    anyfuse.save_quantized(model, folder)
    parts = parts_of(folder)
    header = json.loads(parts["header"])
    del header["__metadata__"]["companions"]
    (folder / FILE).write_bytes(with_header(parts["file"], json.dumps(header).encode()))


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


MEMORY = 256 << 10  # KiB that reading a tiny model's files may take at most, whatever they say


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Fails where memory beyond `MEMORY` was taken meanwhile, also for a moment."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS:")
    yield
    taken = _status("VmHWM:") - before
    assert taken < MEMORY, f"{taken} KiB were taken"


def _status(field: str) -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field))


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
        _refused_or_read(part, lambda: anyfuse.load_quantized(folder), note)


def _refused_or_read(part: str, read: Callable[[], object], note: Note) -> None:
    try:
        with watched():
            read()
        note(f"{part}: accepted")
    except (ValueError, OSError) as error:
        note(f"{part}: {type(error).__name__}")
        assert str(error), "an error without a word"


# ---- a float model and its tokenizer ----

FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", "model.gguf")


def make_float(folder: Path) -> None:
    """A tiny Llama and a tokenizer of bytes, as transformers writes them, and the same as a GGUF file."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*signs, signs[5] + signs[6]]
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, "vocab_size": len(words)})).eval()
    model.save_pretrained(folder)
    bytewise = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    transformers.PreTrainedTokenizerFast(tokenizer_object=bytewise).save_pretrained(folder)
    _write_gguf(folder / "model.gguf", model, words)


def _write_gguf(path: Path, model: Any, words: list[str]) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(SIZES["max_position_embeddings"])
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_head_count(SIZES["num_attention_heads"])
    writer.add_head_count_kv(SIZES["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_rope_freq_base(1e4)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_merges([f"{words[5]} {words[6]}"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, SIZES["num_hidden_layers"])
    heads = {"q_proj": SIZES["num_attention_heads"], "k_proj": SIZES["num_key_value_heads"]}
    for name, tensor in model.state_dict().items():
        count = heads.get(name.split(".")[-2])
        if count is not None:  # these files hold the two halves of a head's rows interleaved
            tensor = tensor.reshape(count, 2, -1, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)
        writer.add_tensor(names.get_name(name, (".weight",)), tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_float(folder: Path, content: bytes, note: Note = ignore) -> None:
    """A float model, opened as the commands do, of which one file, by the first byte, is the rest of the bytes."""
    from anyfuse.models.command import open_model

    name, value = FILES[content[0] % len(FILES) if content else 0], content[1:]
    path = folder / name
    with replaced(path, value):
        _refused_or_read(name, lambda: open_model(path if name == "model.gguf" else folder), note)


HARNESSES: dict[str, tuple[Callable[[Path], None], Callable[[Path, bytes], None]]] = {
    "manifest": (make_case, read_manifest),
    "quantized": (make_quantized, read_quantized),
    "float": (make_float, read_float),
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
