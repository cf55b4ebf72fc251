"""Appends records, or checks that a resumed run reproduces the records that are already there.

A transcript is append-only. A resumed run repeats the steps since its last anchor, and each record must equal, byte for
byte, the one that was written before the interruption.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tallystick.errors import UnavailableError
from tallystick.store.log_writer import LogWriter
from tallystick.transcripts.record import FailedRecord, Record, read_record


class RunJournal:
    """The end of a transcript: first the records still to be reproduced, then new ones."""

    def __init__(self, log: LogWriter, to_reproduce: Iterable[bytes] = ()) -> None:
        self._log = log
        self._pending = deque(to_reproduce)

    def add(self, record: Record) -> None:
        """Append `record`; while reproducing, raise `UnavailableError` if it differs from the record already there."""
        self._skip_failures()
        line = record.to_bytes()
        if not self._pending:
            self._log.append(line)
            return
        if self._pending.popleft() != line:
            raise UnavailableError(
                f"this machine does not reproduce the {record.kind} record {getattr(record, 'index', 0)} of the "
                "interrupted run; resume it on the stack named in environment.json"
            )

    def fail(self, index: int, error: str) -> None:
        """Append that step `index` crashed."""
        self._skip_failures()
        if not self._pending:
            self._log.append(FailedRecord(index=index, error=error[:1024]).to_bytes())

    def sync(self) -> None:
        """Make everything appended so far survive a loss of power."""
        self._log.sync()

    def _skip_failures(self) -> None:
        while self._pending and isinstance(read_record(self._pending[0], "transcript.jsonl"), FailedRecord):
            self._pending.popleft()
