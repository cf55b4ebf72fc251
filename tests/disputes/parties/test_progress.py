"""The progress of a dispute, for people; when something becomes possible; what was made in it."""

from __future__ import annotations

import doctest
from dataclasses import replace
from pathlib import Path

import pytest

from tallystick.disputes.game.state import Pausing, Phase
from tallystick.disputes.parties import progress
from tallystick.disputes.parties.game_view import PHASES, GameFollower, next_instant
from tallystick.disputes.parties.progress import bar, dispute_history, progress_of, span
from tests.disputes.parties.in_memory_game import CHALLENGER, CHEAT, InMemoryGame, rules
from tests.support.in_memory import InMemoryCoordinator
from tests.support.toy_game import Counting

CHEATING = Counting(cheat=CHEAT)


def test_the_examples_hold() -> None:
    assert doctest.testmod(progress).failed == 0
    assert doctest.testmod(progress).attempted > 0


@pytest.mark.parametrize(
    ("low", "high", "size", "shown"),
    [
        (0, 1, 1, "████"),
        (0, 1, 10_000, "█···"),
        (9_999, 10_000, 10_000, "···█"),
        (0, 2, 4, "██··"),
        (1, 2, 3, "·██·"),
    ],
    ids=["one", "first", "last", "half", "middle"],
)
def test_a_bar_has_its_width_and_at_least_one_mark(low: int, high: int, size: int, shown: str) -> None:
    assert bar(low, high, size, width=4) == shown


def test_times_have_two_units_at_most() -> None:
    assert [span(each) for each in (0, -5, 1, 61, 3600, 90_061)] == ["over", "over", "1s", "1m 1s", "1h", "1d 1h"]


def test_a_standing_follows_the_game(tmp_path: Path) -> None:
    game = InMemoryGame(tmp_path)
    prover, challenger = game.prover(CHEATING), game.challenger()
    prover.look()
    challenger.step()
    seen = progress_of(game.coordinator.state, 0, game.coordinator.clock())
    assert (seen.mover, seen.seconds, seen.level, seen.low, seen.high) == ("prover", 6000, "records", 0, 20)
    game.coordinator.clock.advance(game.coordinator.clock() + 100)
    assert progress_of(game.coordinator.state, 0, game.coordinator.clock()).seconds == 5900
    game.play(prover, challenger, game.referee())
    ended = progress_of(game.coordinator.state, 0, game.coordinator.clock())
    assert (ended.mover, ended.seconds, ended.fault, ended.level) == ("nobody", None, "prover", "operators")
    assert ended.to_json()["range"] == [CHEAT.operator, CHEAT.operator + 1]


def test_every_move_of_one_dispute_is_listed_and_no_other(tmp_path: Path) -> None:
    game = InMemoryGame(tmp_path)
    players = [game.challenger(name=f"{number:064x}") for number in (900, 901)]
    game.play(game.prover(CHEATING), game.referee(), *players)
    for number in (0, 1):
        history = dispute_history(game.coordinator.rules, game.coordinator.entries, number)
        made = [entry for entry in game.coordinator.entries if getattr(entry.move, "dispute", None) == number]
        assert [each.entry for each in history[1:]] == made
        assert history[0].role == "challenger"
        assert history[0].summary.startswith("contests 0–19")
        assert history[-1].after.phase == "settled"
    ranges = [
        each.after.high - each.after.low
        for each in dispute_history(game.coordinator.rules, game.coordinator.entries, 0)
    ]
    assert min(ranges) == 1


def test_the_next_instant_is_when_a_clock_a_window_or_a_rest_ends(tmp_path: Path) -> None:
    game = InMemoryGame(tmp_path)
    now = game.coordinator.clock()
    assert next_instant(game.coordinator.state, now) is None
    prover, challenger = game.prover(CHEATING), game.challenger()
    prover.look()
    assert next_instant(game.coordinator.state, now) == now + game.coordinator.rules.challenge_window
    challenger.step()
    assert next_instant(game.coordinator.state, now) == now + game.coordinator.rules.clock
    paused = replace(game.coordinator.state, pausing=Pausing(since=now))
    assert next_instant(paused, now + 5) == now + game.coordinator.rules.pause_max
    after = replace(game.coordinator.state, pausing=Pausing(total=30))
    assert next_instant(after, now + 40) == now + game.coordinator.rules.clock + 30


def test_something_is_possible_at_the_next_instant_that_was_not_before(tmp_path: Path) -> None:
    game = InMemoryGame(tmp_path, InMemoryCoordinator(rules(referee=None)))
    prover, challenger = game.prover(CHEATING), game.challenger()
    prover.look()
    challenger.step()
    end = next_instant(game.coordinator.state, game.coordinator.clock())
    assert end is not None
    view = GameFollower(game.coordinator.connect(CHALLENGER)).look()
    assert "timeout" not in {option.kind for option in replace(view, now=end - 1).options}
    assert "timeout" in {option.kind for option in replace(view, now=end).options}


def test_every_phase_has_somebody_to_move() -> None:
    assert set(PHASES) == set(Phase)


def test_a_named_element_is_listed(tmp_path: Path) -> None:
    game = InMemoryGame(tmp_path)
    challenger = game.challenger(naming=lambda _: (1, 31_234))
    game.play(game.prover(CHEATING), challenger, game.referee(waits=True))
    assert progress_of(game.coordinator.state, 0, game.coordinator.clock()).to_json()["element"] == [1, 31_234]
    summaries = [each.summary for each in dispute_history(game.coordinator.rules, game.coordinator.entries, 0)]
    assert summaries.count("names element 31234 of result 1") == 1
