"""A game that tests play: a prover and a challenger over trees whose faults are known, brought to any phase."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tallystick.core.errors import RuleError
from tallystick.disputes.game import moves, voting
from tallystick.disputes.game.context import game_time, mover, time_left
from tallystick.disputes.game.game import apply
from tallystick.disputes.game.moves import Move
from tallystick.disputes.game.state import Dispute, Phase, Rules, State, bounds, broken, cut_places
from tallystick.disputes.game.voting import next_seats
from tallystick.verdicts.verdict import Fault
from tests.support.simulator.trees import NOTHING, Run, Tree


def party(number: int) -> str:
    """The name of a party."""
    return f"{number:064x}"


TREASURY, REFEREE, BEACON, PLANTER, GUARDIAN, PROVER, CHALLENGER, OTHER = map(party, range(8))
MEMBERS = tuple(party(100 + place) for place in range(16))
RULES = Rules(
    treasury=TREASURY,
    members=MEMBERS,
    referee=REFEREE,
    beacon=BEACON,
    planter=PLANTER,
    guardian=GUARDIAN,
    ways=4,
    committee=3,
)
SALT = "5a" * 32
NONCE = "ab" * 32
WRONG = Run(0, steps=9, width=7, fault=(5, 3))
"""Nine steps of seven operators, and operator 3 of step 5 is wrong."""
HONEST = replace(WRONG, fault=None)


class Play:
    """A game at a second; every accepted move is followed by a check of all invariants."""

    def __init__(self, run: Run = WRONG, rules: Rules = RULES, now: int = 1_000_000, **changes: Any) -> None:
        self.rules = rules.model_copy(update=changes)
        self.run, self.now, self.state = run, now, State(self.rules)

    # ---- moves
    def do(self, move: Move) -> Play:
        """Make a move."""
        self.state = apply(self.state, move, self.now)
        assert list(broken(self.state)) == []
        return self

    def refused(self, move: Move) -> str:
        """The code by which a move is refused; nothing changes."""
        before = self.state
        try:
            apply(self.state, move, self.now)
        except RuleError as error:
            assert self.state is before
            return error.code
        return "accepted"

    def wait(self, seconds: int) -> Play:
        """Let time pass."""
        self.now += seconds
        return self

    @property
    def time(self) -> int:
        """Game time."""
        return game_time(self.state, self.now)

    @property
    def dispute(self) -> Dispute:
        """The first dispute."""
        return self.state.disputes[0]

    # ---- the moves of each party
    def post(self, actor: str = PROVER, seal: str = SALT, **changes: Any) -> moves.Post:
        """A claim for the run."""
        top = self.run.top()
        said = {"root": top.root, "size": top.size, "levels": self.run.levels, "value": self.rules.prover_bond}
        return moves.Post(actor=actor, statement=NOTHING, seal=seal, **{**said, **changes})

    def contest(self, actor: str = CHALLENGER, claim: int = 0, **changes: Any) -> moves.Contest:
        """All leaves of a claim."""
        price = self.rules.challenger_bond + self.rules.deposit
        said = {"low": 0, "high": self.run.steps, "value": price, **changes}
        return moves.Contest(actor=actor, claim=claim, **said)

    def answer(self, number: int = 0) -> Any:
        """What the party to move says: an honest opening, or the child in which the first wrong leaf lies."""
        dispute = self.state.disputes[number]
        claim = self.state.claims[dispute.claim]
        tree, who = self.tree(dispute), {"actor": mover(claim, dispute), "dispute": number, "turn": dispute.turn}
        if dispute.phase is Phase.PARTITION:
            places = cut_places(dispute.low, dispute.high, self.rules.ways)
            return moves.Partition(**who, cuts=tuple(tree.cut(place) for place in places), data=NOTHING)
        if dispute.phase is Phase.CHOOSE:
            return moves.Choose(**who, child=self.first_wrong(dispute, tree))
        cut = tree.cut(dispute.low)
        opened = {"leaf": cut.leaf, "proof": cut.proof, "data": NOTHING}
        if dispute.level > 1:
            below = self.run.below(dispute.low)
            return moves.Descend(**who, **opened, root=below.root, size=below.size)
        return moves.Reveal(**who, **opened)

    def first_wrong(self, dispute: Dispute, tree: Tree) -> int:
        """The first child at whose end a leaf is wrong, the last one where none is."""
        ends = bounds(dispute.low, dispute.high, self.rules.ways)[1:]
        faulty = dispute.high - 1 if tree.faulty is None else tree.faulty
        return next((number for number, end in enumerate(ends) if faulty < end), len(ends) - 1)

    def tree(self, dispute: Dispute) -> Tree:
        """The tree that is being cut."""
        trees = (self.run.top(), *(self.run.below(step) for step in range(self.run.steps)))
        return next(each for each in trees if each.root == dispute.root)

    def left(self, number: int = 0) -> int:
        """The seconds that the party to move has."""
        return time_left(self.state.disputes[number], self.time)

    def vote(self, member: str, vote: Fault, number: int = 0, salt: str = SALT) -> moves.Vote:
        """A commitment to a vote in the last committee."""
        sealed = voting.commitment(number, len(self.state.disputes[number].rounds) - 1, member, vote, salt)
        return moves.Vote(actor=member, dispute=number, commitment=sealed)

    def disclose(self, member: str, vote: Fault, number: int = 0, salt: str = SALT) -> moves.Disclose:
        """A vote."""
        return moves.Disclose(actor=member, dispute=number, vote=vote, salt=salt)

    def appeal(self, actor: str, **changes: Any) -> moves.Appeal:
        """An appeal at its price."""
        price = self.rules.appeal_bond + self.rules.vote_fee * next_seats(self.dispute)
        return moves.Appeal(actor=actor, dispute=0, **{"value": price, **changes})

    # ---- to a phase
    def enlisted(self, members: Iterable[str] = MEMBERS) -> Play:
        """Members have staked."""
        for member in members:
            self.do(moves.Enlist(actor=member, value=self.rules.stake))
        return self

    def claimed(self, **changes: Any) -> Play:
        """There is a claim."""
        return self.do(self.post(**changes))

    def contested(self, **changes: Any) -> Play:
        """There is a dispute."""
        return self.do(self.contest(**changes))

    def opened(self) -> Play:
        """Members, a claim and a dispute."""
        return self.enlisted().claimed().contested()

    def until(self, phase: Phase, number: int = 0, seconds: int = 60) -> Play:
        """The bisection has come to `phase`; each answer took so long."""
        while self.state.disputes[number].phase is not phase:
            self.wait(seconds).do(self.answer(number))
        return self

    def ruling(self) -> Play:
        """A leaf lies open."""
        return self.opened().until(Phase.RULING)

    def drawing(self) -> Play:
        """A committee is called."""
        return self.ruling().do(moves.Convene(actor=REFEREE, dispute=0))

    def drawn(self, nonce: str = NONCE) -> Play:
        """A committee is drawn."""
        return self.do(moves.Draw(actor=BEACON, dispute=0, nonce=nonce))

    def committing(self) -> Play:
        """A committee can commit to its votes."""
        return self.drawing().drawn()

    @property
    def sitting(self) -> tuple[str, ...]:
        """The members of the last committee."""
        return self.dispute.rounds[-1].drawn

    def voted(self, *votes: Fault) -> Play:
        """All members of the last committee have voted so, in order; the last vote again for those left."""
        cast = [*votes, *[votes[-1]] * len(self.sitting)]
        for member, vote in zip(self.sitting, cast, strict=False):
            self.do(self.vote(member, vote))
        for member, vote in zip(self.sitting, cast, strict=False):
            self.do(self.disclose(member, vote))
        return self

    def counted(self, *votes: Fault) -> Play:
        """And the votes are counted."""
        return self.voted(*votes).do(moves.Tally(actor=OTHER, dispute=0))

    def settled(self) -> Play:
        """And nobody appealed."""
        return self.wait(self.rules.appeal_window).do(moves.Settle(actor=OTHER, dispute=0))

    # ---- money
    def owed(self, name: str) -> int:
        """What somebody is owed."""
        return sum(each.amount for each in self.state.owed.get(name, ()))

    def all_out(self) -> dict[str, int]:
        """What everybody takes out in the end; nothing is left but stakes, and bonds of open claims."""
        self.wait(self.rules.withdrawal_delay)
        taken = {name: self.owed(name) for name in self.state.owed}
        for name in taken:
            while self.owed(name):
                self.do(moves.Withdraw(actor=name))
        return taken
