"""`tally serve`, `tally token`, `tally push`: a service that another process uses, and that ends in order."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.database.schema import VIEWS
from tests.recording.serving.conftest import loopback_only as loopback_only

Tally = Callable[..., Any]


def test_a_token_in_a_file_is_for_its_owner_alone(tally: Tally, tmp_path: Path) -> None:
    db, file = tmp_path / "tally.db", tmp_path / "token"
    told = tally("token", "new", "lab", "--db", db, "--out", file)
    assert (told.code, told.out, told.err) == (0, f"{file}\n", "")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    held = file.read_text()
    assert held.startswith("tally_")
    again = tally("token", "new", "another", "--db", db, "--out", file)
    assert (again.code, again.complaint) == (2, f"tally: {file}: exists already; a token is never overwritten")
    assert file.read_text() == held
    assert tally("token", "list", "--db", db).out.startswith("lab\t")
    assert "another" not in tally("token", "list", "--db", db).out
    answer = json.loads(tally("token", "new", "more", "--db", db, "--out", tmp_path / "more", "--json").out)
    assert answer == {"file": str(tmp_path / "more"), "name": "more"}


@pytest.mark.parametrize(("mode", "warned"), [(0o644, True), (0o640, True), (0o600, False)])
def test_a_token_on_a_stdout_that_others_read_is_warned_about(tmp_path: Path, mode: int, warned: bool) -> None:
    file = tmp_path / "token"
    file.touch()
    file.chmod(mode)
    with file.open("wb") as stdout:
        command = [sys.executable, "-m", "tallystick", "token", "new", "lab", "--db", str(tmp_path / "tally.db")]
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=True)
    assert file.read_text().startswith("tally_")
    assert ("warning: other users can read the file" in done.stderr) == warned
    assert ("--out FILE" in done.stderr) == warned


def test_a_run_is_pushed_to_a_service_and_seen_there(tally: Tally, plain: Path, tmp_path: Path) -> None:
    db, token = tmp_path / "tally.db", tmp_path / "token"
    told = tally("token", "new", "lab", "--db", db, "--scope", "ingest", "--scope", "read", "--days", 2, "--json")
    token.write_text(json.loads(told.out)["token"])
    assert "lab\tingest read\tall runs\tmade " in tally("token", "list", "--db", db).out
    command = ["serve", "--db", str(db), "--runs", str(tmp_path / "runs")]
    with subprocess.Popen(
        [sys.executable, "-m", "tallystick", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            pushed = tally("push", plain, url, "--name", "first", "--token-file", token, "--json")
            assert (pushed.code, json.loads(pushed.out)["name"]) == (0, "first")
            assert tally("push", plain, url, "--name", "first", "--token-file", token).out.startswith("first: 0 files")
            assert tally("audit", f"{url}/runs/first", "--token-file", token).complaint.endswith(
                "the scope open is needed for this run; `tally token new NAME --scope open` makes one that does"
            )
        finally:
            server.send_signal(signal.SIGTERM)
            _, log = server.communicate(timeout=60)
    assert all(json.loads(line)["event"] == "request" for line in log.splitlines() if line.startswith("{"))
    assert "holds no run yet: `tally db add` reads one" in log
    assert tally("token", "revoke", "lab", "--db", db).code == 0
    assert tally("query", "SELECT name, status FROM runs", "--db", db).out == "name\tstatus\nfirst\tclaimed\n"


def test_without_a_statement_the_views_are_listed(tally: Tally) -> None:
    found = tally("query", "--json")
    rows = {each["view"]: each["columns"] for each in json.loads(found.out)["rows"]}
    assert (rows["claims"], list(rows)) == ("run_id, digest, run, body", [*VIEWS])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["query", "SELECT 1", "--db", "http://x"], "http://x: a service takes no SQL"),
        (["audit", "run", "--step", "3"], "--step: for a run in a service; `tally verify-segment"),
        (["audit", "run", "--token-file", "f"], "--token-file: for a run in a service"),
        (["audit", "http://x"], "http://x: a run in a service is named http://HOST/runs/NAME"),
        (["audit", "http://x/runs/a", "--anchors", "file:///"], "--anchors: for a run directory"),
        (["audit", "http://x/runs/a", "--segment", "5"], "--segment 5: two anchors as A..B"),
        (["audit", "http://x/runs/a", "--segment", "0..4", "--step", "1"], "a segment, or a step: not both"),
        (["serve", "--public", "everything"], "--public: must be nothing, claims, read or open"),
        (["token", "new", "a/b", "--db", "t.db"], "a/b: no name of"),
    ],
)
def test_what_makes_no_sense_is_told_in_one_line(
    tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    told = tally(*arguments)
    assert (told.code, told.out) == (2, "")
    assert told.complaint.startswith(f"tally: {complaint}")
