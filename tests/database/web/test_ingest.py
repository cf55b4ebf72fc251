"""Runs that are sent: resumed, verified before anything of them appears, and never exchanged."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

import tallystick
from tallystick.core.errors import RuleError, UnavailableError
from tallystick.database import remote
from tallystick.database.remote import ServiceConnection, push_run
from tallystick.database.service.access import TokenGrant, new_token
from tests.support.services import Service
from tests.support.traces import kernel, trace_at

HEAD = {"Content-Type": "application/octet-stream"}


def connection(service: Service, scope: str = "all") -> ServiceConnection:
    return ServiceConnection(service.url, service.tokens[scope])


@pytest.fixture(scope="module")
def folder(service: Service) -> Path:
    """Where the service keeps runs that are sent."""
    return service.run.parent / "runs"


@pytest.fixture
def copy(plain: Path, tmp_path: Path) -> Path:
    """A finished run to be sent."""
    return Path(shutil.copytree(plain, tmp_path / "copy"))


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".tally-lock"
    }


def test_a_run_that_is_sent_is_the_same_run_there(service: Service, folder: Path, copy: Path) -> None:
    with connection(service) as there:
        sent = push_run(there, copy, "sent")
        assert (sent[0], push_run(there, copy, "sent")[0]) == (len(files_in(copy)), 0)
    assert files_in(folder / "sent") == files_in(copy)
    (row,) = tallystick.Database(service.database).runs.where(name="sent")
    assert (row.status, row.steps) == ("claimed", 12)
    assert not (folder / ".incoming/sent").exists()


def test_the_timelines_of_a_run_are_sent_and_read(service: Service, folder: Path, copy: Path) -> None:
    events = [kernel(10 * number, 5) for number in range(3)]
    with connection(service) as there:
        push_run(there, copy, "timed")
        trace_at(copy / "traces/first", events)
        assert push_run(there, copy, "timed")[0] == len(files_in(copy / "traces"))
        trace_at(copy / "traces/second", events)
        (copy / "traces/second/events.jsonl").write_bytes(b"")
        with pytest.raises(RuleError, match="not those under the root"):
            push_run(there, copy, "timed")
    assert {path.name for path in (folder / "timed/traces").iterdir()} == {"first"}
    (trace,) = tallystick.Database(service.database).traces.where(run="timed")
    assert (trace.name, trace.events) == ("timed/first", 3)


def test_a_recording_grows(service: Service, folder: Path, copy: Path) -> None:
    whole, claim = (copy / "transcript.jsonl").read_bytes(), (copy / "claim.json").read_bytes()
    lines = whole.splitlines(keepends=True)
    (copy / "claim.json").unlink()
    (copy / "transcript.jsonl").write_bytes(b"".join(lines[:6]) + b'{"torn')
    runs = tallystick.Database(service.database).runs.where(name="growing")
    with connection(service) as there:
        push_run(there, copy, "growing")
        assert [(row.status, row.records) for row in runs] == [("recording", 6)]
        (copy / "transcript.jsonl").write_bytes(whole)
        (copy / "claim.json").write_bytes(claim)
        push_run(there, copy, "growing")
    assert [(row.status, row.records) for row in runs] == [("claimed", 17)]


def test_records_that_were_sent_are_not_exchanged(service: Service, folder: Path, copy: Path) -> None:
    whole = (copy / "transcript.jsonl").read_bytes()
    (copy / "claim.json").unlink()
    with connection(service) as there:
        push_run(there, copy, "fixed")
        (copy / "transcript.jsonl").write_bytes(whole.replace(b'"loss":5.', b'"loss":4.', 1))
        with pytest.raises(RuleError, match=r"transcript\.jsonl: the run has another one"):
            push_run(there, copy, "fixed")
    assert (folder / "fixed/transcript.jsonl").read_bytes() == whole
    assert not (folder / ".incoming/fixed").exists()


@pytest.mark.parametrize("file", ["anchors/step_00000008.safetensors", "claim.json", "transcript.jsonl", "spec.json"])
def test_a_run_that_does_not_hold_together_never_appears(service: Service, folder: Path, copy: Path, file: str) -> None:
    data = bytearray((copy / file).read_bytes())
    at = data.rfind(b"sha256:") + 10 if file.endswith((".json", ".jsonl")) else len(data) - 1
    data[at] = ord("0") if data[at] != ord("0") else ord("1")
    (copy / file).write_bytes(data)
    name = f"bad-{file.partition('.')[0].replace('/', '-')}"
    with connection(service) as there, pytest.raises(RuleError, match="the run is not what it should be") as refused:
        push_run(there, copy, name)
    assert str(folder) not in str(refused.value)
    assert not (folder / name).exists()
    assert not (folder / ".incoming" / name).exists()
    assert tallystick.Database(service.database).runs.where(name=name).count() == 0


def test_a_blob_holds_what_its_name_says(service: Service, folder: Path, copy: Path) -> None:
    (copy / "blobs").mkdir()
    (copy / "blobs" / ("0" * 64)).write_bytes(b"something else")
    with connection(service) as there, pytest.raises(RuleError, match="does not hold the bytes it is named after"):
        push_run(there, copy, "blobs")
    assert not (folder / "blobs").exists()


def test_an_interrupted_sending_goes_on(
    service: Service, copy: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(remote, "PUSHED_PIECE", 100_000)
    told: list[int] = []

    def stop(size: int) -> None:
        told.append(size)
        if len(told) == 6:
            raise KeyboardInterrupt

    with connection(service) as there:
        with pytest.raises(KeyboardInterrupt):
            push_run(there, copy, "resumed", stop)
        assert not (folder / "resumed").exists()
        again: list[int] = []
        push_run(there, copy, "resumed", again.append)
    assert sum(told) + sum(again) == sum(len(body) for body in files_in(copy).values())


def test_pieces_go_on_where_the_last_one_ended(service: Service) -> None:
    body = b"0123456789"
    where = f"/v1/runs/pieces/upload/data/source.txt?sha256={hashlib.sha256(body).hexdigest()}&size=10"

    def put(offset: int, piece: bytes) -> tuple[int, object]:
        answer = service.ask(f"{where}&offset={offset}", method="PUT", content=piece, headers=HEAD)
        return answer.status_code, answer.json().get("received", answer.json().get("code"))

    assert [put(0, body[:4]), put(0, body[:4]), put(6, body[6:]), put(4, body[4:] + b"x")] == [
        *((200, 4), (200, 4), (409, "offset"), (409, "offset"))
    ]
    assert [put(4, body[4:]), put(0, body)] == [(200, 10), (200, 10)]
    wrong = where.replace("size=10", "size=3")
    refused = service.ask(f"{wrong}&offset=0", method="PUT", content=b"abc", headers=HEAD)
    assert (refused.status_code, refused.json()["code"]) == (409, "digest")


def test_a_name_is_a_file_or_a_folder(service: Service) -> None:
    def put(path: str) -> int:
        where = f"/v1/runs/both/upload/{path}?sha256={hashlib.sha256(b'x').hexdigest()}&size=1&offset=0"
        return service.ask(where, method="PUT", content=b"x", headers=HEAD).status_code

    assert [put("data/a"), put("data/a/b"), put("data/b/a"), put("data/b")] == [200, 409, 200, 409]


@pytest.mark.parametrize(
    "path",
    [
        *("..%2f..%2fescaped", "data/..%2f..%2f..%2fescaped", ".tally-lock", "data/.hidden", "segment.json", "x.py"),
        *("%2ftmp%2fescaped", "data/", "tally.db"),
    ],
)
def test_only_files_of_a_run_are_taken(service: Service, folder: Path, path: str) -> None:
    before = {each for each in folder.rglob("*") if "names" not in each.parts}
    where = f"/v1/runs/names/upload/{path}?sha256={hashlib.sha256(b'').hexdigest()}&size=0&offset=0"
    answer = service.ask(where, method="PUT", content=b"", headers={**HEAD, "Content-Length": "0"})
    assert answer.status_code in (400, 404)
    assert {each for each in folder.rglob("*") if "names" not in each.parts} == before


def test_each_name_belongs_to_the_token_that_sent_it_first(service: Service, copy: Path) -> None:
    with connection(service) as there:
        push_run(there, copy, "owned")
    with connection(service, "ingest") as other, pytest.raises(UnavailableError, match="is not this token's"):
        push_run(other, copy, "owned")
    with connection(service) as there, pytest.raises(UnavailableError, match="is not this token's"):
        push_run(there, copy, "digits")  # the operator's own
    with connection(service, "read") as reader, pytest.raises(UnavailableError, match="the scope ingest"):
        push_run(reader, copy, "other")


def test_a_token_has_a_limit_on_the_size_of_a_run(service: Service, copy: Path, folder: Path) -> None:
    token = new_token(service.database, TokenGrant("small", frozenset(("ingest",)), run_bytes_max=400_000))
    with ServiceConnection(service.url, token) as there, pytest.raises(tallystick.UsageError, match="400000 bytes"):
        push_run(there, copy, "large")
    assert not (folder / "large").exists()


def test_a_piece_that_is_too_large_is_refused_before_it_is_read(service: Service) -> None:
    where = f"/v1/runs/big/upload/data/x?sha256={'0' * 64}&size=5&offset=0"
    head = f"PUT {where} HTTP/1.1\r\nContent-Length: {1 << 40}"
    assert b" 413 " in service.begin(head, b"12345")


def test_a_run_of_which_nothing_came_is_not_there(service: Service) -> None:
    assert service.ask("/v1/runs/nothing/upload", method="POST").status_code == 404
