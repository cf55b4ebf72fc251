"""Laws of committees: called in time, drawn from those who can be, secret, counted, appealed against, found out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from tallystick.disputes.game import moves as m
from tallystick.disputes.game.state import Dispute, Phase, State, Status
from tallystick.disputes.game.voting import commitment, seal
from tallystick.verdicts.verdict import Fault


def _convene(state: State, move: m.Convene, old: Dispute, new: Dispute, time: int) -> Iterator[str]:
    if time < old.deadline and move.actor != state.rules.referee:
        yield "a committee was called in the referee's window"
    if new.phase is Phase.SETTLED and (new.fault is not Fault.NOBODY or able(state, old)):
        yield "a committee could have been drawn"
    if new.phase is Phase.DRAWING and not 1 <= new.seats <= min(state.rules.committee, len(able(state, old))):
        yield f"a committee of {new.seats}"


def _draw(state: State, move: m.Draw, old: Dispute, new: Dispute, time: int) -> Iterator[str]:
    if new.phase is Phase.SETTLED:
        if able(state, old):
            yield "a committee could have been drawn"
        return
    drawn, pool = new.rounds[-1].drawn, able(state, old)
    if len(set(drawn)) != len(drawn) or not set(drawn) <= set(pool) or len(drawn) % 2 == 0:
        yield f"{len(drawn)} were drawn out of {len(pool)}"
    if len(drawn) < min(old.seats, len(pool)) - 1 or len(new.rounds) != len(old.rounds) + 1:
        yield f"{len(drawn)} were drawn for {old.seats} seats"


def _vote(state: State, move: m.Vote, old: Dispute, new: Dispute, time: int) -> Iterator[str]:
    if time >= old.deadline:
        yield "a vote was committed to too late"
    was, now = old.rounds[-1].commitments, new.rounds[-1].commitments
    changed = [place for place, (a, b) in enumerate(zip(was, now, strict=True)) if a != b]
    if [old.rounds[-1].drawn[place] for place in changed] != [move.actor] or any(was[place] for place in changed):
        yield "a vote of somebody else, or a second one"
    if (new.phase is Phase.REVEALING) != all(now):
        yield f"{sum(map(bool, now))} of {len(now)} have voted at {new.phase}"


def _disclose(state: State, move: m.Disclose, old: Dispute, new: Dispute, time: int) -> Iterator[str]:
    end = old.deadline + (state.rules.reveal_window if old.phase is Phase.COMMITTING else 0)
    if time >= end or (old.phase is Phase.COMMITTING and time < old.deadline):
        yield "a vote was disclosed out of its time"
    seat = old.rounds[-1].drawn.index(move.actor)
    expected = commitment(move.dispute, len(old.rounds) - 1, move.actor, move.vote, move.salt)
    if old.rounds[-1].commitments[seat] != expected or new.rounds[-1].votes[seat] is not move.vote:
        yield "another vote than was committed to"
    if old.rounds[-1].votes[seat] is not None:
        yield "a vote was disclosed twice"
    others = [place for place in range(len(old.rounds[-1].drawn)) if place != seat]
    if any(old.rounds[-1].votes[place] != new.rounds[-1].votes[place] for place in others):
        yield "somebody else's vote changed"


def _tally(state: State, move: m.Tally, old: Dispute, new: Dispute, time: int) -> Iterator[str]:
    sitting = old.rounds[-1]
    waiting = [c for c, vote in zip(sitting.commitments, sitting.votes, strict=True) if c and vote is None]
    end = old.deadline + (state.rules.reveal_window if old.phase is Phase.COMMITTING else 0)
    if time < end and (old.phase is Phase.COMMITTING or waiting):
        yield "votes were counted while some could still come"
    votes = Counter(sitting.votes)
    expected = next((each for each in Fault if votes[each] > len(sitting.votes) / 2), Fault.NOBODY)
    if new.fault is not expected:
        yield f"{dict(votes)} found {new.fault}"
    is_last = len(old.rounds) == state.rules.appeals + 1
    if new.phase is not (Phase.SETTLED if is_last else Phase.APPEALABLE):
        yield f"{new.phase} after committee {len(old.rounds)}"
    if new.deposit > old.deposit - state.rules.vote_fee * len(sitting.votes):
        yield "a committee was not paid"


def _appeal(state: State, move: m.Appeal, old: Dispute, new: Dispute, time: int) -> Iterator[str]:
    claim = state.claims[old.claim]
    loser = {Fault.PROVER: claim.prover, Fault.CHALLENGER: old.challenger}.get(old.fault or Fault.NOBODY)
    if time >= old.deadline or (loser is not None and move.actor != loser):
        yield "an appeal too late, or by the party that won"
    if len(old.rounds) > state.rules.appeals or new.phase is not Phase.DRAWING:
        yield f"an appeal against committee {len(old.rounds)} led to {new.phase}"
    if new.seats != 2 * len(old.rounds[-1].drawn) + 1 or new.seats > len(able(state, old)):
        yield f"an appeal asked for {new.seats} seats"


def _settle(state: State, move: m.Settle, old: Dispute, new: Dispute, time: int) -> Iterator[str]:
    if time < old.deadline or new.fault is not old.fault:
        yield "a finding took effect early, or another one did"


def _dismiss(state: State, move: m.Dismiss, old: Dispute, new: Dispute, time: int) -> Iterator[str]:
    if state.claims[old.claim].status is not Status.SLASHED or new.fault is not Fault.NOBODY:
        yield "a dispute was dismissed over a claim that stands"


def _unseal(state: State, move: m.Unseal, old: Dispute, new: Dispute, time: int) -> Iterator[str]:
    claim = state.claims[old.claim]
    if claim.seal != seal(claim.prover, move.answer, move.salt) or old.is_unsealed or not new.is_unsealed:
        yield "an unsealing of what was not sealed, or a second one"
    if new.phase is not Phase.SETTLED or new.fault is not old.fault:
        yield "an unsealing changed the outcome"


COMMITTEE_LAWS: Final[Mapping[str, Callable[..., Iterator[str]]]] = {
    "convene": _convene,
    "draw": _draw,
    "vote": _vote,
    "disclose": _disclose,
    "tally": _tally,
    "appeal": _appeal,
    "settle": _settle,
    "dismiss": _dismiss,
    "unseal": _unseal,
}


def able(state: State, dispute: Dispute) -> list[str]:
    """The members that can be drawn for a dispute."""
    parties = (state.claims[dispute.claim].prover, dispute.challenger)
    members = ((each, state.members.get(each)) for each in state.rules.members if each not in parties)
    return [name for name, member in members if member is not None and member.is_active]
