"""Files of one folder, and of no other: paths are resolved before use, sizes known before a byte is read, and what is
written appears whole or not at all."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from ._saving import Writer, naming, saving

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
        try:
            name.encode()
        except UnicodeEncodeError:  # JSON can name half a character
            raise ValueError(f"{name!r} is no file of {self.name}: it is no text") from None
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

    def load(self, name: str, dtype: torch.dtype, shape: tuple[int, ...], sha256: str | None = None) -> Tensor:
        """A tensor from its raw little-endian elements; refused where they are others than those of the digest."""
        count = 1
        for length in shape:
            count *= length
        self.check_size(name, count * dtype.itemsize)
        with open(self.path(name), "rb") as file:
            raw = np.fromfile(file, _UNSIGNED[dtype.itemsize], count)
        if raw.size != count:  # shortened since it was looked at
            raise ValueError(f"{name!r} in {self.name} is too short: it has {raw.nbytes} bytes")
        if sha256 not in (None, hashlib.sha256(raw.data).hexdigest()):
            advice = "the file that was written with it, or a manifest without its sha256"
            raise ValueError(f"{name!r} in {self.name} is not the file that the manifest describes; accepted: {advice}")
        if sys.byteorder == "big":
            raw = raw.byteswap().view(raw.dtype.newbyteorder("="))
        # numpy's unsigned integers as torch's signed ones of the same width, then the dtype itself
        return torch.from_numpy(raw.view(f"i{dtype.itemsize}")).view(dtype).reshape(shape)

    def write(self, files: Mapping[str, Writer], last: str, outdated: Iterable[str] = ()) -> None:
        """Writes files, as `saving` does: all or none, `last` after the others. `outdated` ones of an older save go."""
        outdated = list(outdated)
        for name in (*files, *outdated):
            self.size(name)  # refuses to replace a folder or a device
        with saving(self.root, last, outdated) as waiting:
            for name, writer in files.items():
                target = waiting / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with naming(target, self.root / name), open(target, "xb") as file:
                    writer(file)


def tensor_writer(tensor: Tensor) -> Writer:
    """Writes a tensor's elements, row-major and little-endian."""

    def write(file: BinaryIO) -> None:
        flat = tensor.detach().contiguous().reshape(-1).view(_WHOLE[tensor.element_size()])
        array = flat.numpy()
        file.write(array.astype(array.dtype.newbyteorder("<"), copy=False).data)  # `tofile` hides what the system said

    return write


def digest_of(writer: Writer) -> str:
    """SHA-256 of what a writer writes."""
    found = hashlib.sha256()

    class Sink(BytesIO):
        def write(self, data: Any) -> int:
            found.update(data)
            return len(data)

    writer(Sink())
    return found.hexdigest()


def text_writer(text: str) -> Writer:
    def write(file: BinaryIO) -> None:
        file.write(text.encode())

    return write
