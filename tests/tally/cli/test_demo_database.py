"""What `tally demo --out` leaves for whoever wants to look."""

from __future__ import annotations

import html
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tallystick.audits.policy import Policy
from tallystick.core.http.server import served
from tallystick.database.pages.router import create_pages
from tallystick.database.query import DatabaseQueries
from tallystick.database.service.access import ServiceOptions, TokenGrant, new_token
from tallystick.database.service.application import build_application
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.tally.auditing import audit
from tallystick.tally.cli.demo import DemoRun, _fill
from tests.support.prefork.commands import commands


def test_runs_and_reports_are_in_a_database(honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree(honest, tmp_path / "honest")
    report = audit(run, Policy(samples=1)).to_json()
    _fill(tmp_path, [DemoRun("honest run", "accepted", "accepted", "", 1.0, report, run)])
    assert "tally ui --db" in capsys.readouterr().err
    with WorkloadDatabase(tmp_path / "tally.db") as database:
        found = DatabaseQueries(database)
        assert [(row.run, row.outcome) for row in found.audits] == [("honest", "accepted")]
        assert found.steps.count() > 0


def test_what_it_left_is_shown_and_another_process_audits_it_over_http(honest: Path, tmp_path: Path) -> None:
    run, token = Path(shutil.copytree(honest, tmp_path / "honest")), tmp_path / "token"
    ours = audit(run, Policy(samples=1)).to_json()
    _fill(tmp_path, [DemoRun("honest run", "accepted", "accepted", "", 1.0, ours, run)])
    with WorkloadDatabase(tmp_path / "tally.db", writable=True) as database:
        page = TestClient(create_pages(DatabaseQueries(database))).get("/run?name=honest").text
        assert str(ours["sentence"]) in html.unescape(page)
        token.write_text(new_token(database, TokenGrant("verifier", frozenset(("open",)))))
        with served(build_application(database, ServiceOptions())) as url:
            asked = ["audit", f"{url}/runs/honest", "--samples", "1", "--nonce", str(ours["nonce"]), "--json"]
            command = [commands() / "tally", *asked, "--token-file", token]
            done = subprocess.run(command, capture_output=True, text=True)
    theirs = json.loads(done.stdout)
    assert done.returncode == 0
    for fact in ("verdict", "sentence", "claim", "sampled", "findings"):
        assert theirs[fact] == ours[fact]


def test_without_the_libraries_the_files_stay(
    honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallystick.core.lazy.find_spec", lambda _: None)
    _fill(tmp_path, [])
    assert "pip install 'tallystick[web]'" in capsys.readouterr().err
    assert not (tmp_path / "tally.db").exists()
