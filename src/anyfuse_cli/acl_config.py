"""`anyfuse acl-config`."""

from __future__ import annotations

from typing import Annotated

import typer

from . import package
from .console import Json, print_json


def acl_config(
    cflags: Annotated[bool, typer.Option("--cflags", help="Compiler flags.")] = False,
    libs: Annotated[bool, typer.Option("--libs", help="Linker flags, with a run path.")] = False,
    cmake: Annotated[bool, typer.Option("--cmake", help="The folder of AnyfuseAclConfig.cmake.")] = False,
    root: Annotated[bool, typer.Option("--root", help="The prefix: use it as ASCEND_HOME_PATH.")] = False,
    json_: Json = False,
) -> None:
    """Print what building against the C interface (the aclnn calls on the CPU) takes.

    \b
    Examples:
    $ anyfuse acl-config
    $ cc program.c $(anyfuse acl-config --cflags --libs)
    $ cmake -S . -B build -DAnyfuseAcl_DIR=$(anyfuse acl-config --cmake)
    $ source $(anyfuse acl-config --root)/set_env.sh

    Exit status: 0 done, 2 an error or wrong usage.
    """
    paths = package.module("acl_config")
    facts = {
        "cflags": paths.compile_flags(),
        "libs": paths.link_flags(),
        "cmake": str(paths.cmake_dir()),
        "root": str(paths.prefix()),
    }
    wanted = [name for name, asked in zip(facts, (cflags, libs, cmake, root), strict=True) if asked]
    if json_:
        print_json({name: facts[name] for name in wanted or facts})
    elif wanted:
        print(*(facts[name] for name in wanted))
    else:
        for name, value in facts.items():
            print(f"{name}: {value}")
