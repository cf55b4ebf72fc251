"""The interface of every coordinator, and the folders of files that moves refer to by one digest."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from io import BytesIO
from pathlib import Path
from typing import Annotated, Final, Literal, Protocol, Self, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from tallystick.core.digests import Digest, digest
from tallystick.core.documents import DigestText, Document
from tallystick.core.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.core.files import file_size
from tallystick.disputes.game.game import apply
from tallystick.disputes.game.moves import Move
from tallystick.disputes.game.protocols import Files
from tallystick.disputes.game.state import Rules, State

# The interface of every coordinator: its rules and clock, the accepted moves in order, and the submission of moves.
#
# The accepted moves determine all of a coordinator's state: every party applies them by the same game.


@dataclass(frozen=True)
class MoveEntry:
    """An accepted move: its number in the coordinator's order, and the second at which it took effect."""

    number: int
    time: int
    move: Move


class NotSentError(UnavailableError):
    """A move was not sent, for a reason that lies here: it can be made again at once when that is mended."""


class MoveLog(Protocol):
    """The accepted moves, with the rules and the clock by which they were accepted."""

    @property
    def rules(self) -> Rules:
        """The rules; they never change."""
        ...

    def now(self) -> int:
        """The coordinator's time in seconds; parties never use their own clock."""
        ...

    def entries(self, start: int = 0) -> Sequence[MoveEntry]:
        """The accepted moves from number `start` on that can no longer be undone."""
        ...


class Coordinator(MoveLog, Protocol):
    """One party's connection to a coordinator; it signs moves as `party`."""

    @property
    def party(self) -> str:
        """The party that moves through this connection."""
        ...

    def submit(self, move: Move) -> None:
        """Make a move; returns when the coordinator has accepted it, or certainly has it pending.

        Raises:
            RuleError: the rules do not allow it now.
            UnavailableError: the coordinator cannot be reached; it is unknown whether it has the move.
            NotSentError: it certainly does not have the move.
        """
        ...


class Board(Protocol):
    """Keeps data under its blob digest, so that no party can withhold the data of its moves."""

    def put(self, data: bytes) -> Digest:
        """Keep `data`; returns its blob digest. Raises `UnavailableError`, and `UsageError` if it is too large."""
        ...

    def get(self, name: Digest) -> bytes:
        """The bytes under a digest, checked against it; raises `UnavailableError` if they are not there."""
        ...


def replayed(rules: Rules, entries: Iterable[MoveEntry]) -> State:
    """The state to which accepted moves lead."""
    state = State(rules)
    for entry in entries:
        state = apply(state, entry.move, entry.time)
    return state


# A manifest: a folder of files as one digest, by which a move or a claim refers to files at the board.
#
#     {"files": {"opening.json": "sha256:…", "values.safetensors": ["sha256:…", "sha256:…"]},
#      "kind": "manifest", "version": 1}
#
# Every file is a blob under its own digest, so that equal files are kept once, and the opponent fetches only what it
# lacks. A file that is larger than `BLOB_BYTES_MAX` is a list of blobs. Format: spec/manifest.md.

FILES_MAX: Final = 65_536
FOLDERS_MAX: Final = 4_096
PARTS_MAX: Final = 64
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
Parts = Annotated[tuple[DigestText, ...], Field(min_length=2, max_length=PARTS_MAX)]
"""The blobs of a file larger than `BLOB_BYTES_MAX`, in order; each but the last has exactly that size."""
Listed: TypeAlias = Digest | tuple[Digest, ...]


class Manifest(Document):
    """The files of a folder by their names, each with the digest of its bytes, or with the digests of its parts."""

    kind: Literal["manifest"] = "manifest"
    version: Literal[1] = 1
    files: Annotated[dict[FileName, DigestText | Parts], Field(max_length=FILES_MAX)]

    @model_validator(mode="after")
    def _is_a_folder(self) -> Self:
        """Check that the names fit into one folder, and that files in parts do not exceed what may be fetched."""
        if clash := _clash(self.files):
            raise ValueError(f"files: {clash}")
        whole = sum(len(listed) - 1 for listed in self.files.values() if isinstance(listed, tuple))
        if whole * BLOB_BYTES_MAX > FETCHED_BYTES_MAX:
            raise ValueError(f"files: more than {FETCHED_BYTES_MAX} bytes in parts")
        return self


