"""What every accepted move has to obey, said a second time and apart from the game: who, when, and whose money moved.

The game refuses before it changes anything; these laws look at what has changed. They share no code with its rules
beyond the arithmetic of time and of cuts, so that a rule that is missing or wrong there is found here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from tallystick.disputes import moves as m
from tallystick.disputes.committee import commitment, seal
from tallystick.disputes.fault import Fault
from tallystick.disputes.partition import bounds
from tallystick.disputes.pausing import game_time
from tallystick.disputes.state import Claim, Dispute, Member, Phase, State, Status

BISECTING: Final = (Phase.PARTITION, Phase.CHOOSE, Phase.LEAF)
VOTING: Final = (Phase.COMMITTING, Phase.REVEALING)
Lines = Iterator[str]


def broken_by(before: State, move: m.Move, now: int, after: State) -> Lines:
    """One line for each law that an accepted move broke."""
    yield from _money(before, move, now, after)
    yield from _what_stays(before, move, after)
    time = game_time(before, now)
    if before.pausing.since is not None and now < before.pausing.since + before.rules.pause_max:
        if not isinstance(move, m.Withdraw | m.Resume):
            yield f"{move.kind} during a pause"
    number = getattr(move, "dispute", None)
    if number is not None:
        old, new = before.disputes[number], after.disputes[number]
        yield from _of_dispute(before, move, old, new, time)
        if move.kind in _DISPUTE_LAWS:
            yield from _DISPUTE_LAWS[move.kind](before, move, old, new, time)
        yield from _who_was_paid(before, move, after, number)
    elif move.kind in _OTHER_LAWS:
        yield from _OTHER_LAWS[move.kind](before, move, after, time, now)


# ---- money
def _money(before: State, move: m.Move, now: int, after: State) -> Lines:
    paid = after.paid_out - before.paid_out
    if after.balance != before.balance + m.value_of(move) - paid:
        yield "the balance is not what came in less what went out"
    if paid < 0 or (paid and not isinstance(move, m.Withdraw)):
        yield f"{move.kind} paid out {paid}"
    if change_of_held(before, after) != m.value_of(move) - paid:
        yield f"{move.kind} changed what is held by {change_of_held(before, after)}, and {m.value_of(move)} came in"
    if not isinstance(move, m.Withdraw):
        for name, amount in credited(before, after).items():
            new = after.owed.get(name, ())[len(before.owed.get(name, ())) :]
            if amount < 0 or any(each.ripe != now + before.rules.withdrawal_delay for each in new):
                yield f"a credit of {name[-4:]} is not new, or not ripe after one delay"


def change_of_held(before: State, after: State) -> int:
    """How much more belongs to somebody: only what has changed is looked at."""
    change = sum(new.bond - old.bond for old, new in zip(before.claims, after.claims, strict=False) if old is not new)
    change += sum(each.bond for each in after.claims[len(before.claims) :])
    for old, new in zip(before.disputes, after.disputes, strict=False):
        if old is not new:
            change += new.held - old.held
    change += sum(each.held for each in after.disputes[len(before.disputes) :])
    for name, member in after.members.items():
        held = before.members.get(name)
        if held is not member:
            change += member.stake - (held.stake if held else 0)
    return change + sum(credited(before, after).values())


def credited(before: State, after: State) -> Mapping[str, int]:
    """How much more each party is owed, where that has changed."""
    if after.owed is before.owed:
        return {}
    changed = {name: credits for name, credits in after.owed.items() if before.owed.get(name) is not credits}
    gone = {name: () for name in before.owed if name not in after.owed}
    return {
        name: sum(each.amount for each in credits) - sum(each.amount for each in before.owed.get(name, ()))
        for name, credits in {**changed, **gone}.items()
    }


# ---- what nobody can change
def _what_stays(before: State, move: m.Move, after: State) -> Lines:
    for number, (old, new) in enumerate(zip(before.disputes, after.disputes, strict=False)):
        if old is not new and getattr(move, "dispute", None) != number:
            yield f"{move.kind} changed dispute {number}"
    for number, (was, now) in enumerate(zip(before.claims, after.claims, strict=False)):
        if was is now:
            continue
        if was.status is not Status.OPEN and (now.status is not was.status or now.bond):
            yield f"{move.kind} changed claim {number}, which was {was.status}"
        if _identity(was) != _identity(now):
            yield f"{move.kind} changed what claim {number} says"
        if now.disputes < 0 or (now.status is Status.FINAL and now.disputes):
            yield f"claim {number} is {now.status} with {now.disputes} open disputes"
    if len(after.claims) - len(before.claims) != isinstance(move, m.Post):
        yield f"{move.kind} changed how many claims there are"
    if len(after.disputes) - len(before.disputes) != isinstance(move, m.Contest):
        yield f"{move.kind} changed how many disputes there are"


def _identity(claim: Claim) -> tuple[Any, ...]:
    return (
        *(claim.prover, claim.root, claim.size, claim.levels, claim.statement, claim.seal),
        claim.deadline,
    )


# ---- moves inside a dispute
def _of_dispute(state: State, move: Any, old: Dispute, new: Dispute, time: int) -> Lines:
    claim = state.claims[old.claim]
    if old.phase is Phase.SETTLED and move.kind != "unseal":
        yield f"{move.kind} in a settled dispute"
    if move.kind not in ("dismiss", "unseal") and claim.status is not Status.OPEN:
        yield f"{move.kind} over a claim that is {claim.status}"
    if move.kind not in _PHASES[old.phase]:
        yield f"{move.kind} at {old.phase}"
    if (new.claim, new.challenger) != (old.claim, old.challenger):
        yield "a dispute changed hands"
    if not _may(state, move, claim, old):
        yield f"{move.kind} by {move.actor[-4:]}, who may not"
    if not 0 <= new.low < new.high <= new.size or new.deposit < 0:
        yield f"a dispute over [{new.low}, {new.high}) of {new.size} with a deposit of {new.deposit}"


_OFFICIALS: Final = {"rule": "referee", "draw": "beacon", "unseal": "planter"}
_PHASES: Final[Mapping[Phase, frozenset[str]]] = {
    Phase.PARTITION: frozenset({"partition", "concede", "timeout", "dismiss"}),
    Phase.CHOOSE: frozenset({"choose", "protest", "concede", "timeout", "dismiss"}),
    Phase.LEAF: frozenset({"descend", "reveal", "concede", "timeout", "dismiss"}),
    Phase.RULING: frozenset({"rule", "prove", "convene", "concede", "dismiss"}),
    Phase.DRAWING: frozenset({"draw", "timeout", "dismiss"}),
    Phase.COMMITTING: frozenset({"vote", "disclose", "tally", "dismiss"}),
    Phase.REVEALING: frozenset({"disclose", "tally", "dismiss"}),
    Phase.APPEALABLE: frozenset({"appeal", "settle", "dismiss"}),
    Phase.SETTLED: frozenset({"unseal"}),
}


def _may(state: State, move: Any, claim: Claim, dispute: Dispute) -> bool:
    actor, kind = move.actor, move.kind
    if kind in _OFFICIALS:
        official = getattr(state.rules, _OFFICIALS[kind])
        return actor == official or (kind == "draw" and official is None)
    if kind in ("partition", "descend", "reveal"):
        return bool(actor == claim.prover)
    if kind in ("choose", "protest"):
        return bool(actor == dispute.challenger)
    if kind in ("vote", "disclose"):
        return actor in dispute.rounds[-1].drawn
    return kind not in ("concede", "appeal") or actor in (claim.prover, dispute.challenger)


def _clock(dispute: Dispute, time: int) -> tuple[int, int]:
    """The seconds left to prover and challenger, the one to move charged for its turn."""
    spent = time - dispute.clocks.since
    is_challengers = dispute.phase is Phase.CHOOSE
    prover, challenger = dispute.clocks.prover, dispute.clocks.challenger
    return (prover, challenger - spent) if is_challengers else (prover - spent, challenger)


def _bisecting(state: State, move: Any, old: Dispute, new: Dispute, time: int) -> Lines:
    clocks = _clock(old, time)
    if move.turn != old.turn or new.turn != old.turn + 1:
        yield f"turn {move.turn} at turn {old.turn}, and then {new.turn}"
    if clocks[old.phase is Phase.CHOOSE] <= 0:
        yield f"{move.kind} after the clock had run out"
    expected = tuple(max(left, state.rules.extension) for left in clocks)
    if (new.clocks.prover, new.clocks.challenger, new.clocks.since) != (*expected, time):
        yield f"after {move.kind} the clocks are {new.clocks}, and should be {expected}"
    if new.phase is Phase.RULING and new.deadline != time + state.rules.referee_window:
        yield "the referee has another window"


def _partition(state: State, move: m.Partition, old: Dispute, new: Dispute, time: int) -> Lines:
    yield from _bisecting(state, move, old, new, time)
    if len(new.cuts) != min(state.rules.ways, old.high - old.low) - 1 or (new.low, new.high) != (old.low, old.high):
        yield "a partition of another number of children"
    if new.cuts != tuple(each.leaf for each in move.cuts) or new.phase is not Phase.CHOOSE:
        yield "a partition after which nobody can choose"


def _choose(state: State, move: m.Choose, old: Dispute, new: Dispute, time: int) -> Lines:
    yield from _bisecting(state, move, old, new, time)
    ends = bounds(old.low, old.high, state.rules.ways)
    if move.child + 1 >= len(ends) or (new.low, new.high) != (ends[move.child], ends[move.child + 1]):
        yield "another child than was chosen"
    elif new.phase is not (Phase.LEAF if new.high - new.low == 1 else Phase.PARTITION):
        yield f"{new.phase} with {new.high - new.low} leaves left"


def _descend(state: State, move: m.Descend, old: Dispute, new: Dispute, time: int) -> Lines:
    yield from _bisecting(state, move, old, new, time)
    if old.level < 2 or new.level != old.level - 1:
        yield f"from level {old.level} down to level {new.level}"
    if (new.root, new.low, new.high, new.size) != (move.root, 0, move.size, move.size):
        yield "another tree than was named"


def _to_ruling(state: State, move: Any, old: Dispute, new: Dispute, time: int) -> Lines:
    yield from _bisecting(state, move, old, new, time)
    if new.phase is not Phase.RULING or new.ground != getattr(move, "ground", "leaf"):
        yield f"{move.kind} led to {new.phase} on ground of {new.ground!r}"


def _timeout(state: State, move: m.Timeout, old: Dispute, new: Dispute, time: int) -> Lines:
    if old.phase in BISECTING and _clock(old, time)[old.phase is Phase.CHOOSE] > 0:
        yield "a timeout while the clock still ran"
    loser = Fault.CHALLENGER if old.phase is Phase.CHOOSE else Fault.PROVER
    if old.phase in BISECTING and new.fault is not loser:
        yield f"{old.phase} timed out, and {new.fault} is at fault"
    if old.phase is Phase.DRAWING and time < old.deadline:
        yield "a timeout while the nonce could still come"


def _concede(state: State, move: m.Concede, old: Dispute, new: Dispute, time: int) -> Lines:
    if new.fault is not (Fault.CHALLENGER if move.actor == old.challenger else Fault.PROVER):
        yield f"{move.actor[-4:]} conceded, and {new.fault} is at fault"


def _rule(state: State, move: m.Rule, old: Dispute, new: Dispute, time: int) -> Lines:
    if new.fault is not move.fault:
        yield f"{move.fault} was ruled, and {new.fault} is at fault"


def _prove(state: State, move: m.Prove, old: Dispute, new: Dispute, time: int) -> Lines:
    if old.level != 1 or old.ground != "leaf" or new.fault is not Fault.PROVER:
        yield f"evidence at level {old.level} on ground of {old.ground!r} found {new.fault}"


def _convene(state: State, move: m.Convene, old: Dispute, new: Dispute, time: int) -> Lines:
    if time < old.deadline and move.actor != state.rules.referee:
        yield "a committee was called in the referee's window"
    if new.phase is Phase.SETTLED and (new.fault is not Fault.NOBODY or _able(state, old)):
        yield "a committee could have been drawn"
    if new.phase is Phase.DRAWING and not 1 <= new.seats <= min(state.rules.committee, len(_able(state, old))):
        yield f"a committee of {new.seats}"


def _able(state: State, dispute: Dispute) -> list[str]:
    parties = (state.claims[dispute.claim].prover, dispute.challenger)
    members = ((each, state.members.get(each)) for each in state.rules.members if each not in parties)
    return [name for name, member in members if member is not None and member.is_active]


def _draw(state: State, move: m.Draw, old: Dispute, new: Dispute, time: int) -> Lines:
    if new.phase is Phase.SETTLED:
        if _able(state, old):
            yield "a committee could have been drawn"
        return
    drawn, able = new.rounds[-1].drawn, _able(state, old)
    if len(set(drawn)) != len(drawn) or not set(drawn) <= set(able) or len(drawn) % 2 == 0:
        yield f"{len(drawn)} were drawn out of {len(able)}"
    if len(drawn) < min(old.seats, len(able)) - 1 or len(new.rounds) != len(old.rounds) + 1:
        yield f"{len(drawn)} were drawn for {old.seats} seats"


def _vote(state: State, move: m.Vote, old: Dispute, new: Dispute, time: int) -> Lines:
    if time >= old.deadline:
        yield "a vote was committed to too late"
    was, now = old.rounds[-1].commitments, new.rounds[-1].commitments
    changed = [place for place, (a, b) in enumerate(zip(was, now, strict=True)) if a != b]
    if [old.rounds[-1].drawn[place] for place in changed] != [move.actor] or any(was[place] for place in changed):
        yield "a vote of somebody else, or a second one"
    if (new.phase is Phase.REVEALING) != all(now):
        yield f"{sum(map(bool, now))} of {len(now)} have voted at {new.phase}"


def _disclose(state: State, move: m.Disclose, old: Dispute, new: Dispute, time: int) -> Lines:
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


def _tally(state: State, move: m.Tally, old: Dispute, new: Dispute, time: int) -> Lines:
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


def _appeal(state: State, move: m.Appeal, old: Dispute, new: Dispute, time: int) -> Lines:
    claim = state.claims[old.claim]
    loser = {Fault.PROVER: claim.prover, Fault.CHALLENGER: old.challenger}.get(old.fault or Fault.NOBODY)
    if time >= old.deadline or (loser is not None and move.actor != loser):
        yield "an appeal too late, or by the party that won"
    if len(old.rounds) > state.rules.appeals or new.phase is not Phase.DRAWING:
        yield f"an appeal against committee {len(old.rounds)} led to {new.phase}"
    if new.seats != 2 * len(old.rounds[-1].drawn) + 1 or new.seats > len(_able(state, old)):
        yield f"an appeal asked for {new.seats} seats"


def _settle(state: State, move: m.Settle, old: Dispute, new: Dispute, time: int) -> Lines:
    if time < old.deadline or new.fault is not old.fault:
        yield "a finding took effect early, or another one did"


def _dismiss(state: State, move: m.Dismiss, old: Dispute, new: Dispute, time: int) -> Lines:
    if state.claims[old.claim].status is not Status.SLASHED or new.fault is not Fault.NOBODY:
        yield "a dispute was dismissed over a claim that stands"


def _unseal(state: State, move: m.Unseal, old: Dispute, new: Dispute, time: int) -> Lines:
    claim = state.claims[old.claim]
    if claim.seal != seal(claim.prover, move.answer, move.salt) or old.is_unsealed or not new.is_unsealed:
        yield "an unsealing of what was not sealed, or a second one"
    if new.phase is not Phase.SETTLED or new.fault is not old.fault:
        yield "an unsealing changed the outcome"


_DISPUTE_LAWS: Final[Mapping[str, Callable[..., Lines]]] = {
    **{"partition": _partition, "choose": _choose, "protest": _to_ruling, "descend": _descend, "reveal": _to_ruling},
    **{"timeout": _timeout, "concede": _concede, "rule": _rule, "prove": _prove, "convene": _convene, "draw": _draw},
    **{"vote": _vote, "disclose": _disclose, "tally": _tally, "appeal": _appeal, "settle": _settle},
    **{"dismiss": _dismiss, "unseal": _unseal},
}


# ---- who gets what when a dispute ends
def _who_was_paid(before: State, move: Any, after: State, number: int) -> Lines:
    """Bond, deposit, appeals, wages, fines and the prover's bond, each to whom it belongs and to nobody else."""
    old, new = before.disputes[number], after.disputes[number]
    expected = Counter[str]()
    if move.kind == "tally":
        expected += wages(before, old)
        old = replace(old, deposit=old.deposit - before.rules.vote_fee * len(old.rounds[-1].drawn))
    if move.kind == "unseal":
        expected[before.rules.treasury] += sum(before.members[name].stake for name in wrong_voters(old, move.answer))
        if any(after.members[name].stake or after.members[name].is_active for name in wrong_voters(old, move.answer)):
            yield "a member that voted against a planted answer was spared"
    if new.phase is Phase.SETTLED and old.phase is not Phase.SETTLED:
        expected += expected_shares(before, old, new.fault or Fault.NOBODY, is_dismissed=move.kind == "dismiss")
        yield from _is_closed(before, move, new, after)
    found = {name: amount for name, amount in credited(before, after).items() if amount}
    if found != {name: amount for name, amount in expected.items() if amount}:
        yield f"{move.kind} of dispute {number} paid {found}, where {dict(expected)} is right"


