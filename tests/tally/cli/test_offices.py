"""`tally dispute pause`, `resume`, `seal`, `unseal`, `retire`, `withdraw`: each for the party that the rules name."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from tallystick.core.digests import Digest, leaf_hash
from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator
from tallystick.disputes.game.moves import Contest, Convene, Disclose, Draw, Enlist, Move, Post, Reveal, Tally, Vote
from tallystick.disputes.game.voting import commitment
from tallystick.disputes.parties.game_view import BoardCache
from tallystick.formats.signing import SigningKey
from tallystick.verdicts.verdict import Fault
from tests.tally.cli.conftest import TurnedClock

Tally_ = Callable[..., Any]
PARTIES = ("prover", "challenger", "guardian", "planter", "member")
LEAF = leaf_hash(b"the only record").hex()
SALT = "5a" * 32


class DisputeSetup:
    """A coordinator with a guardian and a planter, that waits a second for a referee; everybody's key beside it."""

    def __init__(self, folder: Path, tally: Tally_, clock: TurnedClock, **rules: object) -> None:
        self.folder, self.db, self.clock = folder, folder / "court.db", clock
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
        self.clock.now += 1
        self.make("member", Convene(actor=member, dispute=0))
        with closing(LocalCoordinator.open(str(self.db))) as place:
            place.own().submit(Draw(actor=place.own().party, dispute=0, nonce=place.next_nonce()))
        hidden = commitment(0, 0, member, vote, SALT)
        self.make("member", Vote(actor=member, dispute=0, commitment=hidden))
        self.make("member", Disclose(actor=member, dispute=0, vote=vote, salt=SALT))
        self.make("member", Tally(actor=member, dispute=0))


@pytest.fixture
def setup(tally: Tally_, clock: TurnedClock, tmp_path: Path) -> DisputeSetup:
    return DisputeSetup(tmp_path, tally, clock)


def status(tally: Tally_, setup: DisputeSetup) -> Any:
    return json.loads(tally("dispute", "status", "--coordinator", setup.db, "--json").out)


def test_the_guardian_stops_the_clocks_and_lets_them_go_on(tally: Tally_, setup: DisputeSetup) -> None:
    setup.post("ab" * 32)
    result = tally("dispute", "pause", *setup.at("guardian"))
    assert (result.code, result.out.split(" in ")[0]) == (0, "paused; over by itself")
    assert 0 < status(tally, setup)["paused"] <= 3 * 86400
    assert tally("dispute", "status", "--coordinator", setup.db).out.startswith("paused: no clock runs; over by itself")
    result = tally("dispute", "open", 0, *setup.at("challenger"))
    assert (result.code, "paused" in result.complaint) == (2, True)
    assert tally("dispute", "resume", *setup.at("guardian")).out == "resumed\n"
    assert status(tally, setup)["paused"] is None
    assert tally("dispute", "open", 0, *setup.at("challenger")).out == "dispute 0\n"


def test_nobody_else_pauses_and_nobody_again_at_once(tally: Tally_, setup: DisputeSetup) -> None:
    result = tally("dispute", "pause", *setup.at("prover"))
    assert (result.code, "this move is for the guardian" in result.complaint) == (2, True)
    assert tally("dispute", "pause", *setup.at("guardian")).code == 0
    result = tally("dispute", "resume", *setup.at("prover"))
    assert (result.code, "this move is for the guardian" in result.complaint) == (2, True)
    assert tally("dispute", "resume", *setup.at("guardian")).code == 0
    result = tally("dispute", "pause", *setup.at("guardian"))
    assert (result.code, "the last pause is too recent" in result.complaint) == (2, True)


def test_time_that_runs_cannot_be_resumed(tally: Tally_, setup: DisputeSetup) -> None:
    result = tally("dispute", "resume", *setup.at("guardian"))
    assert (result.code, "game time is not stopped" in result.complaint) == (2, True)


def test_a_pause_needs_a_key_and_a_coordinator(tally: Tally_, setup: DisputeSetup) -> None:
    result = tally("dispute", "pause", "--coordinator", setup.db, "--key", setup.folder / "none")
    assert (result.code, "tally new-key" in result.complaint) == (2, True)
    result = tally("dispute", "pause", "--coordinator", setup.folder / "none.db", "--key", setup.folder / "guardian")
    assert result.code == 4


