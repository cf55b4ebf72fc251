"""A run directory: the portable form of a run, its anchors, and one writer at a time."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Final, Self

from tallystick.core.digests import Digest, digest
from tallystick.core.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.core.files import DOCUMENT_BYTES_MAX, read_document, write_atomically
from tallystick.core.safetensors import StateFile, read_state
from tallystick.core.tensors import Tensor
from tallystick.formats.claims import AnchorParts, Claim, part_file, parts_file
from tallystick.formats.records import HeaderRecord, Record, StepRecord, anchor_file, graph_file, read_record
from tallystick.formats.spec import Environment, Spec
from tallystick.formats.store.folders import Part
from tallystick.formats.store.log import open_line
from tallystick.formats.store.remote_anchors import RemoteAnchors

# The anchors of a run directory: which states are there, and reading one of them.
#
# An anchor is one file with the whole state, or a list with the tensors that changed beside it; the list names, for
# each of the others, the anchor whose file holds it.

ANCHOR_BYTES_MAX: Final = 1 << 40


@dataclass(frozen=True)
class Anchors:
    """The anchors of the run directory at `path`; those that are not in it are looked up in `remote`, if given."""

    path: Path
    remote: RemoteAnchors | None = None

    def present(self, marks: Iterable[int]) -> tuple[int, ...]:
        """Those of `marks` whose states are there, in ascending order; none of them is opened."""
        folder = self.path / "anchors"
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        names |= set() if self.remote is None else self.remote.names
        listed = ((mark, {Path(anchor_file(mark)).name, Path(parts_file(mark)).name}) for mark in sorted(marks))
        return tuple(mark for mark, files in listed if not names.isdisjoint(files))

    def read(self, mark: int, bytes_max: int = ANCHOR_BYTES_MAX) -> dict[str, Tensor]:
        """The state after step `mark`, as stored; the caller checks its digest.

        Raises:
            MalformedError: a file of it is not what it should be.
            UnavailableError: a file of it is missing, or it is larger than `bytes_max`.
        """
        path = self._found(anchor_file(mark), bytes_max)
        if path is not None and path.stat().st_size > bytes_max:
            raise _too_large(path, bytes_max)
        if path is not None or self._found(parts_file(mark), DOCUMENT_BYTES_MAX) is None:
            return read_state(path or self.path / anchor_file(mark), canonical=True)
        return self._collect(mark, bytes_max)

    def elsewhere(self, mark: int) -> dict[str, int]:
        """The tensors of anchor `mark` that stand in the files of other anchors, and which; none of a whole file."""
        path = self._found(parts_file(mark), DOCUMENT_BYTES_MAX)
        if (self.path / anchor_file(mark)).is_file() or path is None:
            return {}
        return dict(AnchorParts.from_bytes(read_document(path), path.name).elsewhere)

    def holding(self, mark: int, bytes_max: int = ANCHOR_BYTES_MAX) -> Path:
        """The file in which the tensors of anchor `mark` stand that are not elsewhere."""
        path = self._found(anchor_file(mark), bytes_max) or self._found(part_file(mark), bytes_max)
        return path or self.path / part_file(mark)

    def _found(self, file: str, bytes_max: int) -> Path | None:
        """The file, on this machine or fetched to it; `None` where there is none."""
        path = self.path / file
        if path.is_file():
            return path
        return None if self.remote is None else self.remote.fetch(path.name, bytes_max)

    def _collect(self, mark: int, bytes_max: int) -> dict[str, Tensor]:
        elsewhere, left = self.elsewhere(mark), bytes_max
        state: dict[str, Tensor] = {}
        holders = sorted(set(elsewhere.values()))
        if holders and holders[-1] >= mark:
            raise MalformedError(f"anchor {mark} names a tensor of anchor {holders[-1]}, which is not before it")
        for holder in (mark, *holders):
            path = self.holding(holder, bytes_max)
            names = sorted(name for name, place in elsewhere.items() if place == holder)
            with StateFile(path, canonical=True) as file:
                tensors = {name: file.tensor(name) for name in (names if holder < mark else file.names)}
                left -= sum(tensor.nbytes for tensor in tensors.values())
                if left < 0:
                    raise _too_large(Path(parts_file(mark)), bytes_max)
                if not state.keys().isdisjoint(tensors):
                    raise MalformedError(f"anchor {mark} names a tensor that is in {path.name} already")
                state |= {name: tensor.copy() for name, tensor in tensors.items()}
        return state


def _too_large(path: Path, bytes_max: int) -> UnavailableError:
    return UnavailableError(f"{path.name}: larger than the {bytes_max} bytes allowed")


# A run directory: the portable form in which a run is kept and handed over.
#
#     claim.json spec.json environment.json      what is claimed
#     transcript.jsonl tiles/ transcript.index   the records, their tree, where each line starts
#     anchors/ blobs/                            full states, and bytes named by their digest
#     graphs/ batches/                           the graphs of steps, and the tensors that steps consumed
#     data/                                      the source, its tokenizer and its tokens
#     trace.jsonl                                how long each step took: a statement, under a root of its own
#
# Everything an auditor needs is in it.

BLOB_BYTES_MAX = 1 << 30


@dataclass(frozen=True)
class RunDirectory:
    """Names and reads the parts of a run directory; anchors that it lacks are read from `anchors_url`, if given."""

    path: Path
    anchors_url: str | None = None

    claim_path = Part("claim.json")  # written when the run is finished
    spec_path = Part("spec.json")
    environment_path = Part("environment.json")
    transcript_path = Part("transcript.jsonl")
    trace_path = Part("trace.jsonl")
    data_path = Part("data")
    graph_path = Part("graphs/step.json")  # only if the spec names a step graph

    @cached_property
    def anchors(self) -> Anchors:
        """The states that were kept; raises `UnavailableError` where the store at `anchors_url` cannot be read."""
        if self.anchors_url is None:
            return Anchors(self.path)
        return Anchors(self.path, RemoteAnchors(self.anchors_url))

    def graph_path_of(self, step: StepRecord) -> Path:
        """The graph of a step: the one that its record names, or that of the spec."""
        return self.graph_path if step.graph is None else self.path / graph_file(step.graph)

    @property
    def has_recipe(self) -> bool:
        """Whether the spec has a recipe: a command can resume only such a run."""
        try:
            return self.spec().recipe is not None
        except (MalformedError, UnavailableError):
            return False

    def claim(self) -> Claim:
        """The claim; raises `UnavailableError` while the run is unfinished."""
        return Claim.from_bytes(self.claim_bytes(), "claim.json")

    def claim_bytes(self) -> bytes:
        """The claim as it stands on disk; raises `UnavailableError` while the run is unfinished."""
        if self.transcript_path.is_file() and not self.claim_path.exists():
            mend = "record the loop anew into another directory"
            if self.has_recipe:
                mend = f"`tally train --resume {quote(str(self.path))}` goes on with it"
            raise UnavailableError(f"claim.json: not there; {self.path} is unfinished, {mend}")
        return read_document(self.claim_path)

    def spec(self) -> Spec:
        """The spec as the prover wrote it."""
        return Spec.from_bytes(read_document(self.spec_path), "spec.json")

    def environment(self) -> Environment:
        """The environment as the prover stated it."""
        return Environment.from_bytes(read_document(self.environment_path), "environment.json")

    def place_of_step(self, step: int, size: int) -> int:
        """The place of a step among the `size` records; raises `UsageError` where there is none.

        Binary search: the places of records grow with their steps.
        """
        low, high = 0, size
        while low < high:
            middle = (low + high) // 2
            record, reached = self._record(middle, size)
            is_before = reached < step or (reached == step and record.kind == "failed")
            low, high = (middle + 1, high) if is_before else (low, middle)
        if low < size:
            record, reached = self._record(low, size)
            if isinstance(record, StepRecord) and reached == step:
                return low
        raise UsageError(f"--step {step}: the transcript ends at step {max(self._record(size - 1, size)[1], 0)}")

    def _record(self, place: int, size: int) -> tuple[Record, int]:
        """The record at a place, and the step that the run has reached there; -1 in its header."""
        record = read_record(open_line(self.transcript_path, place, size).line, f"record {place}")
        return record, -1 if isinstance(record, HeaderRecord) else record.index

    def write_blob(self, data: bytes) -> Digest:
        """Keep `data` under its digest."""
        name = digest("blob", data)
        path = self._blob_path(name)
        if not path.exists():
            write_atomically(path, data)
        return name

    def read_blob(self, name: Digest) -> bytes:
        """The bytes named by `name`; raises `ProofError` when other bytes stand there."""
        data = read_document(self._blob_path(name), BLOB_BYTES_MAX)
        if digest("blob", data) != name:
            raise ProofError(f"blobs/{self._blob_path(name).name} does not hold the bytes it is named after")
        return data

    def _blob_path(self, name: Digest) -> Path:
        return self.path / "blobs" / name.removeprefix("sha256:")


# One writer at a time: the lock of a run directory, and what an interrupted beginning leaves in it.
#
# The operating system releases a lock when its process ends, however that happens; the file stays and blocks nobody.

LOCK: Final = ".tally-lock"
PREPARED: Final = ("data", "graphs")
DRAFT: Final = ".spec.json.draft"
"""What is written before the spec: with the lock beside it and no spec, it is an interrupted beginning."""
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
            return  # a file system without locks: recording continues without one

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock, also the copies that forked children hold."""
        if self._file.closed:
            return
        with suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._file.close()


def lock_new_run(folder: Path) -> RunLock:
    """Lock a directory for a run that begins: one that is empty or not there, or whose beginning was interrupted.

    Raises:
        UsageError: the directory holds something already.
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
    names = {path.name for path in folder.iterdir()}
    if not names or (LOCK in names and names <= {LOCK, DRAFT, *PREPARED}):
        return True
    return LOCK in names and names <= {LOCK, DRAFT, *PREPARED, *HEAD, *HEAD_FOLDERS} and _is_head(RunDirectory(folder))


def _is_head(run: RunDirectory) -> bool:
    """Whether it holds the recording of a loop that ended before its first step: nothing of it can be used."""
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