def blobs_of(manifest: Manifest) -> frozenset[Digest]:
    """The digests of all blobs that a manifest lists."""
    return frozenset(blob for listed in manifest.files.values() for blob in _parts(listed))


def is_name(name: str) -> bool:
    """Whether this is the name of a file inside a folder, on any operating system, and not hidden."""
    parts = name.split("/")
    is_short = len(name) <= NAME_MAX and len(parts) <= DEPTH_MAX
    return is_short and all(_PART.fullmatch(part) and not part.endswith(".") for part in parts)


def files_of(folder: Path) -> dict[str, Path]:
    """The files of a folder by their names, hidden ones left out; links are not followed."""
    files: dict[str, Path] = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        paths = (Path(parent) / name for name in names if not name.startswith("."))
        files |= {path.relative_to(folder).as_posix(): path for path in paths if not path.is_symlink()}
    return dict(sorted(files.items()))


def publish(files: Files, board: Board) -> Digest:
    """Put the files and then their manifest at the board; returns the digest by which a move refers to them.

    Raises:
        UsageError: `fetch` would refuse them: there are too many, they are too large, or a name is not allowed.
        UnavailableError: the board cannot be reached, or a file cannot be read.
    """
    return board.put(_manifest_of(files, board.put))


def manifest_digest(files: Files) -> Digest:
    """What `publish` returns for these files, without a board."""
    return digest("blob", _manifest_of(files, partial(digest, "blob")))


def fetch(name: Digest, board: Board, folder: Path, bytes_max: int = FETCHED_BYTES_MAX) -> Path:
    """Write the files that the manifest `name` lists into `folder`, all or none; an existing folder is left as it is.

    Equal files are hard links to one another, so that no more is written than lies at the board. So no file of the
    folder may be changed.

    Raises:
        MalformedError: it is no manifest, or its files have more than `bytes_max` bytes together.
        ProofError: the board gave other bytes than were asked for.
        UnavailableError: the board lacks something, or cannot be reached.
    """
    if folder.exists():
        return folder
    manifest = Manifest.from_bytes(_blob(board, name), "manifest")
    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    laying = _Laying(board, draft, bytes_max)
    for file, listed in sorted(manifest.files.items()):
        laying.lay(file, listed)
    draft.replace(folder)
    return folder


@dataclass
class _Laying:
    """Writes files into a folder; `spent` counts their bytes, at most `bytes_max`, and equal files every time."""

    board: Board
    folder: Path
    bytes_max: int
    spent: int = 0
    laid: dict[Listed, Path] = field(default_factory=dict)

    def lay(self, name: str, listed: Listed) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if first := self.laid.get(listed):
            self._spend(first.stat().st_size)
            if _linked(first, path):
                return
            shutil.copyfile(first, path)
        else:
            self._write(path, _parts(listed))
        self.laid[listed] = path

    def _write(self, path: Path, blobs: tuple[Digest, ...]) -> None:
        with path.open("xb") as file:
            for number, blob in enumerate(blobs, 1):
                data = _blob(self.board, blob)
                if len(blobs) > 1:
                    _check_part(len(data), is_last=number == len(blobs))
                self._spend(len(data))
                file.write(data)

    def _spend(self, size: int) -> None:
        self.spent += size
        if self.spent > self.bytes_max:
            raise MalformedError(f"manifest: its files come to more than the {self.bytes_max} bytes allowed")


def _linked(first: Path, path: Path) -> bool:
    """Whether `path` could be made a hard link to `first`; some systems have none, or limit their number."""
    try:
        os.link(first, path)
    except OSError:
        return False
    return True


