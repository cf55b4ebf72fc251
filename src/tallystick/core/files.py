"""Whole files: read with a limit, written so that a crash leaves the old or the new one, and tried before long work."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from tallystick.core.errors import UnavailableError, UsageError

# Whole files: read with a limit, and written so that a crash leaves the old file or the new one.

DOCUMENT_BYTES_MAX: Final = 16 << 20
FILE_BYTES_MAX: Final = 2 << 30


def read_document(path: Path, bytes_max: int = DOCUMENT_BYTES_MAX) -> bytes:
    """The bytes of a regular file of limited size; raises `UnavailableError` naming it."""
    size = file_size(path)
    if size > bytes_max:
        raise UnavailableError(f"{path.name}: {size} bytes, more than the {bytes_max} allowed")
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None


def file_size(path: Path) -> int:
    """The size of a regular file in bytes; raises `UnavailableError` for a missing file, a folder or a pipe."""
    try:
        if path.is_file():
            return path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from None
    there = "a folder, not a file" if path.is_dir() else "not a regular file" if path.exists() else "not there"
    raise UnavailableError(f"{path.name or path}: {there} (looked in {path.parent})")


def write_atomically(path: Path, content: bytes | Callable[[BinaryIO], object], *, durable: bool = True) -> None:
    """Write `content`, or what it writes to the open file, so that a crash leaves the old file or the new one.

    The new file is on disk when this returns. Without `durable` nothing waits for the disk, and a loss of power may
    leave a file that is cut short. Raises `UnavailableError` where the disk refuses it; the old file, if any, is kept.
    """
    draft = path.with_name(f".{path.name}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                content(file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        draft.replace(path)
        if durable:
            sync_folder(path.parent)
    except OSError as error:
        raise UnavailableError(f"{path}: could not be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def write_secret(path: Path, content: bytes, what: str) -> None:
    """Write a new file that its owner alone can read; `what` names the secret in a complaint.

    Raises:
        UsageError: the file exists.
        UnavailableError: the disk cannot be written.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageError(f"{path}: exists already; {what} is never overwritten") from None
    except OSError as error:
        raise UnavailableError(f"{path}: could not be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(content)
    except OSError as error:
        path.unlink()  # an incomplete file would block the next attempt
        raise UnavailableError(f"{path}: could not be written: {error.strerror}") from None


def sync_folder(folder: Path) -> None:
    """Make new names and renames in `folder` survive a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unreadable(path: Path, error: OSError) -> UnavailableError:
    return UnavailableError(f"{path.name}: could not be read: {error.strerror}")


# Where a result will go, tried before the long work that makes it.


def require_writable(path: Path, *, makes_folders: bool = False) -> None:
    """Try whether a file can be written at `path`, before long work whose result goes there.

    Raises `UnavailableError` for a folder, where the folder around it refuses new files, and where it is missing unless
    it will be made.
    """
    folder = path.absolute().parent
    if path.is_dir():
        raise UnavailableError(f"{path}: a folder; name a file to write")
    if makes_folders and not folder.is_dir():
        return require_writable_folder(folder)
    if not folder.is_dir():
        raise UnavailableError(f"{folder}: no such folder")
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.touch()
        draft.unlink()
    except OSError as error:
        raise UnavailableError(f"{path}: could not be written: {error.strerror}") from None


def require_empty_folder(path: Path) -> None:
    """Try whether a new folder can be made at `path`; raises `UsageError` where something is there already."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{path}: not an empty directory; choose another one")
    require_writable_folder(path)


def require_writable_folder(path: Path) -> None:
    """Try whether a folder can be made at `path`; raises `UnavailableError` for a file or where nothing may be made."""
    there = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise UnavailableError(f"{there}: a file; name a folder to write")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UnavailableError(
            f"{path}: could not be written: {there} is read-only for this user; choose another folder"
        )
