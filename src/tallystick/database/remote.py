"""Clients of a service: a connection, rows, and runs that are fetched or sent. Nothing that comes back is trusted."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final, Self
from urllib.parse import quote, unquote

from tallystick.core.errors import MalformedError, ProofError, RuleError, TallyError, UnavailableError, UsageError
from tallystick.core.files import write_atomically
from tallystick.core.http.client import HttpAnswer, HttpClient, RequestLimits
from tallystick.core.http.problems import error_of
from tallystick.database.query import (
    INTEGER_END,
    PAGE_MAX,
    Page,
    RowQuery,
    question_text,
    read_json,
    read_number,
    read_page,
)
from tallystick.database.replayable import Discovery
from tallystick.formats.store.directories import SEGMENT, SegmentDirectory
from tallystick.formats.store.folders import check_file_name, files_of
from tallystick.formats.store.traces import TRACES

# A connection to a service: requests with a token, and files in pieces. Nothing that comes back is trusted.

JSON_BYTES_MAX: Final = 64 << 20
PIECE: Final = 32 << 20
URL_SCHEMES: Final = ("http://", "https://")
_RUN: Final = re.compile(r"(https?://[^?#]+?)/runs/([^/?#]+)/?")
_TOKEN: Final = re.compile(r"[!-~]{1,512}")


@dataclass(frozen=True)
class RunAddress:
    """A run in a service: the URL of the service, and the name of the run."""

    service: str
    run: str


def run_address(url: str) -> RunAddress:
    """The run that `http://HOST/runs/NAME` names; raises `UsageError` for another URL."""
    found = _RUN.fullmatch(url)
    if found is None:
        raise UsageError(f"{url}: a run in a service is named http://HOST/runs/NAME")
    return RunAddress(found[1], unquote(found[2]))


class ServiceConnection:
    """A connection to the service at `url`; a context manager that closes it."""

    def __init__(self, url: str, token: str | None = None, effort: RequestLimits | None = None) -> None:
        if token is not None and _TOKEN.fullmatch(token) is None:
            raise UsageError("the token is not one line without blanks")
        self.url, self._http = url.rstrip("/"), HttpClient(url, effort)
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it."""
        self._http.close()

    def get(self, path: str, bytes_max: int = JSON_BYTES_MAX, **headers: str) -> bytes:
        """The body of an answer; raises the error that a refusal stands for."""
        return self.ask("GET", path, bytes_max=bytes_max, headers=headers).body

    def get_json(self, path: str) -> Any:
        """The JSON values of an answer."""
        return read_json(self.get(path), f"{self.url}{path}")

    def post(self, path: str, body: bytes) -> bytes:
        """The answer to a JSON document."""
        headers = {"Content-Type": "application/json"}
        return self.ask("POST", path, body, headers=headers).body

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        bytes_max: int = JSON_BYTES_MAX,
        headers: Mapping[str, str] | None = None,
    ) -> HttpAnswer:
        """The answer to a request; raises the error that a refusal stands for."""
        answer = self._http.ask(method, path, bytes_max, body, self._headers | dict(headers or {}))
        if answer.status >= 400:
            raise _refusal(answer, f"{self.url}{path}")
        if answer.status not in (200, 201, 204, 206):
            raise UnavailableError(f"{self.url}{path}: answered with status {answer.status}")
        return answer

    def download(self, path: str, target: Path, size: int, sha256: str | None = None) -> None:
        """Write a file of `size` bytes to `target`, in pieces; raises `ProofError` where it has another digest."""
        hashed = hashlib.sha256()

        def write(file: BinaryIO) -> None:
            for start in range(0, size, PIECE):
                end = min(start + PIECE, size)
                piece = self.get(path, end - start, Range=f"bytes={start}-{end - 1}")
                if len(piece) != end - start:
                    raise UnavailableError(f"{self.url}{path}: {len(piece)} bytes came of {end - start}")
                file.write(piece)
                hashed.update(piece)

        write_atomically(target, write, durable=False)
        if sha256 is not None and hashed.hexdigest() != sha256:
            raise ProofError(f"{self.url}{path}: came with another digest than the service stated")


def in_url(name: str) -> str:
    """A name as one part of a URL."""
    return quote(name, safe="")


def _refusal(answer: HttpAnswer, where: str) -> TallyError:
    if answer.status == 404:
        error = error_of(answer.status, answer.body, where)
        return UnavailableError(f"{where}: {error}")
    found = error_of(answer.status, answer.body, where)
    if isinstance(found, RuleError) and answer.status in (401, 403):
        return UnavailableError(f"{where}: {found}")
    return found


# Fetches runs and opened segments from a service into folders, where they are audited as any other.

FILES_MAX: Final = 1_000_000
SIZE_MAX: Final = 1 << 42
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ListedFile:
    """A file that a service offers: its relative path, its size in bytes and, where it is stated, its SHA-256."""

    path: str
    size: int
    sha256: str | None = None


def fetch_run(service: ServiceConnection, run: str, folder: Path) -> None:
    """Copy the files of a run into `folder`, without its timelines, which no audit of a run reads.

    Raises `ProofError` where the service hands over something else.
    """
    _fetch(service, f"/v1/runs/{in_url(run)}", folder)
    if (folder / SEGMENT).exists():
        raise ProofError(f"{service.url}: the service handed over a segment in place of the run")


