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


def run_address(url: str) -> tuple[str, str]:
    """The service and the run that `http://HOST/runs/NAME` names; raises `UsageError` for another URL."""
    parts = _RUN.fullmatch(url)
    if parts is None:
        raise UsageError(f"{url}: a run in a service is named http://HOST/runs/NAME")
    return parts[1], unquote(parts[2])


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
    error = error_of(answer.status, answer.body, where)
    is_closed = isinstance(error, RuleError) and answer.status in (401, 403)
    return UnavailableError(f"{where}: {error}") if answer.status == 404 or is_closed else error


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
    statement = SegmentDirectory(folder).statement()
    if (statement.start, statement.end) != (start, end):
        raise ProofError(f"{service.url}: the service handed over the segment {statement.start}..{statement.end}")


def _fetch(service: ServiceConnection, where: str, folder: Path, listing: str | None = None) -> None:
    files = [file for file in listed(service, listing or f"{where}/files") if not file.path.startswith(TRACES)]
    folder.mkdir(parents=True, exist_ok=True)
    total, free = sum(file.size for file in files), shutil.disk_usage(folder).free
    if total > free:
        raise UnavailableError(f"{folder}: {total} bytes are to be fetched, and {free} are free there; set TMPDIR")
    for file in files:
        service.download(f"{where}/files/{quote(file.path)}", folder / file.path, file.size, file.sha256)


def listed(service: ServiceConnection, path: str) -> list[ListedFile]:
    """The files that a service lists at `path`; raises `MalformedError` for a name that no run directory may hold."""
    what, answer = f"{service.url}{path}", service.get_json(path)
    entries = answer.get("files") if isinstance(answer, dict) else None
    if not isinstance(entries, list) or len(entries) > FILES_MAX:
        raise MalformedError(f"{what}: no list of files")
    files = []
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str) or type(entry.get("size")) is not int:
            raise MalformedError(f"{what}: a file has no path or no size")
        digest = entry.get("sha256")
        if not 0 <= entry["size"] <= SIZE_MAX or (digest is not None and _SHA256.fullmatch(str(digest)) is None):
            raise MalformedError(f"{what}: a file has no possible size or digest")
        files.append(ListedFile(check_file_name(entry["path"]), entry["size"], digest))
    return files


# Sends a run directory to a service: only what is not there yet, in pieces, and then all of it is verified there.

PUSHED_PIECE: Final = 16 << 20
BLOCK: Final = 1 << 20
FOLLOWING: Final = ("tiles/", "transcript.index", "trace.index")
"""Of a run that is being recorded these are not sent: they change with every record, and follow from the records."""


def push_run(
    service: ServiceConnection, run: Path, name: str, sent: Callable[[int], None] = lambda _: None
) -> tuple[int, int]:
    """Send a run, or what is new of it; `sent` gets the bytes of every piece. Returns how many files and bytes.

    An interrupted sending goes on where it stopped. Raises `RuleError` where the service has another run of that name
    or finds something wrong, `UnavailableError` where it does not answer or refuses.
    """
    where = f"/v1/runs/{in_url(name)}/upload"
    state = service.get_json(where)
    if not isinstance(state, dict) or not isinstance(state.get("files"), list):
        raise MalformedError(f"{service.url}{where}: no list of files")
    arrived = {(entry.get("path"), entry.get("sha256")) for entry in state["files"] if isinstance(entry, dict)}
    parts = state.get("parts")
    is_finished = (run / "claim.json").is_file()
    count = total = 0
    for file in files_of(run):
        if file.startswith(FOLLOWING) and not is_finished:
            continue
        with (run / file).open("rb") as opened:
            # More may be written behind these bytes at the same time.
            size, digest = _measured(opened, file.endswith(".jsonl") and not is_finished)
            if (file, digest) in arrived:
                continue
            begun = parts.get(digest) if isinstance(parts, dict) else None
            offset = begun if type(begun) is int and 0 <= begun < size else 0
            url = f"{where}/{quote(file)}?sha256={digest}&size={size}"
            for piece in _pieces(opened, offset, size, file):
                service.ask("PUT", f"{url}&offset={offset}", piece, headers={"Content-Length": str(len(piece))})
                sent(len(piece))
                offset += len(piece)
        count, total = count + 1, total + size
    service.ask("POST", where)
    return count, total


def _pieces(file: BinaryIO, offset: int, size: int, name: str) -> Iterator[bytes]:
    """The bytes from `offset` to `size`, in pieces; of an empty file one that is empty."""
    file.seek(offset)
    while True:
        piece = file.read(min(PUSHED_PIECE, size - offset))
        yield piece
        offset += len(piece)
        if offset >= size:
            return
        if not piece:
            raise UnavailableError(f"{name}: became shorter while it was sent")


def _measured(file: BinaryIO, only_whole_lines: bool) -> tuple[int, str]:
    """The size of a file and its SHA-256; without a last line that is still being written, if that is asked."""
    size = os.fstat(file.fileno()).st_size
    if only_whole_lines:
        size = _whole_lines(file, size)
    hashed, left = hashlib.sha256(), size
    file.seek(0)
    while left > 0 and (block := file.read(min(BLOCK, left))):
        hashed.update(block)
        left -= len(block)
    return size, hashed.hexdigest()


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


# The answers of a service: what makes `tallystick.open("https://…")` the same as a database here.


class ServiceAnswers:
    """Answers questions by asking the service at `url`.

    The rows are what the service says: only proofs and replays show what happened.
    """

    def __init__(self, url: str, token: str | None = None, effort: RequestLimits | None = None) -> None:
        self._service = ServiceConnection(url, token, effort)
        self._what = f"{self._service.url}: the answer"

    def page(self, question: RowQuery) -> Page[Any]:
        """The rows that a question finds, `question.limit` of them at most."""
        question.check()
        answer = self._service.post("/v1/query", question_text(question))
        page = read_page(question.asked_noun, answer, self._what)
        if len(page.rows) > (question.limit or PAGE_MAX) or not _ends(question, page):
            raise MalformedError(f"{self._what} has more rows than asked for, or no end")
        if question.noun != "runs":
            return page
        return Page(tuple(replace(row, place=f"{self._service.url}{row.place}") for row in page.rows), page.after)

    def count(self, question: RowQuery) -> int:
        """How many rows a question finds in all."""
        question.check()
        count = self._member("/v1/count", question, "count")
        if type(count) is not int or not 0 <= count < INTEGER_END:
            raise MalformedError(f"{self._what}: no count")
        return count

    def total(self, question: RowQuery, field: str) -> float:
        """The sum of a field over the rows that a question finds; raises `UsageError` where it is no number."""
        question.check_total(field)
        return read_number(
            self._member(f"/v1/total?field={quote(field)}", question, "total"), f"{self._what}: the total"
        )

    def _member(self, path: str, question: RowQuery, name: str) -> Any:
        answer = read_json(self._service.post(path, question_text(question)), self._what)
        return answer.get(name) if isinstance(answer, dict) else None

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


def _ends(question: RowQuery, page: Page[Any]) -> bool:
    """Whether a page is the last, or full and leads behind its last row: else its pages might never end."""
    if page.after is None:
        return True
    try:
        question.model_copy(update={"after": page.after}).check()
    except UsageError:
        return False
    is_further = question.after is None or (page.after < question.after) is question.descending
    if len(page.rows) < (question.limit or PAGE_MAX) or page.after == question.after or not is_further:
        return False
    last, place = page.rows[-1], zip(question.columns_of_order(), page.after, strict=True)
    return all(getattr(last, name, value) == value for name, value in place)  # numbers of rows are not shown
