"""Which files a run directory, recorded calls or a segment may hold: no others are sent or taken over a network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tallystick.errors import MalformedError

DEPTH_MAX: Final = 12
_FILES: Final = frozenset(
    (
        *("claim.json", "spec.json", "environment.json", "segment.json", "records.jsonl"),
        *("transcript.jsonl", "transcript.index", "trace.jsonl", "trace.index", "weights.safetensors"),
    )
)
_FOLDERS: Final = frozenset(("anchors", "batches", "blobs", "calls", "data", "graphs", "tiles", "traces"))
_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+=,-]{0,199}")
OPEN_TO_READERS: Final = frozenset(
    ("claim.json", "spec.json", "environment.json", "transcript.jsonl", "transcript.index", "trace.jsonl")
)
"""What a run states about itself; all other files hold tensors, graphs or data."""


def check_file_name(name: str) -> str:
    """`name`, if a run directory may hold a file of that relative path; raises `MalformedError` otherwise."""
    parts = name.split("/")
    is_known = name in _FILES or (parts[0] in _FOLDERS and 1 < len(parts) <= DEPTH_MAX)
    if not is_known or not all(_PART.fullmatch(part) for part in parts):
        raise MalformedError("no file of a run directory has that name")
    return name


def is_file_name(name: str) -> bool:
    """Whether a run directory may hold a file of that relative path."""
    try:
        check_file_name(name)
    except MalformedError:
        return False
    return True


def files_of(folder: Path) -> Iterator[str]:
    """The relative paths of the files in a run directory that it may hold, in ascending order.

    A link that leads out of it is none of them.
    """
    root = folder.resolve()
    found = (path for path in folder.rglob("*") if path.is_file() and path.resolve().is_relative_to(root))
    yield from sorted(name for name in (path.relative_to(folder).as_posix() for path in found) if is_file_name(name))
