"""The reader of `manifest.json` on content that anyone may have written: a ValueError, or a case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fuzz.readers import make_case, read_manifest
from hypothesis import event, given
from hypothesis import strategies as st
from longer import search

from anyfuse.verify import cases

CORPUS = Path(__file__).parent / "fuzz" / "corpus" / "manifest"

NUMBERS = st.one_of(
    st.integers(-3, 5), st.integers(), st.floats(), st.sampled_from([2**31, 2**48, 2**63, 2**64, 10**400])
)
WORDS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["../x.bin", "/etc/passwd", "input/../../x", "a\0b", "", ".", "..", "manifest.json", "input/var.bin", "input",
         "torch.float32", "torch.nothing", "float32", "int4", "hifloat8", "lazy_adam", "var", "\ud800", "x" * 300]
    ),
)  # fmt: skip
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(WORDS, inner, max_size=4)),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("case")
    make_case(folder)
    return folder


def places(content: Any) -> list[tuple[Any, Any]]:
    """Each (container, key) of a JSON value."""
    if isinstance(content, dict):
        items: list[tuple[Any, Any]] = list(content.items())
    else:
        items = list(enumerate(content)) if isinstance(content, list) else []
    return [(content, key) for key, _ in items] + [place for _, value in items for place in places(value)]


@search(60)
@given(data=st.data())
def test_a_manifest_with_a_few_values_changed(case: Path, data: st.DataObject) -> None:
    content = json.loads((case / cases.MANIFEST).read_text())
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(content)))
        if (isinstance(container, dict) and key not in container) or (
            isinstance(container, list) and key >= len(container)
        ):
            continue
        if data.draw(st.booleans()):
            container[key] = data.draw(VALUES)
        else:
            del container[key]
    read_manifest(case, json.dumps(content).encode(errors="surrogatepass"), event)


@search(60)
@given(text=st.one_of(st.binary(max_size=60), VALUES.map(lambda value: json.dumps(value).encode())))
def test_a_manifest_of_any_content(case: Path, text: bytes) -> None:
    read_manifest(case, text, event)


@search(60)
@given(data=st.data())
def test_a_manifest_with_bytes_changed(case: Path, data: st.DataObject) -> None:
    text = bytearray((case / cases.MANIFEST).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    read_manifest(case, bytes(text), event)


def test_inputs_that_the_fuzzer_has_found(case: Path) -> None:
    paths = sorted(CORPUS.iterdir())
    assert paths
    for path in paths:
        read_manifest(case, path.read_bytes())
