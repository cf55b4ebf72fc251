"""The money and the delays of the economics page are those of the game: each formula against moves played out."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tallystick.core.digests import Digest, Hash, LeafHashes, leaf_hash, prove_inclusion, tree_root
from tallystick.disputes.economics.conditions import Delay, compensation, delays, turns
from tallystick.disputes.economics.costs import (
    ClaimKind,
    Economy,
    appeal_fees,
    bond_at_risk,
    lost_accusation,
    reward,
    sizes,
)
from tallystick.disputes.game import moves
from tallystick.disputes.game.game import apply
from tallystick.disputes.game.moves import Move, value_of
from tallystick.disputes.game.state import Dispute, Phase, Rules, State, cut_places
from tallystick.disputes.game.voting import commitment
from tallystick.verdicts.verdict import Fault

PROVER, CHALLENGER, TREASURY, SOMEBODY = ("1" * 64, "2" * 64, "3" * 64, "4" * 64)
MEMBERS = tuple(f"{number:064x}" for number in range(1000, 1064))
RULES = Rules(treasury=TREASURY, members=MEMBERS)
DATA = Digest("sha256:" + "0" * 64)
SALT, SEAL, NONCE = "5" * 64, "6" * 64, "7" * 64
LEAVES = [leaf_hash(bytes([number])) for number in range(40)]


class Match:
    """One claim and one dispute over it, with everybody's money."""

    def __init__(self, rules: Rules = RULES, records: int = 1, operators: int = 1) -> None:
        self.state, self.now = State(rules), 0
        self.operators = operators
        self.money: Counter[str] = Counter()
        for member in rules.members:
            self.play(moves.Enlist(actor=member, value=rules.stake))
        post = {"root": tree_root(LEAVES[:records]).hex(), "size": records, "statement": DATA, "seal": SEAL}
        self.play(moves.Post(actor=PROVER, value=rules.prover_bond, **post))
        paid = rules.challenger_bond + rules.deposit
        self.play(moves.Contest(actor=CHALLENGER, value=paid, claim=0, low=0, high=records))

    @property
    def dispute(self) -> Dispute:
        return self.state.disputes[0]

    def play(self, move: Move) -> None:
        self.state = apply(self.state, move, self.now)
        self.money[move.actor] -= value_of(move)

    def worth(self, party: str) -> int:
        """What a party has gained since the beginning."""
        return self.money[party] + sum(each.amount for each in self.state.owed.get(party, ()))

    def turn(self, kind: Any, actor: str, **fields: Any) -> None:
        self.play(kind(actor=actor, dispute=0, turn=self.dispute.turn, **fields))

    def answer(self) -> None:
        """The prover moves at once."""
        held = self.dispute
        leaves = LEAVES[: held.size]
        if held.phase is Phase.PARTITION:
            places = cut_places(held.low, held.high, self.state.rules.ways)
            cuts = tuple(moves.Cut(leaf=leaves[place].hex(), proof=proof(leaves, place)) for place in places)
            self.turn(moves.Partition, PROVER, cuts=cuts, data=DATA)
            return
        opened = {"leaf": leaves[held.low].hex(), "proof": proof(leaves, held.low), "data": DATA}
        if held.level == 1:
            self.turn(moves.Reveal, PROVER, **opened)
        else:
            finer = {"root": tree_root(LEAVES[: self.operators]).hex(), "size": self.operators}
            self.turn(moves.Descend, PROVER, **opened, **finer)

    def bisect(self, wait: Callable[[int], int] = lambda left: 0) -> None:
        """To the ruling; the challenger takes `wait(seconds it has left)` for each choice, always the largest child."""
        while self.dispute.phase is not Phase.RULING:
            if self.dispute.phase is Phase.CHOOSE:
                self.now += wait(self.dispute.clocks.challenger)
                self.turn(moves.Choose, CHALLENGER, child=len(self.dispute.cuts))
            else:
                self.answer()

    def convene(self) -> None:
        self.now = max(self.now, self.dispute.deadline)
        self.play(moves.Convene(actor=SOMEBODY, dispute=0))

    def sit(self, finding: Fault, last_second: bool = False) -> None:
        """A committee is drawn and votes as one; all of it at the last second if asked."""
        self.now = self.dispute.deadline - 1 if last_second else self.now
        self.play(moves.Draw(actor=SOMEBODY, dispute=0, nonce=NONCE))
        number, drawn = len(self.dispute.rounds) - 1, self.dispute.rounds[-1].drawn
        self.now = self.dispute.deadline - 1 if last_second else self.now
        for name in drawn:
            sealed = commitment(0, number, name, finding, SALT)
            self.play(moves.Vote(actor=name, dispute=0, commitment=sealed))
        self.now = self.dispute.deadline - 1 if last_second else self.now
        for name in drawn:
            self.play(moves.Disclose(actor=name, dispute=0, vote=finding, salt=SALT))
        self.play(moves.Tally(actor=SOMEBODY, dispute=0))

    def appeal(self, party: str) -> None:
        rules, seats = self.state.rules, 2 * len(self.dispute.rounds[-1].drawn) + 1
        self.play(moves.Appeal(actor=party, dispute=0, value=rules.appeal_bond + rules.vote_fee * seats))

    def settle(self) -> None:
        if self.dispute.phase is Phase.APPEALABLE:
            self.now = max(self.now, self.dispute.deadline)
            self.play(moves.Settle(actor=SOMEBODY, dispute=0))
        assert self.dispute.phase is Phase.SETTLED


