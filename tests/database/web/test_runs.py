"""Files, records and segments over HTTP: what is sent, to whom, and what never is."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from tallystick.core.digests import Hash
from tallystick.database.service.access import ServiceOptions
from tallystick.formats.store.folders import is_file_name
from tallystick.formats.store.log import OpenedLine
from tallystick.formats.store.run import RunDirectory
from tests.support.services import RUN, Service, serving

ROOT = f"/v1/runs/{RUN}"


def test_a_record_comes_with_its_proof(service: Service) -> None:
    found = service.ask(f"{ROOT}/records/3", "read").json()
    proof = tuple(Hash(bytes.fromhex(each)) for each in found["proof"])
    log = RunDirectory(service.run).claim().transcript
    OpenedLine(3, found["record"].encode(), proof).check(log)
    assert (found["root"], found["size"]) == (log.root, log.size)
    assert service.ask(f"{ROOT}/records/17", "read").status_code == 404


def test_files_are_listed_and_sent_whole_or_in_part(service: Service) -> None:
    listed = service.ask(f"{ROOT}/files").json()["files"]
    sizes = {path.relative_to(service.run).as_posix(): path.stat().st_size for path in service.run.rglob("*")}
    assert all(sizes[each["path"]] == each["size"] for each in listed)
    assert {".tally-lock", "tiles"}.isdisjoint(each["path"] for each in listed)
    anchor = (service.run / "anchors/step_00000004.safetensors").read_bytes()
    url = f"{ROOT}/files/anchors/step_00000004.safetensors"
    assert service.ask(url).content == anchor
    part = service.ask(url, headers={"Range": "bytes=100-299"})
    assert (part.status_code, part.content) == (206, anchor[100:300])
    assert part.headers["content-range"] == f"bytes 100-299/{len(anchor)}"
    assert service.ask(url, headers={"Range": "bytes=-10"}).content == anchor[-10:]
    assert service.ask(url, headers={"Range": "bytes=5-", "If-Range": '"other"'}).content == anchor
    outside = service.ask(url, headers={"Range": f"bytes={len(anchor)}-"})
    assert (outside.status_code, outside.headers["content-type"]) == (416, "application/problem+json")


@pytest.mark.parametrize(
    "path",
    [
        *("..%2f..%2fplain%2fclaim.json", "data/..%2f..%2fclaim.json", "data/%2e%2e/claim.json", ".tally-lock"),
        *("anchors", "anchors/", "data//source.txt", "%2fetc%2fpasswd", "claim.json%00", "tally.db", "link/passwd"),
        *("data/link", "data/C:%5cx", "anchors/missing.safetensors", "data/" + "a/" * 40 + "b", "x" * 5000),
    ],
)
def test_nothing_but_files_of_the_run_is_sent(service: Service, path: str) -> None:
    link = service.run / "data/link"
    if not link.is_symlink():
        os.symlink("/etc/passwd", link)
    answer = service.ask(f"{ROOT}/files/{path}")
    assert (answer.status_code, answer.json()["detail"]) == (404, "there is no such file")
    assert service.ask(f"{ROOT}/files/data/source.txt").status_code == 200


def test_names_of_files_that_runs_have_are_known(honest: Path) -> None:
    found = [path.relative_to(honest).as_posix() for path in honest.rglob("*") if path.is_file()]
    assert [name for name in found if not is_file_name(name)] == [".tally-lock"]


def test_tensors_and_data_take_a_scope_of_their_own(service: Service) -> None:
    closed = ("files/data/source.txt", "files/anchors/step_00000004.safetensors", "segments/4-8")
    assert [service.ask(f"{ROOT}/{path}", "read").status_code for path in closed] == [403, 403, 403]
    assert [service.ask(f"{ROOT}/{path}", "open").status_code for path in closed] == [200, 200, 200]
    assert service.ask(f"{ROOT}/files/claim.json", "read").status_code == 200
    assert service.ask(f"{ROOT}/files/claim.json", None).status_code == 401


def test_what_is_public_needs_no_token(plain: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "tally.db", plain, ServiceOptions(public="claims")) as found:
        seen = {path: found.ask(path, None).status_code for path in ("/v1/claims", "/v1/runs", f"{ROOT}/files")}
        assert seen == {"/v1/claims": 200, "/v1/runs": 401, f"{ROOT}/files": 401}
        assert found.ask(f"{ROOT}/files/claim.json", None).status_code == 200
        assert found.ask("/v1/claims", None, headers={"Authorization": "Bearer x"}).status_code == 401


def test_a_segment_is_what_tally_open_writes(service: Service) -> None:
    listed = service.ask(f"{ROOT}/segments/4-8").json()
    assert listed["claim"] == RunDirectory(service.run).claim().identity
    for each in listed["files"]:
        body = service.ask(f"{ROOT}/segments/4-8/files/{each['path']}").content
        assert (len(body), hashlib.sha256(body).hexdigest()) == (each["size"], each["sha256"])
    statement = service.ask(f"{ROOT}/segments/4-8/files/segment.json").json()
    assert (statement["start"], statement["end"]) == (4, 8)
    assert [service.ask(f"{ROOT}/segments/{marks}").status_code for marks in ("3-8", "8-4", "0-16")] == [404] * 3


def test_a_run_that_is_not_there_or_not_finished_is_said(service: Service, plain: Path, tmp_path: Path) -> None:
    assert service.ask("/v1/runs/none/files").status_code == 404
    assert service.ask("/v1/runs/%00/files").status_code == 404
    unfinished = Path(shutil.copytree(plain, tmp_path / "run"))
    (unfinished / "claim.json").unlink()
    with serving(tmp_path / "tally.db", unfinished) as found:
        assert found.ask(f"{ROOT}/records/1").json()["code"] == "unfinished"


def test_a_run_with_a_damaged_file_is_said_without_its_path(plain: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(plain, tmp_path / "run"))
    with serving(tmp_path / "tally.db", damaged) as found:
        (damaged / "transcript.index").write_bytes(bytes(17 * 8))
        answer = found.ask(f"{ROOT}/records/3")
        assert (answer.status_code, answer.json()["code"]) == (409, "damaged")
        assert str(tmp_path) not in answer.text
