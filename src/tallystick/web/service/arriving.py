"""Runs that are sent here: pieces of files are gathered, and a run appears once all of it was verified.

    .incoming/NAME/parts/SHA256    a file of which not all has come
    .incoming/NAME/files/PATH      whole files, which are not part of the run yet
    NAME/PATH                      the run

A finished run never changes. One that is being recorded grows: its records go on behind those that are there.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from tallystick.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.http.problems import Problem
from tallystick.store.layout import check_file_name, files_of
from tallystick.web.service.arrival_checks import check_against, check_arrived
from tallystick.web.service.run_routes import listed_files, sha256_of

INCOMING: Final = ".incoming"
CLAIM: Final = "claim.json"
AT_ONCE: Final = 2
"""Runs that are verified at once: each keeps a thread that others would read with."""
OF_SEGMENTS: Final = ("segment.json", "records.jsonl")


@dataclass
class ArrivingRuns:
    """The folder for runs that are sent; each run is changed by one request at a time."""

    folder: Path
    _busy: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _verifying: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(AT_ONCE))

    def state(self, name: str) -> dict[str, Any]:
        """What of a run is here: whole files with their digests, and the bytes of those that are coming."""
        staged, parts = self._staged(name), self._parts(name)
        held = {each["path"]: each for folder in (self.folder / name, staged) for each in _listed(folder)}
        coming = {path.name: path.stat().st_size for path in parts.iterdir()} if parts.is_dir() else {}
        return {"files": list(held.values()), "parts": coming}

    def take(self, name: str, file: str, sha256: str, total: int, offset: int, piece: IO[bytes], bytes_max: int) -> int:
        """Keep a piece of a file; returns how many bytes of the file are here.

        Raises `Problem`: 409 where the piece does not go on where the last one ended, or the whole has another digest;
        413 where the run becomes larger than `bytes_max`.
        """
        with self._alone(name):
            if check_file_name(file) in OF_SEGMENTS:
                raise MalformedError(f"{file}: a file of a segment; whole runs are taken")
            target = self._staged(name) / file
            if target.is_file() and target.stat().st_size == total and sha256_of(target) == sha256:
                return total
            part = self._parts(name) / sha256
            part.parent.mkdir(parents=True, exist_ok=True)
            held = part.stat().st_size if part.is_file() else 0
            size = piece.seek(0, os.SEEK_END)
            if held >= offset + size and held:
                if held == total:  # the last piece came before, and something ended the service behind it
                    _complete(part, target, sha256)
                return held
            if held != offset or offset + size > total:
                raise Problem(409, "offset", f"{held} bytes of this file are here; go on behind them")
            self._require_room(name, size, bytes_max)
            piece.seek(0)
            with part.open("ab") as out:
                shutil.copyfileobj(piece, out)
                out.flush()
                os.fsync(out.fileno())
            if held + size == total:
                _complete(part, target, sha256)
            return held + size

    def finish(self, name: str) -> Path:
        """Verify what has come together with what is here, and make it the run; returns its folder.

        Raises `Problem`: 409 where something else is here already, 422 where it is not what it should be. Then all
        that has come is deleted, and the run is as it was. 429 while others are verified.
        """
        with self._alone(name), self._turn():
            staged, run = self._staged(name), self.folder / name
            if not staged.is_dir() and not run.is_dir():
                raise Problem(404, "absent", "no file of this run has come")
            candidate = staged.with_name("candidate")
            shutil.rmtree(candidate, ignore_errors=True)
            try:
                with _refusals(candidate):
                    check_against(run, staged)
                    _link_all(run, candidate)
                    _link_all(staged, candidate)
                    check_arrived(candidate)
            except Problem:
                shutil.rmtree(staged.parent, ignore_errors=True)
                raise
            finally:
                shutil.rmtree(candidate, ignore_errors=True)
            for file in sorted(files_of(staged) if staged.is_dir() else (), key=lambda each: each == CLAIM):
                with _one_name_one_file():
                    (run / file).parent.mkdir(parents=True, exist_ok=True)
                    (staged / file).replace(run / file)
            shutil.rmtree(staged.parent, ignore_errors=True)
            return run

    def _staged(self, name: str) -> Path:
        return self.folder / INCOMING / name / "files"

    def _parts(self, name: str) -> Path:
        return self.folder / INCOMING / name / "parts"

    def _require_room(self, name: str, size: int, bytes_max: int) -> None:
        here = [self.folder / name, self.folder / INCOMING / name]
        held = sum(path.stat().st_size for folder in here for path in folder.rglob("*") if path.is_file())
        if held + size > bytes_max:
            raise Problem(413, "size", f"this token sends runs of {bytes_max} bytes at most")

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._verifying.acquire(blocking=False):
            raise Problem(429, "busy", "other runs are being verified; come back", headers={"Retry-After": "1"})
        try:
            yield
        finally:
            self._verifying.release()

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        with self._lock:
            if name in self._busy:
                raise Problem(429, "busy", "another request changes this run; come back", headers={"Retry-After": "1"})
            self._busy.add(name)
        try:
            yield
        finally:
            with self._lock:
                self._busy.discard(name)


@contextmanager
def _refusals(folder: Path) -> Iterator[None]:
    try:
        yield
    except (MalformedError, ProofError, UnavailableError, UsageError) as error:
        said = str(error).partition(" (looked in ")[0].replace(f"{folder}: ", "")
        raise Problem(422, "refused", f"the run is not what it should be: {said}") from None


@contextmanager
def _one_name_one_file() -> Iterator[None]:
    """Raise `Problem` 409 where a name is to be a file and a folder."""
    try:
        yield
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise Problem(409, "conflict", "a name of this file is that of a folder, or the other way round") from None


def _complete(part: Path, target: Path, sha256: str) -> None:
    if sha256_of(part) != sha256:
        part.unlink()
        raise Problem(409, "digest", "the bytes of this file are not those of its digest; send it again")
    with _one_name_one_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        part.replace(target)


def _listed(folder: Path) -> list[dict[str, Any]]:
    return listed_files(folder, hashed=True) if folder.is_dir() else []


def _link_all(source: Path, target: Path) -> None:
    for file in files_of(source) if source.is_dir() else ():
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        (target / file).unlink(missing_ok=True)
        os.link(source / file, target / file)
