"""Reads whatever stands at a place into the database, also the disputes of a coordinator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

import sqlalchemy as sa

from tallystick.core.canonical_json import encode
from tallystick.core.digests import Digest, digest_from
from tallystick.core.errors import UnavailableError, UsageError
from tallystick.database.bulk import insert_new, inserted
from tallystick.database.indexing.audits import add_audit_file, add_receipts
from tallystick.database.indexing.graphs import add_graph_file, add_graphs_of, add_tensors, add_trace
from tallystick.database.indexing.runs import add_calls, add_run
from tallystick.database.indexing.sources import source_of
from tallystick.database.schema import DISPUTE, MOVE
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.disputes.coordinators.coordinator import Coordinator
from tallystick.disputes.parties.connect import connected
from tallystick.disputes.parties.game_view import BoardCache, GameFollower, GameView
from tallystick.disputes.parties.progress import (
    DisputeProgress,
    dispute_ending,
    dispute_history,
    ending_of,
    progress_of,
)
from tallystick.formats.store.directories import InferenceDirectory, claims_inference
from tallystick.formats.store.folders import RECEIPTS as RECEIPTS_FOLDER, RUN, TRACE, is_kind, looks_like
from tallystick.formats.store.run import RunDirectory
from tallystick.formats.store.traces import TraceFolder, traces_of

# Reads the disputes of a coordinator into the database: how each stands, and every move.

SECOND: Final = 1_000_000_000


def add_disputes(database: WorkloadDatabase, coordinator: str, name: str) -> str:
    """Read every dispute of the coordinator that `coordinator` names, or what is new; returns its name.

    User and password of its URL are not kept: to read it again, the environment has to bring them (`PGPASSWORD`).

    Raises `UnavailableError` where the coordinator does not answer, `UsageError` where the name makes no sense.
    """
    with connected(coordinator) as connection:
        view = GameFollower(connection.coordinator).look()
        with TemporaryDirectory() as folder:
            folder_of = BoardCache(connection.board, Path(folder)).folder_of
            rows = [
                _dispute_rows(connection.coordinator, view, number, name, folder_of)
                for number in range(len(view.state.disputes))
            ]
    place = without_user(coordinator)
    with database.writing(place) as writing:
        source = source_of(writing, "coordinator", place, name)
        for row, moves in rows:
            _write(writing, source, row, moves)
    return name


def without_user(place: str) -> str:
    """A URL without user and password, which nobody may read in a database; another place as it is."""
    parts = urlsplit(place)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if "@" in parts.netloc else place


def _dispute_rows(
    coordinator: Coordinator, view: GameView, number: int, name: str, folder_of: Callable[[Digest], Path]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The row of a dispute, and those of all its moves without the number of the dispute."""
    history = dispute_history(coordinator.rules, coordinator.entries(), number)
    dispute, now = view.state.disputes[number], progress_of(view.state, number, view.now)
    claim = view.claim_of(dispute)
    row = {
        "name": f"{name}/{number}",
        "number": number,
        "root": digest_from(bytes.fromhex(claim.root)),
        "prover": claim.prover,
        "challenger": dispute.challenger,
        **_standing(now),
        "mover": now.mover,
        "fault": now.fault,
        "ending": dispute_ending(dispute, number, ending_of(history, folder_of)) if now.fault else "",
        "moves": len(history),
    }
    moves = [
        {
            "number": place,
            "role": past.role,
            "party": past.entry.move.actor,
            "kind": past.entry.move.kind,
            "summary": past.summary,
            "made_ns": past.entry.time * SECOND,
            **_standing(past.after),
            "body": encode(past.entry.move.to_json()).decode(),
        }
        for place, past in enumerate(history)
    ]
    return row, moves


def _standing(now: DisputeProgress) -> dict[str, Any]:
    return {"phase": now.phase, "level": now.level, "low": now.low, "high": now.high, "size": now.size}


def _write(connection: sa.Connection, source: int, row: dict[str, Any], moves: list[dict[str, Any]]) -> None:
    known = sa.select(DISPUTE.c.id).where(DISPUTE.c.source == source, DISPUTE.c.number == row["number"])
    number = connection.execute(known).scalar()
    if number is None:
        number = inserted(connection, DISPUTE, source=source, **row)
    else:
        connection.execute(sa.update(DISPUTE).where(DISPUTE.c.id == number).values(**row))
    insert_new(connection, MOVE, [{"dispute": number, **move} for move in moves])


# Reads whatever stands at a place.

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
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        message = "the database keeps paths as UTF-8, which this one is not; rename it"
        raise UsageError(f"{str(path.absolute())!a}: {message}") from None
    if path.is_file():
        return _add_file(database, path, name)
    if (path / RECEIPTS).is_file():
        return add_receipts(database, path / RECEIPTS, name)
    if TraceFolder(path).statement_path.is_file():
        return add_trace(database, TraceFolder(path), name)
    if claims_inference(path):
        return add_calls(database, InferenceDirectory(path), name)
    run = RunDirectory(path)
    if not run.spec_path.is_file():
        raise UnavailableError(f"{path}: {looks_like(path)}; {_advice(path)}")
    name = add_run(database, run, name, whole=whole)
    add_graphs_of(database, run, name)
    if tensors:
        add_tensors(database, run, name)
    for trace in traces_of(run.path):
        add_trace(database, trace, f"{name}/{trace.path.name}")
    return name


def _advice(path: Path) -> str:
    """What to do with a folder that is none of what is taken."""
    inside = sorted(path.iterdir()) if path.is_dir() else []
    if any(is_kind(entry, kind) for entry in inside for kind in (RUN, RECEIPTS_FOLDER, TRACE)):
        return f"name what stands in it: `tally db add {quote(str(path))}/*`"
    return "a run directory, a trace, a graph, receipts, a report in JSON or a coordinator's database is asked for"


def _add_file(database: WorkloadDatabase, path: Path, name: str | None) -> str:
    if path.suffix == ".jsonl":
        return add_receipts(database, path, name)
    with path.open("rb") as file:
        beginning = file.read(max(len(SQLITE), len(GRAPH)))
    if beginning.startswith(SQLITE):
        return add_disputes(database, str(path.absolute()), name or path.stem)
    return add_graph_file(database, path) if beginning.startswith(GRAPH) else add_audit_file(database, path)
