"""One writer at a time: the lock of a run directory, and what an interrupted beginning leaves in it.

The operating system lets go of a lock when its process ends, however that happens; the file stays and blocks nobody.
"""

from __future__ import annotations

import fcntl
import shutil
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Final, Self

from tallystick.documents.files import read_document
from tallystick.errors import MalformedError, UnavailableError, UsageError
from tallystick.store.run import RunDirectory
from tallystick.transcripts.record import read_record

LOCK: Final = ".tally-lock"
PREPARED: Final = ("data", "graphs")
DRAFT: Final = ".spec.json.draft"
"""What is written before a spec stands: with the lock beside it and no spec, it is an interrupted beginning."""
HEAD: Final = ("spec.json", "environment.json", "transcript.jsonl", "transcript.index", "trace.jsonl", "trace.index")
HEAD_FOLDERS: Final = ("tiles", "anchors", "blobs", "batches")
"""What else a recording writes before its first step."""
HEAD_BYTES_MAX: Final = 1 << 20


class RunLock:
    """Holds a run directory for one writer until it is released; a context manager.

    Raises `UnavailableError` where another writer holds it, in this process or in another one.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / LOCK).open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise UnavailableError(f"{folder}: another process records into it; choose another directory") from None
        except OSError:
            return  # a file system without locks: recording goes on as it did before there were any

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Let go, also of the copies that forked children hold."""
        if self._file.closed:
            return
        with suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._file.close()


def lock_new_run(folder: Path) -> RunLock:
    """Lock a directory for a run that begins: one that is empty or not there, or whose beginning was interrupted.

    Raises:
        UsageError: something stands there already.
        UnavailableError: another writer holds it.
    """
    if not is_free(folder) and not (folder / LOCK).exists():  # no run of ours: nothing is written there
        raise UsageError(_refusal(folder))
    lock = RunLock(folder)
    if not is_free(folder):  # asked again now that nobody else can change the answer
        lock.release()
        raise UsageError(_refusal(folder))
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()
    return lock


def require_free(folder: Path) -> None:
    """Raise `UsageError` where no run can begin; nothing is locked or written yet."""
    if not is_free(folder):
        raise UsageError(_refusal(folder))


def is_free(folder: Path) -> bool:
    """Whether a run can begin there: nothing is in it but what an interrupted beginning left."""
    if not folder.exists():
        return True
    held = {path.name for path in folder.iterdir()}
    if not held or (LOCK in held and held <= {LOCK, DRAFT, *PREPARED}):
        return True
    return LOCK in held and held <= {LOCK, DRAFT, *PREPARED, *HEAD, *HEAD_FOLDERS} and _is_head(RunDirectory(folder))


def _is_head(run: RunDirectory) -> bool:
    """Whether the recording of a loop stands there that ended before its first step: nothing of it can be used."""
    try:
        if run.spec().recipe is not None or run.claim_path.exists():
            return False
        if not run.transcript_path.exists():
            return True
        *lines, _cut = read_document(run.transcript_path, HEAD_BYTES_MAX).split(b"\n")
        return all(read_record(line, "record").kind != "step" for line in lines)
    except (MalformedError, UnavailableError):  # not ours, or far longer than a head
        return False


def _refusal(folder: Path) -> str:
    run = RunDirectory(folder)
    refusal = f"{folder}: not empty; choose another directory"
    if run.claim_path.exists():
        return f"{refusal} (a finished run is in it)"
    if run.has_recipe:
        return f"{refusal}, or `tally train --resume {quote(str(folder))}`"
    if run.transcript_path.exists():
        return f"{refusal}, or delete it (an interrupted recording is in it, and a loop cannot be resumed)"
    return refusal
