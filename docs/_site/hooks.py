"""What mkdocs calls while it builds the site: pages that are written from the package join those of docs/."""

from __future__ import annotations

from typing import Any

import site_figures
import site_links
import site_pages
from mkdocs.structure.files import File, Files


def on_config(config: Any) -> Any:
    """Sections of operators and modules list what there is."""
    operators = sorted(path for path in site_pages.operator_pages() if path != "operators/index.md")
    for entry in config["nav"]:
        if "Operators" in entry:
            entry["Operators"] = [{"All": "operators/index.md"}, *operators]
        if "Reference" in entry:
            entry["Reference"] += [{name: f"reference/{name}.md"} for name in site_pages.MODULES]
    return config


def on_files(files: Files, config: Any) -> Files:
    written = site_pages.operator_pages() | site_pages.module_pages()
    written["reference/cli.md"] = site_pages.command_page()
    for path, text in written.items():
        files.append(File.generated(config, path, content=text))
    for path, source in site_links.ELSEWHERE.items():
        files.append(File.generated(config, path, abs_src_path=str(site_figures.ROOT / source)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    return site_links.on_site(site_figures.filled(markdown, "en"), page.file.src_uri)
