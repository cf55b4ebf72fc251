"""Laws of the moves outside disputes: claims, stakes, withdrawals, pauses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from tallystick.disputes.game import moves as m
from tallystick.disputes.game.state import MemberStake, State, Status
from tests.support.simulator.laws.money import credited


def _contest(before: State, move: m.Contest, after: State, time: int, now: int) -> Iterator[str]:
    claim, new = before.claims[move.claim], after.disputes[-1]
    if claim.status is not Status.OPEN or time >= claim.deadline or move.actor == claim.prover:
        yield f"a claim that is {claim.status} was contested {claim.deadline - time} s before its window ends"
    if not 0 <= move.low < move.high <= claim.size or (new.low, new.high) != (move.low, move.high):
        yield "a range outside of the claim was contested"
    if (new.root, new.size, new.level) != (claim.root, claim.size, claim.levels) or new.challenger != move.actor:
        yield "a dispute about something else"
    if move.value != before.rules.challenger_bond + before.rules.deposit or new.held != move.value:
        yield "a dispute with another bond"
    if (new.clocks.prover, new.clocks.challenger, new.clocks.since) != (before.rules.clock, before.rules.clock, time):
        yield "a dispute with other clocks"


def _post(before: State, move: m.Post, after: State, time: int, now: int) -> Iterator[str]:
    new = after.claims[-1]
    if move.value != before.rules.prover_bond or new.bond != move.value or new.prover != move.actor:
        yield "a claim with another bond"
    if new.deadline != time + before.rules.challenge_window or new.status is not Status.OPEN:
        yield "a claim with another window"


def _finalise(before: State, move: m.Finalise, after: State, time: int, now: int) -> Iterator[str]:
    old, new = before.claims[move.claim], after.claims[move.claim]
    if old.status is not Status.OPEN or time < old.deadline or old.disputes or new.status is not Status.FINAL:
        yield f"a claim that was {old.status} became {new.status} with {old.disputes} disputes"
    if dict(credited(before, after)) != ({old.prover: old.bond} if old.bond else {}):
        yield "the bond of a final claim went elsewhere"


def _enlist(before: State, move: m.Enlist, after: State, time: int, now: int) -> Iterator[str]:
    held = before.members.get(move.actor, MemberStake(0))
    if move.actor not in before.rules.members or held.stake or move.value != before.rules.stake:
        yield f"{move.actor[-4:]} enlisted with {move.value}"
    if after.members[move.actor].serving != held.serving:
        yield "a member came back from its duties"


def _retire(before: State, move: m.Retire, after: State, time: int, now: int) -> Iterator[str]:
    old, new = before.members[move.actor], after.members[move.actor]
    if old.serving or time < old.bound_until or new.stake or new.is_active:
        yield f"a member retired that serves in {old.serving} until {old.bound_until - time} s from now"
    if dict(credited(before, after)) != ({move.actor: old.stake} if old.stake else {}):
        yield "the stake of a member went elsewhere"


def _withdraw(before: State, move: m.Withdraw, after: State, time: int, now: int) -> Iterator[str]:
    old, new = before.owed.get(move.actor, ()), after.owed.get(move.actor, ())
    taken = old[: len(old) - len(new)]
    if not taken or new != old[len(taken) :] or any(each.ripe > now for each in taken):
        yield "something was withdrawn that was not ripe"
    if sum(each.amount for each in taken) != after.paid_out - before.paid_out:
        yield "more or less was withdrawn than was owed"
    if any(after.owed.get(name) is not credits for name, credits in before.owed.items() if name != move.actor):
        yield "somebody else's money was touched"


def _pause(before: State, move: m.Pause, after: State, time: int, now: int) -> Iterator[str]:
    last = before.pausing.since
    rested = before.pausing.allowed_from if last is None else last + before.rules.pause_max + before.rules.pause_rest
    if move.actor != before.rules.guardian or now < rested or after.pausing.since != now:
        yield f"{move.actor[-4:]} paused {now - rested} s after it could"


def _resume(before: State, move: m.Resume, after: State, time: int, now: int) -> Iterator[str]:
    since = before.pausing.since
    if move.actor != before.rules.guardian or since is None or after.pausing.since is not None:
        yield "something was resumed that did not stand still"
    elif after.pausing.total != before.pausing.total + now - since:
        yield "game time did not stand still"
    elif after.pausing.allowed_from != now + before.rules.pause_rest:
        yield "the guardian need not rest"


OTHER_LAWS: Final[Mapping[str, Callable[..., Iterator[str]]]] = {
    "contest": _contest,
    "post": _post,
    "finalise": _finalise,
    "enlist": _enlist,
    "retire": _retire,
    "withdraw": _withdraw,
    "pause": _pause,
    "resume": _resume,
}
