"""A prover that is silent: whoever looks is told, and a watchtower answers in its place until the dispute is over."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sqlalchemy")
pytest.importorskip("fastapi")

from tests.support.attacks.disputes.scene import record_calls
from tests.tally.cli.test_parties import DisputeSetup

Tally = Callable[..., Any]
RULES = {"challenge_window": 3600, "committee": 1, "clock": 60, "extension": 30, "withdrawal_delay": 1}
LIMIT_S = 240


@pytest.fixture(scope="module")
def calls(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Honest calls. Never write into them."""
    folder = tmp_path_factory.mktemp("calls")
    record_calls(folder / "honest")
    return folder / "honest"


@pytest.fixture
def setup(tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DisputeSetup:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return DisputeSetup(tmp_path, tally, **RULES)


@pytest.fixture
def url(setup: DisputeSetup) -> Iterator[str]:
    """The coordinator behind HTTP, in a process of its own."""
    command = [sys.executable, "-m", "tallystick", "coordinator", "serve", "--db", str(setup.db)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.send_signal(signal.SIGINT)


def told(*words: object) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, which may reach the coordinator's port."""
    command = [sys.executable, "-m", "tallystick", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)


def delegated(setup: DisputeSetup, at: object) -> Path:
    """A file in which the prover delegates to the key `tower`."""
    public = setup.tally("new-key", setup.folder / "tower").out.strip()
    signed = told("dispute", "delegate", public, "--coordinator", at, "--key", setup.folder / "prover")
    assert signed.returncode == 0, signed.stderr
    out = setup.folder / "delegation.json"
    out.write_text(signed.stdout)
    return out


@pytest.mark.timeout(LIMIT_S)
def test_a_watchtower_answers_for_a_prover_that_is_gone(
    tally: Tally, setup: DisputeSetup, calls: Path, url: str, tmp_path: Path
) -> None:
    """The claim is posted, and its prover's program ends; a challenger that is wrong contests; a copy answers."""
    posted = told("prover", calls, "--coordinator", url, "--key", setup.folder / "prover", "--once")
    assert posted.stdout == "claim 0\n", posted.stderr
    assert "answers nothing for 60 s in all" in " ".join(posted.stderr.split())
    assert "`tally watchtower`" in posted.stderr
    copy = shutil.copytree(calls, tmp_path / "copy")
    delegation = delegated(setup, url)
    tally("dispute", "open", "0", "--from", "1", "--to", "2", *setup.at("challenger"))
    at = ("--coordinator", url, "--key", str(setup.folder / "tower"), "--delegation", str(delegation))
    command = [
        sys.executable,
        "-m",
        "tallystick",
        "watchtower",
        str(copy),
        *at,
        "--at-once",
        "--watch",
        "--poll",
        "0.2",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tower:
        try:
            ends = time.monotonic() + LIMIT_S - 30
            while (dispute := setup.status()["disputes"][0])["phase"] in ("leaf", "partition"):
                assert time.monotonic() < ends, dispute
                time.sleep(0.5)
        finally:
            tower.send_signal(signal.SIGINT)
    assert (dispute["phase"], dispute["level"]) == ("choose", "operators")
    moves = json.loads(tally("dispute", "show", 0, "--coordinator", setup.db, "--json").out)["moves"]
    assert [each["move"]["kind"] for each in moves] == ["contest", "descend", "partition"]
    prover = json.loads((setup.folder / "delegation.json").read_text())["party"]
    assert {each["move"]["actor"] for each in moves[1:]} == {prover}


def test_a_watchtower_leaves_the_prover_half_of_its_time_and_is_refused_without_delegation(
    tally: Tally, setup: DisputeSetup, calls: Path
) -> None:
    tally("prover", calls, *setup.at("prover"), "--once")
    delegation = delegated(setup, setup.db)
    tally("dispute", "open", "0", *setup.at("challenger"))
    own = ("--coordinator", setup.db, "--key", setup.folder / "tower", "--delegation", delegation)
    assert tally("watchtower", calls, *own).code == 0
    assert setup.status()["disputes"][0]["phase"] == "partition"
    other = ("--coordinator", setup.db, "--key", setup.folder / "member", "--delegation", delegation)
    assert "the delegation is for another key" in tally("watchtower", calls, *other, "--at-once").err
    assert setup.status()["disputes"][0]["phase"] == "partition"
    assert tally("watchtower", calls, *own, "--at-once").code == 0
    assert setup.status()["disputes"][0]["phase"] == "choose"
