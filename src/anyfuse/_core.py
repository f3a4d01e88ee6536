"""The native library: loading it, calling it, and turning its status codes into exceptions. Free of torch.

Every operator file declares its params struct as a subclass of `Struct` (the C name as a class argument) and gets a
callable from `function`. Nothing else in the package touches ctypes.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import starmap
from pathlib import Path
from typing import Any

LIBRARY_DIR = Path(__file__).parent / "_lib"
LIBRARY = LIBRARY_DIR / ("libanyfuse.dylib" if sys.platform == "darwin" else "libanyfuse.so")

#: Structs by their C name, for the test that compares them with `anyfuse.h`.
STRUCTS: dict[str, type[Struct]] = {}

# Field types under the names of the header.
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


class Struct(ctypes.Structure):
    """A struct of `anyfuse.h`; `class Params(Struct, c_name="anyfuse_..._params")`."""

    def __init_subclass__(cls, c_name: str, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        STRUCTS[c_name] = cls


def array(row: type[Struct], rows: list[tuple[Any, ...]]) -> Any:
    """A C array of structs from the values of their fields. Keep it alive while its address is in use."""
    kind: Any = row * len(rows)
    return kind.from_buffer(bytearray(b"".join(starmap(_packer(row), rows))))


@cache
def _packer(row: type[Struct]) -> Callable[..., bytes]:
    """Packs a row's fields several times faster than ctypes assigns them; both lay them out as the C compiler does."""
    fields: Any = row._fields_
    packer = struct.Struct("".join(kind._type_ for _, kind in fields))
    tail = bytes(ctypes.sizeof(row) - packer.size)
    return packer.pack if not tail else lambda *values: packer.pack(*values) + tail


_ERRORS: dict[int, type[Exception]] = {
    1: ValueError,
    2: TypeError,
    3: ValueError,
    4: ValueError,
    5: IndexError,
    6: RuntimeError,
    7: MemoryError,
}

# The numbers of `anyfuse_dtype`, by the name torch gives the type.
DTYPES = {
    "float32": 0,
    "float16": 1,
    "int8": 2,
    "int32": 3,
    "uint8": 4,
    "int64": 9,
    "bool": 12,
    "bfloat16": 27,
    "int4": 29,
    "hifloat8": 34,
    "float8_e5m2": 35,
    "float8_e4m3fn": 36,
}

CONVENTIONS = {"formula": 0, "device": 1}


def _load() -> ctypes.CDLL:
    if not LIBRARY.exists():
        raise ImportError(
            f"{LIBRARY} is missing: install anyfuse with pip, or build it in a checkout with "
            "`cmake -S . -B build/dev && cmake --build build/dev`"
        )
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


class Description(Struct, c_name="anyfuse_description"):
    _fields_ = [
        ("object", pointer),
        ("data", pointer),
        ("numel", i64),
        ("extent", i64),
        ("layout", u64),
        ("dtype", i32),
        ("device", i32),
        ("contiguous", i32),
        ("dimensions", i32),
    ]


def describer(exchange_api: Any) -> Callable[[list[Any], int], None] | None:
    """Describes the objects of a list, into an array of `Description` at an address.

    `exchange_api` is the capsule of functions that their class has by the DLPack standard; None for one of another
    major version, or without the function that is needed.
    """
    get_pointer, get_item = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyList_GetItem
    get_pointer.restype, get_pointer.argtypes = pointer, [ctypes.py_object, ctypes.c_char_p]
    table = get_pointer(exchange_api, b"dlpack_exchange_api")
    major = u32.from_address(table).value
    look = (pointer * 7).from_address(table)[5]  # the words: version, an older table, five functions
    if major != 1 or look is None:
        return None
    item = ctypes.cast(get_item, pointer).value
    native = ctypes.PyDLL(str(LIBRARY)).anyfuse_describe  # with Python's lock, and raising Python's exceptions
    native.argtypes = [ctypes.py_object, i64, pointer, pointer, pointer]

    def describe(tensors: list[Any], address: int) -> None:
        check(native(tensors, len(tensors), item, look, address), "describe")

    return describe


class View(Struct, c_name="anyfuse_view"):
    _fields_ = [
        ("data", pointer),
        ("offset", i64),
        ("sizes", pointer),
        ("strides", pointer),
        ("rank", i32),
        ("bits", i32),
    ]


#: A strided tensor: its first element's address, sizes, strides in elements, and the bytes of an element.
Layout = tuple[int, Sequence[int], Sequence[int], int]

#: What `overlap` answers; undecided is a question whose work would be beyond a fixed limit.
APART, OVERLAP, UNDECIDED = range(3)


def overlap(a: Layout, b: Layout | None = None) -> int:
    """Whether an element of `a` has a byte in common with one of `b`; of `a` alone: whether two of its indices lead to
    one element. Decided by arithmetic, in about 10 µs, however many elements there are."""
    kept, views = [], []
    for address, sizes, strides, width in (a,) if b is None else (a, b):
        numbers = [(i64 * len(sizes))(*sizes), (i64 * len(sizes))(*strides)]
        kept.append(numbers)
        views.append(View(address, 0, *map(addressof, numbers), len(sizes), 8 * width))
    compared = _library.anyfuse_overlap_itself if b is None else _library.anyfuse_overlap
    return int(compared(*map(ctypes.byref, views)))


class StreamArray(Struct, c_name="anyfuse_stream_array"):
    _fields_ = [("data", pointer), ("width", i64), ("access", i32), ("by_index", i32)]


class StreamParams(Struct, c_name="anyfuse_stream_params"):
    _fields_ = [
        ("size", size),
        ("arrays", pointer),
        ("count", i64),
        ("units", i64),
        ("tile", i64),
        ("index", pointer),
        ("nontemporal", i32),
        ("threads", i32),
    ]


#: The memory traffic of a kernel without its arithmetic (used by `anyfuse bench` alone).
stream = function("stream", StreamParams)


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