def fetch_segment(service: ServiceConnection, run: str, start: int, end: int, folder: Path) -> None:
    """Copy an opened segment into `folder`: what a replay from anchor `start` to anchor `end` needs.

    Raises `ProofError` where the service hands over another one.
    """
    where = f"/v1/runs/{in_url(run)}/segments/{start}-{end}"
    _fetch(service, where, folder, where)
    found = SegmentDirectory(folder).statement()
    if (found.start, found.end) != (start, end):
        raise ProofError(f"{service.url}: the service handed over the segment {found.start}..{found.end}")


def listed(service: ServiceConnection, path: str) -> list[ListedFile]:
    """The files that a service lists at `path`; raises `MalformedError` for a name that no run directory may hold."""
    answer = service.get_json(path)
    found = answer.get("files") if isinstance(answer, dict) else None
    if not isinstance(found, list) or len(found) > FILES_MAX:
        raise MalformedError(f"{service.url}{path}: no list of files")
    return list(_read(found, f"{service.url}{path}"))


def _fetch(service: ServiceConnection, where: str, folder: Path, listing: str | None = None) -> None:
    files = [file for file in listed(service, listing or f"{where}/files") if not file.path.startswith(TRACES)]
    folder.mkdir(parents=True, exist_ok=True)
    total, free = sum(file.size for file in files), shutil.disk_usage(folder).free
    if total > free:
        raise UnavailableError(f"{folder}: {total} bytes are to be fetched, and {free} are free there; set TMPDIR")
    for file in files:
        service.download(f"{where}/files/{quote(file.path)}", folder / file.path, file.size, file.sha256)


def _read(found: list[Any], what: str) -> Iterator[ListedFile]:
    for each in found:
        if not isinstance(each, dict) or not isinstance(each.get("path"), str) or type(each.get("size")) is not int:
            raise MalformedError(f"{what}: a file has no path or no size")
        digest = each.get("sha256")
        if not 0 <= each["size"] <= SIZE_MAX or (digest is not None and _SHA256.fullmatch(str(digest)) is None):
            raise MalformedError(f"{what}: a file has no possible size or digest")
        yield ListedFile(check_file_name(each["path"]), each["size"], digest)


# Sends a run directory to a service: only what is not there yet, in pieces, and then all of it is verified there.

PUSHED_PIECE: Final = 16 << 20
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
    path = quote(snapshot.path)
    while True:
        file.seek(offset)
        piece = file.read(min(PUSHED_PIECE, snapshot.size - offset))
        asked = f"?sha256={snapshot.sha256}&size={snapshot.size}&offset={offset}"
        service.ask("PUT", f"{where}/{path}{asked}", piece, headers={"Content-Length": str(len(piece))})
        sent(len(piece))
        offset += len(piece)
        if offset >= snapshot.size:
            return
        if not piece:
            raise UnavailableError(f"{snapshot.path}: became shorter while it was sent")


# The answers of a service: what makes `tallystick.open("https://…")` the same as a database here.

PLACE: Final = "place"


class ServiceAnswers:
    """Answers questions by asking the service at `url`.

    The rows are what the service says: only proofs and replays show what happened.
    """

    def __init__(self, url: str, token: str | None = None, effort: RequestLimits | None = None) -> None:
        self._service = ServiceConnection(url, token, effort)

    def page(self, question: RowQuery) -> Page[Any]:
        """The rows that a question finds, `question.limit` of them at most."""
        question.check()
        answer = self._service.post("/v1/query", question_text(question))
        found = read_page(question.asked_noun, answer, f"{self._service.url}: the answer")
        if len(found.rows) > (question.limit or PAGE_MAX) or not _ends(question, found):
            raise MalformedError(f"{self._service.url}: the answer has more rows than asked for, or no end")
        if question.noun != "runs":
            return found
        return Page(tuple(replace(row, place=f"{self._service.url}{row.place}") for row in found.rows), found.after)

    def count(self, question: RowQuery) -> int:
        """How many rows a question finds in all."""
        question.check()
        what = f"{self._service.url}: the answer"
        found = read_json(self._service.post("/v1/count", question_text(question)), what)
        count = found.get("count") if isinstance(found, dict) else None
        if type(count) is not int or not 0 <= count < INTEGER_END:
            raise MalformedError(f"{what}: no count")
        return count

    def total(self, question: RowQuery, field: str) -> float:
        """The sum of a field over the rows that a question finds; raises `UsageError` where it is no number."""
        question.check_total(field)
        what = f"{self._service.url}: the answer"
        found = read_json(self._service.post(f"/v1/total?field={quote(field)}", question_text(question)), what)
        return read_number(found.get("total") if isinstance(found, dict) else None, f"{what}: the total")

    def discover(self, run: str) -> Discovery:
        """What of a run can be replayed, as the service says."""
        path = f"/v1/runs/{in_url(run)}/discovery"
        return Discovery.from_json(self._service.get(path), f"{self._service.url}{path}")

    def fetch_segment(self, run: str, start: int, end: int, folder: Path) -> None:
        """Copy what a replay from anchor `start` to anchor `end` needs into `folder`."""
        fetch_segment(self._service, run, start, end, folder)

    def close(self) -> None:
        """Close the connection."""
        self._service.close()


def _ends(question: RowQuery, found: Page[Any]) -> bool:
    """Whether a page is the last, or full and leads behind its last row: else its pages might never end."""
    if found.after is None:
        return True
    try:
        question.model_copy(update={"after": found.after}).check()
    except UsageError:
        return False
    is_further = question.after is None or (found.after < question.after) is question.descending
    if len(found.rows) < (question.limit or PAGE_MAX) or found.after == question.after or not is_further:
        return False
    last, place = found.rows[-1], zip(question.columns_of_order(), found.after, strict=True)
    return all(getattr(last, name, value) == value for name, value in place)  # numbers of rows are not shown
