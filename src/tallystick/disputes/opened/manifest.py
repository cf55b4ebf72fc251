"""A manifest: a folder of files as one digest, by which a move or a claim refers to what lies at the board.

    {"files": {"opening.json": "sha256:…", "tensors/9f0c….safetensors": "sha256:…"}, "kind": "manifest", "version": 1}

Every file is a blob under its own digest, so that equal files are kept once and the opponent fetches what it lacks.
Format: spec/manifest.md.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tallystick.commitments import Digest, digest
from tallystick.disputes.coordinators.coordinator import Board
from tallystick.disputes.parties import Files
from tallystick.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.transcripts.door import DigestText, Document

FILES_MAX: Final = 65_536
BLOB_BYTES_MAX: Final = 64 << 20
NAME_MAX: Final = 255
DEPTH_MAX: Final = 8
FETCHED_BYTES_MAX: Final = 4 << 30
_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


def _as_name(name: str) -> str:
    if not is_name(name):
        raise ValueError(f"{name[:80]!a} is no name of a file inside a folder")
    return name


FileName = Annotated[str, AfterValidator(_as_name)]


class Manifest(Document):
    """The files of a folder by their names, each with the digest of its bytes."""

    kind: Literal["manifest"] = "manifest"
    version: Literal[1] = 1
    files: Annotated[dict[FileName, DigestText], Field(max_length=FILES_MAX)]

    @model_validator(mode="after")
    def _is_a_folder(self) -> Self:
        """No file is also a folder, and no two names are one where upper and lower case are the same."""
        if len({name.lower() for name in self.files}) < len(self.files):
            raise ValueError("files: two names differ by upper and lower case only")
        folders = {str(parent) for name in self.files for parent in Path(name).parents}
        if clash := sorted(folders & self.files.keys()):
            raise ValueError(f"files: {clash[0]} is a file and a folder")
        return self


def is_name(name: str) -> bool:
    """Whether a file of this name lies inside its folder, on any system, and is not hidden."""
    parts = name.split("/")
    is_short = len(name) <= NAME_MAX and len(parts) <= DEPTH_MAX
    return is_short and all(_PART.fullmatch(part) and not part.endswith(".") for part in parts)


def files_of(folder: Path) -> dict[str, Path]:
    """The files of a folder by their names, hidden ones left out; links are not followed."""
    found: dict[str, Path] = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        paths = (Path(parent) / name for name in names if not name.startswith("."))
        found |= {path.relative_to(folder).as_posix(): path for path in paths if not path.is_symlink()}
    return dict(sorted(found.items()))


def publish(files: Files, board: Board) -> Digest:
    """Put the files and then their manifest at the board; returns the digest by which a move refers to them.

    Raises:
        UsageError: there are too many files, or one is too large or has no name that a folder may hold.
        UnavailableError: the board cannot be reached, or a file cannot be read.
    """
    _check_names(files)
    return board.put(_manifest_of({name: board.put(_bytes_of(name, source)) for name, source in files.items()}))


def manifest_digest(files: Files) -> Digest:
    """What `publish` returns for these files, without a board."""
    _check_names(files)
    blobs = {name: digest("blob", _bytes_of(name, source)) for name, source in files.items()}
    return digest("blob", _manifest_of(blobs))


def fetch(name: Digest, board: Board, folder: Path, bytes_max: int = FETCHED_BYTES_MAX) -> Path:
    """Lay what the manifest `name` lists into `folder`, whole or not at all; a folder that is there stays.

    Raises:
        MalformedError: the manifest is none, or the files come to more than `bytes_max` bytes.
        ProofError: the board gave other bytes than were asked for.
        UnavailableError: the board lacks something, or cannot be reached.
    """
    if folder.exists():
        return folder
    manifest = Manifest.from_bytes(_blob(board, name), "manifest")
    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    _lay(manifest, board, draft, bytes_max)
    draft.replace(folder)
    return folder


def _lay(manifest: Manifest, board: Board, folder: Path, bytes_max: int) -> None:
    spent = 0
    for name, blob in sorted(manifest.files.items()):
        data = _blob(board, blob)
        spent += len(data)
        if spent > bytes_max:
            raise MalformedError(f"manifest: its files come to more than the {bytes_max} bytes allowed")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _blob(board: Board, name: Digest) -> bytes:
    data = board.get(name)
    if len(data) > BLOB_BYTES_MAX:
        raise MalformedError(f"{name}: {len(data)} bytes, more than the {BLOB_BYTES_MAX} allowed")
    if digest("blob", data) != name:
        raise ProofError(f"the board gave other bytes than those of {name}")
    return data


def _check_names(files: Iterable[str]) -> None:
    names = list(files)
    if len(names) > FILES_MAX:
        raise UsageError(f"{len(names)} files, more than the {FILES_MAX} that a manifest lists")
    for name in names:
        if not is_name(name):
            raise UsageError(f"{name[:80]!a} is no name of a file inside a folder")


def _bytes_of(name: str, source: bytes | Path) -> bytes:
    size = len(source) if isinstance(source, bytes) else _size_of(source)
    if size > BLOB_BYTES_MAX:
        raise UsageError(f"{name}: {size} bytes, more than the {BLOB_BYTES_MAX} that a board keeps as one")
    return source if isinstance(source, bytes) else source.read_bytes()


def _size_of(path: Path) -> int:
    if not path.is_file():
        raise UnavailableError(f"{path.name}: not there, or not a file (looked in {path.parent})")
    return path.stat().st_size


def _manifest_of(blobs: Mapping[str, Digest]) -> bytes:
    return Manifest(files=dict(blobs)).to_bytes()
