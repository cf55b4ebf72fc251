"""Moves losses, norms and summaries between records that keep their own numbers, batches and learning rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tallystick.transcripts.record import Record, StepRecord
from tallystick.transcripts.summary import StateSummary

SHOWN = ("loss", "gradient_norm", "activation")


def shift_earlier(records: Sequence[Record], first: int, last: int) -> list[Record]:
    """Give each step of `first` … `last` the values of the next one; the last keeps its own."""
    return _move(records, lambda step: step + 1 if first <= step < last else step)


def shift_later(records: Sequence[Record], first: int, last: int) -> list[Record]:
    """Give each step after `first`, up to `last`, the values of the step before it."""
    return _move(records, lambda step: step - 1 if first < step <= last else step)


def swap_contents(records: Sequence[Record], one: int, other: int) -> list[Record]:
    """Exchange the values of two steps."""
    swapped = {one: other, other: one}
    return _move(records, lambda step: swapped.get(step, step))


def _move(records: Sequence[Record], source: Callable[[int], int]) -> list[Record]:
    steps = {record.index: record for record in records if isinstance(record, StepRecord)}

    def with_other_values(record: StepRecord) -> StepRecord:
        other = steps[source(record.index)]
        values = {name: getattr(other, name) for name in SHOWN}
        return record.model_copy(update=values | {"post": _seen(other.post, record.post)})

    return [with_other_values(record) if isinstance(record, StepRecord) else record for record in records]


def _seen(other: StateSummary, own: StateSummary) -> StateSummary:
    """The other step's summary in the fields that this step has; a field that the other lacks keeps its own value."""
    due = {name for name in own.model_fields_set if getattr(own, name) is not None}
    return own.model_copy(update={name: getattr(other, name) or getattr(own, name) for name in due})
