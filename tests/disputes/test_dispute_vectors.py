"""The published vectors of disputes and committees, and the examples on top of their pages."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.canonical_json import encode
from tallystick.core.digests import Digest, digest
from tallystick.core.errors import MalformedError, RuleError
from tallystick.disputes.game import moves, voting
from tallystick.disputes.game.game import TRANSITIONS, apply, convict
from tallystick.disputes.game.moves import Evidence, read_move
from tallystick.disputes.game.state import (
    Clocks,
    Dispute,
    MemberStake,
    Phase,
    PostedClaim,
    Round,
    Rules,
    State,
    bounds,
    rounds,
)
from tallystick.verdicts.verdict import Fault
from tests.support.simulator.trees import Run

ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "vectors"
FOUND = {
    path.relative_to(VECTORS).with_suffix("").as_posix(): json.loads(path.read_text())
    for folder in ("dispute", "committee")
    for path in sorted((VECTORS / folder).iterdir())
}
GAMES = {case["what"]: case for case in FOUND["dispute/games"]}


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    held = list(sys.path)
    try:
        return runpy.run_path(str(ROOT / "scripts" / "make_dispute_vectors.py"))
    finally:
        sys.path[:] = held


def test_making_the_vectors_again_gives_the_same(script: dict[str, Any]) -> None:
    assert json.loads(json.dumps(script["vectors"]())) == FOUND


# ---- moves
@pytest.mark.parametrize("case", FOUND["dispute/moves"], ids=lambda case: case["what"])
def test_moves_are_read(case: dict[str, str]) -> None:
    line = case["text"].encode()
    move = read_move(line)
    assert (move.kind, move.to_bytes()) == (case["what"], line)
    assert digest("blob", move.to_bytes()) == case["blob"]


def test_there_is_a_vector_of_every_move() -> None:
    assert {case["what"] for case in FOUND["dispute/moves"]} == set(TRANSITIONS)


@pytest.mark.parametrize("case", FOUND["dispute/refused"], ids=lambda case: case["what"])
def test_what_is_no_move_is_refused(case: dict[str, str]) -> None:
    with pytest.raises(MalformedError, match="move"):
        read_move(bytes.fromhex(case["hex"]))


# ---- partitions and committees
def test_partitions() -> None:
    for case in FOUND["dispute/partitions"]:
        assert bounds(case["low"], case["high"], case["ways"]) == tuple(case["bounds"])
        assert rounds(case["high"] - case["low"], case["ways"]) == case["rounds"]


def test_draws() -> None:
    for case in FOUND["committee/draws"]:
        pool = tuple(f"{1000 + place:064x}" for place in range(case["pool"]))
        found = voting.draw_members(pool, case["seats"], case["nonce"], case["dispute"], case["round"])
        assert [pool.index(name) for name in found] == case["drawn"]


def test_votes_and_seals() -> None:
    for case in FOUND["committee/votes"]:
        given = (case["dispute"], case["round"], case["member"], Fault(case["vote"]), case["salt"])
        assert voting.commitment(*given) == case["commitment"]
    for case in FOUND["committee/seals"]:
        assert voting.seal(case["prover"], Fault(case["answer"]), case["salt"]) == case["seal"]


def test_findings() -> None:
    for case in FOUND["committee/findings"]:
        votes = tuple(None if vote is None else Fault(vote) for vote in case["votes"])
        assert voting.majority(votes) is Fault(case["finding"])


# ---- evidence
@pytest.mark.parametrize("case", FOUND["dispute/evidence"], ids=lambda case: case["what"])
def test_evidence(case: dict[str, Any]) -> None:
    low, size = case["low"], case["size"]
    clocks = Clocks(1, 1, 0)
    dispute = Dispute(0, "", 1, case["root"], size, low, low + 1, Phase.RULING, clocks, 0, 0, leaf=case["leaf"])
    evidence = Evidence.from_bytes(encode(case["evidence"]), "evidence")
    try:
        convict(dispute, evidence)
        verdict = "convicted"
    except RuleError as error:
        verdict = "refused" if error.code == "evidence" else error.code
    assert verdict == case["verdict"]


# ---- games
@pytest.mark.parametrize("what", GAMES)
def test_a_game_goes_as_it_went(what: str, script: dict[str, Any]) -> None:
    case, made = GAMES[what], script["games"].__globals__
    state = State(Rules.from_bytes(case["rules"].encode(), "rules"))
    for entry in case["moves"]:
        move = read_move(entry["move"].encode())
        code = ""
        try:
            state = apply(state, move, entry["time"])
        except RuleError as error:
            code = error.code
        expected = {"refused": code} if code else {"state": made["state_digest"](state)}
        assert {key: entry[key] for key in expected} == expected
    assert made["as_json"](state) == case["final"]


def test_games_hold_every_move_and_nearly_every_refusal() -> None:
    tried = [entry for case in GAMES.values() for entry in case["moves"]]
    accepted = {json.loads(entry["move"])["kind"] for entry in tried if "state" in entry}
    codes = {entry["refused"] for entry in tried if "refused" in entry}
    assert accepted == set(TRANSITIONS)
    assert len(codes) >= 28


# ---- pages
def page(name: str) -> str:
    return (ROOT / "spec" / f"{name}.md").read_text()


def test_the_example_of_a_move() -> None:
    move = moves.Contest(actor=f"{6:064x}", claim=0, low=0, high=9, value=156_000)
    shown = page("move").split("\n\n")[1].strip()
    assert shown == move.to_bytes().decode().replace("0" * 60, "0000…", 1)


@pytest.mark.parametrize("kind", TRANSITIONS)
def test_the_page_of_moves_names_every_field(kind: str) -> None:
    model = type(next(read_move(c["text"].encode()) for c in FOUND["dispute/moves"] if c["what"] == kind))
    (row,) = (line for line in page("move").splitlines() if line.startswith(f"| `{kind}` |"))
    assert [name for name in model.model_fields if name not in ("kind", "actor") and f"`{name}`" not in row] == []


def test_the_example_of_a_committee() -> None:
    text = page("committee")
    drawn = voting.draw_members(tuple(f"{place:064x}" for place in range(1, 6)), 3, "ab" * 32, 0, 0)
    assert "drawn  " + ", ".join(str(int(name, 16)) for name in drawn) + "\n" in text
    assert voting.commitment(0, 0, f"{1:064x}", Fault.PROVER, "5a" * 32) in text
    assert voting.seal(f"{5:064x}", Fault.CHALLENGER, "5a" * 32) in text


def test_the_example_of_evidence() -> None:
    evidence = Run(0, 3, 2, fault=(0, 1), is_edge=True).below(0).evidence(1)
    shortened = re.sub(r"(sha256:)?([0-9a-f]{4})[0-9a-f]{60}", r"\1\2…", evidence.to_bytes().decode())
    assert shortened == re.sub(r"\n +", "", page("evidence").split("\n\n")[1].strip())


def test_the_page_of_disputes_has_the_table_of_the_game() -> None:
    assert table() in page("dispute")


def table() -> str:
    lines = ["| move | for | in phase |", "|---|---|---|"]
    for kind, line in TRANSITIONS.items():
        if line.phases:
            phases = [phase.value for phase in Phase if phase in line.phases]
            every = [phase.value for phase in Phase if phase is not Phase.SETTLED]
            where = "every one but settled" if phases == every else " ".join(f"`{each}`" for each in phases)
            lines.append(f"| `{kind}` | {line.who.value} | {where} |")
    return "\n".join(lines)


@pytest.mark.parametrize("field", Rules.model_fields)
def test_the_page_of_disputes_names_every_rule(field: str) -> None:
    rows = [line.split("|")[1] for line in page("dispute").splitlines() if line.startswith("| `")]
    assert any(f"`{field}`" in row for row in rows)


@pytest.mark.parametrize("kind", [PostedClaim, Dispute, MemberStake, Round, Clocks])
def test_the_page_of_disputes_names_every_part_of_a_state(kind: type) -> None:
    text = page("dispute").split("## State")[1]
    assert [name for name in kind.__dataclass_fields__ if f'"{name}"' not in text] == []


def test_every_code_of_the_game_is_on_a_page() -> None:
    text = page("dispute") + page("committee") + page("evidence")
    tried = [entry for case in GAMES.values() for entry in case["moves"]]
    codes = {entry["refused"] for entry in tried if "refused" in entry}
    assert [code for code in sorted(codes) if f"`{code}`" not in text] == []


@pytest.mark.parametrize("name", ["move", "dispute", "committee", "evidence"])
def test_every_vector_that_a_page_names_exists(name: str) -> None:
    named = re.findall(r"`(vectors/[^`]+)`", page(name))
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_a_digest_of_a_state_is_one() -> None:
    assert Digest(GAMES["a party gives up"]["moves"][0]["state"]).startswith("sha256:")
