"""Where the C interfaces are: what a compiler, a linker, CMake and pkg-config need to build a program on them.

The aclnn calls: the package holds a prefix laid out like a toolkit (`include/`, `lib64/`, `set_env.sh`, ...). Its
libraries `libascendcl.so`, `libnnopbase.so`, `libopapi.so`, ... are names for one library, `libanyfuse_acl.so`, which
stands beside `libanyfuse.so`. The plain C API is `libanyfuse.so` with its header `anyfuse.h`.
"""

from __future__ import annotations

from pathlib import Path

from ._core import LIBRARY_DIR

PREFIX = Path(__file__).parent / "_acl"
LIBRARY = LIBRARY_DIR / "libanyfuse_acl.so"


def prefix() -> Path:
    """The root of the prefix. OSError where the package was built without the C interface (it exists on Linux)."""
    if not (PREFIX / "include" / "acl" / "acl.h").exists() or not LIBRARY.exists():
        raise OSError(
            f"{PREFIX} is missing: this build of anyfuse has no C interface; on Linux `pip install .` builds it"
        )
    return PREFIX


def compile_flags() -> str:
    """For the compiler: both folders that programs written for a toolkit include from."""
    return f"-I{prefix() / 'include'} -I{prefix() / 'include' / 'aclnn'}"


def link_flags() -> str:
    """For the linker: the library, and a run path, so that the program finds it without LD_LIBRARY_PATH."""
    prefix()
    return f"-L{LIBRARY_DIR} -lanyfuse_acl -Wl,-rpath,{LIBRARY_DIR}"


def cmake_dir() -> Path:
    """For `cmake -DAnyfuseAcl_DIR=...`, after which `find_package(AnyfuseAcl)` gives `AnyfuseAcl::acl`."""
    return prefix() / "lib" / "cmake" / "AnyfuseAcl"


def plain_flags() -> tuple[str, str]:
    """For the compiler and the linker of a program on the plain C API."""
    return f"-I{LIBRARY_DIR}", f"-L{LIBRARY_DIR} -lanyfuse -Wl,-rpath,{LIBRARY_DIR}"


def pkg_config_dir() -> Path:
    """For PKG_CONFIG_PATH: anyfuse.pc (the plain C API) and, where there is one, anyfuse-acl.pc (the aclnn calls)."""
    return LIBRARY_DIR / "pkgconfig"


def toolkit_flags() -> dict[str, str]:
    return {"cflags": compile_flags(), "libs": link_flags(), "cmake": str(cmake_dir()), "root": str(prefix())}
