"""Whole files in and out, with one clear line when the machine does not allow it."""

from __future__ import annotations

import os
from pathlib import Path

from tallystick.errors import UnavailableError

FILE_BYTES_MAX = 8 << 30


def read_file(path: Path, bytes_max: int = FILE_BYTES_MAX) -> bytes:
    """The bytes of a regular file; raises `UnavailableError` naming the file."""
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise UnavailableError(f"{path}: not a regular file")
        if size > bytes_max:
            raise UnavailableError(f"{path}: {size} bytes, more than the {bytes_max} allowed")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise UnavailableError(f"{path}: {_reason(error)}") from None


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
    except (OSError, ValueError) as error:
        raise UnavailableError(f"{path}: {_reason(error)}") from None


def make_folder(folder: Path) -> None:
    """Make sure that `folder` exists; raises `UnavailableError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise UnavailableError(f"{folder}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
