"""When something becomes possible without a move: a clock or window ends, or a credit can be withdrawn."""

from __future__ import annotations

from collections.abc import Iterator

from tallystick.disputes.game.context import mover, time_left
from tallystick.disputes.game.pausing import game_time
from tallystick.disputes.game.state import Dispute, Phase, State, Status


def next_instant(state: State, now: int) -> int | None:
    """The first second after `now` at which a window, clock, pause or waiting time ends; `None` if there is none."""
    return min((each for each in _instants(state, now) if each > now), default=None)


def _instants(state: State, now: int) -> Iterator[int]:
    yield from (credit.ripe for credits in state.owed.values() for credit in credits)
    if state.pausing.since is not None:
        yield state.pausing.since + state.rules.pause_max
        return
    behind = now - game_time(state, now)
    yield from (claim.deadline + behind for claim in state.claims if claim.status is Status.OPEN)
    for dispute in state.disputes:
        if dispute.phase is not Phase.SETTLED:
            yield from (each + behind for each in _ends(state, dispute))


def _ends(state: State, dispute: Dispute) -> Iterator[int]:
    """When the clocks and windows of an open dispute end, in game time."""
    if mover(state.claims[dispute.claim], dispute) is not None:
        yield dispute.clocks.since + time_left(dispute, dispute.clocks.since)
    else:
        yield dispute.deadline
        if dispute.phase is Phase.COMMITTING:
            yield dispute.deadline + state.rules.reveal_window
