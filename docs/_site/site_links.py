"""Links that lead somewhere in the repository and on the site: pages link to files of the repository, and on the site
those that have a page there lead to it."""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, normpath, relpath

import site_pages

from anyfuse._opspec import REGISTRY

ROOT = Path(__file__).parent.parent.parent

#: Pages of the site that lie elsewhere in the repository than in docs.
ELSEWHERE = {"benchmarks.md": "benchmarks/README.md", "contributing.md": "CONTRIBUTING.md"}

_LINK = re.compile(r"```.*?```|`[^`\n]*`|\[([^\[\]]*)\]\(([^)\s]+)\)", re.DOTALL)


def pages_of_files() -> dict[str, str]:
    """The page of the site that tells of a file of the repository."""
    pages = {file: page for page, file in ELSEWHERE.items()}
    pages["src/anyfuse/ops"] = "operators/index.md"
    pages["src/anyfuse_cli/app.py"] = "reference/cli.md"
    pages |= {f"src/anyfuse/ops/{name}.py": f"operators/{name}.md" for name in REGISTRY}
    for module in site_pages.MODULES:
        path = f"src/{module.replace('.', '/')}"
        file = f"{path}.py" if (ROOT / f"{path}.py").exists() else f"{path}/__init__.py"
        pages[file] = f"reference/{module}.md"
    return pages


def on_site(markdown: str, page: str) -> str:
    """A page's text with its links as the site has them; a link to a file that has no page there is its words alone.

    Args:
        markdown: the text as it lies in the repository.
        page: the page's path on the site. Pages that are written for the site stay as they are.
    """
    source = ELSEWHERE.get(page, f"docs/{page}")
    if not (ROOT / source).exists():
        return markdown
    known = pages_of_files()

    def linked(match: re.Match[str]) -> str:
        words, target = match[1], match[2]
        if target is None or re.match(r"[a-z]+:|#", target):
            return match[0]
        file, hash_, anchor = target.partition("#")
        path = normpath(f"{dirname(source)}/{file}") if dirname(source) else normpath(file)
        there = known.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        return f"[{words}]({relpath(there, dirname(page) or '.')}{hash_}{anchor})" if there else words

    return _LINK.sub(linked, markdown)
