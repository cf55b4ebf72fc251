"""`tally prover`, `tally challenger`, `tally rule`, `tally committee`: a dispute played by commands."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sqlalchemy")

from tallystick.attacks.disputes.swapped_layer import forge_swapped_layer
from tallystick.attestation.signing import SigningKey
from tallystick.disputes.parties.workspace import Workspace
from tests.support.attacks.disputes.scene import WEIGHT, record_calls

Tally = Callable[..., Any]
PARTIES = ("prover", "challenger", "referee", "member")


class Court:
    """A coordinator in a file, and everybody's key beside it."""

    def __init__(self, folder: Path, tally: Tally, **rules: object) -> None:
        self.folder, self.db, self.tally = folder, folder / "court.db", tally
        self.keys = {name: SigningKey.generate() for name in PARTIES}
        for name, key in self.keys.items():
            key.write(folder / name)
        (folder / "rules.json").write_text(json.dumps(rules))
        (folder / "members").write_text(self.keys["member"].public)
        named = ("--members", folder / "members", "--referee", self.keys["referee"].public)
        assert tally("coordinator", "init", "--db", self.db, "--rules", folder / "rules.json", *named).code == 0
        for key in self.keys.values():
            assert tally("coordinator", "grant", key.public, 2_000_000, "--db", self.db).code == 0

    def at(self, name: str) -> tuple[object, ...]:
        """The options by which a party is connected."""
        return ("--coordinator", self.db, "--key", self.folder / name)

    def status(self) -> Any:
        return json.loads(self.tally("dispute", "status", "--coordinator", self.db, "--json").out)


@pytest.fixture(scope="module")
def calls(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recorded calls in `honest`, and the same with a swapped layer in `forged`. Never write into them."""
    folder = tmp_path_factory.mktemp("calls")
    record_calls(folder / "honest")
    forge_swapped_layer(folder / "honest", folder / "forged", WEIGHT)
    return folder


@pytest.fixture
def court(tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Court:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Court(tmp_path, tally, withdrawal_delay=1, challenge_window=3600, committee=1)


def test_a_swapped_layer_is_found_by_commands_and_the_claim_is_slashed(tally: Tally, court: Court, calls: Path) -> None:
    """The forger's command answers from its honest kernels, so it cannot defend what it recorded."""
    assert tally("prover", calls / "forged", *court.at("prover"), "--once").out == "claim 0\n"
    told = tally("challenger", *court.at("challenger"), "--whole")
    assert told.code == 0
    assert "dispute 0: records 0–2 of 3" in told.err
    for _ in range(20):
        prover = tally("prover", calls / "forged", *court.at("prover"), "--once")
        tally("challenger", *court.at("challenger"))
        tally("rule", *court.at("referee"))
        if court.status()["disputes"][0]["phase"] == "settled":
            break
    found = court.status()
    assert (found["disputes"][0]["fault"], found["claims"][0]["status"]) == ("prover", "slashed")
    prover = tally("prover", calls / "forged", *court.at("prover"), "--once")
    assert (prover.code, prover.out) == (1, "claim 0\n")
    shown = json.loads(tally("dispute", "show", 0, "--coordinator", court.db, "--json").out)
    assert shown["moves"][0]["move"]["kind"] == "contest"
    assert shown["moves"][-1]["move"]["kind"] == "rule"
    assert shown["now"]["range"] == shown["moves"][-1]["after"]["range"]
    page = tally("dispute", "show", 0, "--coordinator", court.db).out
    assert "contests 0–2 of claim 0" in page
    assert "finds prover at fault" in page
    assert "because: " in page
    assert shown["reasons"][0] in page


def test_an_honest_claim_is_not_contested(tally: Tally, court: Court, calls: Path) -> None:
    tally("prover", calls / "honest", *court.at("prover"), "--once")
    told = tally("challenger", *court.at("challenger"))
    assert (told.code, told.err) == (0, "claim 0: nothing to contest\n")
    assert court.status()["disputes"] == []
    assert tally("prover", calls / "honest", *court.at("prover"), "--once").code == 0


def test_a_run_that_nobody_could_defend_is_not_claimed(tally: Tally, court: Court, calls: Path, tmp_path: Path) -> None:
    shutil.copytree(calls / "honest", tmp_path / "torn")
    with (tmp_path / "torn" / "transcript.jsonl").open("r+b") as file:
        file.truncate(100)
    told = tally("prover", tmp_path / "torn", *court.at("prover"), "--once")
    assert (told.code, told.out) == (4, "")
    assert "transcript.jsonl" in told.complaint
    assert court.status()["claims"] == []


def test_a_challenger_looks_only_where_it_is_told_to(tally: Tally, court: Court, calls: Path) -> None:
    tally("prover", calls / "forged", *court.at("prover"), "--once")
    assert tally("challenger", *court.at("challenger"), "--claim", 5).code == 0
    assert court.status()["disputes"] == []
    tally("challenger", *court.at("challenger"), "--claim", 0)
    assert len(court.status()["disputes"]) == 1


def test_a_member_stakes_and_is_asked_for_nothing_else(tally: Tally, court: Court) -> None:
    told = tally("committee", *court.at("member"))
    assert (told.code, told.err) == (0, f"member {court.keys['member'].public[:12]}: stake 200,000\n")
    told = json.loads(tally("coordinator", "show", "--db", court.db, "--json").out)
    assert told["purses"][court.keys["member"].public] == 1_800_000


def test_offices_need_their_keys(tally: Tally, court: Court) -> None:
    told = tally("committee", *court.at("prover"))
    assert (told.code, told.complaint) == (2, "tally: --key: the rules do not list this member")
    told = tally("rule", *court.at("prover"))
    assert (told.code, told.complaint) == (2, "tally: --key: the rules name another referee")


def test_what_is_not_there_is_named(tally: Tally, court: Court, calls: Path, tmp_path: Path) -> None:
    assert tally("prover", tmp_path / "nowhere", *court.at("prover")).code == 4
    told = tally("prover", calls / "honest", "--coordinator", tmp_path / "no.db", "--key", court.folder / "prover")
    assert told.code == 4
    assert "no.db" in told.complaint
    told = tally("prover", calls / "honest", "--coordinator", court.db, "--key", tmp_path / "no.key")
    assert told.code == 2
    assert "tally new-key" in told.complaint


def test_two_programs_of_one_party_do_not_get_in_each_others_way(
    tally: Tally, court: Court, calls: Path, tmp_path: Path
) -> None:
    with Workspace(tmp_path / "work"):
        told = tally("prover", calls / "honest", *court.at("prover"), "--work", tmp_path / "work")
        assert told.code == 4
        assert "another program of this party is at work here" in told.complaint
    assert tally("prover", calls / "honest", *court.at("prover"), "--once", "--work", tmp_path / "work").code == 0


def test_without_money_no_claim_is_posted(tally: Tally, court: Court, calls: Path) -> None:
    taken = tally("coordinator", "grant", court.keys["prover"].public, 1_999_999, "--out", "--db", court.db)
    assert taken.out == "1\n"
    told = tally("prover", calls / "honest", *court.at("prover"), "--once")
    assert told.code == 2
    assert "the purse holds 1" in told.err
