"""Files of one folder, and of no other: paths are resolved before use, sizes known before a byte is read, and what is
written appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

Writer = Callable[[BinaryIO], None]

#: Files hold little-endian elements.
_UNSIGNED = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}
_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Folder:
    """A folder whose files are named by relative paths. Whatever leads out of it, by `..`, as an absolute path or
    through a symbolic link, is a ValueError."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = str(path)
        self.root = Path(path).resolve()

    def path(self, name: str) -> Path:
        """The real path of a file of this folder; the file need not exist."""
        inside = bool(name) and "\0" not in name and not os.path.isabs(name) and ".." not in Path(name).parts
        real = Path(os.path.realpath(self.root / name)) if inside else self.root
        if real == self.root or not real.is_relative_to(self.root):
            raise ValueError(f"{name!r} is no file of {self.name}: it leads out of the folder")
        return real

    def size(self, name: str) -> int | None:
        """Bytes of a regular file; None where there is none. ValueError for anything else of that name."""
        try:
            status = os.stat(self.path(name))
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{name!r} in {self.name} is no regular file")
        return status.st_size

    def read(self, name: str, limit: int) -> bytes:
        """A small file, of at most `limit` bytes."""
        size = self.size(name)
        if size is None:
            raise ValueError(f"{name!r} is missing in {self.name}")
        if size > limit:
            raise ValueError(f"{name!r} in {self.name} has {size} bytes; accepted: at most {limit}")
        with open(self.path(name), "rb") as file:
            return file.read(limit)

    def check_size(self, name: str, nbytes: int) -> None:
        """Refuses a file that is missing, short or long."""
        size = self.size(name)
        if size is None:
            raise ValueError(f"{name!r} is missing in {self.name}")
        if size != nbytes:
            what = "short" if size < nbytes else "long"
            raise ValueError(f"{name!r} in {self.name} is too {what}: it has {size} bytes; accepted: {nbytes}")

    def load(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """A tensor from its raw little-endian elements."""
        count = 1
        for length in shape:
            count *= length
        self.check_size(name, count * dtype.itemsize)
        with open(self.path(name), "rb") as file:
            raw = np.fromfile(file, _UNSIGNED[dtype.itemsize], count)
        if raw.size != count:  # shortened since it was looked at
            raise ValueError(f"{name!r} in {self.name} is too short: it has {raw.nbytes} bytes")
        if sys.byteorder == "big":
            raw = raw.byteswap().view(raw.dtype.newbyteorder("="))
        # numpy's unsigned integers as torch's signed ones of the same width, then the dtype itself
        return torch.from_numpy(raw.view(f"i{dtype.itemsize}")).view(dtype).reshape(shape)

    def write(self, files: Mapping[str, Writer], outdated: Iterable[str] = ()) -> None:
        """Writes files. Each is completed under a temporary name beside its place; only when all are does the first
        appear, in the order given, so that an error, a full disk or Ctrl-C leaves no part of one behind. `outdated`
        files are removed just before: until then nothing that was there is lost."""
        outdated = list(outdated)
        waiting: dict[Path, Path] = {}
        try:
            for name, writer in files.items():
                target = self.path(name)
                self.size(name)  # refuses to replace a folder or a device
                target.parent.mkdir(parents=True, exist_ok=True)
                temporary = target.parent / f".{target.name}.{secrets.token_hex(8)}.part"
                waiting[temporary] = target  # before it exists: Ctrl-C may come at any moment
                try:
                    with open(temporary, "xb") as file:
                        writer(file)
                        file.flush()
                        os.fsync(file.fileno())
                except OSError as error:  # a full disk, which does not say where
                    raise OSError(error.errno, error.strerror, str(target)) from error
            for name in outdated:
                self.remove(name)
            for temporary_path, target in list(waiting.items()):
                os.replace(temporary_path, target)
                del waiting[temporary_path]
        finally:
            for temporary_path in waiting:
                with contextlib.suppress(FileNotFoundError):
                    temporary_path.unlink()

    def remove(self, name: str) -> None:
        """Removes a file if it is there."""
        if self.size(name) is not None:
            self.path(name).unlink()


def tensor_writer(tensor: Tensor) -> Writer:
    """Writes a tensor's elements, row-major and little-endian."""

    def write(file: BinaryIO) -> None:
        flat = tensor.detach().contiguous().reshape(-1).view(_WHOLE[tensor.element_size()])
        array = flat.numpy()
        file.write(array.astype(array.dtype.newbyteorder("<"), copy=False).data)  # `tofile` hides what the system said

    return write


def text_writer(text: str) -> Writer:
    def write(file: BinaryIO) -> None:
        file.write(text.encode())

    return write
