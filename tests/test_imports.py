"""Imports run one way: no circle of modules, none of folders, and nobody's private names taken from beside."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}

#: Folders that take private names of one beside, and whose: the ground floor of the operators is the package's own.
KNOWN_PRIVATE = {
    (f"anyfuse.{name}", "anyfuse.ops")
    for name in ("compat", "fusion", "models", "nn", "npu", "optim", "samples", "triton")
}


def imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Those of a module, in its functions too, but not what only type checkers read."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from imports(other)
        else:
            yield from imports(node)


def imported(name: str) -> Iterator[tuple[str, str]]:
    """What a module imports of the package: the module, and the name taken from it, "" for the module itself."""
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in imports(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name in MODULES)
            continue
        base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        source = ".".join([*base, *([node.module] if node.module else [])])
        for alias in node.names:
            if f"{source}.{alias.name}" in MODULES:
                yield f"{source}.{alias.name}", ""
            elif source in MODULES:
                yield source, alias.name


GRAPH = {name: {module for module, _ in imported(name)} - {name} for name in MODULES}


def folder(name: str) -> str:
    """The folder of a module below its package: "ops"; a module of the package itself is one of its own."""
    return name if name.count(".") < 2 and MODULES[name].name != "__init__.py" else ".".join(name.split(".")[:2])


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The members of each circle: those that reach each other."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for other in graph[waiting.pop()]:
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        return seen

    reach = {name: reached(name) for name in graph}
    return {frozenset(other for other in reach[name] if name in reach[other]) for name in graph if name in reach[name]}


def test_the_graph_is_read() -> None:
    assert {"anyfuse._checks", "anyfuse._opspec", "anyfuse.samples.kinds"} <= GRAPH["anyfuse.verify.plain"]
    assert "anyfuse.verify.cases" in GRAPH["anyfuse_cli.case"]  # in a function
    assert "anyfuse.samples.kinds" not in GRAPH["anyfuse._opspec"]  # for type checkers alone
    a, b, c, d = "abcd"
    assert circles({a: {b}, b: {c}, c: {a}, d: {a}}) == {frozenset("abc")} and not circles({a: {b}, b: set()})


def test_no_modules_import_each_other() -> None:
    assert circles(GRAPH) == set()


def test_no_folders_import_each_other() -> None:
    folders: dict[str, set[str]] = {folder(name): set() for name in MODULES}
    for name, others in GRAPH.items():
        folders[folder(name)] |= {folder(other) for other in others} - {folder(name)}
    assert circles(folders) == set()


def test_no_private_name_is_taken_from_beside() -> None:
    """A folder's private modules and names are its own and its subfolders'; the root's modules are everyone's."""
    taken = {}
    for name in MODULES:
        for module, attribute in imported(name):
            home = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
            outside = not f"{name}.".startswith(f"{home}.")
            hidden = outside and module.rpartition(".")[2].startswith("_") and home != "anyfuse"
            own = home == "anyfuse" or outside
            if hidden or (own and attribute.startswith("_") and not attribute.startswith("__")):
                taken[f"{name}: {module}.{attribute}"] = (folder(name), folder(module))
    assert not {words for words, pair in taken.items() if pair not in KNOWN_PRIVATE}


def test_the_command_imports_the_package_only_in_functions() -> None:
    """At a module's top it would load torch."""
    for path in SOURCE.glob("anyfuse_cli/*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                assert not any(module.split(".")[0] in ("anyfuse", "torch", "numpy") for module in names), path


def test_no_file_is_long() -> None:
    long = {str(path.relative_to(SOURCE)) for path in MODULES.values() if len(path.read_text().splitlines()) > 600}
    assert not long
