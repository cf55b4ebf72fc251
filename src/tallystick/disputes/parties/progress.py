"""The progress of a dispute for human readers: level, range, whose turn it is, and how much time is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tallystick.commitments.encoding import Json
from tallystick.disputes.game.context import time_left
from tallystick.disputes.game.pausing import game_time
from tallystick.disputes.game.rules import DAY, HOUR, MINUTE
from tallystick.disputes.game.state import Dispute, Phase, State, Status

MOVERS: Final = {
    Phase.PARTITION: "prover",
    Phase.CHOOSE: "challenger",
    Phase.LEAF: "prover",
    Phase.RULING: "referee",
    Phase.DRAWING: "beacon",
    Phase.COMMITTING: "committee",
    Phase.REVEALING: "committee",
    Phase.APPEALABLE: "loser",
    Phase.SETTLED: "nobody",
}
LEVELS: Final = {1: "operators", 2: "records"}


@dataclass(frozen=True)
class DisputeProgress:
    """A dispute at one moment; `mover` has `seconds` left, `None` if no clock or window runs.

    `element` is the one that the challenger named, by its result and its flat place.
    """

    number: int
    claim: int
    phase: str
    level: str
    low: int
    high: int
    size: int
    turn: int
    mover: str
    seconds: int | None
    fault: str | None
    element: tuple[int, int] | None = None

    def to_json(self) -> dict[str, Json]:
        """All fields as a JSON object; the range is [low, high)."""
        return {
            "claim": self.claim,
            "dispute": self.number,
            "element": None if self.element is None else list(self.element),
            "fault": self.fault,
            "level": self.level,
            "mover": self.mover,
            "phase": self.phase,
            "range": [self.low, self.high],
            "seconds": self.seconds,
            "size": self.size,
            "turn": self.turn,
        }


def progress_of(state: State, number: int, now: int) -> DisputeProgress:
    """The progress of dispute `number` at real time `now`, in seconds."""
    dispute = state.disputes[number]
    is_moot = dispute.phase is not Phase.SETTLED and state.claims[dispute.claim].status is not Status.OPEN
    has_no_referee = dispute.phase is Phase.RULING and state.rules.referee is None
    return DisputeProgress(
        number=number,
        claim=dispute.claim,
        phase="moot" if is_moot else dispute.phase.value,
        level=LEVELS[dispute.level],
        low=dispute.low,
        high=dispute.high,
        size=dispute.size,
        turn=dispute.turn,
        mover="anybody" if is_moot or has_no_referee else MOVERS[dispute.phase],
        seconds=None if is_moot else _seconds(dispute, game_time(state, now)),
        fault=None if dispute.fault is None else dispute.fault.value,
        element=dispute.element,
    )


def bar(low: int, high: int, size: int, width: int = 32) -> str:
    """A bar of `width` characters with the contested leaves of a tree marked; there is at least one mark.

    >>> bar(8, 16, 32, width=8)
    '··██····'
    """
    start = min(low * width // size, width - 1)
    end = max(start + 1, -(-high * width // size))
    return "·" * start + "█" * (end - start) + "·" * (width - end)


def span(seconds: int | None) -> str:
    """A duration in its two largest units.

    >>> span(2 * 86400 + 3 * 3600 + 5), span(59), span(None)
    ('2d 3h', '59s', '')
    """
    if seconds is None:
        return ""
    if seconds <= 0:
        return "over"
    units = [(1 << 62, DAY, "d"), (DAY, HOUR, "h"), (HOUR, MINUTE, "m"), (MINUTE, 1, "s")]
    counts = [(seconds % above // unit, name) for above, unit, name in units]
    first = next(i for i, (count, _) in enumerate(counts) if count)
    return " ".join(f"{count}{name}" for count, name in counts[first : first + 2] if count)


def _seconds(dispute: Dispute, time: int) -> int | None:
    if dispute.phase in (Phase.PARTITION, Phase.CHOOSE, Phase.LEAF):
        return max(0, time_left(dispute, time))
    return None if dispute.phase is Phase.SETTLED else max(0, dispute.deadline - time)