def proof(leaves: list[Hash], place: int) -> tuple[str, ...]:
    return tuple(each.hex() for each in prove_inclusion(LeafHashes(leaves), place, len(leaves)))


def judged(*findings: Fault, appeals: str = "") -> Match:
    """A match in which committees find in turn; before each but the first the party `appeals` appeals."""
    match = Match()
    match.bisect()
    match.convene()
    for number, finding in enumerate(findings):
        if number:
            match.appeal(appeals)
        match.sit(finding)
    match.settle()
    return match


def test_a_prover_accused_by_a_friend_loses_what_the_treasury_gets_and_no_more() -> None:
    match = Match()
    match.play(moves.Concede(actor=PROVER, dispute=0))
    assert match.worth(PROVER) + match.worth(CHALLENGER) == -bond_at_risk(RULES)
    assert match.worth(TREASURY) == bond_at_risk(RULES) > 0


def test_a_challenger_that_a_committee_finds_right_is_paid_the_reward() -> None:
    match = judged(Fault.PROVER)
    assert match.worth(CHALLENGER) == reward(RULES)
    assert match.worth(PROVER) == -RULES.prover_bond


def test_a_challenger_that_a_committee_finds_wrong_pays_the_prover_and_the_committee() -> None:
    match = judged(Fault.CHALLENGER)
    assert match.worth(CHALLENGER) == -lost_accusation(RULES)
    assert match.worth(PROVER) + RULES.prover_bond == RULES.challenger_bond


def test_where_nobody_is_at_fault_the_challenger_has_paid_the_committee() -> None:
    match = judged(Fault.NOBODY)
    assert match.worth(CHALLENGER) == -RULES.deposit
    assert match.worth(PROVER) + RULES.prover_bond == 0


def test_a_right_appeal_costs_its_fees_alone() -> None:
    match = judged(Fault.CHALLENGER, Fault.PROVER, appeals=CHALLENGER)
    assert match.worth(CHALLENGER) == reward(RULES) - appeal_fees(Economy(RULES))[0]


def test_a_wrong_appeal_costs_its_bond_too_and_pays_it_to_the_other_side() -> None:
    match = judged(Fault.CHALLENGER, Fault.CHALLENGER, Fault.CHALLENGER, appeals=CHALLENGER)
    lost = lost_accusation(RULES) + 2 * RULES.appeal_bond + sum(appeal_fees(Economy(RULES)))
    assert match.worth(CHALLENGER) == -lost
    fought = Delay(2, 0.0, lost)
    assert match.worth(PROVER) + RULES.prover_bond == compensation(Economy(RULES), fought)


@pytest.mark.parametrize("first", [1, 2, 7, 8])
def test_committees_have_the_sizes_of_the_formula(first: int) -> None:
    match = Match(RULES.model_copy(update={"committee": first}))
    match.bisect()
    match.convene()
    drawn = []
    for number in range(3):
        if number:
            match.appeal(PROVER)
        match.sit(Fault.PROVER)
        drawn.append(len(match.dispute.rounds[-1].drawn))
    assert tuple(drawn) == sizes(match.state.rules, len(MEMBERS))


def test_a_pool_that_is_too_small_for_an_appeal_gives_none() -> None:
    assert sizes(RULES, 30) == (7, 15)
    assert sizes(RULES, 31) == (7, 15, 31)
    assert sizes(RULES, 6) == (5,)
    assert sizes(RULES, 1) == (1,)


SLOW = RULES.model_copy(update={"ways": 2})
SIZES = [(1, 9), (9, 1), (9, 30), (33, 40)]


@pytest.mark.parametrize(("records", "operators"), SIZES)
@pytest.mark.parametrize("appeals", [0, 1, 2])
def test_no_challenger_delays_longer_than_the_table_says_and_one_does_so_long(
    records: int, operators: int, appeals: int
) -> None:
    promised = {each.appeals: each for each in delays(Economy(SLOW, ClaimKind(records=records, operators=operators)))}
    match = Match(SLOW, records, operators)
    match.bisect(lambda left: left - 1)
    match.convene()
    for number in range(appeals + 1):
        if number:
            match.now = match.dispute.deadline - 1
            match.appeal(CHALLENGER)
        match.sit(Fault.CHALLENGER, last_second=True)
    match.settle()
    moves_made = turns(SLOW, records, operators) + 4 * (appeals + 1)
    assert promised[appeals].seconds - moves_made <= match.now <= promised[appeals].seconds
    assert -match.worth(CHALLENGER) == promised[appeals].cost


@pytest.mark.parametrize("seed", range(20))
def test_no_timing_of_choices_takes_longer_than_silence_until_the_clock_ends(seed: int) -> None:
    drawn = random.Random(seed)
    records, operators = drawn.choice(SIZES)
    match = Match(SLOW, records, operators)
    match.bisect(lambda left: drawn.choice([0, left // 2, left - 1, max(0, left - SLOW.extension - 1)]))
    silence = next(delays(Economy(SLOW, ClaimKind(records=records, operators=operators))))
    assert match.now < silence.seconds


def test_silence_costs_the_bond_and_no_fees() -> None:
    match = Match(SLOW, 9, 1)
    match.answer()
    match.now += SLOW.clock
    match.play(moves.Timeout(actor=SOMEBODY, dispute=0))
    assert -match.worth(CHALLENGER) == next(delays(Economy(SLOW))).cost
