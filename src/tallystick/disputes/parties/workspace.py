"""A party's folder: moves, votes and findings that must survive a crash of its program, and fetched files."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tallystick.commitments.encoding import Json, decode, encode
from tallystick.disputes.game.moves import Move, read_move
from tallystick.documents.files import read_document, write_atomically
from tallystick.errors import MalformedError, UnavailableError


@dataclass(frozen=True)
class Sent:
    """A move that was stored before it was made, and the coordinator's time at that moment."""

    move: Move
    time: int


@dataclass
class Workspace:
    """One party's folder for one coordinator, locked by one program at a time.

    The operating system releases the lock when the program ends, also if it is killed. Raises `UnavailableError` if
    another program holds the lock.
    """

    folder: Path
    _lock: int | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise UnavailableError(f"{self.folder}: another program of this party is at work here") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock, so that another program can use the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def sent(self, key: str) -> Sent | None:
        """The move that was stored under `key`; `None` if there is none that can be read."""
        noted = self.note(f"moves/{key}")
        try:
            move = read_move(encode(noted["move"]), key) if noted else None
        except (MalformedError, KeyError):
            return None
        time = noted.get("time") if noted else None
        return Sent(move, time) if move is not None and isinstance(time, int) else None

    def send(self, key: str, move: Move, time: int) -> None:
        """Store a move durably, before it is made."""
        self.put_note(f"moves/{key}", {"move": decode(move.to_bytes(), key), "time": time})

    def note(self, key: str) -> Mapping[str, Json] | None:
        """The note under `key`; `None` if there is none that can be read."""
        path = self.path(key)
        if not path.exists():
            return None
        try:
            found = decode(read_document(path), path.name)
        except MalformedError:
            return None
        return found if isinstance(found, dict) else None

    def put_note(self, key: str, value: Mapping[str, Json]) -> None:
        """Store a note durably."""
        write_atomically(self.path(key), encode(dict(value)))

    def drop_note(self, key: str) -> None:
        """Delete a note."""
        self.path(key).unlink(missing_ok=True)

    def forget(self, key: str) -> None:
        """Delete a stored move."""
        self.drop_note(f"moves/{key}")

    def path(self, key: str) -> Path:
        """The file of the note under `key`, which may not exist yet."""
        return self.folder / f"{key}.json"
