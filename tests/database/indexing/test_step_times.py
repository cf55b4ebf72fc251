"""Times of steps are found beside their records, also where the timeline lags behind or was written twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.core.errors import MalformedError
from tallystick.database.indexing.runs import StepTimes
from tallystick.formats.records import TraceEntry


def timeline(path: Path, *steps: int) -> Path:
    entries = (TraceEntry(step=step, seconds=step / 4, recording_seconds=0.0).to_bytes() for step in steps)
    path.write_bytes(b"".join(entry + b"\n" for entry in entries))
    return path


def found(path: Path, *steps: int) -> list[float | None]:
    times = StepTimes(path)
    return [None if (entry := times.of(step)) is None else entry.seconds for step in steps]


def test_steps_are_found_in_ascending_order(tmp_path: Path) -> None:
    path = timeline(tmp_path / "trace.jsonl", 1, 2, 3, 5)
    assert found(path, 1, 2, 3, 4, 5, 6) == [0.25, 0.5, 0.75, None, 1.25, None]
    assert found(path, 3, 5) == [0.75, 1.25]


def test_a_step_that_was_done_again_has_its_first_time(tmp_path: Path) -> None:
    assert found(timeline(tmp_path / "trace.jsonl", 1, 2, 3, 2, 3, 4), 1, 2, 3, 4) == [0.25, 0.5, 0.75, 1.0]


def test_without_a_timeline_no_step_has_a_time(tmp_path: Path) -> None:
    assert found(tmp_path / "trace.jsonl", 1) == [None]


def test_an_entry_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    path = timeline(tmp_path / "trace.jsonl", 1, 2)
    path.write_bytes(path.read_bytes()[:-5])
    assert found(path, 1, 2) == [0.25, None]


def test_a_line_that_is_no_entry_is_refused(tmp_path: Path) -> None:
    path = timeline(tmp_path / "trace.jsonl", 1)
    path.write_bytes(path.read_bytes() + b'{"step": 2}\n')
    with pytest.raises(MalformedError, match=r"trace\.jsonl: line 2"):
        found(path, 1, 2)