def sealed(tally: Tally_, setup: DisputeSetup, answer: Fault) -> str:
    """The salt of a claim that was planted and is settled; its one member found the prover at fault."""
    result = tally("dispute", "seal", setup.party("prover"), "--answer", answer.value)
    assert result.code == 0
    (_, seal), (_, salt) = (line.split() for line in result.out.splitlines())
    setup.post(seal)
    setup.dispute(Fault.PROVER)
    return str(salt)


def test_the_planter_unseals_and_whoever_voted_otherwise_loses_its_stake(tally: Tally_, setup: DisputeSetup) -> None:
    salt = sealed(tally, setup, Fault.CHALLENGER)
    shown = ("--answer", "challenger", "--salt", salt)
    result = tally("dispute", "unseal", 0, *shown, *setup.at("prover"))
    assert (result.code, "this move is for the planter" in result.complaint) == (2, True)
    for wrong in (("--answer", "nobody", "--salt", salt), ("--answer", "challenger", "--salt", "11" * 32)):
        result = tally("dispute", "unseal", 0, *wrong, *setup.at("planter"))
        assert (result.code, "this is not what was sealed" in result.complaint) == (2, True)
    result = tally("dispute", "unseal", 0, *shown, *setup.at("planter"))
    said = f"dispute 0 was planted: 1 members voted otherwise\nmember {setup.party('member')}\n"
    assert (result.code, result.out) == (0, said)
    result = tally("dispute", "unseal", 0, *shown, *setup.at("planter"))
    assert (result.code, "unsealed already" in result.complaint) == (2, True)
    result = tally("dispute", "retire", *setup.at("member"))
    assert (result.code, "this member has no stake" in result.complaint) == (2, True)


def test_members_that_voted_rightly_keep_their_stake_and_take_it_out(tally: Tally_, setup: DisputeSetup) -> None:
    salt = sealed(tally, setup, Fault.PROVER)
    result = tally("dispute", "unseal", 0, "--answer", "prover", "--salt", salt, *setup.at("planter"))
    assert (result.code, result.out) == (0, "dispute 0 was planted: 0 members voted otherwise\n")
    setup.clock.now += 2  # as long as a vote can be held against the member, one window and one delay
    assert tally("dispute", "retire", *setup.at("member")).out == "retired\n"
    setup.clock.now += 1
    assert tally("dispute", "withdraw", *setup.at("member")).out == "still owed 0\n"
    result = tally("dispute", "withdraw", *setup.at("member"))
    assert (result.code, "nothing is owed" in result.complaint) == (2, True)
    assert tally("coordinator", "grant", setup.party("member"), 1, "--db", setup.db).out == "2002001\n"


def test_what_is_not_settled_is_not_unsealed(tally: Tally_, setup: DisputeSetup) -> None:
    setup.post("ab" * 32)
    challenger = setup.party("challenger")
    setup.make("challenger", Contest(actor=challenger, value=152_000, claim=0, low=0, high=1))
    shown = ("--answer", "prover", "--salt", SALT)
    result = tally("dispute", "unseal", 0, *shown, *setup.at("planter"))
    assert (result.code, "no unseal while the dispute is at leaf" in result.complaint) == (2, True)
    assert tally("dispute", "unseal", 7, *shown, *setup.at("planter")).code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("seal", "0" * 63, "--answer", "prover"), "no key"),
        (("seal", "0" * 64, "--answer", "both"), "--answer: must be prover, challenger or nobody, not 'both'"),
        (("unseal", 0, "--answer", "prover", "--salt", "xyz"), "--salt xyz"),
        (("unseal", 0, "--answer", "both", "--salt", SALT), "--answer: must be"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tally: Tally_, setup: DisputeSetup, arguments: tuple[object, ...], said: str
) -> None:
    options = setup.at("planter") if arguments[0] == "unseal" else ()
    result = tally("dispute", *arguments, *options)
    assert (result.code, said in result.complaint) == (2, True)
