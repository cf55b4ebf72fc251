"""`tally dispute pause`, `resume`, `seal`, `unseal`, `retire`, `withdraw`: each for the party that the rules name."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from tallystick.attestation.signing import SigningKey
from tallystick.commitments.digests import Digest
from tallystick.commitments.tree import leaf_hash
from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator
from tallystick.disputes.game.committee import commitment
from tallystick.disputes.game.moves import (
    Contest,
    Convene,
    Disclose,
    Draw,
    Enlist,
    Move,
    Post,
    Reveal,
    Tally,
    Vote,
)
from tallystick.disputes.parties.board_cache import BoardCache
from tallystick.judging.fault import Fault

Tally_ = Callable[..., Any]
PARTIES = ("prover", "challenger", "guardian", "planter", "member")
LEAF = leaf_hash(b"the only record").hex()
SALT = "5a" * 32


class Court:
    """A coordinator with a guardian and a planter, that waits a second for a referee; everybody's key beside it."""

    def __init__(self, folder: Path, tally: Tally_, **rules: object) -> None:
        self.folder, self.db = folder, folder / "court.db"
        self.keys = {name: SigningKey.generate() for name in PARTIES}
        for name, key in self.keys.items():
            key.write(folder / name)
        offices = {name: self.party(name) for name in ("guardian", "planter")}
        windows = ("referee_window", "appeal_window", "withdrawal_delay")
        said = dict.fromkeys(windows, 1) | offices | {"committee": 1, "appeals": 0, "members": [self.party("member")]}
        (folder / "rules.json").write_text(json.dumps(said | rules))
        assert tally("coordinator", "init", "--db", self.db, "--rules", folder / "rules.json").code == 0
        for name in PARTIES:
            assert tally("coordinator", "grant", self.party(name), 2_000_000, "--db", self.db).code == 0

    def party(self, name: str) -> str:
        return self.keys[name].public

    def at(self, name: str) -> tuple[object, ...]:
        return ("--coordinator", self.db, "--key", self.folder / name)

    def make(self, name: str, move: Move) -> None:
        with closing(LocalCoordinator.open(str(self.db))) as place:
            place.connect(self.keys[name]).submit(move)

    def data(self) -> Digest:
        """The digest of files that lie at the board."""
        with closing(LocalCoordinator.open(str(self.db))) as place:
            board = place.board(self.keys["prover"])
            return BoardCache(board, self.folder / "data").publish({"nothing.txt": b"nothing"})

    def post(self, seal: str) -> None:
        """A claim of a single operator."""
        prover = self.party("prover")
        claim = Post(actor=prover, value=1_000_000, root=LEAF, size=1, levels=1, statement=self.data(), seal=seal)
        self.make("prover", claim)

    def dispute(self, vote: Fault) -> None:
        """Claim 0 is contested, and settled by the one member's vote."""
        challenger, member = self.party("challenger"), self.party("member")
        self.make("member", Enlist(actor=member, value=200_000))
        price = 150_000 + 2_000
        self.make("challenger", Contest(actor=challenger, value=price, claim=0, low=0, high=1))
        self.make(
            "prover", Reveal(actor=self.party("prover"), dispute=0, turn=0, leaf=LEAF, proof=(), data=self.data())
        )
        time.sleep(1.1)
        self.make("member", Convene(actor=member, dispute=0))
        with closing(LocalCoordinator.open(str(self.db))) as place:
            place.own().submit(Draw(actor=place.own().party, dispute=0, nonce=place.next_nonce()))
        hidden = commitment(0, 0, member, vote, SALT)
        self.make("member", Vote(actor=member, dispute=0, commitment=hidden))
        self.make("member", Disclose(actor=member, dispute=0, vote=vote, salt=SALT))
        self.make("member", Tally(actor=member, dispute=0))


@pytest.fixture
def court(tally: Tally_, tmp_path: Path) -> Court:
    return Court(tmp_path, tally)


def status(tally: Tally_, court: Court) -> Any:
    return json.loads(tally("dispute", "status", "--coordinator", court.db, "--json").out)


def test_the_guardian_stops_the_clocks_and_lets_them_go_on(tally: Tally_, court: Court) -> None:
    court.post("ab" * 32)
    told = tally("dispute", "pause", *court.at("guardian"))
    assert (told.code, told.out.split(" in ")[0]) == (0, "paused; over by itself")
    assert 0 < status(tally, court)["paused"] <= 3 * 86400
    assert tally("dispute", "status", "--coordinator", court.db).out.startswith("paused: no clock runs; over by itself")
    told = tally("dispute", "open", 0, *court.at("challenger"))
    assert (told.code, "paused" in told.complaint) == (2, True)
    assert tally("dispute", "resume", *court.at("guardian")).out == "resumed\n"
    assert status(tally, court)["paused"] is None
    assert tally("dispute", "open", 0, *court.at("challenger")).out == "dispute 0\n"


