"""What mkdocs calls while it builds the site: pages that are written from the package join those of docs/."""

from __future__ import annotations

from typing import Any

import figures
import pages
from mkdocs.structure.files import File, Files

#: Pages that lie elsewhere in the repository.
ELSEWHERE = {"benchmarks.md": "benchmarks/README.md", "contributing.md": "CONTRIBUTING.md"}


def on_config(config: Any) -> Any:
    """Sections of operators and modules list what there is."""
    operators = sorted(path for path in pages.operator_pages() if path != "operators/index.md")
    for entry in config["nav"]:
        if "Operators" in entry:
            entry["Operators"] = [{"All": "operators/index.md"}, *operators]
        if "Reference" in entry:
            entry["Reference"] += [{name: f"reference/{name}.md"} for name in pages.MODULES]
    return config


def on_files(files: Files, config: Any) -> Files:
    written = {**pages.operator_pages(), **pages.module_pages(), "reference/cli.md": pages.command_page()}
    for path, text in written.items():
        files.append(File.generated(config, path, content=text))
    for path, source in ELSEWHERE.items():
        files.append(File.generated(config, path, abs_src_path=str(figures.ROOT / source)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    return figures.filled(markdown, "en")
