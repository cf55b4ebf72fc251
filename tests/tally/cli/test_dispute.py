"""`tally dispute`: opened, listed, shown, played against silence, and settled."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sqlalchemy")

from tests.tally.cli.conftest import TurnedClock
from tests.tally.cli.test_parties import DisputeSetup, calls

Tally = Callable[..., Any]
__all__ = ["calls"]


@pytest.fixture
def setup(tally: Tally, clock: TurnedClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DisputeSetup:
    """A coordinator at which a silent party loses within forty seconds."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return DisputeSetup(tmp_path, tally, withdrawal_delay=1, clock=40, extension=40)


@pytest.fixture
def claim(tally: Tally, setup: DisputeSetup, calls: Path) -> Path:
    """The run of claim 0."""
    assert tally("prover", calls / "honest", *setup.at("prover"), "--once").code == 0
    return calls / "honest"


def test_a_dispute_is_opened_over_some_leaves_or_all(tally: Tally, setup: DisputeSetup, claim: Path) -> None:
    result = tally("dispute", "open", 0, "--from", 1, "--to", 3, *setup.at("challenger"))
    assert (result.code, result.out) == (0, "dispute 0\n")
    assert setup.status()["disputes"][0]["range"] == [1, 3]
    result = tally("dispute", "open", 0, *setup.at("challenger"))
    assert result.code == 2
    assert "contests claim 0 in dispute 0 already" in result.complaint
    assert tally("dispute", "open", 0, "--again", *setup.at("challenger")).out == "dispute 1\n"
    assert setup.status()["disputes"][1]["range"] == [0, 3]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((7,), "there is no claim 7"),
        ((0, "--from", 3), "not a range"),
        ((0, "--to", 4), "not a range"),
    ],
    ids=["no-claim", "empty", "too-far"],
)
def test_what_cannot_be_contested_is_refused(
    tally: Tally, setup: DisputeSetup, claim: Path, arguments: tuple[object, ...], said: str
) -> None:
    result = tally("dispute", "open", *arguments, *setup.at("challenger"))
    assert result.code == 2
    assert said in result.complaint
    assert setup.status()["disputes"] == []


def test_a_prover_cannot_contest_its_own_claim(tally: Tally, setup: DisputeSetup, claim: Path) -> None:
    assert tally("dispute", "open", 0, *setup.at("prover")).code == 2


def test_a_coordinator_without_claims_says_so(tally: Tally, setup: DisputeSetup) -> None:
    result = tally("dispute", "status", "--coordinator", setup.db)
    assert (result.code, result.out, result.err) == (0, "", "no claims yet\n")


def test_claims_and_disputes_are_listed_with_their_clocks(tally: Tally, setup: DisputeSetup, claim: Path) -> None:
    assert "dispute" not in tally("dispute", "status", "--coordinator", setup.db).out.replace("disputes", "")
    tally("dispute", "open", 0, *setup.at("challenger"))
    page = tally("dispute", "status", "--coordinator", setup.db).out
    assert "0–2 of 3" in page
    assert "prover" in page
    found = setup.status()
    assert (found["claims"][0]["status"], found["claims"][0]["disputes"]) == ("open", 1)
    assert found["disputes"][0]["seconds"] == 40
    assert found["disputes"][0]["mover"] == "prover"


def test_against_a_silent_prover_the_challenger_wins(tally: Tally, setup: DisputeSetup, claim: Path) -> None:
    tally("dispute", "open", 0, *setup.at("challenger"))
    result = tally("dispute", "play", 0, *setup.at("challenger"))
    assert (result.code, result.out) == (0, "dispute 0: won\n")
    assert "dispute 0 ended: challenger's objection upheld, prover at fault" in result.err
    result = tally("dispute", "play", 0, *setup.at("prover"), "--run", claim)
    assert (result.code, result.out) == (1, "dispute 0: lost\n")


def test_in_a_terminal_the_range_and_the_clock_are_seen_live(
    tally: Tally, setup: DisputeSetup, claim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally("dispute", "open", 0, *setup.at("challenger"))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    result = tally("dispute", "play", 0, *setup.at("challenger"))
    assert result.code == 0
    assert "████" in result.err
    assert re.search(r"prover until .* UTC \(in \d+ s\)", result.err)
    assert "dispute 0 ended: " in result.err


def test_against_a_silent_challenger_the_prover_wins(tally: Tally, setup: DisputeSetup, claim: Path) -> None:
    tally("dispute", "open", 0, *setup.at("challenger"))
    result = tally("dispute", "play", 0, *setup.at("prover"), "--run", claim)
    assert (result.code, result.out) == (0, "dispute 0: won\n")
    assert tally("dispute", "play", 0, *setup.at("challenger")).code == 1


def test_what_is_due_is_made_by_anybody(tally: Tally, clock: TurnedClock, setup: DisputeSetup, claim: Path) -> None:
    tally("dispute", "open", 0, *setup.at("challenger"))
    result = tally("dispute", "settle", 0, *setup.at("member"))
    assert (result.code, result.out, result.err) == (0, "", "nothing is due\n")
    clock.now += 39
    assert tally("dispute", "settle", 0, *setup.at("member")).err == "nothing is due\n"
    clock.now += 1
    assert tally("dispute", "settle", 0, *setup.at("member")).out == "timeout\n"
    clock.now += 1
    assert tally("dispute", "settle", 0, *setup.at("challenger")).out == "withdraw\n"
    assert setup.status()["disputes"][0]["fault"] == "prover"
    page = tally("dispute", "status", "--coordinator", setup.db).out
    assert re.search("prover at fault *$", page, re.MULTILINE)  # on a pipe no line is folded
    assert re.search(r"164,000 +0 +664,000 +0 +\+500,000 +challenger in dispute 0", page)


def test_only_a_party_plays_and_a_prover_needs_its_run(tally: Tally, setup: DisputeSetup, claim: Path) -> None:
    tally("dispute", "open", 0, *setup.at("challenger"))
    assert "on neither side" in tally("dispute", "play", 0, *setup.at("member")).complaint
    assert "--run" in tally("dispute", "play", 0, *setup.at("prover")).complaint
    assert "there is no dispute 9" in tally("dispute", "play", 9, *setup.at("prover")).complaint
    assert tally("dispute", "show", 9, "--coordinator", setup.db).code == 2


def test_every_move_is_shown(tally: Tally, setup: DisputeSetup, claim: Path) -> None:
    tally("dispute", "open", 0, *setup.at("challenger"))
    shown = json.loads(tally("dispute", "show", 0, "--coordinator", setup.db, "--json").out)
    (contest,) = shown["moves"]
    assert (contest["role"], contest["move"]["kind"], contest["after"]["phase"]) == (
        "challenger",
        "contest",
        "partition",
    )
