"""Moving what steps showed between records that keep their own numbers, batches and learning rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tallystick.transcripts.record import Record, StepRecord
from tallystick.transcripts.summary import StateSummary

SHOWN = ("loss", "gradient_norm", "activation")


def shift_earlier(records: Sequence[Record], first: int, last: int) -> list[Record]:
    """Each step of `first` … `last` shows what the next one showed; the last keeps its own."""
    return _move(records, lambda step: step + 1 if first <= step < last else step)


def shift_later(records: Sequence[Record], first: int, last: int) -> list[Record]:
    """Each step after `first`, up to `last`, shows what the one before it showed."""
    return _move(records, lambda step: step - 1 if first < step <= last else step)


def swap_contents(records: Sequence[Record], one: int, other: int) -> list[Record]:
    """Two steps show what the other one showed."""
    swapped = {one: other, other: one}
    return _move(records, lambda step: swapped.get(step, step))


def _move(records: Sequence[Record], source: Callable[[int], int]) -> list[Record]:
    steps = {record.index: record for record in records if isinstance(record, StepRecord)}

    def shows(record: StepRecord) -> StepRecord:
        other = steps[source(record.index)]
        shown = {name: getattr(other, name) for name in SHOWN}
        return record.model_copy(update=shown | {"post": _seen(other.post, record.post)})

    return [shows(record) if isinstance(record, StepRecord) else record for record in records]


def _seen(other: StateSummary, own: StateSummary) -> StateSummary:
    """The other step's summary, in the fields that are due in this one; where it lacks one, the step keeps its own."""
    held = {name for name in own.model_fields_set if getattr(own, name) is not None}
    return own.model_copy(update={name: getattr(other, name) or getattr(own, name) for name in held})
