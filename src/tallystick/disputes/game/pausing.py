"""Pauses: the guardian can stop game time for a while and not again soon; it cannot touch money.

While game time stands still no clock runs and no move is taken, except that what is owed can be withdrawn.
"""

from __future__ import annotations

from dataclasses import replace

from tallystick.disputes.game.context import Context, allow
from tallystick.disputes.game.moves import Pause, Resume
from tallystick.disputes.game.state import Pausing, State


def pause(at: Context, move: Pause) -> State:
    """Game time stops, `pause_max` at most."""
    allow(at.now >= at.state.pausing.allowed_from, "rest", "the last pause is too recent")
    return replace(at.state, pausing=replace(at.state.pausing, since=at.now))


def resume(at: Context, move: Resume) -> State:
    """Game time goes on."""
    allow(at.state.pausing.since is not None, "running", "game time is not stopped")
    return _ended(at.state, at.now)


def with_expired_pause_lifted(state: State, now: int) -> State:
    """The state in which a pause that has lasted long enough is over by itself."""
    since = state.pausing.since
    if since is None or now < since + state.rules.pause_max:
        return state
    return _ended(state, since + state.rules.pause_max)


def game_time(state: State, now: int) -> int:
    """Seconds of real time without those that pauses took."""
    pausing = with_expired_pause_lifted(state, now).pausing
    return (now if pausing.since is None else pausing.since) - pausing.total


def _ended(state: State, end: int) -> State:
    since = state.pausing.since
    assert since is not None  # asked by both callers
    lasted = state.pausing.total + end - since
    return replace(state, pausing=Pausing(None, lasted, end + state.rules.pause_rest))
