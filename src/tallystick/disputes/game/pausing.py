"""Pauses: the guardian can stop game time for a limited time, and not again for a while. It has no power over money.

During a pause no clock runs, and no move is taken except withdrawals and the end of the pause.
"""

from __future__ import annotations

from dataclasses import replace

from tallystick.disputes.game.context import Context, allow
from tallystick.disputes.game.moves import Pause, Resume
from tallystick.disputes.game.state import Pausing, State


def pause(at: Context, move: Pause) -> State:
    """Stop game time, for at most `pause_max` seconds."""
    allow(at.now >= at.state.pausing.allowed_from, "rest", "the last pause is too recent")
    return replace(at.state, pausing=replace(at.state.pausing, since=at.now))


def resume(at: Context, move: Resume) -> State:
    """End a pause before its time."""
    allow(at.state.pausing.since is not None, "running", "game time is not stopped")
    return _ended(at.state, at.now)


def with_expired_pause_lifted(state: State, now: int) -> State:
    """The state in which a pause that has reached `pause_max` is over."""
    since = state.pausing.since
    if since is None or now < since + state.rules.pause_max:
        return state
    return _ended(state, since + state.rules.pause_max)


def game_time(state: State, now: int) -> int:
    """Real time in seconds, less the time of all pauses."""
    pausing = with_expired_pause_lifted(state, now).pausing
    return (now if pausing.since is None else pausing.since) - pausing.total


def _ended(state: State, end: int) -> State:
    since = state.pausing.since
    assert since is not None  # checked by both callers
    lasted = state.pausing.total + end - since
    return replace(state, pausing=Pausing(None, lasted, end + state.rules.pause_rest))
