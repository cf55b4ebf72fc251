"""A coordinator's accepted moves determine its state; nothing else does."""

from __future__ import annotations

import pytest

from tallystick.core.errors import RuleError
from tallystick.disputes.coordinators.coordinator import MoveEntry, replayed
from tallystick.disputes.game import moves
from tallystick.disputes.game.game import apply
from tallystick.disputes.game.moves import Move, read_move
from tallystick.disputes.game.state import State
from tallystick.verdicts.verdict import Fault
from tests.disputes.playing import MEMBERS, PROVER, RULES, Play


class Recorded(Play):
    """A game that keeps its moves."""

    def __init__(self, **changes: object) -> None:
        super().__init__(**changes)  # type: ignore[arg-type]
        self.log: list[MoveEntry] = []

    def do(self, move: Move) -> Play:
        super().do(move)
        self.log.append(MoveEntry(len(self.log), self.now, move))
        return self


def whole_game() -> Recorded:
    """A game from the first stake to the last withdrawal."""
    play = Recorded()
    play.ruling()
    play.do(moves.Convene(actor=RULES.referee, dispute=0)).drawn().counted(Fault.PROVER)
    play.do(play.appeal(PROVER)).drawn().counted(Fault.PROVER).settled().wait(RULES.holding)
    for name in MEMBERS:
        play.do(moves.Retire(actor=name))
    play.all_out()
    return play


def test_no_moves_lead_to_the_empty_state() -> None:
    assert replayed(RULES, []) == State(RULES)


def test_a_coordinator_killed_after_any_move_goes_on_from_its_log_as_if_nothing_had_happened() -> None:
    """Row D-11, as far as the pure game carries it: at each of all transitions."""
    play = whole_game()
    state = State(RULES)
    for number, entry in enumerate(play.log):
        assert replayed(RULES, play.log[:number]) == state
        state = apply(state, entry.move, entry.time)
    assert replayed(RULES, play.log) == state == play.state
    assert len(play.log) > 60


def test_moves_read_back_from_bytes_lead_to_the_same_state() -> None:
    play = whole_game()
    read = [MoveEntry(each.number, each.time, read_move(each.move.to_bytes())) for each in play.log]
    assert replayed(RULES, read) == play.state


@pytest.mark.parametrize("spoil", ["drop", "swap", "double", "later"])
def test_another_order_is_another_state_or_no_game_at_all(spoil: str) -> None:
    play = whole_game()
    log = list(play.log)
    place = next(n for n, entry in enumerate(log) if entry.move.kind == "choose")
    if spoil == "drop":
        del log[place]
    elif spoil == "swap":
        log[place - 1 : place + 1] = [log[place], log[place - 1]]
    elif spoil == "double":
        log.insert(place, log[place])
    else:
        log[place] = MoveEntry(place, log[place].time + 30, log[place].move)
        assert replayed(RULES, log[: place + 1]) != replayed(RULES, play.log[: place + 1])
        return
    with pytest.raises(RuleError):
        replayed(RULES, log)


def test_a_log_under_other_rules_is_another_game() -> None:
    play = whole_game()
    with pytest.raises(RuleError):
        replayed(RULES.model_copy(update={"ways": 5}), play.log)
