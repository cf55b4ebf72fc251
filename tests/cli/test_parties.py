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


class DisputeSetup:
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
def setup(tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DisputeSetup:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return DisputeSetup(tmp_path, tally, withdrawal_delay=1, challenge_window=3600, committee=1)


def test_a_swapped_layer_is_found_by_commands_and_the_claim_is_slashed(
    tally: Tally, setup: DisputeSetup, calls: Path
) -> None:
    """The forger's command answers from its honest kernels, so it cannot defend what it recorded."""
    assert tally("prover", calls / "forged", *setup.at("prover"), "--once").out == "claim 0\n"
    result = tally("challenger", *setup.at("challenger"), "--whole")
    assert result.code == 0
    assert "dispute 0: records 0–2 of 3" in result.err
    for _ in range(20):
        prover = tally("prover", calls / "forged", *setup.at("prover"), "--once")
        tally("challenger", *setup.at("challenger"))
        tally("rule", *setup.at("referee"))
        if setup.status()["disputes"][0]["phase"] == "settled":
            break
    found = setup.status()
    assert (found["disputes"][0]["fault"], found["claims"][0]["status"]) == ("prover", "slashed")
    prover = tally("prover", calls / "forged", *setup.at("prover"), "--once")
    assert (prover.code, prover.out) == (1, "claim 0\n")
    shown = json.loads(tally("dispute", "show", 0, "--coordinator", setup.db, "--json").out)
    assert shown["moves"][0]["move"]["kind"] == "contest"
    assert shown["moves"][-1]["move"]["kind"] == "rule"
    assert shown["now"]["range"] == shown["moves"][-1]["after"]["range"]
    page = tally("dispute", "show", 0, "--coordinator", setup.db).out
    assert "contests 0–2 of claim 0" in page
    assert "finds prover at fault" in page
    assert "because: " in page
    assert shown["reasons"][0] in page


def test_an_honest_claim_is_not_contested(tally: Tally, setup: DisputeSetup, calls: Path) -> None:
    tally("prover", calls / "honest", *setup.at("prover"), "--once")
    result = tally("challenger", *setup.at("challenger"))
    assert (result.code, result.err) == (0, "claim 0: nothing to contest\n")
    assert setup.status()["disputes"] == []
    assert tally("prover", calls / "honest", *setup.at("prover"), "--once").code == 0


def test_a_run_that_nobody_could_defend_is_not_claimed(
    tally: Tally, setup: DisputeSetup, calls: Path, tmp_path: Path
) -> None:
    shutil.copytree(calls / "honest", tmp_path / "torn")
    with (tmp_path / "torn" / "transcript.jsonl").open("r+b") as file:
        file.truncate(100)
    result = tally("prover", tmp_path / "torn", *setup.at("prover"), "--once")
    assert (result.code, result.out) == (4, "")
    assert "transcript.jsonl" in result.complaint
    assert setup.status()["claims"] == []


def test_a_challenger_looks_only_where_it_is_told_to(tally: Tally, setup: DisputeSetup, calls: Path) -> None:
    tally("prover", calls / "forged", *setup.at("prover"), "--once")
    assert tally("challenger", *setup.at("challenger"), "--claim", 5).code == 0
    assert setup.status()["disputes"] == []
    tally("challenger", *setup.at("challenger"), "--claim", 0)
    assert len(setup.status()["disputes"]) == 1


def test_a_member_stakes_and_is_asked_for_nothing_else(tally: Tally, setup: DisputeSetup) -> None:
    result = tally("committee", *setup.at("member"))
    assert (result.code, result.err) == (0, f"member {setup.keys['member'].public[:12]}: stake 200,000\n")
    result = json.loads(tally("coordinator", "show", "--db", setup.db, "--json").out)
    assert result["purses"][setup.keys["member"].public] == 1_800_000


def test_offices_need_their_keys(tally: Tally, setup: DisputeSetup) -> None:
    result = tally("committee", *setup.at("prover"))
    assert (result.code, result.complaint) == (2, "tally: --key: the rules do not list this member")
    result = tally("rule", *setup.at("prover"))
    assert (result.code, result.complaint) == (2, "tally: --key: the rules name another referee")


def test_what_is_not_there_is_named(tally: Tally, setup: DisputeSetup, calls: Path, tmp_path: Path) -> None:
    assert tally("prover", tmp_path / "nowhere", *setup.at("prover")).code == 4
    result = tally("prover", calls / "honest", "--coordinator", tmp_path / "no.db", "--key", setup.folder / "prover")
    assert result.code == 4
    assert "no.db" in result.complaint
    result = tally("prover", calls / "honest", "--coordinator", setup.db, "--key", tmp_path / "no.key")
    assert result.code == 2
    assert "tally new-key" in result.complaint


def test_two_programs_of_one_party_do_not_get_in_each_others_way(
    tally: Tally, setup: DisputeSetup, calls: Path, tmp_path: Path
) -> None:
    with Workspace(tmp_path / "work"):
        result = tally("prover", calls / "honest", *setup.at("prover"), "--work", tmp_path / "work")
        assert result.code == 4
        assert "another program of this party is at work here" in result.complaint
    assert tally("prover", calls / "honest", *setup.at("prover"), "--once", "--work", tmp_path / "work").code == 0


def test_without_money_no_claim_is_posted(tally: Tally, setup: DisputeSetup, calls: Path) -> None:
    taken = tally("coordinator", "grant", setup.keys["prover"].public, 1_999_999, "--out", "--db", setup.db)
    assert taken.out == "1\n"
    result = tally("prover", calls / "honest", *setup.at("prover"), "--once")
    assert result.code == 2
    assert "the purse holds 1" in result.err
