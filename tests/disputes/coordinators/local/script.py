"""A whole dispute as a function from a state to the next move, so that whoever comes back goes on where it stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tallystick.disputes.game.moves import Contest, Convene, Disclose, Draw, Enlist, Move, Post, Settle, Tally, Vote
from tallystick.disputes.game.state import Phase, Rules, State
from tallystick.verdicts.verdict import Fault
from tests.disputes.coordinators.conformance import MEMBERS, NO_SEAL, RECORDS, SALT, Play, usual_rules
from tests.disputes.coordinators.local.keys import LocalWorld, party_of

STEP_SECONDS: Final = 100


def rules(**changes: Any) -> Rules:
    """So short a time for appeals that the script never waits."""
    said = {"members": tuple(map(party_of, MEMBERS[:3])), "beacon": party_of("bystander"), **changes}
    return usual_rules(party_of, appeal_window=STEP_SECONDS, **said)


def second_of(number: int) -> int:
    """When a move of the script is made."""
    return 1_000_000 + STEP_SECONDS * number


def take_next(world: LocalWorld) -> bool:
    """Make the next move of the script, at a time that the number of moves determines; whether there was one."""
    world.clock.advance(second_of(world.place.chain().count))
    play = Play(world)
    step = _next_step(play, world.place.state)
    if step is not None:
        step()
    return step is not None


def _next_step(play: Play, state: State) -> Callable[[], object] | None:
    for name in MEMBERS[:3]:
        if play.party(name) not in state.members:
            return lambda name=name: play.do(name, Enlist, value=play.rules.stake)  # type: ignore[misc]
    if not state.claims:
        return play.post
    if not state.disputes:
        return play.contest
    return _in_the_dispute(play, state)


def _in_the_dispute(play: Play, state: State) -> Callable[[], object] | None:
    dispute = state.disputes[0]
    steps: dict[Phase, Callable[[], object]] = {
        Phase.PARTITION: play.partition,
        Phase.CHOOSE: play.choose,
        Phase.LEAF: play.open_leaf,
        Phase.RULING: lambda: play.do("referee", Convene, dispute=0),
        Phase.DRAWING: lambda: play.do("bystander", Draw, dispute=0, nonce="0d" * 32),
        Phase.COMMITTING: lambda: _vote(play, dispute.rounds[-1].commitments.index("")),
        Phase.REVEALING: lambda: _disclose(play, dispute.rounds[-1].votes),
        Phase.APPEALABLE: lambda: play.do("treasury", Settle, dispute=0),
    }
    return steps.get(dispute.phase)


def _vote(play: Play, seat: int) -> object:
    name = play.drawn()[seat]
    return play.do(name, Vote, dispute=0, commitment=play.commitment(name, Fault.PROVER))


def _disclose(play: Play, votes: tuple[Fault | None, ...]) -> object:
    if None not in votes:
        return play.do("challenger", Tally, dispute=0)
    return play.do(play.drawn()[votes.index(None)], Disclose, dispute=0, vote=Fault.PROVER, salt=SALT)


def a_claim(world: LocalWorld) -> Move:
    """A claim whose statement lies at the board."""
    play = Play(world)
    fields = {"root": RECORDS.root, "size": 10, "statement": play.data, "seal": NO_SEAL}
    return play.make("prover", Post, value=play.rules.prover_bond, **fields)


def a_contest(world: LocalWorld) -> Move:
    """A dispute over the first claim."""
    value = world.place.rules.challenger_bond + world.place.rules.deposit
    return Play(world).make("challenger", Contest, value=value, claim=0, low=0, high=10)
