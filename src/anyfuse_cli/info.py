"""`anyfuse info`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from . import complete
from .console import Json, print_json, show, table


def info(
    soc: Annotated[
        str | None,
        typer.Option(
            "--soc", autocompletion=complete.products, help="Show what a product takes of each operator instead."
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Show versions, instruction sets, threads and operators: what a bug report needs.

    \b
    Examples:
    $ anyfuse info
    $ anyfuse info --json
    $ anyfuse info --soc Ascend950

    Exit status: 0 done, 2 an error or wrong usage.
    """
    if soc is not None:
        show_product(soc, json_)
        return
    from anyfuse._machine import machine
    from anyfuse._words import words

    facts = machine()
    if json_:
        print_json(facts)
        return
    lines = Table(show_header=False, box=None)
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    for name, value in facts.items():
        lines.add_row(name.replace("_", " "), words(value))
    show(lines)


def show_product(name: str, json_: bool) -> None:
    """Prints each operator's limits on a product, from the tables that calls are checked with."""
    from anyfuse._opspec import REGISTRY
    from anyfuse._products import PRODUCTS, product_named
    from anyfuse._soc import limits_on

    name = product_named("soc", name)
    limits = {spec.name: limits_on(name, spec.profiles) for spec in REGISTRY.values()}
    if json_:
        print_json({"soc": name, "product": PRODUCTS[name], "operators": limits})
        return
    lines = table(f"{name}: {PRODUCTS[name]}", "operator", "argument", "accepted", wrap=("accepted",))
    for operator, rules in limits.items():
        if not rules:
            lines.add_row(operator, "", "not available" if rules is None else "no limits beyond the operator's own")
        for i, (argument, accepted) in enumerate((rules or {}).items()):
            lines.add_row("" if i else operator, argument, accepted)
        lines.add_section()
    show(lines)
