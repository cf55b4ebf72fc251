"""What every accepted move has to obey, said a second time and apart from the game: who, when, and whose money moved.

The game refuses before it changes anything; these laws look at what has changed. They share no code with its rules
beyond the arithmetic of time and of cuts, so that a rule that is missing or wrong there is found here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tallystick.disputes.game import moves as m
from tallystick.disputes.game.context import game_time
from tallystick.disputes.game.state import State
from tests.support.simulator.laws.bisection import BISECTION_LAWS
from tests.support.simulator.laws.committees import COMMITTEE_LAWS
from tests.support.simulator.laws.money import money
from tests.support.simulator.laws.other_moves import OTHER_LAWS
from tests.support.simulator.laws.shares import who_was_paid
from tests.support.simulator.laws.standing import of_dispute, what_stays

DISPUTE_LAWS: Final = {**BISECTION_LAWS, **COMMITTEE_LAWS}


def broken_by(before: State, move: m.Move, now: int, after: State) -> Iterator[str]:
    """One line for each law that an accepted move broke."""
    yield from money(before, move, now, after)
    yield from what_stays(before, move, after)
    time = game_time(before, now)
    since = before.pausing.since
    is_paused = since is not None and now < since + before.rules.pause_max
    if is_paused and not isinstance(move, m.Withdraw | m.Resume):
        yield f"{move.kind} during a pause"
    number = getattr(move, "dispute", None)
    if number is not None:
        old, new = before.disputes[number], after.disputes[number]
        yield from of_dispute(before, move, old, new, time)
        if move.kind in DISPUTE_LAWS:
            yield from DISPUTE_LAWS[move.kind](before, move, old, new, time)
        yield from who_was_paid(before, move, after, number)
    elif move.kind in OTHER_LAWS:
        yield from OTHER_LAWS[move.kind](before, move, after, time, now)
