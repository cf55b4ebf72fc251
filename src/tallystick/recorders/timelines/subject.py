"""What a timeline is about, out of what a person names: a run, a graph, a cluster, and where it was profiled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tallystick.documents.files import read_document
from tallystick.errors import UsageError
from tallystick.graphs.files import load_graph
from tallystick.recorders.timelines.imported import TraceSubject
from tallystick.recorders.timelines.torch_rows import DevicePlaces
from tallystick.store.folders import RUN, require_folder
from tallystick.store.log import open_line
from tallystick.store.run import RunDirectory
from tallystick.traces.cluster import NAME, Cluster
from tallystick.traces.statement import TRACE_NAME
from tallystick.transcripts.record import StepRecord, read_record


def target_of(run: Path | None, name: str, out: Path | None) -> Path:
    """Where the trace is written; raises `UsageError` unless either a run or a folder is named."""
    if (run is None) == (out is None):
        raise UsageError("--run or --out: name the run that was profiled, or a folder for the trace")
    if re.fullmatch(TRACE_NAME, name) is None:
        raise UsageError(f"--name {name}: letters, digits and . _ -, 64 at most, and the first a letter or a digit")
    return out if run is None else run / "traces" / name  # type: ignore[return-value]


def placement_of(host: str, ranks: Sequence[str]) -> DevicePlaces:
    """The devices of the ranks, each written `RANK=DEVICE`; raises `UsageError` for another form."""
    found: dict[int, str] = {}
    for each in ranks:
        number, _, device = each.partition("=")
        if not (number.isascii() and number.isdigit()) or re.fullmatch(NAME, device) is None:
            raise UsageError(f"--rank {each}: write it as 0=node1/gpu0")
        found[int(number)] = device
    if re.fullmatch(NAME, host) is None:
        raise UsageError(f"--host {host}: no name of a device")
    return DevicePlaces(host, found)


def subject_of(
    run: Path | None,
    graph: Path | None,
    cluster: Path | None,
    placement: DevicePlaces,
    step: int | None,
    compiled: Path | None = None,
) -> TraceSubject:
    """The subject of a trace; raises `UnavailableError` for a missing file, `MalformedError` for one of another."""
    directory = None if run is None else RunDirectory(require_folder(run, RUN))
    path = graph or (None if directory is None else _graph_of(directory, step))
    return TraceSubject(
        _this_machine() if cluster is None else Cluster.from_bytes(read_document(cluster), cluster.name),
        placement,
        None if path is None else load_graph(path),
        None if directory is None else directory.claim().identity,
        step,
        compiled,
    )


def _graph_of(run: RunDirectory, step: int | None) -> Path | None:
    """The graph that a step ran: the one that its record names, or that of the spec; None where there is none."""
    path = run.graph_path
    if step is not None:
        size = run.claim().transcript.size
        place = run.place_of_step(step, size)
        record = read_record(open_line(run.transcript_path, place, size).line, f"record {place}")
        if isinstance(record, StepRecord):
            path = run.graph_path_of(record)
    return path if path.is_file() else None


def _this_machine() -> Cluster:
    from tallystick.frameworks.torch.this_machine import this_machine

    return this_machine()
