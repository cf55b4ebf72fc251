"""Which anchors of a run are written, kept and removed, and where."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tallystick.core.digests import Digest
from tallystick.core.errors import UnavailableError, UsageError
from tallystick.core.files import sync_folder, write_atomically
from tallystick.core.safetensors import StateFile, write_state
from tallystick.core.tensor_digests import StateDigests
from tallystick.core.tensors import State
from tallystick.formats.claims import AnchorParts, part_file, parts_file
from tallystick.formats.records import AnchorRecord, anchor_file, read_record
from tallystick.formats.store.log import read_lines
from tallystick.formats.store.remote_anchors import (
    COMPRESSED,
    COMPRESSING,
    make_folder,
    open_store,
    store_errors,
    zstandard,
)
from tallystick.formats.store.run import Anchors, RunDirectory

# Writes the anchors of a run: what did not change since the last one is not written again.

LEAST_SAVED: Final = 1 << 20
"""Bytes: where less would be saved, an anchor is one file."""
LEAST_SHARE: Final = 0.25
"""Of the state."""


class AnchorWriter:
    """Writes one anchor after the other; the first is whole, and so is the first after an interruption."""

    def __init__(self, path: Path, least_saved: int = LEAST_SAVED, least_share: float = LEAST_SHARE) -> None:
        self.path, self._least_saved, self._least_share = path, least_saved, least_share
        self._holders: dict[str, tuple[Digest, int]] = {}

    def write(self, mark: int, state: State, digests: StateDigests) -> None:
        """Write the state after step `mark`, whose `digests` were just computed.

        A crash leaves no anchor or a whole one: a list is written after the tensors that it does not name.

        Raises `UnavailableError` where the disk refuses it.
        """
        named = {name: tensor.digest for name, tensor in digests.entries}
        elsewhere = {name: holder for name, (digest, holder) in self._holders.items() if named.get(name) == digest}
        elsewhere = {name: holder for name, holder in elsewhere.items() if holder < mark}
        saved = sum(state[name].nbytes for name in elsewhere)
        if saved < max(self._least_saved, self._least_share * sum(tensor.nbytes for tensor in state.values())):
            elsewhere = {}
        whole, parts = self.path / anchor_file(mark), self.path / parts_file(mark)
        if elsewhere:
            write_state(self.path / part_file(mark), {name: state[name] for name in state if name not in elsewhere})
            whole.unlink(missing_ok=True)
            write_atomically(parts, AnchorParts(elsewhere=elsewhere).to_bytes())
        else:
            write_state(whole, state)
            parts.unlink(missing_ok=True)  # of an attempt that was interrupted
        self._holders = {name: (digest, elsewhere.get(name, mark)) for name, digest in named.items()}


# Which anchors of a run are kept, and the removal of the others.
#
# The first and the last anchor stay, and every tensor that a kept anchor refers to. An interruption at any point leaves
# all kept anchors whole, and the same removal continues from there.

ANCHOR_MARK: Final = b'"kind":"anchor"'
"""In every line of an anchor, and in some others."""


@dataclass(frozen=True)
class Retention:
    """Keep the `last` anchors, or one in `every`, besides the first and the last of all."""

    last: int = 0
    every: int = 0

    @classmethod
    def parse(cls, text: str) -> Retention:
        """`N` or `every:K`, from 1 on; raises `UsageError`."""
        match = re.fullmatch(r"(every:)?([1-9][0-9]{0,8})", text)
        if match is None:
            raise UsageError(f"--keep {text}: a number of anchors like 8, or every:10")
        number = int(match[2])
        return cls(every=number) if match[1] else cls(last=number)

    def kept(self, marks: Sequence[int]) -> set[int]:
        """Those of the ascending `marks` that are kept."""
        chosen = marks[:: self.every] if self.every else marks[-self.last :]
        return {*chosen, *marks[:1], *marks[-1:]}


def recorded_anchors(run: RunDirectory) -> list[int]:
    """The anchors that the transcript names, in ascending order."""
    lines = enumerate(read_lines(run.transcript_path))
    records = (read_record(line, f"record {place}") for place, line in lines if ANCHOR_MARK in line)
    return sorted(record.index for record in records if isinstance(record, AnchorRecord))


def thin_anchors(path: Path, marks: Sequence[int], kept: set[int]) -> list[int]:
    """Remove those of `marks` that are not `kept` from the run directory at `path`; returns what was removed.

    Raises `MalformedError` and `UnavailableError` where a kept anchor cannot be read; nothing is removed then.
    """
    anchors, needed = Anchors(path), defaultdict(set)
    there = anchors.present(marks)
    for mark in kept & set(there):
        for name, holder in anchors.elsewhere(mark).items():
            needed[holder].add(name)
    doomed = [mark for mark in marks if mark not in kept]
    for mark in doomed:
        whole, part, names = path / anchor_file(mark), path / part_file(mark), needed[mark]
        (path / parts_file(mark)).unlink(missing_ok=True)  # without whole file and list it is no anchor
        holding = anchors.holding(mark)
        if not names:
            part.unlink(missing_ok=True)
        elif holding.is_file():  # the tensors that others refer to stay in its part file
            with StateFile(holding, canonical=True) as file:
                if holding == whole or set(file.names) != names:
                    write_state(part, {name: file.tensor(name) for name in names})
        whole.unlink(missing_ok=True)
    if doomed and (path / "anchors").is_dir():
        sync_folder(path / "anchors")
    return [mark for mark in doomed if mark in there]


# Where the anchors of a run are kept while it is recorded: on the disk, and copies of all in another store.


@dataclass(frozen=True)
class AnchorKeeping:
    """Which anchors stay in the run directory (`None`: all), and the URL of the store that gets a copy of each.

    Behind `zstd::` before the URL, the copies are compressed.
    """

    retention: Retention | None = None
    url: str | None = None

    @classmethod
    def of(cls, keep: str | None, url: str | None) -> Self:
        """`N` or `every:K`, and a URL that fsspec knows.

        Raises `UsageError` for another `keep`, and `UnavailableError` for another URL, before anything is written.
        """
        if url is not None:
            open_store(url)
        if url is not None and url.startswith(COMPRESSING):
            zstandard()
        return cls(None if keep is None else Retention.parse(keep), url)


ALL_HERE: Final = AnchorKeeping()
LEVEL: Final = 1
"""Of zstd: more takes longer, and saves nothing of floating-point numbers."""


class AnchorCopies:
    """Copies the files of anchors to the folder at `url`, compressed by zstd where it begins with `zstd::`.

    Raises `UnavailableError` where fsspec or the library for this kind is missing, or the store refuses a file.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._compresses = url.startswith(COMPRESSING)
        self._store, self._folder = open_store(url)
        with self._errors():
            make_folder(self._store, self._folder)

    def put(self, path: Path, mark: int) -> None:
        """Copy what the run directory at `path` holds of anchor `mark`: one file, or what changed and then its list."""
        stem = Path(anchor_file(mark)).stem
        for file in sorted((path / "anchors").glob(f"{stem}.*"), reverse=True):
            with self._errors():
                self._put(file)

    def _put(self, file: Path) -> None:
        """Copy a file in one form, and remove what an earlier attempt left in the other one."""
        plain = f"{self._folder}/{file.name}"
        compressed, other = plain + COMPRESSED, plain if self._compresses else plain + COMPRESSED
        if self._compresses:
            with file.open("rb") as source, self._store.open(compressed, "wb") as out:
                zstandard().ZstdCompressor(level=LEVEL).copy_stream(source, out)
        else:
            self._store.put_file(str(file), plain)
        if self._store.exists(other):
            self._store.rm_file(other)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with store_errors():
                yield
        except OSError as error:
            raise UnavailableError(f"{self.url}: could not be written: {error}"[:400]) from None