def _is_closed(before: State, move: Any, new: Dispute, after: State) -> Lines:
    if new.held or new.fault is None:
        yield f"a dispute is over and holds {new.held}"
    is_slashed = after.claims[new.claim].status is Status.SLASHED
    if is_slashed != (new.fault is Fault.PROVER or move.kind == "dismiss"):
        yield f"a dispute ended with {new.fault}, and the claim is {after.claims[new.claim].status}"
    if after.claims[new.claim].disputes != before.claims[new.claim].disputes - 1:
        yield "a claim lost count of its disputes"


def wrong_voters(dispute: Dispute, answer: Fault) -> set[str]:
    """The members that voted something other than `answer`."""
    votes = (pair for sitting in dispute.rounds for pair in zip(sitting.drawn, sitting.votes, strict=True))
    return {name for name, cast in votes if cast not in (None, answer)}


def expected_shares(state: State, dispute: Dispute, fault: Fault, is_dismissed: bool) -> Counter[str]:
    """What each party is owed for a dispute that ends so."""
    rules, claim, shares = state.rules, state.claims[dispute.claim], Counter[str]()
    sides = {Fault.PROVER: claim.prover, Fault.CHALLENGER: dispute.challenger}
    for each in dispute.appeals:
        is_lost = each.against is fault and not is_dismissed
        other = claim.prover if each.party == dispute.challenger else dispute.challenger
        shares[other if is_lost else each.party] += each.bond
    shares[dispute.challenger] += dispute.deposit
    shares[sides[Fault.PROVER] if fault is Fault.CHALLENGER else sides[Fault.CHALLENGER]] += dispute.bond
    if fault is Fault.PROVER:
        spent = max(0, rules.deposit - dispute.deposit)
        reward = (claim.bond - spent) * rules.reward // 1000
        shares[dispute.challenger] += spent + reward
        shares[rules.treasury] += claim.bond - spent - reward
    return shares


