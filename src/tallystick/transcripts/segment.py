"""A segment of a run as it is handed over alone: which steps it holds, and its records with their proofs."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tallystick.documents.document import Count, Document, Positive
from tallystick.transcripts.claim import Log
from tallystick.transcripts.opening import Proof, check_leaf

OPENED_BYTES_MAX = 4 << 20
"""A record of 1 MiB, its quotation marks escaped, and its proof."""


class SegmentStatement(Document):
    """Steps `start + 1` … `end`, from the anchor `start` to the anchor `end`."""

    segment: Literal["training"] = "training"
    version: Literal[1] = 1
    start: Count
    end: Positive

    @model_validator(mode="after")
    def _goes_forward(self) -> Self:
        if self.start >= self.end:
            raise ValueError("start lies before end")
        return self


class OpenedRecord(Document):
    """One record of a transcript, with the proof that it stands at `index`."""

    index: Count
    proof: Proof
    record: Annotated[str, Field(max_length=1 << 20)]

    def line(self, log: Log) -> bytes:
        """The record; raises `ProofError` unless it stands there in `log`."""
        line = self.record.encode()
        check_leaf(log, self.index, line, self.proof)
        return line
