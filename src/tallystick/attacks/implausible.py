"""Forgeries besides the steps: summaries, timeline, NaN weights, missing records and a broken header."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tallystick.attacks.attack import Attack, accepted, rejected
from tallystick.attacks.forging import (
    copy_run,
    edit_lines,
    find_scene,
    read_anchor,
    read_records,
    replace_anchor,
    seal,
    write_records,
)
from tallystick.attacks.weights_edited import largest_weight
from tallystick.commitments.digests import digest
from tallystick.commitments.encoding import decode, encode
from tallystick.store.log import read_lines
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.record import AnchorRecord, Record, StepRecord, TraceEntry
from tallystick.transcripts.summary import BucketSummary, StateSummary


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

ATTACKS = (
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