def wages(state: State, dispute: Dispute) -> Counter[str]:
    """What a count of votes pays: its fee to whoever voted, to the treasury that of an absent member and its fine."""
    fee, shares = state.rules.vote_fee, Counter[str]()
    sitting = dispute.rounds[-1]
    for name, cast in zip(sitting.drawn, sitting.votes, strict=True):
        shares[name if cast else state.rules.treasury] += fee
        shares[state.rules.treasury] += 0 if cast else min(fee, state.members[name].stake)
    return shares


# ---- other moves
def _contest(before: State, move: m.Contest, after: State, time: int, now: int) -> Lines:
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


def _post(before: State, move: m.Post, after: State, time: int, now: int) -> Lines:
    new = after.claims[-1]
    if move.value != before.rules.prover_bond or new.bond != move.value or new.prover != move.actor:
        yield "a claim with another bond"
    if new.deadline != time + before.rules.challenge_window or new.status is not Status.OPEN:
        yield "a claim with another window"


def _finalise(before: State, move: m.Finalise, after: State, time: int, now: int) -> Lines:
    old, new = before.claims[move.claim], after.claims[move.claim]
    if old.status is not Status.OPEN or time < old.deadline or old.disputes or new.status is not Status.FINAL:
        yield f"a claim that was {old.status} became {new.status} with {old.disputes} disputes"
    if dict(credited(before, after)) != ({old.prover: old.bond} if old.bond else {}):
        yield "the bond of a final claim went elsewhere"


