"""Which anchors of a run are kept, and the removal of the others.

The first and the last anchor stay, and every tensor that a kept anchor refers to. An interruption at any point leaves
all kept anchors whole, and the same removal goes on from there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tallystick.documents.files import sync_folder
from tallystick.errors import UsageError
from tallystick.store.anchors import Anchors
from tallystick.store.log import read_lines
from tallystick.store.run import RunDirectory
from tallystick.tensors.safetensors import StateFile, write_state
from tallystick.transcripts.anchor_parts import part_file, parts_file
from tallystick.transcripts.record import AnchorRecord, anchor_file, read_record

ANCHOR_MARK: Final = b'"kind":"anchor"'
"""In every line of an anchor, and in some others."""


@dataclass(frozen=True)
class Retention:
    """Keep the `last` anchors, or `every` so-manieth, besides the first and the last of all."""

    last: int = 0
    every: int = 0

    @classmethod
    def parse(cls, text: str) -> Retention:
        """`N` or `every:K`, from 1 on; raises `UsageError`."""
        found = re.fullmatch(r"(every:)?([1-9][0-9]{0,8})", text)
        if found is None:
            raise UsageError(f"--keep {text}: a number of anchors like 8, or every:10")
        number = int(found[2])
        return cls(every=number) if found[1] else cls(last=number)

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
        _remove(anchors, mark, needed[mark])
    if doomed and (path / "anchors").is_dir():
        sync_folder(path / "anchors")
    return [mark for mark in doomed if mark in there]


def _remove(anchors: Anchors, mark: int, needed: set[str]) -> None:
    """Remove an anchor except for the tensors that are `needed`: these stay in its part file."""
    whole, part = anchors.path / anchor_file(mark), anchors.path / part_file(mark)
    (anchors.path / parts_file(mark)).unlink(missing_ok=True)  # without whole file and list it is no anchor
    holding = anchors.holding(mark)
    if needed and holding.is_file():
        with StateFile(holding, canonical=True) as file:
            if holding == whole or set(file.names) != needed:
                write_state(part, {name: file.tensor(name) for name in needed})
    elif not needed:
        part.unlink(missing_ok=True)
    whole.unlink(missing_ok=True)
