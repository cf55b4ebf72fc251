"""A segment directory: two anchors of a run, and everything that a replay from one to the other needs.

segment.json                               from which step to which
claim.json spec.json environment.json      what is claimed
records.jsonl                              the records of the segment, each with its proof
anchors/ graphs/ batches/ blobs/           as in a run directory
data/                                      the tokenizer, and the chunks of tokens with their proofs
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tallystick.documents.files import read_document
from tallystick.store.log import read_lines
from tallystick.store.run import RunDirectory
from tallystick.store.statement import SEGMENT
from tallystick.transcripts.segment import OPENED_BYTES_MAX, OpenedRecord, SegmentStatement


@dataclass(frozen=True)
class SegmentDirectory:
    """Names and reads the parts of a segment directory."""

    path: Path

    @property
    def statement_path(self) -> Path:
        """From which step to which; written last."""
        return self.path / SEGMENT

    @property
    def records_path(self) -> Path:
        """The records, one canonical JSON line each."""
        return self.path / "records.jsonl"

    @property
    def chunks_path(self) -> Path:
        """The folder of the chunks of tokens."""
        return self.run.data_path / "chunks"

    @property
    def run(self) -> RunDirectory:
        """The same folder as a run directory, of which it holds a part."""
        return RunDirectory(self.path)

    def statement(self) -> SegmentStatement:
        """From which step to which."""
        return SegmentStatement.from_bytes(read_document(self.statement_path), SEGMENT)

    def records(self) -> Iterator[OpenedRecord]:
        """The records in the order of the file; raises `MalformedError` at one that has no known form."""
        for number, line in enumerate(read_lines(self.records_path, OPENED_BYTES_MAX), 1):
            yield OpenedRecord.from_bytes(line, f"records.jsonl: line {number}")