def _enlist(before: State, move: m.Enlist, after: State, time: int, now: int) -> Lines:
    held = before.members.get(move.actor, Member(0))
    if move.actor not in before.rules.members or held.stake or move.value != before.rules.stake:
        yield f"{move.actor[-4:]} enlisted with {move.value}"
    if after.members[move.actor].serving != held.serving:
        yield "a member came back from its duties"


def _retire(before: State, move: m.Retire, after: State, time: int, now: int) -> Lines:
    old, new = before.members[move.actor], after.members[move.actor]
    if old.serving or time < old.bound_until or new.stake or new.is_active:
        yield f"a member retired that serves in {old.serving} until {old.bound_until - time} s from now"
    if dict(credited(before, after)) != ({move.actor: old.stake} if old.stake else {}):
        yield "the stake of a member went elsewhere"


def _withdraw(before: State, move: m.Withdraw, after: State, time: int, now: int) -> Lines:
    old, new = before.owed.get(move.actor, ()), after.owed.get(move.actor, ())
    taken = old[: len(old) - len(new)]
    if not taken or new != old[len(taken) :] or any(each.ripe > now for each in taken):
        yield "something was withdrawn that was not ripe"
    if sum(each.amount for each in taken) != after.paid_out - before.paid_out:
        yield "more or less was withdrawn than was owed"
    if any(after.owed.get(name) is not credits for name, credits in before.owed.items() if name != move.actor):
        yield "somebody else's money was touched"


def _pause(before: State, move: m.Pause, after: State, time: int, now: int) -> Lines:
    last = before.pausing.since
    rested = before.pausing.allowed_from if last is None else last + before.rules.pause_max + before.rules.pause_rest
    if move.actor != before.rules.guardian or now < rested or after.pausing.since != now:
        yield f"{move.actor[-4:]} paused {now - rested} s after it could"


def _resume(before: State, move: m.Resume, after: State, time: int, now: int) -> Lines:
    since = before.pausing.since
    if move.actor != before.rules.guardian or since is None or after.pausing.since is not None:
        yield "something was resumed that did not stand still"
    elif after.pausing.total != before.pausing.total + now - since:
        yield "game time did not stand still"
    elif after.pausing.allowed_from != now + before.rules.pause_rest:
        yield "the guardian need not rest"


_OTHER_LAWS: Final[Mapping[str, Callable[..., Lines]]] = {
    **{"contest": _contest, "post": _post, "finalise": _finalise, "enlist": _enlist, "retire": _retire},
    **{"withdraw": _withdraw, "pause": _pause, "resume": _resume},
}
