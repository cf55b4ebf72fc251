"""Recognises folders by the files in them, and says which files a run directory may hold; imports nothing heavy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tallystick.core.errors import MalformedError, UnavailableError

# Recognise the kind of a folder, for error messages; this imports nothing heavy.

NAMES_SHOWN: Final = 3


@dataclass(frozen=True)
class FolderKind:
    """A kind of folder: recognised by any one of its `marks`; messages say that it holds `holds`."""

    name: str
    marks: tuple[str, ...]
    holds: str


RUN: Final = FolderKind(
    "run directory",
    ("claim.json", "spec.json", "transcript.jsonl"),
    "claim.json, spec.json and transcript.jsonl, as `tally train --out` and `record_training` write them",
)
MODEL: Final = FolderKind(
    "model directory",
    ("config.json",),
    "config.json, a tokenizer and safetensors, as `tally export-model RUN OUT` writes them",
)
OPENING: Final = FolderKind(
    "folder of opened operators", ("opening.json",), "opening.json, as `tally open --operators` writes it"
)
RECEIPTS: Final = FolderKind(
    "folder of receipts", ("receipts.jsonl",), "receipts.jsonl, as `tally generate --out` writes it"
)
TRACE: Final = FolderKind(
    "trace",
    ("trace.json", "events.jsonl"),
    "trace.json, cluster.json and events.jsonl, as `tally import-trace` writes them",
)
KINDS: Final = (RUN, OPENING, MODEL, RECEIPTS, TRACE)


def require_folder(path: Path, *kinds: FolderKind) -> Path:
    """`path`, if it is a folder of one of `kinds`.

    Raises `UnavailableError` that says what such a folder holds, and what this one looks like.
    """
    if any(is_kind(path, kind) for kind in kinds):
        return path
    first = kinds[0]
    raise UnavailableError(f"{path}: {looks_like(path)}, and not a {first.name}; that holds {first.holds}")


def looks_like(path: Path) -> str:
    """What stands at a path, in a few words."""
    if not path.exists():
        return "not there"
    if not path.is_dir():
        return "a file"
    known = next((kind for kind in KINDS if is_kind(path, kind)), None)
    if known is not None:
        return f"a {known.name}"
    names = sorted(inner.name for inner in path.iterdir())
    if not names:
        return "an empty folder"
    more = len(names) - NAMES_SHOWN
    return f"a folder with {', '.join(names[:NAMES_SHOWN])}" + (f" and {more} more" if more > 0 else "")


def is_kind(path: Path, kind: FolderKind) -> bool:
    """Whether a folder holds one of the marks of a kind."""
    return any((path / mark).is_file() for mark in kind.marks)


class Part:
    """A file or folder of a directory with a `path`, by its name inside of it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: Any, _: Any = None) -> Path:
        return Path(folder.path, self.name)


# Which files a run directory, recorded calls or a segment may hold: no others are sent or taken over a network.

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


def is_file_name(name: str) -> bool:
    """Whether a run directory may hold a file of that relative path."""
    parts = name.split("/")
    is_known = name in _FILES or (parts[0] in _FOLDERS and 1 < len(parts) <= DEPTH_MAX)
    return is_known and all(_PART.fullmatch(part) for part in parts)


def check_file_name(name: str) -> str:
    """`name`, if a run directory may hold a file of that relative path; raises `MalformedError` otherwise."""
    if not is_file_name(name):
        raise MalformedError("no file of a run directory has that name")
    return name


def files_of(folder: Path) -> Iterator[str]:
    """The relative paths of the files in a run directory that it may hold, in ascending order.

    Links that lead out of it are left out.
    """
    root = folder.resolve()
    paths = (path for path in folder.rglob("*") if path.is_file() and path.resolve().is_relative_to(root))
    yield from sorted(name for name in (path.relative_to(folder).as_posix() for path in paths) if is_file_name(name))