def test_nobody_else_pauses_and_nobody_again_at_once(tally: Tally_, court: Court) -> None:
    told = tally("dispute", "pause", *court.at("prover"))
    assert (told.code, "this move is for the guardian" in told.complaint) == (2, True)
    assert tally("dispute", "pause", *court.at("guardian")).code == 0
    told = tally("dispute", "resume", *court.at("prover"))
    assert (told.code, "this move is for the guardian" in told.complaint) == (2, True)
    assert tally("dispute", "resume", *court.at("guardian")).code == 0
    told = tally("dispute", "pause", *court.at("guardian"))
    assert (told.code, "the last pause is too recent" in told.complaint) == (2, True)


def test_time_that_runs_cannot_be_resumed(tally: Tally_, court: Court) -> None:
    told = tally("dispute", "resume", *court.at("guardian"))
    assert (told.code, "game time is not stopped" in told.complaint) == (2, True)


def test_a_pause_needs_a_key_and_a_coordinator(tally: Tally_, court: Court) -> None:
    told = tally("dispute", "pause", "--coordinator", court.db, "--key", court.folder / "none")
    assert (told.code, "tally new-key" in told.complaint) == (2, True)
    told = tally("dispute", "pause", "--coordinator", court.folder / "none.db", "--key", court.folder / "guardian")
    assert told.code == 4


def sealed(tally: Tally_, court: Court, answer: Fault) -> str:
    """The salt of a claim that was planted and is settled; its one member found the prover at fault."""
    told = tally("dispute", "seal", court.party("prover"), "--answer", answer.value)
    assert told.code == 0
    (_, seal), (_, salt) = (line.split() for line in told.out.splitlines())
    court.post(seal)
    court.dispute(Fault.PROVER)
    return str(salt)


def test_the_planter_unseals_and_whoever_voted_otherwise_loses_its_stake(tally: Tally_, court: Court) -> None:
    salt = sealed(tally, court, Fault.CHALLENGER)
    shown = ("--answer", "challenger", "--salt", salt)
    told = tally("dispute", "unseal", 0, *shown, *court.at("prover"))
    assert (told.code, "this move is for the planter" in told.complaint) == (2, True)
    for wrong in (("--answer", "nobody", "--salt", salt), ("--answer", "challenger", "--salt", "11" * 32)):
        told = tally("dispute", "unseal", 0, *wrong, *court.at("planter"))
        assert (told.code, "this is not what was sealed" in told.complaint) == (2, True)
    told = tally("dispute", "unseal", 0, *shown, *court.at("planter"))
    said = f"dispute 0 was planted: 1 members voted otherwise\nmember {court.party('member')}\n"
    assert (told.code, told.out) == (0, said)
    told = tally("dispute", "unseal", 0, *shown, *court.at("planter"))
    assert (told.code, "unsealed already" in told.complaint) == (2, True)
    told = tally("dispute", "retire", *court.at("member"))
    assert (told.code, "this member has no stake" in told.complaint) == (2, True)


def test_members_that_voted_rightly_keep_their_stake_and_take_it_out(tally: Tally_, court: Court) -> None:
    salt = sealed(tally, court, Fault.PROVER)
    told = tally("dispute", "unseal", 0, "--answer", "prover", "--salt", salt, *court.at("planter"))
    assert (told.code, told.out) == (0, "dispute 0 was planted: 0 members voted otherwise\n")
    time.sleep(2.1)  # as long as a vote can be held against the member, one window and one delay
    assert tally("dispute", "retire", *court.at("member")).out == "retired\n"
    time.sleep(1.1)
    assert tally("dispute", "withdraw", *court.at("member")).out == "still owed 0\n"
    told = tally("dispute", "withdraw", *court.at("member"))
    assert (told.code, "nothing is owed" in told.complaint) == (2, True)
    assert tally("coordinator", "grant", court.party("member"), 1, "--db", court.db).out == "2002001\n"


def test_what_is_not_settled_is_not_unsealed(tally: Tally_, court: Court) -> None:
    court.post("ab" * 32)
    challenger = court.party("challenger")
    court.make("challenger", Contest(actor=challenger, value=152_000, claim=0, low=0, high=1))
    shown = ("--answer", "prover", "--salt", SALT)
    told = tally("dispute", "unseal", 0, *shown, *court.at("planter"))
    assert (told.code, "no unseal while the dispute is at leaf" in told.complaint) == (2, True)
    assert tally("dispute", "unseal", 7, *shown, *court.at("planter")).code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("seal", "0" * 63, "--answer", "prover"), "no key"),
        (("seal", "0" * 64, "--answer", "both"), "--answer both: prover, challenger, nobody"),
        (("unseal", 0, "--answer", "prover", "--salt", "xyz"), "--salt xyz"),
        (("unseal", 0, "--answer", "both", "--salt", SALT), "--answer both"),
    ],
)
def test_what_makes_no_sense_is_refused(tally: Tally_, court: Court, arguments: tuple[object, ...], said: str) -> None:
    options = court.at("planter") if arguments[0] == "unseal" else ()
    told = tally("dispute", *arguments, *options)
    assert (told.code, said in told.complaint) == (2, True)
