"""Writing whole or not at all, one writer at a time: the only place where anyfuse makes files appear.

What is written is completed under another name, beside its place, and then takes it: an error, a full disk, Ctrl-C or a
kill leaves what was there. Of several writers the second waits for the first, up to `PATIENCE` seconds. What a killed
writer left (`.saving-…`, `….part`) the next one removes; a lock's file may stay, which locks nothing by itself.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

Writer = Callable[[BinaryIO], object]

PATIENCE = 300.0  # seconds: all ranks of a training may save to one folder, one after the other
FOLDER_LOCK = ".anyfuse.lock"


def write_file(path: str | os.PathLike[str], content: bytes | Writer) -> None:
    """Writes a file, and the folders that it lies in.

    Raises OSError with the path: it cannot be written, the disk is full, it is no regular file, or another process
    writes it for longer than `PATIENCE` seconds.
    """
    target = Path(os.path.realpath(path))  # through a link, which stays one
    if target.exists() and not target.is_file():
        raise OSError(f"{path} is no regular file; accepted: a file or a new name")
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target.parent / f".{target.name}.lock"):
        for left in target.parent.glob(f".{_literal(target.name)}.*.part"):
            left.unlink(missing_ok=True)
        waiting = target.parent / f".{target.name}.{secrets.token_hex(8)}.part"
        try:
            with naming(waiting, target), open(waiting, "xb") as file:
                if isinstance(content, bytes):
                    file.write(content)
                else:
                    content(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(waiting, target)
        finally:
            waiting.unlink(missing_ok=True)


def check_path(path: Path) -> None:
    """Raises before the work whose result could not be written to `path` begins. OSError."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; accepted: a file")
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not os.access(parent, os.W_OK):
        raise PermissionError(f"{path} cannot be written: no permission in {parent}")


@contextmanager
def saving(folder: str | os.PathLike[str], last: str, outdated: Iterable[str] = ()) -> Iterator[Path]:
    """Gives a new folder to write in. When the block ends without an error, its files take their places in `folder`.

    Files that belong together could be read as a mixture while they appear one after the other: the file `last`,
    without which a reader takes none of them, is removed before the first and appears after the others. `outdated`
    files of an older save go with it.

    Raises OSError with the path, as `write_file` does.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder / FOLDER_LOCK):
        for left in folder.glob(".saving-*"):
            _remove(left)
        waiting = Path(tempfile.mkdtemp(prefix=".saving-", dir=folder))
        try:
            with naming(waiting, folder):
                yield waiting
                names = [path.relative_to(waiting) for path in sorted(waiting.rglob("*")) if path.is_file()]
                for name in names:
                    with open(waiting / name, "rb") as file:
                        os.fsync(file.fileno())
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
            for gone in (last, *outdated):
                (folder / gone).unlink(missing_ok=True)
            for name in sorted(names, key=lambda name: str(name) == last):
                os.replace(waiting / name, folder / name)
        finally:
            _remove(waiting)


def digest(path: Path) -> str:
    """SHA-256 of a file: what its companions call it by."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Holds a lock while the block runs. The system gives it back when the process ends, however it does."""
    until = time.monotonic() + PATIENCE
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if _taken(descriptor, path):
                break
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if time.monotonic() > until:
            raise TimeoutError(f"{path} is locked for {PATIENCE:.0f} s: another process writes here; try again later")
        time.sleep(0.02)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()  # before it is given back: who waits for this file sees that it has gone
        os.close(descriptor)


def _taken(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            return True  # a file system without locks, where writers are not kept apart
        raise


@contextmanager
def naming(waiting: Path, target: Path) -> Iterator[None]:
    """Lets a system's error tell the file that the user knows: a full disk does not say where it is."""
    try:
        yield
    except OSError as error:
        if error.errno is None or isinstance(error, TimeoutError):
            raise
        found = Path(os.fsdecode(error.filename)) if isinstance(error.filename, (str, bytes)) else waiting
        if not found.is_relative_to(waiting):
            raise
        raise OSError(error.errno, error.strerror, str(target / found.relative_to(waiting))) from error


def _literal(name: str) -> str:
    """A name as a pattern that matches it alone."""
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in name)


def _remove(folder: Path) -> None:
    """Removes a folder, also when Ctrl-C comes meanwhile."""
    try:
        shutil.rmtree(folder)
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise
