"""Opens a segment of a run: writes two anchors, and what a replay from one to the other needs, with proofs."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tallystick.core.errors import ProofError, UnavailableError, UsageError
from tallystick.core.files import write_atomically
from tallystick.core.tensor_digests import digest_state
from tallystick.formats.data.preparation import TOKENS_FILE
from tallystick.formats.data.rows import COMMITTED_FILES
from tallystick.formats.data.samples import EXAMPLES_FILE
from tallystick.formats.data.tokens import TOKENIZER_FILE, files_of_windows, write_chunks
from tallystick.formats.openings import OpenedRecord, SegmentStatement
from tallystick.formats.records import AnchorRecord, Record, StepRecord, batch_file, read_record
from tallystick.formats.store.directories import SegmentDirectory
from tallystick.formats.store.keeping import AnchorWriter
from tallystick.formats.store.log import OpenedLine, open_line
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.files import constants_path


def open_segment(run: RunDirectory, start: int, end: int, out: Path) -> SegmentDirectory:
    """Write the segment from the anchor `start` to the anchor `end` into `out`, an empty folder.

    Raises:
        ProofError: the run is not the one that its claim is about.
        UnavailableError: a file of the run is missing, or `out` cannot be written.
        UsageError: `start` or `end` is no anchor.
    """
    if start >= end:
        raise UsageError(f"--segment {start}..{end}: two anchors in ascending order are needed")
    segment, log = SegmentDirectory(out), run.claim().transcript
    places = _places(run, start, end, log.size)
    opened = {place: open_line(run.transcript_path, place, log.size) for place in places}
    for line in opened.values():
        line.check(log)
    records = {place: read_record(each.line, f"record {place}") for place, each in opened.items()}
    _write_records(segment, opened)
    _copy_stated(run, segment)
    _write_anchors(run, segment, (each for each in records.values() if isinstance(each, AnchorRecord)), {start, end})
    steps = [each for each in records.values() if isinstance(each, StepRecord) and start < each.index <= end]
    _copy_named(run, segment, records, steps)
    _write_data(run, segment, steps)
    write_atomically(segment.statement_path, SegmentStatement(start=start, end=end).to_bytes())
    return segment


def _places(run: RunDirectory, start: int, end: int, size: int) -> list[int]:
    """The header, the step before the segment with its anchor, the segment, and the last record."""
    first = run.place_of_step(start, size) if start else 0
    last = run.place_of_step(end, size) + 1
    for mark, place in ((start, first + 1), (end, last)):
        found = (
            read_record(open_line(run.transcript_path, place, size).line, f"record {place}") if place < size else None
        )
        if not isinstance(found, AnchorRecord):
            raise UsageError(f"--segment {start}..{end}: there is no anchor after step {mark}")
    return sorted({0, *range(first, last + 1), size - 1})


def _write_records(segment: SegmentDirectory, opened: Mapping[int, OpenedLine]) -> None:
    lines = (
        OpenedRecord(index=place, proof=tuple(each.hex() for each in line.proof), record=line.line.decode())
        for place, line in opened.items()
    )
    write_atomically(segment.records_path, b"".join(line.to_bytes() + b"\n" for line in lines))


def _copy_stated(run: RunDirectory, segment: SegmentDirectory) -> None:
    graph = (run.graph_path,) if run.spec().graph is not None else ()
    _copy_files(run, segment, (run.claim_path, run.spec_path, run.environment_path, *_with_constants(graph)))


def _with_constants(graphs: Iterable[Path]) -> Iterator[Path]:
    for path in graphs:
        yield from (path, constants_path(path))


def _copy_files(run: RunDirectory, segment: SegmentDirectory, paths: Iterable[Path]) -> None:
    """Copy the files that the run has."""
    for path in paths:
        if path.is_file():
            _copy(path, segment.path / path.relative_to(run.path))


def _write_anchors(
    run: RunDirectory, segment: SegmentDirectory, anchors: Iterable[AnchorRecord], marks: set[int]
) -> None:
    writer = AnchorWriter(segment.path)
    for record in anchors:
        if record.index not in marks:
            continue
        state = run.anchors.read(record.index)
        found = digest_state(state)
        if found.digest != record.digest:
            raise ProofError(f"{record.file} does not hold the state its record names")
        writer.write(record.index, state, found)


def _copy_named(
    run: RunDirectory, segment: SegmentDirectory, records: Mapping[int, Record], steps: Sequence[StepRecord]
) -> None:
    """Copy the batches and graphs of the steps, and the boundary hints of all records, where the run keeps them."""
    batches = {batch_file(step.batch.digest) for step in steps if step.batch.digest is not None}
    hints = {f"blobs/{name.removeprefix('sha256:')}" for name in _hints(records.values())}
    _copy_files(run, segment, (run.path / name for name in sorted(batches | hints)))
    graphs = {run.graph_path_of(step) for step in steps if step.graph is not None}
    _copy_files(run, segment, _with_constants(sorted(graphs)))


def _hints(records: Iterable[Record]) -> Iterator[str]:
    for record in records:
        summary = record.post if isinstance(record, StepRecord) else getattr(record, "summary", None)
        for bucket in (summary.fp16_rne, summary.grid) if summary is not None else ():
            if bucket is not None and bucket.hints is not None:
                yield bucket.hints


def _write_data(run: RunDirectory, segment: SegmentDirectory, steps: Iterable[StepRecord]) -> None:
    spec, folder = run.spec(), segment.run.data_path
    if spec.rows is not None:  # the leaves of all rows: 32 bytes each
        _copy_files(run, segment, (run.data_path / name for name in COMMITTED_FILES))
    if spec.data is None or spec.recipe is None:
        return
    if spec.data.tokens is None:
        _copy(run.data_path / EXAMPLES_FILE, folder / EXAMPLES_FILE)
        return
    windows = [window for step in steps for window in step.batch.indices or ()]
    if spec.data.kind == "corpus":  # its tokens have a root for each shard
        for path in files_of_windows(run.data_path, windows, spec.recipe.training.sequence):
            _copy(path, folder / path.relative_to(run.data_path))
        return
    _copy(run.data_path / TOKENIZER_FILE, folder / TOKENIZER_FILE)
    write_chunks(run.data_path / TOKENS_FILE, segment.chunks_path, windows, spec.recipe.training.sequence)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise UnavailableError(f"{source.name}: could not be copied: {error.strerror}") from None
