"""The seconds that steps took, read beside the records of these steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tallystick.indexing.log_reading import whole_lines
from tallystick.transcripts.record import TraceEntry, read_trace_entry


class StepTimes:
    """The entries of a timeline, for steps that are asked for in ascending order."""

    def __init__(self, path: Path) -> None:
        self._entries = _entries(path) if path.is_file() else iter(())
        self._next = next(self._entries, None)

    def of(self, step: int) -> TraceEntry | None:
        """The entry of a step; `None` while the timeline has none. Raises `MalformedError` at a line that is none."""
        while self._next is not None and self._next.step < step:
            self._next = next(self._entries, None)
        return self._next if self._next is not None and self._next.step == step else None


def _entries(path: Path) -> Iterator[TraceEntry]:
    for number, line in enumerate(whole_lines(path), 1):
        yield read_trace_entry(line, f"{path.name}: line {number}")
