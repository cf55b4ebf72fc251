"""Reads the disputes of a coordinator into the database: how each stands, and every move."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

import sqlalchemy as sa

from tallystick.commitments.digests import Digest, digest_from
from tallystick.commitments.encoding import encode
from tallystick.disputes.coordinators.coordinator import Coordinator
from tallystick.disputes.parties.board_cache import BoardCache
from tallystick.disputes.parties.connect import connected
from tallystick.disputes.parties.endings import dispute_ending, ending_of
from tallystick.disputes.parties.game_view import GameFollower, GameView
from tallystick.disputes.parties.history import HistoryEntry, dispute_history
from tallystick.disputes.parties.progress import DisputeProgress, progress_of
from tallystick.indexing.sources import source_of
from tallystick.store.database.bulk import inserted
from tallystick.store.database.schema import DISPUTE, MOVE
from tallystick.store.database.workload_database import WorkloadDatabase

SECOND: Final = 1_000_000_000


def add_disputes(database: WorkloadDatabase, coordinator: str, name: str) -> str:
    """Read every dispute of the coordinator that `coordinator` names, or what is new; returns its name.

    User and password of its URL are not kept: to read it again, the environment has to bring them (`PGPASSWORD`).

    Raises `UnavailableError` where the coordinator does not answer, `UsageError` where the name makes no sense.
    """
    with connected(coordinator) as connection:
        view = GameFollower(connection.coordinator).look()
        with TemporaryDirectory() as folder:
            fetched = BoardCache(connection.board, Path(folder)).folder_of
            rows = [
                _dispute(connection.coordinator, view, number, name, fetched)
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


def _dispute(
    coordinator: Coordinator, view: GameView, number: int, name: str, fetched: Callable[[Digest], Path]
) -> tuple[dict[str, Any], list[HistoryEntry]]:
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
        "ending": dispute_ending(dispute, number, ending_of(history, fetched)) if now.fault else "",
        "moves": len(history),
    }
    return row, history


def _standing(now: DisputeProgress) -> dict[str, Any]:
    return {"phase": now.phase, "level": now.level, "low": now.low, "high": now.high, "size": now.size}


def _write(connection: sa.Connection, source: int, row: dict[str, Any], history: list[HistoryEntry]) -> None:
    found = sa.select(DISPUTE.c.id).where(DISPUTE.c.source == source, DISPUTE.c.number == row["number"])
    number = connection.execute(found).scalar()
    if number is None:
        number = inserted(connection, DISPUTE, source=source, **row)
    else:
        connection.execute(sa.update(DISPUTE).where(DISPUTE.c.id == number).values(**row))
    known = connection.execute(sa.select(sa.func.count()).where(MOVE.c.dispute == number)).scalar_one()
    moves = [_move(number, place, each) for place, each in enumerate(history) if place >= known]
    if moves:
        connection.execute(sa.insert(MOVE), moves)


def _move(dispute: int, place: int, each: HistoryEntry) -> dict[str, Any]:
    move = each.entry.move
    return {
        "dispute": dispute,
        "number": place,
        "role": each.role,
        "party": move.actor,
        "kind": move.kind,
        "summary": each.summary,
        "made_ns": each.entry.time * SECOND,
        **_standing(each.after),
        "body": encode(move.to_json()).decode(),
    }
