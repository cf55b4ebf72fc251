"""Records that are edited, inserted, removed or exchanged, and files that do not go with their records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tallystick.core.canonical_json import decode, encode
from tallystick.core.digests import digest
from tallystick.formats.records import (
    AnchorRecord,
    BucketSummary,
    Record,
    StateSummary,
    StepRecord,
    TraceEntry,
    anchor_file,
)
from tallystick.formats.store.log import read_lines
from tallystick.formats.store.run import RunDirectory
from tallystick.tally.attacks.forging import (
    copy_run,
    find_scene,
    read_records,
    replace_environment,
    resealed,
    seal,
    write_records,
)

OTHER_TORCH: Final = "1.13.1"
OTHER_PYTHON: Final = "3.99.0"
SHOWN: Final = ("loss", "gradient_norm", "activation")
"""What is moved between records that keep their own numbers, batches and learning rates, beside the summaries."""


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
        # A summary is due in the same fields as before; one that the other step lacks keeps its own value.
        due = {name for name in record.post.model_fields_set if getattr(record.post, name) is not None}
        summaries = {name: getattr(other.post, name) or getattr(record.post, name) for name in due}
        return record.model_copy(update=values | {"post": record.post.model_copy(update=summaries)})

    return [with_other_values(record) if isinstance(record, StepRecord) else record for record in records]


record_inserted_renumbered = resealed(lambda records, scene: shift_later(records, scene.step, scene.after - 1))
record_removed_renumbered = resealed(lambda records, scene: shift_earlier(records, scene.step, scene.after - 1))
record_swapped_renumbered = resealed(lambda records, scene: swap_contents(records, scene.step - 1, scene.step))


def tail_repeated_resealed(run: Path, out: Path) -> None:
    """Repeat the last record; a tree that duplicates unpaired leaves would have the same root."""
    forged = copy_run(run, out)
    records = read_records(forged)
    write_records(forged, [*records, records[-1]])


def bucket_forged(run: Path, out: Path) -> None:
    """Name another bucket digest in the record of the middle anchor."""
    forged = copy_run(run, out)
    middle, other = find_scene(forged).middle, BucketSummary(digest=digest("bucket", b"another"))

    def change(record: Record) -> Record:
        if not (isinstance(record, AnchorRecord) and record.index == middle):
            return record
        present = record.summary.model_dump(exclude_none=True)
        changed: dict[str, object] = {mode: other for mode in ("fp16_rne", "grid") if mode in present}
        return record.model_copy(update={"summary": record.summary.model_copy(update=changed)})

    write_records(forged, map(change, read_records(forged)))


def summaries_omitted(run: Path, out: Path) -> None:
    """Record no summary and no gradient norm of any step."""
    forged, silence = copy_run(run, out), {"post": StateSummary(), "gradient_norm": None}
    records = read_records(forged)
    write_records(forged, [r.model_copy(update=silence) if isinstance(r, StepRecord) else r for r in records])


def clock_forged(run: Path, out: Path) -> None:
    """State a hundred times the training time, so that an audit looks cheap."""
    forged = copy_run(run, out)
    entries = [TraceEntry.from_bytes(line, "trace.jsonl") for line in read_lines(forged.trace_path)]
    slower = [entry.model_copy(update={"seconds": round(100 * entry.seconds, 6)}) for entry in entries]
    forged.trace_path.write_bytes(b"".join(entry.to_bytes() + b"\n" for entry in slower))
    seal(forged)


def transcript_empty(run: Path, out: Path) -> None:
    """Claim a transcript without records, which leaves nothing to check."""
    write_records(copy_run(run, out), [])


def spec_digest_missing(run: Path, out: Path) -> None:
    """Leave the spec digest out of the header."""
    forged = copy_run(run, out)
    header, *lines = read_lines(forged.transcript_path)
    fields = decode(header, "header")
    assert isinstance(fields, dict)  # the header of an honest run
    other = encode({name: value for name, value in fields.items() if name != "spec"})
    forged.transcript_path.write_bytes(b"".join(line + b"\n" for line in (other, *lines)))


def environment_edited(run: Path, out: Path) -> None:
    """Name another version of PyTorch in the environment file and nowhere else."""
    forged = copy_run(run, out)
    forged.environment_path.write_bytes(forged.environment().model_copy(update={"torch": OTHER_TORCH}).to_bytes())


def environment_cosmetics_forged(run: Path, out: Path) -> None:
    """Name another version of Python, which changes no bit of the result."""
    forged = copy_run(run, out)
    replace_environment(forged, forged.environment().model_copy(update={"python": OTHER_PYTHON}))


def anchor_swapped(run: Path, out: Path) -> None:
    """Replace the file of the middle anchor by that of the next one."""
    forged = copy_run(run, out)
    scene = find_scene(forged)
    (forged.path / anchor_file(scene.middle)).write_bytes((forged.path / anchor_file(scene.after)).read_bytes())


def anchor_swapped_resealed(run: Path, out: Path) -> None:
    """Replace the middle anchor by a copy of the next one, both its file and its record."""
    anchor_swapped(run, out)
    forged = RunDirectory(out)
    scene, records = find_scene(forged), read_records(forged)
    anchors = {record.index: record for record in records if isinstance(record, AnchorRecord)}
    copied = {"digest": anchors[scene.after].digest, "summary": anchors[scene.after].summary}
    middle = anchors[scene.middle]
    write_records(forged, [r.model_copy(update=copied) if r is middle else r for r in records])
