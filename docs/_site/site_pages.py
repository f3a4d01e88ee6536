"""The pages that are written from the package: operators from the registry, modules from their docstrings, commands."""

from __future__ import annotations

import importlib
import inspect
import re
from types import ModuleType
from typing import Any

import site_figures
import site_maths
import typer
from typer.cli import get_docs_for_click

from anyfuse._opspec import REGISTRY, OpSpec
from anyfuse._products import ANY, PRODUCTS
from anyfuse._soc import limits_on
from anyfuse.aclnn import PROTOTYPES
from anyfuse_cli.app import app

#: Lines that click does not fill, as examples are written.
_AS_TYPED = re.compile(r"\x08\n(?:Examples:\n)?((?:.+\n)+)")

#: Modules with a page of their own.
MODULES = (
    "anyfuse",
    "anyfuse.optim",
    "anyfuse.nn",
    "anyfuse.models",
    "anyfuse.fusion",
    "anyfuse.formats",
    "anyfuse.aclnn",
    "anyfuse.compat",
    "anyfuse.compat.torch_npu",
    "anyfuse.compat.mindspeed",
    "anyfuse.compat.mx_rec",
)


def operator_pages() -> dict[str, str]:
    """Path and text of each operator's page, and of the list of them."""
    pages = {f"operators/{name}.md": operator_page(spec) for name, spec in sorted(REGISTRY.items())}
    lines = [f"| [`{spec.function.__name__}`]({name}.md) | {spec.summary} |" for name, spec in sorted(REGISTRY.items())]
    pages["operators/index.md"] = "\n".join(
        [
            "# Operators",
            "",
            "Each operator is one function on tensors, with one definition of its numbers: its page gives the formulas",
            "in the order in which they are rounded, the arguments, what Ascend products take of it, and what has been",
            "measured.",
            "",
            "| operator | what it does |",
            "| --- | --- |",
            *lines,
            "",
        ]
    )
    return pages


def operator_page(spec: OpSpec) -> str:
    function, name = spec.function, spec.name
    module = inspect.getmodule(function)
    assert module is not None and module.__doc__ is not None
    measured = site_figures.table("en", operator=name)
    sections = [
        f"# {function.__name__}",
        f"`anyfuse.{function.__name__}`: {spec.summary}.",
        "## The numbers",
        site_maths.markdown(module.__doc__),
        "## The call",
        f"::: {module.__name__}.{function.__name__}\n    options: {{ heading_level: 3 }}",
        "## What Ascend products take",
        "By default everything that makes sense is accepted. Under `with anyfuse.soc(NAME):`, or `ANYFUSE_SOC=NAME`, a "
        "call is refused where the product would refuse it.",
        products(spec),
        *(["## Measured", measured, site_figures.MACHINE["en"]] if measured else []),
        "## Names in each layer",
        names(spec),
        "## Check it here",
        f"```bash\nanyfuse verify {name}                     # native against the plain definition, bit for bit\n"
        f"anyfuse case options {name}               # what a case on disk can have\n"
        f"anyfuse bench {name} --no-peers           # against this machine's memory bandwidth\n```",
    ]
    return "\n\n".join(sections) + "\n"


def products(spec: OpSpec) -> str:
    """A row for all products that take the same."""
    rows: dict[str, list[str]] = {}
    for product, sold_as in PRODUCTS.items():
        if product != ANY:
            rows.setdefault(accepted(limits_on(product, spec.profiles)), []).append(f"{product} ({sold_as})")
    lines = ["| product | accepted |", "| --- | --- |"]
    table = [*lines, *(f"| {'<br>'.join(names)} | {words} |" for words, names in rows.items())]
    return "\n".join([*table, "", f"Taken from {spec.profiles.source}"] if spec.profiles else table)


def accepted(limits: dict[str, str] | None) -> str:
    if limits is None:
        return "not available"
    return "<br>".join(f"`{argument}`: {words}" for argument, words in limits.items()) or "as by default"


def names(spec: OpSpec) -> str:
    function = spec.function.__name__
    rows = {
        "Python": f"`anyfuse.{function}`",
        "`torch.library`, for compiled graphs and exports": f"`torch.ops.anyfuse.{function}`",
        "C": f"`anyfuse_{spec.name}`, in `anyfuse.h`",
        "in the document that defines it": f"`{spec.document}`",
        "updated in place": ", ".join(f"`{name}`" for name in spec.in_place) or "nothing",
        "returned": ", ".join(f"`{name}`" for name in spec.outputs),
    }
    return "\n".join(["| | |", "| --- | --- |", *(f"| {key} | {value} |" for key, value in rows.items())])


def module_pages() -> dict[str, str]:
    return {f"reference/{name}.md": module_page(importlib.import_module(name)) for name in MODULES}


def module_page(module: ModuleType) -> str:
    sections = [f"# {module.__name__}", site_maths.markdown(module.__doc__ or "", code=True)]
    if module.__name__ == "anyfuse":
        sections.append("Its operators: [Operators](../operators/index.md).")
    if module.__name__ == "anyfuse.aclnn":
        sections += ["## The operators", two_phase_calls()]
    sections += [f"::: {public.__module__}.{public.__qualname__}" for public in public_names(module)]
    return "\n\n".join(sections) + "\n"


def public_names(module: ModuleType) -> list[Any]:
    """The functions and classes that a module offers: operators have pages of their own, as has what it imports."""
    operators = {spec.function for spec in REGISTRY.values()}
    offered = [vars(module).get(name, None) or getattr(module, name) for name in exported(module)]
    return [
        item
        for item in offered
        if (inspect.isfunction(item) or inspect.isclass(item))
        and item not in operators
        and item.__module__.startswith("anyfuse")
        and item.__doc__
    ]


def exported(module: ModuleType) -> list[str]:
    if module.__name__ == "anyfuse.aclnn":  # its two-phase functions are listed by their arguments
        return ["call", "workspace", "aclFinalize", "Executor", "Described", "AclnnError"]
    own = module.__name__.startswith("anyfuse.compat")  # these import what they forward to
    listed: list[str] | None = getattr(module, "__all__", None)
    return listed or [
        name
        for name, item in vars(module).items()
        if not name.startswith("_") and (not own or getattr(item, "__module__", None) == module.__name__)
    ]


def two_phase_calls() -> str:
    lines = ["| function | arguments of phase 1 |", "| --- | --- |"]
    for name, parameters in PROTOTYPES.items():
        lines.append(f"| `{name}` | {', '.join(f'`{word}`' for _, word in parameters)} |")
    return "\n".join(lines)


def command_page() -> str:
    """Every subcommand with its arguments, options and defaults, from the command's own help."""
    command: Any = typer.main.get_command(app)
    context = typer.Context(command, info_name="anyfuse")
    text = get_docs_for_click(obj=command, ctx=context, name="anyfuse")
    text = text.replace("# `anyfuse`", "# The command `anyfuse`", 1)
    text = _AS_TYPED.sub(lambda match: f"**Examples**:\n\n```console\n{match[1]}```\n", text)
    sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    groups = [command, *command.commands.values()]
    return "".join(with_sentences(section, group) for section, group in zip(sections, groups, strict=True))


def with_sentences(text: str, group: Any) -> str:
    """The list of a group's commands with whole sentences, which click cuts off. Others than groups have no list."""
    for name, item in getattr(group, "commands", {}).items():
        sentence = (item.help or "").split("\n\n")[0].replace("\n", " ")
        text = re.sub(rf"(?<=^\* `{name}`: ).*\.\.\.$", sentence.replace("\\", r"\\"), text, flags=re.MULTILINE)
    return text
