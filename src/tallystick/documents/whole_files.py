"""Whole files in and out, with one clear line when the machine does not allow it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tallystick.errors import UnavailableError

FILE_BYTES_MAX = 2 << 30


def read_file(path: Path, bytes_max: int = FILE_BYTES_MAX) -> bytes:
    """The bytes of a regular file; raises `UnavailableError` naming the file."""
    size = file_size(path)
    if size > bytes_max:
        raise UnavailableError(f"{path}: {size} bytes, more than the {bytes_max} allowed")
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnavailableError(f"{path}: {_reason(error)}") from None


def file_size(path: Path) -> int:
    """The size of a regular file in bytes; raises `UnavailableError` for a missing one, or a pipe."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise UnavailableError(f"{path}: {_reason(error)}") from None
    if not stat.S_ISREG(status.st_mode):
        raise UnavailableError(f"{path}: not a regular file")
    return status.st_size


def write_file(path: Path, data: bytes) -> None:
    """Write `data` so that a crash leaves the old file or the new one; raises `UnavailableError`."""
    draft = path.with_name(f".{path.name}.draft")
    make_folder(path.parent)
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise UnavailableError(f"{path}: {_reason(error)}") from None


def make_folder(folder: Path) -> None:
    """Make sure that `folder` exists; raises `UnavailableError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise UnavailableError(f"{folder}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
