"""Where the C interface is: what a compiler, a linker and CMake need to build a program written for the aclnn calls.

The package holds a prefix laid out like a toolkit (`include/`, `lib64/`, `set_env.sh`). Its libraries `libascendcl.so`,
`libnnopbase.so`, `libopapi.so`, ... are names for one library, `libanyfuse_acl.so`, which stands beside
`libanyfuse.so`.
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
    return prefix() / "lib64" / "cmake" / "AnyfuseAcl"
