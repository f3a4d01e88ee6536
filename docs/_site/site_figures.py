"""The measured figures that are told in several places: one table, docs/figures.json, in two languages.

python docs/_site/site_figures.py        # writes them into README.md and README.zh-CN.md, between their marks
"""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCE = json.loads((ROOT / "docs" / "figures.json").read_text(encoding="utf-8"))
MACHINE: dict[str, str] = SOURCE["machine"]
READMES = {"en": ROOT / "README.md", "zh": ROOT / "README.zh-CN.md"}
HEADINGS = {"en": ("case", "figure", "command"), "zh": ("场景", "结果", "复现命令")}
MARKS = re.compile(r"(?<=<!-- figures -->\n).*?(?=<!-- /figures -->)", re.DOTALL)


def table(language: str, operator: str | None = None) -> str:
    """The figures as a Markdown table; those of one operator, or all. Empty where there are none."""
    rows = [row for row in SOURCE["rows"] if operator in (None, row["operator"])]
    if not rows:
        return ""
    lines = [HEADINGS[language], ("---",) * 3]
    lines += [(row["case"][language], row["figure"][language], f"`{row['command']}`") for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def filled(text: str, language: str) -> str:
    """A page with its figures between the marks."""
    return MARKS.sub(lambda _: table(language) + "\n", text)


if __name__ == "__main__":
    for language, path in READMES.items():
        path.write_text(filled(path.read_text(encoding="utf-8"), language), encoding="utf-8")
