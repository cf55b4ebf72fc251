"""Records that are edited, inserted, removed or exchanged, and forgeries beside the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tallystick.core.canonical_json import decode, encode
from tallystick.core.digests import digest
from tallystick.core.tensors import Tensor
from tallystick.formats.records import AnchorRecord, BucketSummary, Record, StateSummary, StepRecord, TraceEntry
from tallystick.formats.store.log import read_lines
from tallystick.formats.store.run import RunDirectory
from tallystick.tally.attacks.forging import (
    Attack,
    accepted,
    copy_run,
    edit_lines,
    find_scene,
    place_of_step,
    read_anchor,
    read_records,
    recipe_of,
    rejected,
    replace_anchor,
    seal,
    write_records,
)
from tallystick.tally.attacks.states import largest_weight
from tallystick.verdicts.exact import quantise

# Moves losses, norms and summaries between records that keep their own numbers, batches and learning rates.

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


# A record states another loss than that of the step.

FLATTERY = 0.9


def forge_edited(run: Path, out: Path) -> None:
    """Lower the loss in one line of the transcript."""
    forged = copy_run(run, out)
    change = flatter(forged, find_scene(forged).step)
    records = [change(record) for record in read_records(forged)]
    edit_lines(forged, lambda _: [record.to_bytes() for record in records])


def forge_edited_resealed(run: Path, out: Path) -> None:
    """Lower the loss of one step, and recompute root, tiles and claim."""
    forged = copy_run(run, out)
    change = flatter(forged, find_scene(forged).step)
    write_records(forged, [change(record) for record in read_records(forged)])


def flatter(run: RunDirectory, step: int) -> Callable[[Record], Record]:
    """A function that lowers the loss in the record of one step by a tenth."""
    decimals = recipe_of(run.spec()).record.loss_decimals

    def change(record: Record) -> Record:
        if isinstance(record, StepRecord) and record.index == step:
            return record.model_copy(update={"loss": quantise(FLATTERY * float(record.loss), decimals)})
        return record

    return change


RECORD_EDITED = (
    Attack(
        name="record-edited",
        change="the loss of one step is lowered by a tenth in its record",
        forge=forge_edited,
        screens=rejected("transcript root"),
        exact=rejected("transcript root"),
        tolerant=rejected("transcript root"),
        claim=rejected("transcript root"),
    ),
    Attack(
        name="record-edited-resealed",
        change="the loss of one step is lowered by a tenth; root, tiles and claim are made anew",
        forge=forge_edited_resealed,
        screens=accepted("a lower loss is a possible loss"),
        exact=rejected("loss"),
        tolerant=rejected("loss"),
    ),
)


# The transcript contains a step that was never taken.


def forge_inserted(run: Path, out: Path) -> None:
    """Repeat the line of one step."""
    forged = copy_run(run, out)
    place = place_of_step(read_records(forged), find_scene(forged).step)
    edit_lines(forged, lambda lines: [*lines[: place + 1], *lines[place:]])


def forge_inserted_resealed(run: Path, out: Path) -> None:
    """Repeat the record of one step, and recompute root, tiles and claim."""
    forged = copy_run(run, out)
    records = read_records(forged)
    place = place_of_step(records, find_scene(forged).step)
    write_records(forged, [*records[: place + 1], *records[place:]])


def forge_inserted_renumbered(run: Path, out: Path) -> None:
    """Invent the values of one step and shift those of later steps up to the anchor, under correct numbers."""
    forged = copy_run(run, out)
    scene = find_scene(forged)
    write_records(forged, shift_later(read_records(forged), scene.step, scene.after - 1))


def forge_tail(run: Path, out: Path) -> None:
    """Repeat the last record and reseal; a tree that duplicates unpaired leaves would have the same root."""
    forged = copy_run(run, out)
    records = read_records(forged)
    write_records(forged, [*records, records[-1]])


RECORD_INSERTED = (
    Attack(
        name="record-inserted",
        change="the line of one step is repeated",
        forge=forge_inserted,
        screens=rejected("transcript root", "record order"),
        exact=rejected("transcript root", "record order"),
        tolerant=rejected("transcript root", "record order"),
        claim=rejected("transcript root", "record order"),
    ),
    Attack(
        name="record-inserted-resealed",
        change="the record of one step is repeated; root, tiles and claim are made anew",
        forge=forge_inserted_resealed,
        screens=rejected("record order"),
        exact=rejected("record order"),
        tolerant=rejected("record order"),
    ),
    Attack(
        name="record-inserted-renumbered",
        change="an invented step pushes later ones back, all under their right numbers and batches; resealed",
        forge=forge_inserted_renumbered,
        screens=accepted("numbers, batches, learning rates and links are all in order"),
        exact=rejected("loss", "gradient norm", "projection summary"),
        tolerant=rejected("projection summary"),
    ),
    Attack(
        name="tail-repeated-resealed",
        change="the last record is repeated; root, tiles and claim are made anew",
        forge=forge_tail,
        screens=rejected("record order"),
        exact=rejected("record order"),
        tolerant=rejected("record order"),
    ),
)


# A step is missing from the transcript.


def forge_removed(run: Path, out: Path) -> None:
    """Delete the line of one step."""
    forged = copy_run(run, out)
    place = place_of_step(read_records(forged), find_scene(forged).step)
    edit_lines(forged, lambda lines: lines[:place] + lines[place + 1 :])


def forge_removed_resealed(run: Path, out: Path) -> None:
    """Delete the record of one step, and recompute root, tiles and claim."""
    forged = copy_run(run, out)
    records = read_records(forged)
    del records[place_of_step(records, find_scene(forged).step)]
    write_records(forged, records)


def forge_removed_renumbered(run: Path, out: Path) -> None:
    """Delete the values of one step, shift those of later steps up to the anchor, and repeat the last ones."""
    forged = copy_run(run, out)
    scene = find_scene(forged)
    write_records(forged, shift_earlier(read_records(forged), scene.step, scene.after - 1))


RECORD_REMOVED = (
    Attack(
        name="record-removed",
        change="the line of one step is deleted",
        forge=forge_removed,
        screens=rejected("transcript root", "record order"),
        exact=rejected("transcript root", "record order"),
        tolerant=rejected("transcript root", "record order"),
        claim=rejected("transcript root", "record order"),
    ),
    Attack(
        name="record-removed-resealed",
        change="the record of one step is deleted; root, tiles and claim are made anew",
        forge=forge_removed_resealed,
        screens=rejected("record order"),
        exact=rejected("record order"),
        tolerant=rejected("record order"),
    ),
    Attack(
        name="record-removed-renumbered",
        change="the values of one step are deleted, later ones move up under their right numbers and batches; resealed",
        forge=forge_removed_renumbered,
        screens=accepted("numbers, batches, learning rates and links are all in order"),
        exact=rejected("loss", "gradient norm", "projection summary"),
        tolerant=rejected("projection summary"),
    ),
)


# Two neighbouring steps are exchanged.


def forge_swapped(run: Path, out: Path) -> None:
    """Swap the lines of two neighbouring steps."""
    forged = copy_run(run, out)
    place = place_of_step(read_records(forged), find_scene(forged).step)
    edit_lines(forged, lambda lines: [*lines[: place - 1], lines[place], lines[place - 1], *lines[place + 1 :]])


def forge_swapped_resealed(run: Path, out: Path) -> None:
    """Swap the records of two neighbouring steps, and recompute root, tiles and claim."""
    forged = copy_run(run, out)
    records = read_records(forged)
    place = place_of_step(records, find_scene(forged).step)
    records[place - 1], records[place] = records[place], records[place - 1]
    write_records(forged, records)


def forge_swapped_renumbered(run: Path, out: Path) -> None:
    """Swap the values of two neighbouring steps under their correct numbers and batches, and reseal."""
    forged = copy_run(run, out)
    step = find_scene(forged).step
    write_records(forged, swap_contents(read_records(forged), step - 1, step))


RECORD_SWAPPED = (
    Attack(
        name="record-swapped",
        change="the lines of two neighbouring steps are swapped",
        forge=forge_swapped,
        screens=rejected("transcript root", "record order"),
        exact=rejected("transcript root", "record order"),
        tolerant=rejected("transcript root", "record order"),
        claim=rejected("transcript root", "record order"),
    ),
    Attack(
        name="record-swapped-resealed",
        change="the records of two neighbouring steps are swapped; root, tiles and claim are made anew",
        forge=forge_swapped_resealed,
        screens=rejected("record order"),
        exact=rejected("record order"),
        tolerant=rejected("record order"),
    ),
    Attack(
        name="record-swapped-renumbered",
        change="the values of two neighbouring steps are swapped under their right numbers and batches; resealed",
        forge=forge_swapped_renumbered,
        screens=accepted("numbers, batches, learning rates and links are all in order"),
        exact=rejected("loss", "gradient norm", "projection summary"),
        tolerant=rejected("projection summary"),
    ),
)


# Forgeries besides the steps: summaries, timeline, NaN weights, missing records and a broken header.


def forge_bucket(run: Path, out: Path) -> None:
    """Name another bucket digest in the record of the middle anchor."""
    forged = copy_run(run, out)
    middle, other = find_scene(forged).middle, BucketSummary(digest=digest("bucket", b"another"))

    def change(record: Record) -> Record:
        if not (isinstance(record, AnchorRecord) and record.index == middle):
            return record
        present = record.summary.model_dump(exclude_none=True)
        changed: dict[str, object] = {mode: other for mode in ("fp16_rne", "grid") if mode in present}
        return record.model_copy(update={"summary": record.summary.model_copy(update=changed)})

    write_records(forged, [change(record) for record in read_records(forged)])


def forge_silence(run: Path, out: Path) -> None:
    """Record no summary of any step."""
    forged = copy_run(run, out)
    write_records(forged, [silenced(record) for record in read_records(forged)])


def silenced(record: Record) -> Record:
    """The record of a step without its summary and gradient norm."""
    if isinstance(record, StepRecord):
        return record.model_copy(update={"post": StateSummary(), "gradient_norm": None})
    return record


def forge_clock(run: Path, out: Path) -> None:
    """State a hundred times the training time, so that an audit looks cheap."""
    forged = copy_run(run, out)
    entries = [TraceEntry.from_bytes(line, "trace.jsonl") for line in read_lines(forged.trace_path)]
    slower = [entry.model_copy(update={"seconds": round(100 * entry.seconds, 6)}) for entry in entries]
    forged.trace_path.write_bytes(b"".join(entry.to_bytes() + b"\n" for entry in slower))
    seal(forged)


def forge_nan(run: Path, out: Path) -> None:
    """Put a NaN into the final weights, and recompute everything written about them."""
    forged = copy_run(run, out)
    last = find_scene(forged).last
    state = read_anchor(forged, last)
    name = largest_weight(state)
    values = np.array(state[name].array())
    values.flat[0] = np.nan
    replace_anchor(forged, last, state | {name: Tensor.of(values)})


def forge_nothing(run: Path, out: Path) -> None:
    """Claim a transcript without records, which leaves nothing to check."""
    forged = copy_run(run, out)
    write_records(forged, [])


def forge_header(run: Path, out: Path) -> None:
    """Leave the spec digest out of the header."""
    forged = copy_run(run, out)
    edit_lines(forged, lambda lines: [without_spec(lines[0]), *lines[1:]])


def without_spec(header: bytes) -> bytes:
    """The header line without the digest of the spec."""
    fields = decode(header, "header")
    assert isinstance(fields, dict)  # the header of an honest run
    return encode({name: value for name, value in fields.items() if name != "spec"})


OUTSIDE = "times are the prover's statement and decide nothing; the report says so beside the cost ratio"

IMPLAUSIBLE = (
    Attack(
        name="bucket-forged",
        change="the record of one anchor names a bucket digest that is not that of its weights; resealed",
        forge=forge_bucket,
        screens=rejected("anchor summary"),
        exact=rejected("anchor summary"),
        tolerant=rejected("anchor summary"),
    ),
    Attack(
        name="summaries-omitted",
        change="no step records the summaries that the spec asks for; resealed",
        forge=forge_silence,
        screens=rejected("record order"),
        exact=rejected("record order"),
        tolerant=rejected("record order"),
    ),
    Attack(
        name="clock-forged",
        change="the timeline states a hundred times the training time; resealed",
        forge=forge_clock,
        screens=accepted(OUTSIDE),
        exact=accepted(OUTSIDE),
        tolerant=accepted(OUTSIDE),
    ),
    Attack(
        name="nan-planted",
        change="one of the final weights is NaN; anchor, summaries, roots and claim are made anew",
        forge=forge_nan,
        screens=rejected("finite state"),
        exact=rejected("finite state"),
        tolerant=rejected("finite state"),
    ),
    Attack(
        name="transcript-empty",
        change="the claim names a transcript without a single record",
        forge=forge_nothing,
        screens=rejected("record order"),
        exact=rejected("record order"),
        tolerant=rejected("record order"),
    ),
    Attack(
        name="spec-digest-missing",
        change="the header does not name its spec",
        forge=forge_header,
        screens=rejected("transcript root"),
        exact=rejected("transcript root"),
        tolerant=rejected("transcript root"),
        claim=rejected("transcript root"),
    ),
)
