"""Files that are either there whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from tallystick.errors import UnavailableError

DOCUMENT_BYTES_MAX = 16 << 20


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` so that a crash at any instant leaves the old file or the new one.

    Raises `UnavailableError` where the disk refuses it; the old file, if any, is still there.
    """
    draft = path.with_name(f".{path.name}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise UnavailableError(f"{path}: could not be written: {error.strerror}") from None


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_document(path: Path, bytes_max: int = DOCUMENT_BYTES_MAX) -> bytes:
    """The bytes of a regular file of limited size; raises `UnavailableError` naming it."""
    if not path.is_file():
        raise UnavailableError(f"{path.name}: not there, or not a file (looked in {path.parent})")
    if path.stat().st_size > bytes_max:
        raise UnavailableError(f"{path.name}: {path.stat().st_size} bytes, more than the {bytes_max} allowed")
    return path.read_bytes()
