"""What the end of a world is judged by: who is right wins, nobody honest loses money, nothing is left, all in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from typing import Final

from tallystick.disputes.coordinators.coordinator import MoveEntry
from tallystick.disputes.game.context import game_time
from tallystick.disputes.game.moves import Appeal, Disclose, Move, Vote, value_of
from tallystick.disputes.game.state import LEAVES_MAX, Dispute, Phase, Rules, State
from tallystick.verdicts.verdict import Fault
from tests.support.simulator.invariant_checker import BrokenError
from tests.support.simulator.laws.money import credited
from tests.support.simulator.limits import longest
from tests.support.simulator.setting import Delays
from tests.support.simulator.trees import Truth

UNDESERVED: Final = ("late", "cuts", "proof", "child", "value", "commitment", "evidence", "level", "range")


class Accounts:
    """Books of all final moves: what each party paid and got, when disputes began, which ended by trust misplaced."""

    def __init__(self, rules: Rules, truth: Truth) -> None:
        self.rules, self.truth = rules, truth
        self.paid, self.got, self.fees = Counter[str](), Counter[str](), Counter[str]()
        self.trusted_in_vain: set[str] = set()
        self.slowest = 0.0
        self._began: dict[int, int] = {}
        self._gone: set[str] = set()
        self._counted: set[tuple[int, int]] = set()

    def book(self, entry: MoveEntry, before: State, after: State, honest: Set[str], delays: Delays) -> None:
        """Enter one final move."""
        move, time = entry.move, game_time(before, entry.time)
        self.paid[move.actor] += value_of(move)
        if move.kind == "withdraw":
            self.got[move.actor] += after.paid_out - before.paid_out
        elif after.owed is not before.owed:
            self._credits(before, after)
        if isinstance(move, Appeal):
            self.fees[move.actor] += value_of(move) - self.rules.appeal_bond
        if move.kind == "contest":
            self._began[len(before.disputes)] = time
        number = getattr(move, "dispute", None)
        if number is None:
            self._retired(move)
            return
        old, new = before.disputes[number], after.disputes[number]
        if move.kind == "tally":
            self.fees[old.challenger] += self.rules.vote_fee * len(old.rounds[-1].drawn) * (len(old.rounds) == 1)
            self._watch_voters(number, old)
        if new.phase is Phase.SETTLED and old.phase is not Phase.SETTLED:
            self._has_ended(move, number, before, new, time, delays)
            self._judge(move, before, old, new, honest)
        if move.kind == "unseal":
            self._nobody_got_away(number, old, move.answer)

    def refused(self, state: State, move: Move, code: str, honest: Set[str]) -> None:
        """An honest answer that comes too late or is not understood is a flaw of the world or of the game."""
        if move.actor not in honest or code not in UNDESERVED:
            return
        if not (isinstance(move, Vote | Disclose) and _has_moved(state.disputes[move.dispute], move)):
            raise BrokenError(f"an honest {move.kind} of {move.actor[-3:]} was refused as {code}")

    def close(self, state: State, honest: Set[str]) -> None:
        """Everything that came in has gone out, and nobody honest has less than before."""
        if state.balance:
            raise BrokenError(f"{state.balance} is left when everybody has gone")
        for name in sorted(honest - self.trusted_in_vain):
            gain = self.got[name] - self.paid[name]
            if gain < -self.fees[name]:
                raise BrokenError(f"honest {name[-3:]} ends with {gain}, and fees were {self.fees[name]}")

    def _credits(self, before: State, after: State) -> None:
        for name, amount in credited(before, after).items():
            if amount < 0:
                raise BrokenError(f"{name[-3:]} is owed less than before")

    def _has_ended(self, move: Move, number: int, before: State, new: Dispute, time: int, delays: Delays) -> None:
        lasted = time - self._began[number]
        limit = longest(self.rules, (new.size, LEAVES_MAX)[: 1 + (before.claims[new.claim].levels > 1)], delays.answer)
        self.slowest = max(self.slowest, lasted / limit)
        if lasted > limit:
            raise BrokenError(f"dispute {number} took {lasted} s, and {limit} s are the limit")

    def _judge(self, move: Move, before: State, old: Dispute, new: Dispute, honest: Set[str]) -> None:
        """Whether the right side lost; where a referee, a committee or a beacon was bad, its victims are noted."""
        parties = {Fault.PROVER: before.claims[old.claim].prover, Fault.CHALLENGER: old.challenger}
        loser = parties.get(new.fault or Fault.NOBODY)
        if move.kind == "dismiss":
            return
        if move.kind in ("concede", "timeout") and old.phase is not Phase.DRAWING:
            if loser in honest:
                raise BrokenError(f"honest {str(loser)[-3:]} lost by {move.kind} at {old.phase}")
            return
        truth = self.truth.ruling(old)
        if new.fault is truth:
            return
        if self._is_sound(move, old, truth, honest):
            raise BrokenError(f"{truth} was at fault, and {move.kind} found {new.fault}")
        self.trusted_in_vain |= set(parties.values())

    def _is_sound(self, move: Move, old: Dispute, truth: Fault, honest: Set[str]) -> bool:
        """Whether what was trusted deserved it: evidence always, a committee with an honest majority."""
        if move.kind == "prove":
            return True
        if move.kind not in ("tally", "settle"):
            return False
        sitting = old.rounds[-1]
        votes = zip(sitting.drawn, sitting.votes, strict=True)
        right = sum(name in honest and cast is truth for name, cast in votes)
        return 2 * right > len(sitting.drawn)

    def _watch_voters(self, number: int, dispute: Dispute) -> None:
        self._counted.add((number, len(dispute.rounds) - 1))
        for name, cast in zip(dispute.rounds[-1].drawn, dispute.rounds[-1].votes, strict=True):
            if cast is not None:
                self._gone.discard(name)

    def _retired(self, move: Move) -> None:
        if move.kind == "retire":
            self._gone.add(move.actor)

    def _nobody_got_away(self, number: int, dispute: Dispute, answer: Fault) -> None:
        """Whoever was paid for a vote against a planted answer has not taken its stake home before it is found out."""
        for place, sitting in enumerate(dispute.rounds):
            is_counted = (number, place) in self._counted
            for name, cast in zip(sitting.drawn, sitting.votes, strict=True):
                if is_counted and cast not in (None, answer) and name in self._gone:
                    raise BrokenError(f"member {name[-3:]} voted against a planted answer and got away with its stake")


def _has_moved(dispute: Dispute, move: Vote | Disclose) -> bool:
    """Whether a member that forgot about it asks for what it has done already."""
    sitting = dispute.rounds[-1]
    entries = sitting.commitments if isinstance(move, Vote) else sitting.votes
    return bool(entries[sitting.drawn.index(move.actor)])
