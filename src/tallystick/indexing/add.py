"""Reads whatever stands at a place into the database."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Final

from tallystick.errors import UnavailableError, UsageError
from tallystick.indexing.audits import add_audit_file
from tallystick.indexing.calls import add_calls
from tallystick.indexing.disputes import add_disputes, without_user
from tallystick.indexing.graphs import add_graph_file, add_graphs_of
from tallystick.indexing.receipts import add_receipts
from tallystick.indexing.runs import add_run
from tallystick.indexing.tensors import add_tensors
from tallystick.indexing.traces import add_trace
from tallystick.store.database.workload_database import WorkloadDatabase
from tallystick.store.folders import RECEIPTS as RECEIPTS_FOLDER, RUN, TRACE, is_kind, looks_like
from tallystick.store.inference import InferenceDirectory
from tallystick.store.run import RunDirectory
from tallystick.store.statement import claims_inference
from tallystick.store.traces import TraceFolder, traces_of

GRAPH: Final = b'{"constants":['
RECEIPTS: Final = "receipts.jsonl"
COORDINATORS: Final = ("http://", "https://", "ethereum:", "postgresql:")
SQLITE: Final = b"SQLite format 3\0"


def add_place(
    database: WorkloadDatabase, place: Path | str, name: str | None = None, *, tensors: bool = True, whole: bool = True
) -> str:
    """Read what stands at a place, or what is new there; returns its name in the database.

    A place is a run directory, a trace, a graph, a folder or file of receipts, a report that `--json` printed, or a
    coordinator of disputes: its database or its URL. With `tensors`, every anchor of a run is read once, and its
    tensors are named by their digests. With `whole`, what was read before is compared with the files.

    Raises:
        MalformedError: something there is not what it should be, or not what was read before.
        UnavailableError: nothing that the database takes stands there.
        UsageError: the name belongs to something else, or is no line of text.
    """
    if isinstance(place, str) and place.startswith(COORDINATORS):
        return add_disputes(database, place, name or without_user(place).split("://")[-1].strip("/"))
    path = Path(place)
    _require_utf8(str(path.absolute()))
    if path.is_file():
        return _add_file(database, path, name)
    if (path / RECEIPTS).is_file():
        return add_receipts(database, path / RECEIPTS, name)
    if TraceFolder(path).statement_path.is_file():
        return add_trace(database, TraceFolder(path), name)
    if claims_inference(path):
        return add_calls(database, InferenceDirectory(path), name)
    if not RunDirectory(path).spec_path.is_file():
        raise UnavailableError(f"{path}: {looks_like(path)}; {_advice(path)}")
    return _add_run(database, RunDirectory(path), name, tensors, whole)


TAKEN: Final = "a run directory, a trace, a graph, receipts, a report in JSON or a coordinator's database is asked for"


def _require_utf8(place: str) -> None:
    try:
        place.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{place!a}: the database keeps paths as UTF-8, which this one is not; rename it") from None


def _advice(path: Path) -> str:
    """What to do with a folder that is none of what is taken."""
    inside = sorted(path.iterdir()) if path.is_dir() else []
    if any(is_kind(each, kind) for each in inside for kind in (RUN, RECEIPTS_FOLDER, TRACE)):
        return f"name what stands in it: `tally db add {quote(str(path))}/*`"
    return TAKEN


def _add_file(database: WorkloadDatabase, path: Path, name: str | None) -> str:
    if path.suffix == ".jsonl":
        return add_receipts(database, path, name)
    if _begins(path, SQLITE):
        return add_disputes(database, str(path.absolute()), name or path.stem)
    if _begins(path, GRAPH):
        return add_graph_file(database, path)
    return add_audit_file(database, path)


def _begins(path: Path, mark: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(mark)) == mark


def _add_run(database: WorkloadDatabase, run: RunDirectory, name: str | None, tensors: bool, whole: bool) -> str:
    found = add_run(database, run, name, whole=whole)
    add_graphs_of(database, run, found)
    if tensors:
        add_tensors(database, run, found)
    for trace in traces_of(run.path):
        add_trace(database, trace, f"{found}/{trace.path.name}")
    return found
