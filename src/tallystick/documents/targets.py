"""Where a result will go, tried before the long work that makes it."""

from __future__ import annotations

import os
from pathlib import Path

from tallystick.errors import UnavailableError, UsageError


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
    there = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    if not there.is_dir():
        raise UnavailableError(f"{there}: a file; name a folder to write")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UnavailableError(
            f"{path}: could not be written: {there} is read-only for this user; choose another folder"
        )
