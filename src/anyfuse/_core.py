"""The native library: loading it, calling it, and turning its status codes into exceptions. Free of torch.

Structs, types and numbers of the C API are read from the headers that stand beside the library.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

LIBRARY_DIR = Path(__file__).parent / "_lib"
LIBRARY = LIBRARY_DIR / ("libanyfuse.dylib" if sys.platform == "darwin" else "libanyfuse.so")

HEADERS = (LIBRARY_DIR / "anyfuse.h", LIBRARY_DIR / "anyfuse_internal.h")
for _path in (LIBRARY, *HEADERS):
    if not _path.exists():
        raise ImportError(
            f"{_path} is missing: install anyfuse with pip, or build it in a checkout with "
            "`cmake -S . -B build/dev && cmake --build build/dev`"
        )

# Field types under short names.
pointer, size, i32, i64, f64, u64, u32 = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int32,
    ctypes.c_int64,
    ctypes.c_double,
    ctypes.c_uint64,
    ctypes.c_uint32,
)

sizeof, addressof = ctypes.sizeof, ctypes.addressof


# ---- what the headers say ----


def numbers(text: str) -> dict[str, int]:
    """The constants and enumerators of C text, by name."""
    return {name: int(value) for name, value in re.findall(r"\b(\w+) =\s*(-?\d+)\b", text)}


_TEXT = re.sub(r"/\*.*?\*/", "", "".join(path.read_text(encoding="utf-8") for path in HEADERS), flags=re.S)

#: Every number of the C API, by its name there.
CONSTANTS = numbers(_TEXT)


def enum(name: str) -> dict[str, int]:
    """The numbers of the type `name`, by their names without ANYFUSE_ and in lower case."""
    body = re.search(rf"typedef int32_t {name};\s*enum \{{(.*?)\}}", _TEXT, flags=re.S)
    assert body is not None, name
    return {key.removeprefix("ANYFUSE_").lower(): number for key, number in numbers(body[1]).items()}


#: The numbers of `anyfuse_dtype`, by the name that torch gives the type.
DTYPES = enum("anyfuse_dtype")
CONVENTIONS = enum("anyfuse_convention")

_C_TYPES: dict[str, Any] = {
    "size_t": size,
    "int32_t": i32,
    "int64_t": i64,
    "uint32_t": u32,
    "uint64_t": u64,
    "double": f64,
    "anyfuse_dtype": i32,
    "anyfuse_convention": i32,
}


@cache
def struct(name: str) -> type[Struct]:
    """The struct `name` as a class of ctypes; every pointer is a `c_void_p`."""
    body = re.search(rf"typedef struct {name} \{{(.*?)\}}", _TEXT, flags=re.S)
    assert body is not None, name
    fields = re.findall(r"(\w+)\s*(\*?)\s*(\w+);", body[1])
    return type(
        name, (Struct,), {"_fields_": [(field, pointer if star else _C_TYPES[kind]) for kind, star, field in fields]}
    )


class Struct(ctypes.Structure):
    """A struct of the C API."""


_ERRORS: dict[int, type[Exception]] = {
    CONSTANTS["ANYFUSE_INVALID_POINTER"]: ValueError,
    CONSTANTS["ANYFUSE_INVALID_DTYPE"]: TypeError,
    CONSTANTS["ANYFUSE_INVALID_SIZE"]: ValueError,
    CONSTANTS["ANYFUSE_INVALID_VALUE"]: ValueError,
    CONSTANTS["ANYFUSE_INVALID_INDEX"]: IndexError,
    CONSTANTS["ANYFUSE_NO_TARGET"]: RuntimeError,
    CONSTANTS["ANYFUSE_OUT_OF_MEMORY"]: MemoryError,
}


# ---- the library ----


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(str(LIBRARY))
    library.anyfuse_version.restype = ctypes.c_char_p
    library.anyfuse_thread_pool.restype = ctypes.c_char_p
    library.anyfuse_status_name.restype = ctypes.c_char_p
    library.anyfuse_target_name.restype = ctypes.c_char_p
    library.anyfuse_target_set.argtypes = [ctypes.c_char_p]
    return library


_library = _load()


def check(status: int, what: str) -> None:
    """Raises the exception of a status other than ANYFUSE_OK."""
    if status:
        text = _library.anyfuse_status_name(status).decode()
        raise _ERRORS.get(status, RuntimeError)(f"{what}: {text}")


def function(name: str, params: type[Struct]) -> Callable[[Struct], None]:
    """The operator `anyfuse_<name>` as a function of its params struct. It releases the GIL while it runs."""
    native = getattr(_library, f"anyfuse_{name}")
    native.argtypes = [ctypes.POINTER(params)]
    native.restype = ctypes.c_int32

    def call(argument: Struct) -> None:
        status = native(argument)
        if status:
            check(status, name)

    return call


# Kinds of errors that an operator's general implementation hands to the native door.
RUNTIME_ERROR, VALUE_ERROR, INDEX_ERROR = (CONSTANTS[f"ANYFUSE_{kind}_ERROR"] for kind in ("RUNTIME", "VALUE", "INDEX"))


#: A strided tensor: its first element's address, sizes, strides in elements, and the bytes of an element.
Layout = tuple[int, Sequence[int], Sequence[int], int]

#: What `overlap` answers; undecided is a question whose work would be beyond a fixed limit.
APART, OVERLAP, UNDECIDED = (CONSTANTS[f"ANYFUSE_{answer}"] for answer in ("APART", "OVERLAP", "UNDECIDED"))


def overlap(a: Layout, b: Layout | None = None) -> int:
    """Whether an element of `a` has a byte in common with one of `b`; of `a` alone: whether two of its indices lead to
    one element. Decided by arithmetic, in about 10 µs, however many elements there are."""
    view: Any = struct("anyfuse_view")
    kept, views = [], []
    for address, sizes, strides, width in (a,) if b is None else (a, b):
        numbers = [(i64 * len(sizes))(*sizes), (i64 * len(sizes))(*strides)]
        kept.append(numbers)
        views.append(view(address, 0, *map(addressof, numbers), len(sizes), 8 * width))
    compared = _library.anyfuse_overlap_itself if b is None else _library.anyfuse_overlap
    return int(compared(*map(ctypes.byref, views)))


def register_operators() -> None:
    """Registers the operators with the torch that this process has imported. ImportError where that is none or too
    old."""
    _library.anyfuse_torch_register.restype = ctypes.c_char_p
    problem = _library.anyfuse_torch_register()
    if problem is not None:
        raise ImportError(f"anyfuse: {problem.decode()}")


def go_generally(on: bool = True) -> None:
    """Sends every call of an operator to its general implementation, as settings are in use that only Python sees."""
    _library.anyfuse_torch_generally(int(on))


def together() -> None:
    """From here to `together_end`, in this thread, plain calls of operators over lists are checked and wait."""
    _library.anyfuse_torch_together()


def together_end(run: bool) -> None:
    """Runs the calls that wait, or drops them."""
    check(_library.anyfuse_torch_together_end(int(run)), "together")


def refuse(kind: int, message: str) -> None:
    """Makes the door raise an error once the general implementation, which this thread is in, has returned."""
    _library.anyfuse_torch_refuse(kind, message.encode(errors="replace"))


def version() -> str:
    """The version compiled into the library."""
    return str(_library.anyfuse_version().decode())


def thread_pool() -> str:
    """Where parallel loops run: "openmp", "std" or "none"."""
    return str(_library.anyfuse_thread_pool().decode())


def targets() -> list[str]:
    """Instruction sets compiled in, best last."""
    names: list[str] = []
    while (name := _library.anyfuse_target_name(len(names))) is not None:
        names.append(name.decode())
    return names


def available_targets() -> list[str]:
    """The instruction sets that this CPU can run, best last."""
    return [name for i, name in enumerate(targets()) if _library.anyfuse_target_available(i)]


def current_target() -> str:
    """The instruction set in use."""
    return targets()[int(_library.anyfuse_target_current())]


def operator_target(name: str) -> str:
    """The instruction set that an operator with a known-answer check runs on: the one in use, or the best one below it
    whose kernel answers right."""
    return targets()[int(getattr(_library, f"anyfuse_{name}_target")())]


def set_target(name: str | None) -> None:
    """Chooses an instruction set by name; None chooses the best one. RuntimeError if this CPU cannot run it."""
    if _library.anyfuse_target_set((name or "").encode()):
        raise RuntimeError(f"target {name!r} cannot run here; available: {', '.join(available_targets())}")


@contextmanager
def target(name: str | None) -> Iterator[None]:
    """Runs the block on one instruction set. The choice is the process's, not the thread's."""
    before = current_target()
    set_target(name)
    try:
        yield
    finally:
        set_target(before)


if _library.anyfuse_target_current() < 0:
    import os

    raise RuntimeError(
        f"ANYFUSE_TARGET={os.environ.get('ANYFUSE_TARGET')!r} cannot run here; "
        f"available: {', '.join(available_targets())}"
    )
