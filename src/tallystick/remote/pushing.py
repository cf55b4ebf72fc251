"""Sends a run directory to a service: only what is not there yet, in pieces, and then all of it is verified there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from tallystick.errors import MalformedError, UnavailableError
from tallystick.http.client import RequestLimits
from tallystick.remote.connection import ServiceConnection, in_url
from tallystick.store.layout import files_of

PIECE: Final = 16 << 20
BLOCK: Final = 1 << 20
FOLLOWING: Final = ("tiles/", "transcript.index", "trace.index")
"""Of a run that is being recorded these are not sent: they change with every record, and follow from the records."""


@dataclass(frozen=True)
class SentRun:
    """What was sent of a run: its name in the service, files and bytes."""

    name: str
    files: int
    bytes: int


@dataclass(frozen=True)
class _Snapshot:
    """The first `size` bytes of a file, and their SHA-256: more may be written behind them at the same time."""

    path: str
    size: int
    sha256: str


def push_run(service: ServiceConnection, run: Path, name: str, sent: Callable[[int], None] = lambda _: None) -> SentRun:
    """Send a run, or what is new of it; `sent` is told the bytes of every piece.

    An interrupted sending goes on where it stopped. Raises `RuleError` where the service has another run of that name
    or finds something wrong, `UnavailableError` where it does not answer or refuses.
    """
    where = f"/v1/runs/{in_url(name)}/upload"
    state = service.get_json(where)
    if not isinstance(state, dict) or not isinstance(state.get("files"), list):
        raise MalformedError(f"{service.url}{where}: no list of files")
    held = {(each.get("path"), each.get("sha256")) for each in state["files"] if isinstance(each, dict)}
    is_finished = (run / "claim.json").is_file()
    wanted = [file for file in files_of(run) if is_finished or not file.startswith(FOLLOWING)]
    files = size = 0
    for file in wanted:
        snapshot = _snapshot(run, file, is_finished)
        if (snapshot.path, snapshot.sha256) in held:
            continue
        with (run / file).open("rb") as opened:
            _send(service, where, opened, snapshot, _begun(state, snapshot), sent)
        files, size = files + 1, size + snapshot.size
    service.ask("POST", where)
    return SentRun(name, files, size)


def sending_limits() -> RequestLimits:
    """Limits of requests that send a run: its verification takes as long as reading it."""
    return RequestLimits(seconds=600.0)


def _snapshot(run: Path, file: str, is_finished: bool) -> _Snapshot:
    with (run / file).open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        if file.endswith(".jsonl") and not is_finished:
            size = _whole_lines(opened, size)
        hashed, left = hashlib.sha256(), size
        opened.seek(0)
        while left > 0 and (block := opened.read(min(BLOCK, left))):
            hashed.update(block)
            left -= len(block)
    return _Snapshot(file, size, hashed.hexdigest())


def _whole_lines(file: BinaryIO, size: int) -> int:
    """The size without a last line that is still being written."""
    while size > 0:
        start = max(size - BLOCK, 0)
        file.seek(start)
        end = file.read(size - start).rfind(b"\n")
        if end >= 0:
            return start + end + 1
        size = start
    return 0


def _begun(state: dict[str, Any], snapshot: _Snapshot) -> int:
    """How much of a file came with an earlier sending."""
    parts = state.get("parts")
    found = parts.get(snapshot.sha256) if isinstance(parts, dict) else None
    return found if type(found) is int and 0 <= found < snapshot.size else 0


def _send(
    service: ServiceConnection,
    where: str,
    file: BinaryIO,
    snapshot: _Snapshot,
    offset: int,
    sent: Callable[[int], None],
) -> None:
    path = "/".join(in_url(part) for part in snapshot.path.split("/"))
    while True:
        file.seek(offset)
        piece = file.read(min(PIECE, snapshot.size - offset))
        asked = f"?sha256={snapshot.sha256}&size={snapshot.size}&offset={offset}"
        service.ask("PUT", f"{where}/{path}{asked}", piece, headers={"Content-Length": str(len(piece))})
        sent(len(piece))
        offset += len(piece)
        if offset >= snapshot.size:
            return
        if not piece:
            raise UnavailableError(f"{snapshot.path}: became shorter while it was sent")
