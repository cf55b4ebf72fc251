"""Laws of the moves of a bisection, and of those that end one: turns, clocks, ranges, trees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from tallystick.disputes.game import moves as m
from tallystick.disputes.game.state import Dispute, Phase, State, bounds
from tallystick.verdicts.verdict import Fault

BISECTING: Final = (Phase.PARTITION, Phase.CHOOSE, Phase.LEAF)


def _clock(dispute: Dispute, time: int) -> tuple[int, int]:
    """The seconds left to prover and challenger, the one to move charged for its turn."""
    spent = time - dispute.clocks.since
    is_challengers = dispute.phase is Phase.CHOOSE
    prover, challenger = dispute.clocks.prover, dispute.clocks.challenger
    return (prover, challenger - spent) if is_challengers else (prover - spent, challenger)


def _bisecting(state: State, move: Any, old: Dispute, new: Dispute, time: int) -> Iterator[str]:
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


def _partition(state: State, move: m.Partition, old: Dispute, new: Dispute, time: int) -> Iterator[str]:
    yield from _bisecting(state, move, old, new, time)
    if len(new.cuts) != min(state.rules.ways, old.high - old.low) - 1 or (new.low, new.high) != (old.low, old.high):
        yield "a partition of another number of children"
    if new.cuts != tuple(each.leaf for each in move.cuts) or new.phase is not Phase.CHOOSE:
        yield "a partition after which nobody can choose"


def _choose(state: State, move: m.Choose, old: Dispute, new: Dispute, time: int) -> Iterator[str]:
    yield from _bisecting(state, move, old, new, time)
    ends = bounds(old.low, old.high, state.rules.ways)
    if move.child + 1 >= len(ends) or (new.low, new.high) != (ends[move.child], ends[move.child + 1]):
        yield "another child than was chosen"
    elif new.phase is not (Phase.LEAF if new.high - new.low == 1 else Phase.PARTITION):
        yield f"{new.phase} with {new.high - new.low} leaves left"


def _descend(state: State, move: m.Descend, old: Dispute, new: Dispute, time: int) -> Iterator[str]:
    yield from _bisecting(state, move, old, new, time)
    if old.level < 2 or new.level != old.level - 1:
        yield f"from level {old.level} down to level {new.level}"
    if (new.root, new.low, new.high, new.size) != (move.root, 0, move.size, move.size):
        yield "another tree than was named"


def _to_ruling(state: State, move: Any, old: Dispute, new: Dispute, time: int) -> Iterator[str]:
    yield from _bisecting(state, move, old, new, time)
    if new.phase is not Phase.RULING or new.ground != getattr(move, "ground", "leaf"):
        yield f"{move.kind} led to {new.phase} on ground of {new.ground!r}"


def _pinpoint(state: State, move: m.Pinpoint, old: Dispute, new: Dispute, time: int) -> Iterator[str]:
    if old.level != 1 or old.ground != "leaf":
        yield f"an element was named at level {old.level} on ground of {old.ground!r}"
    if new != replace(old, element=(move.result, move.element)):
        yield "naming an element changed something else"


def _timeout(state: State, move: m.Timeout, old: Dispute, new: Dispute, time: int) -> Iterator[str]:
    if old.phase in BISECTING and _clock(old, time)[old.phase is Phase.CHOOSE] > 0:
        yield "a timeout while the clock still ran"
    loser = Fault.CHALLENGER if old.phase is Phase.CHOOSE else Fault.PROVER
    if old.phase in BISECTING and new.fault is not loser:
        yield f"{old.phase} timed out, and {new.fault} is at fault"
    if old.phase is Phase.DRAWING and time < old.deadline:
        yield "a timeout while the nonce could still come"


def _concede(state: State, move: m.Concede, old: Dispute, new: Dispute, time: int) -> Iterator[str]:
    if new.fault is not (Fault.CHALLENGER if move.actor == old.challenger else Fault.PROVER):
        yield f"{move.actor[-4:]} conceded, and {new.fault} is at fault"


def _rule(state: State, move: m.Rule, old: Dispute, new: Dispute, time: int) -> Iterator[str]:
    if new.fault is not move.fault:
        yield f"{move.fault} was ruled, and {new.fault} is at fault"


def _prove(state: State, move: m.Prove, old: Dispute, new: Dispute, time: int) -> Iterator[str]:
    if old.level != 1 or old.ground != "leaf" or new.fault is not Fault.PROVER:
        yield f"evidence at level {old.level} on ground of {old.ground!r} found {new.fault}"


BISECTION_LAWS: Final[Mapping[str, Callable[..., Iterator[str]]]] = {
    "partition": _partition,
    "choose": _choose,
    "protest": _to_ruling,
    "descend": _descend,
    "reveal": _to_ruling,
    "pinpoint": _pinpoint,
    "timeout": _timeout,
    "concede": _concede,
    "rule": _rule,
    "prove": _prove,
}
