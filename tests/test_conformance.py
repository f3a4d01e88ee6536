"""docs/conformance.md and the tests that it names are held together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "conformance.md").read_text(encoding="utf-8")

#: Rows of each document: a statement that goes, goes here too.
ROWS = {
    "aclnnApplyAdamWQuant": 31,
    "npu_apply_fused_ema_adamw": 21,
    "aclnnQuantMatmulDequant": 22,
    "AddRmsNormDynamicQuant": 36,
    "LazyAdam": 33,
}


def tables() -> dict[str, list[list[str]]]:
    """The cells of each document's rows."""
    found = {}
    for section in re.split(r"^## ", PAGE, flags=re.M)[1:]:
        title, _, body = section.partition("\n")
        lines = [line for line in body.splitlines() if re.match(r"\| \d", line)]
        found[title.strip()] = [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines]
    return found


TABLES = tables()
NAMED = sorted({name for rows in TABLES.values() for row in rows for name in re.findall(r"`([^`]+)`", row[3])})


def test_every_document_has_all_its_rows() -> None:
    assert {title: len(rows) for title, rows in TABLES.items()} == ROWS
    for rows in TABLES.values():
        assert [row[0] for row in rows] == [str(number) for number in range(1, len(rows) + 1)]


@pytest.mark.parametrize("title", ROWS)
def test_a_row_has_tests_or_says_why_not(title: str) -> None:
    for number, statement, how, tests in TABLES[title]:
        assert statement and how, number
        assert bool(tests) != how.startswith("Not "), f"{title} {number}: {how!r}, {tests!r}"
        assert re.sub(r"`[^`]+`|<br>", "", tests) == "", f"{title} {number}: {tests}"


@pytest.mark.parametrize("name", NAMED)
def test_the_named_test_exists(name: str) -> None:
    if "::" in name:
        file, function = name.split("::")
        assert re.search(rf"^def {function}\(", (TESTS / file).read_text(encoding="utf-8"), flags=re.M), name
        return
    file, label = name.split(": ", 1)
    text = (TESTS / "aclnn" / file).read_text(encoding="utf-8")
    assert f'"{label}"' in text or re.search(rf"^(static )?void {label}\(", text, flags=re.M), name
