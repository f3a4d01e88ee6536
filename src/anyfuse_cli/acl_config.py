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
    plain: Annotated[bool, typer.Option("--plain", help="Flags of the plain C API, anyfuse.h, instead.")] = False,
    pkg_config: Annotated[bool, typer.Option("--pkg-config", help="The folder for PKG_CONFIG_PATH.")] = False,
    json_: Json = False,
) -> None:
    """Print what building against the C interface (the aclnn calls on the CPU) takes.

    \b
    Examples:
    $ anyfuse acl-config
    $ cc program.c $(anyfuse acl-config --cflags --libs)
    $ cmake -S . -B build -DAnyfuseAcl_DIR=$(anyfuse acl-config --cmake)
    $ cmake -S . -B build -DCMAKE_PREFIX_PATH=$(anyfuse acl-config --root)
    $ source $(anyfuse acl-config --root)/set_env.sh
    $ export PKG_CONFIG_PATH=$(anyfuse acl-config --pkg-config)
    $ cc program.c $(anyfuse acl-config --plain --cflags --libs)

    Exit status: 0 done, 2 an error or wrong usage.
    """
    paths = package.module("acl_config")
    facts = dict(zip(("cflags", "libs"), paths.plain_flags(), strict=True)) if plain else paths.toolkit_flags()
    facts["pkg-config"] = str(paths.pkg_config_dir())
    asked = {"cflags": cflags, "libs": libs, "cmake": cmake, "root": root, "pkg-config": pkg_config}
    wanted = [name for name, flag in asked.items() if flag]
    if not facts.keys() >= set(wanted):
        raise typer.BadParameter("--plain has --cflags, --libs and --pkg-config")
    if json_:
        print_json({name: facts[name] for name in wanted or facts})
    elif wanted:
        print(*(facts[name] for name in wanted))
    else:
        for name, value in facts.items():
            print(f"{name}: {value}")
