"""The game: one table of who may make which move in which phase, and two functions that read it.

Every rule refuses a move with a code, which is the same on every coordinator. The rules are applied in this order:
pause, existence, whether the dispute is over or moot, phase, actor, turn, clock, payment; then those of the move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from tallystick.disputes.game import bisection, claims, ledger, pausing, ruling, voting
from tallystick.disputes.game.context import Context, allow, mover, time_left
from tallystick.disputes.game.ledger import receive
from tallystick.disputes.game.moves import Move, value_of
from tallystick.disputes.game.pausing import game_time, with_expired_pause_lifted
from tallystick.disputes.game.rules import Rules
from tallystick.disputes.game.state import Dispute, Phase, State, Status
from tallystick.disputes.game.voting import appeal_price


class Who(Enum):
    """Who may make a move."""

    ANYBODY = "anybody"
    PROVER = "prover"
    CHALLENGER = "challenger"
    PARTY = "party"
    REFEREE = "referee"
    BEACON = "beacon"
    PLANTER = "planter"
    GUARDIAN = "guardian"


@dataclass(frozen=True)
class Transition:
    """One line of the table: who may move, in which phases, and the effect; timed moves need time on the clock."""

    who: Who
    phases: frozenset[Phase]
    happens: Callable[[Context, Any], State]
    is_timed: bool = False


def _in(*phases: Phase) -> frozenset[Phase]:
    return frozenset(phases)


P, BISECTING = Phase, _in(Phase.PARTITION, Phase.CHOOSE, Phase.LEAF)

# fmt: off
DISPUTE_MOVES: Final[dict[str, Transition]] = {
    "partition": Transition(Who.PROVER,     _in(P.PARTITION),                bisection.partition, is_timed=True),
    "choose":    Transition(Who.CHALLENGER, _in(P.CHOOSE),                   bisection.choose,    is_timed=True),
    "protest":   Transition(Who.CHALLENGER, _in(P.CHOOSE),                   bisection.protest,   is_timed=True),
    "descend":   Transition(Who.PROVER,     _in(P.LEAF),                     bisection.descend,   is_timed=True),
    "reveal":    Transition(Who.PROVER,     _in(P.LEAF),                     bisection.reveal,    is_timed=True),
    "pinpoint":  Transition(Who.CHALLENGER, _in(P.RULING, P.DRAWING),        ruling.pinpoint),
    "concede":   Transition(Who.PARTY,      BISECTING | _in(P.RULING),       bisection.concede),
    "timeout":   Transition(Who.ANYBODY,    BISECTING | _in(P.DRAWING),      bisection.timeout),
    "rule":      Transition(Who.REFEREE,    _in(P.RULING),                   ruling.rule),
    "prove":     Transition(Who.ANYBODY,    _in(P.RULING),                   ruling.prove),
    "convene":   Transition(Who.ANYBODY,    _in(P.RULING),                   ruling.convene),
    "draw":      Transition(Who.BEACON,     _in(P.DRAWING),                  voting.draw),
    "vote":      Transition(Who.ANYBODY,    _in(P.COMMITTING),               voting.vote),
    "disclose":  Transition(Who.ANYBODY,    _in(P.COMMITTING, P.REVEALING),  voting.disclose),
    "tally":     Transition(Who.ANYBODY,    _in(P.COMMITTING, P.REVEALING),  voting.tally),
    "appeal":    Transition(Who.PARTY,      _in(P.APPEALABLE),               voting.appeal),
    "settle":    Transition(Who.ANYBODY,    _in(P.APPEALABLE),               voting.settle),
}
CLOSING_MOVES: Final[dict[str, Transition]] = {
    "dismiss":   Transition(Who.ANYBODY,    frozenset(Phase) - {P.SETTLED},  voting.dismiss),
    "unseal":    Transition(Who.PLANTER,    _in(P.SETTLED),                  voting.unseal),
}
OTHER_MOVES: Final[dict[str, Transition]] = {
    "post":      Transition(Who.ANYBODY,    frozenset(),                     claims.post),
    "contest":   Transition(Who.ANYBODY,    frozenset(),                     claims.contest),
    "finalise":  Transition(Who.ANYBODY,    frozenset(),                     claims.finalise),
    "enlist":    Transition(Who.ANYBODY,    frozenset(),                     voting.enlist),
    "retire":    Transition(Who.ANYBODY,    frozenset(),                     voting.retire),
    "withdraw":  Transition(Who.ANYBODY,    frozenset(),                     ledger.withdraw),
    "pause":     Transition(Who.GUARDIAN,   frozenset(),                     pausing.pause),
    "resume":    Transition(Who.GUARDIAN,   frozenset(),                     pausing.resume),
}
# fmt: on
TRANSITIONS: Final = DISPUTE_MOVES | CLOSING_MOVES | OTHER_MOVES
DURING_PAUSE: Final = frozenset({"withdraw", "resume"})


def apply(state: State, move: Move, now: int) -> State:
    """The state after `move` at real time `now`, in seconds; raises `RuleError` and changes nothing."""
    state = with_expired_pause_lifted(state, now)
    running = state.pausing.since is None or move.kind in DURING_PAUSE
    allow(running, "paused", "the coordinator is paused; clocks stand still")
    at = Context(state, now, game_time(state, now))
    transition = TRANSITIONS[move.kind]
    if move.kind in OTHER_MOVES:
        _is_made_by(at, transition.who, move, None)
    else:
        _fits_the_dispute(at, transition, move)
    _pays_exactly(at, move)
    return transition.happens(at.with_state(receive(at.state, value_of(move))), move)


def next_moves(state: State, party: str, now: int) -> tuple[MoveOption, ...]:
    """The moves inside open disputes that `party` may make at `now`, each with the seconds that are left for it.

    Moves that wait for the end of a window (`convene`, `tally`, `settle`) are listed before it ends too.
    """
    state = with_expired_pause_lifted(state, now)
    if state.pausing.since is not None:
        return ()
    at = Context(state, now, game_time(state, now))
    numbers = [i for i, dispute in enumerate(state.disputes) if dispute.phase is not Phase.SETTLED]
    return tuple(option for number in numbers for option in _options(at, number, party))


@dataclass(frozen=True)
class MoveOption:
    """A kind of move that a party may make in a dispute; `seconds` are left for it, `None` if no clock runs."""

    kind: str
    dispute: int
    seconds: int | None


def _options(at: Context, number: int, party: str) -> Iterator[MoveOption]:
    dispute = at.state.disputes[number]
    claim = at.claim(dispute.claim)
    if claim.status is not Status.OPEN:
        yield MoveOption("dismiss", number, None)
        return
    left = None if mover(claim, dispute) is None else time_left(dispute, at.time)
    is_late = at.time >= dispute.deadline if left is None else left <= 0
    for kind, transition in DISPUTE_MOVES.items():
        in_time = is_late if kind == "timeout" else not (is_late and transition.is_timed)
        if dispute.phase in transition.phases and in_time and _is_one(at, transition.who, party, dispute):
            yield MoveOption(kind, number, left if transition.is_timed else None)


def _fits_the_dispute(at: Context, transition: Transition, move: Any) -> None:
    dispute = at.dispute(move.dispute)
    is_moot = at.claim(dispute.claim).status is not Status.OPEN
    if move.kind != "unseal":
        allow(dispute.phase is not Phase.SETTLED, "settled", "the dispute is over")
    if move.kind == "dismiss":
        allow(is_moot, "open", "the claim is not slashed, and the dispute goes on")
    elif move.kind != "unseal":
        allow(not is_moot, "moot", "the claim was slashed by another dispute; this one can be dismissed")
    allow(dispute.phase in transition.phases, "phase", f"no {move.kind} while the dispute is at {dispute.phase}")
    _is_made_by(at, transition.who, move, dispute)
    if transition.is_timed:
        allow(move.turn == dispute.turn, "turn", f"the dispute is at turn {dispute.turn}, not {move.turn}")
        allow(time_left(dispute, at.time) > 0, "late", "the clock of the party to move has run out")


def _is_made_by(at: Context, who: Who, move: Move, dispute: Dispute | None) -> None:
    allow(_is_one(at, who, move.actor, dispute), "actor", f"this move is for the {who.value}")


def _is_one(at: Context, who: Who, actor: str, dispute: Dispute | None) -> bool:
    """Whether `actor` is a `who`; if the rules name no beacon, anybody may bring the nonce."""
    rules = at.rules
    if who is Who.ANYBODY or (who is Who.BEACON and rules.beacon is None):
        return True
    if who in (Who.REFEREE, Who.BEACON, Who.PLANTER, Who.GUARDIAN):
        return bool(actor == getattr(rules, who.value))
    assert dispute is not None  # only moves inside a dispute are for its parties
    parties = {Who.PROVER: at.claim(dispute.claim).prover, Who.CHALLENGER: dispute.challenger}
    return actor in parties.values() if who is Who.PARTY else actor == parties[who]


def _pays_exactly(at: Context, move: Move) -> None:
    price = _price(at, move)
    allow(value_of(move) == price, "value", f"this move pays {price}, and {value_of(move)} came with it")


def _price(at: Context, move: Any) -> int:
    rules: Rules = at.rules
    prices = {"post": rules.prover_bond, "contest": rules.challenger_bond + rules.deposit, "enlist": rules.stake}
    return appeal_price(at, at.dispute(move.dispute)) if move.kind == "appeal" else prices.get(move.kind, 0)