def _check_part(size: int, is_last: bool) -> None:
    if not (0 < size <= BLOB_BYTES_MAX if is_last else size == BLOB_BYTES_MAX):
        raise MalformedError(f"manifest: a part of {size} bytes; each but the last has {BLOB_BYTES_MAX}, the last some")


def _blob(board: Board, name: Digest) -> bytes:
    data = board.get(name)
    if len(data) > BLOB_BYTES_MAX:
        raise MalformedError(f"{name}: {len(data)} bytes, more than the {BLOB_BYTES_MAX} allowed")
    if digest("blob", data) != name:
        raise ProofError(f"the board gave other bytes than those of {name}")
    return data


def _parts(listed: Listed) -> tuple[Digest, ...]:
    return listed if isinstance(listed, tuple) else (listed,)


def _manifest_of(files: Files, put: Callable[[bytes], Digest]) -> bytes:
    """The manifest of files; `put` is called for each piece, after all checks that can refuse the files."""
    _check_names(files)
    total = sum(len(source) if isinstance(source, bytes) else file_size(source) for source in files.values())
    if total > FETCHED_BYTES_MAX:
        raise UsageError(f"{total} bytes of files, more than the {FETCHED_BYTES_MAX} that anybody fetches")
    blobs = {name: tuple(map(put, _pieces(source))) for name, source in files.items()}
    return Manifest(files={name: each if len(each) > 1 else each[0] for name, each in blobs.items()}).to_bytes()


def _pieces(source: bytes | Path) -> Iterator[bytes]:
    """A file in pieces of `BLOB_BYTES_MAX`; at least one, which may be empty."""
    with BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        yield file.read(BLOB_BYTES_MAX)
        yield from iter(partial(file.read, BLOB_BYTES_MAX), b"")


def _check_names(files: Collection[str]) -> None:
    if len(files) > FILES_MAX:
        raise UsageError(f"{len(files)} files, more than the {FILES_MAX} that a manifest lists")
    for name in files:
        if not is_name(name):
            raise UsageError(f"{name[:80]!a} is no name of a file inside a folder")
    if clash := _clash(files):
        raise UsageError(clash)


def _clash(names: Collection[str]) -> str:
    """Why files of these names cannot be in one folder on every operating system; empty if they can."""
    if len({name.lower() for name in names}) < len(names):
        return "two names differ by upper and lower case only"
    folders = {name[: match.start()] for name in names for match in re.finditer("/", name)}
    if clash := sorted(folders.intersection(names)):
        return f"{clash[0]} is a file and a folder"
    return f"{len(folders)} folders, more than {FOLDERS_MAX}" if len(folders) > FOLDERS_MAX else ""


# Check that a board has a manifest and everything it lists. A positive result stays true: boards delete nothing.

REMEMBERED_MAX: Final = 4096


class BlobIndex(Protocol):
    """A board that can list missing blobs."""

    def get(self, name: Digest) -> bytes:
        """The bytes under a digest, checked against it; raises `UnavailableError` if they are not there."""
        ...

    def missing(self, names: Iterable[Digest]) -> Sequence[Digest]:
        """Those digests under which the board has no matching bytes."""
        ...


def whole_manifests(board: BlobIndex) -> Callable[[Digest], None]:
    """A check that a board has the manifest of a digest, and every blob that it lists.

    It remembers the last `REMEMBERED_MAX` complete ones.

    Raises:
        UnavailableError: The manifest, or a blob that it lists, is not there.
        MalformedError: What lies under the digest is no manifest.
    """

    @lru_cache(REMEMBERED_MAX)
    def check(name: Digest) -> None:
        listed = blobs_of(Manifest.from_bytes(board.get(name), "manifest"))
        if missing := board.missing(listed):
            raise UnavailableError(f"{len(missing)} of the {len(listed)} blobs listed are not at the board")

    return check
