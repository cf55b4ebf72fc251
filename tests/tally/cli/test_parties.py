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

from tallystick.disputes.parties.player import Workspace
from tallystick.formats.signing import SigningKey
from tallystick.programs.encoding import graph_root
from tallystick.tally.attacks.provers import forge_swapped_layer
from tallystick.verdicts.opening.budget import budget_of
from tests.support.attacks.disputes.aligned import aligned_engine, measured, open_one_round
from tests.support.attacks.disputes.scene import WEIGHT, Scene, record_calls

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
    named = tally("dispute", "show", 0, "--coordinator", setup.db, "--run", calls / "honest").out
    assert named == page, "it ended at a record, and not at an operator of a module"


def test_an_honest_claim_is_not_contested(tally: Tally, setup: DisputeSetup, calls: Path) -> None:
    tally("prover", calls / "honest", *setup.at("prover"), "--once")
    result = tally("challenger", *setup.at("challenger"))
    assert result.code == 0
    first, *unseen = result.err.splitlines()
    assert first == "claim 0: nothing to contest"
    assert unseen == [
        "    could not have contested: outputs that are off within the limits; "
        "one matrix product in BF16, F16, int8 by row leaves them (2 tried)"
    ]
    assert setup.status()["disputes"] == []
    assert tally("prover", calls / "honest", *setup.at("prover"), "--once").code == 0


def test_a_run_that_nobody_could_defend_is_not_claimed(
    tally: Tally, setup: DisputeSetup, calls: Path, tmp_path: Path
) -> None:
    shutil.copytree(calls / "honest", tmp_path / "torn")
    with (tmp_path / "torn" / "transcript.jsonl").open("r+b") as file:
        file.truncate(100)
    result = tally("prover", tmp_path / "torn", *setup.at("prover"), "--once")
    assert (result.code, result.out) == (1, "")
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


def test_a_claim_can_be_planted_and_only_once(tally: Tally, setup: DisputeSetup, calls: Path) -> None:
    result = tally("prover", calls / "honest", *setup.at("prover"), "--once", "--seal", "ab" * 32)
    assert result.out == "claim 0\n"
    shown = json.loads(tally("coordinator", "show", "--db", setup.db, "--json").out)
    assert shown["claims"][0]["seal"] == "ab" * 32
    assert tally("prover", calls / "honest", *setup.at("prover"), "--once", "--seal", "ab" * 32).code == 0
    result = tally("prover", calls / "honest", *setup.at("prover"), "--once", "--seal", "cd" * 32)
    assert (result.code, result.complaint) == (2, "tally: --seal: claim 0 stands already, with another seal")
    result = tally("prover", calls / "honest", *setup.at("prover"), "--once", "--seal", "cd")
    assert (result.code, result.complaint) == (2, "tally: --seal cd: not 64 lower-case hexadecimal digits")


@pytest.fixture(scope="module")
def aligned(calls: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In `claim` an opening whose errors are aligned, in `budget.json` what those of honest ones add up to."""
    folder, scene = tmp_path_factory.mktemp("aligned"), Scene(calls / "no run", calls / "honest")
    open_one_round(scene, folder / "claim", aligned_engine())
    for call in (1, 3):
        open_one_round(scene, folder / f"honest{call}", call=call)
    runs = [measured(folder / f"honest{call}") for call in (1, 3)]
    (folder / "budget.json").write_bytes(budget_of(graph_root(scene.recorded.graph), runs).to_bytes() + b"\n")
    return folder


def test_errors_that_add_up_are_contested_by_whoever_brings_a_budget(
    tally: Tally, setup: DisputeSetup, aligned: Path
) -> None:
    assert tally("prover", aligned / "claim", *setup.at("prover"), "--once").out == "claim 0\n"
    work = setup.folder / "without"
    assert "nothing to contest" in tally("challenger", *setup.at("challenger"), "--work", work).err
    result = tally("challenger", *setup.at("challenger"), "--budget", aligned / "budget.json")
    assert "claim 0: differs: the errors of all operators add up" in result.err
    for _ in range(4):
        tally("prover", aligned / "claim", *setup.at("prover"), "--once")
        tally("challenger", *setup.at("challenger"), "--budget", aligned / "budget.json")
    tally("rule", *setup.at("referee"), "--budget", aligned / "budget.json")
    (dispute,) = setup.status()["disputes"]
    assert dispute["fault"] == "prover"


@pytest.mark.parametrize(
    "command", [("challenger",), ("committee",), ("rule",), ("dispute", "play", 0)], ids=lambda words: words[-1]
)
@pytest.mark.parametrize("option", ["--profile", "--budget"])
def test_calibrations_that_are_none_are_refused(
    tally: Tally, setup: DisputeSetup, command: tuple[object, ...], option: str
) -> None:
    (setup.folder / "odd.json").write_text('{"version":1}')
    result = tally(*command, *setup.at("referee"), option, setup.folder / "odd.json")
    assert (result.code, "odd.json: " in result.complaint) == (4, True)
    result = tally(*command, *setup.at("referee"), option, setup.folder / "none.json")
    assert (result.code, "none.json: not there" in result.complaint) == (4, True)


def test_calibrations_need_a_judge(tally: Tally, setup: DisputeSetup, calls: Path, aligned: Path) -> None:
    budget = ("--budget", aligned / "budget.json")
    result = tally("prover", calls / "honest", *setup.at("prover"), "--once", *budget)
    assert (result.code, "--concede-if-wrong" in result.complaint) == (2, True)
    result = tally("prover", calls / "honest", *setup.at("prover"), "--once", "--concede-if-wrong", *budget)
    assert (result.code, result.out) == (0, "claim 0\n")
    result = tally("coordinator", "serve", "--db", setup.db, *budget)
    assert (result.code, "--referee" in result.complaint) == (2, True)
    none = setup.folder / "none.json"
    result = tally("coordinator", "serve", "--db", setup.db, "--referee", setup.folder / "referee", "--budget", none)
    assert (result.code, "none.json: not there" in result.complaint) == (4, True)


def test_one_graph_has_one_budget(tally: Tally, setup: DisputeSetup, aligned: Path) -> None:
    twice = ("--budget", aligned / "budget.json") * 2
    result = tally("rule", *setup.at("referee"), *twice)
    assert (result.code, result.complaint) == (2, "tally: --budget: two budgets for one graph")
    assert tally("rule", *setup.at("referee"), *twice[:2]).code == 0


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
