"""What programs wait for, how disputes ended, and who is owed what, for people."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tallystick.core.digests import Digest
from tallystick.core.errors import UnavailableError
from tallystick.disputes.game.state import Pausing, Phase
from tallystick.disputes.parties.game_view import PHASES, GameFollower, GameView, accounts
from tallystick.disputes.parties.progress import dispute_ending, dispute_history, ending_of, in_words, waits_of
from tests.disputes.parties.in_memory_game import CHALLENGER, CHEAT, PROVER, TREASURY, InMemoryGame
from tests.support.toy_game import Counting

CHEATING = Counting(cheat=CHEAT)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (7 * 86_400, "7 days")]
)
def test_a_duration_has_one_unit(seconds: int, words: str) -> None:
    assert in_words(seconds) == words


def view_of(game: InMemoryGame, party: str) -> GameView:
    return GameFollower(game.coordinator.connect(party)).look()


def told(view: GameView, *watched: int, audited: tuple[int, ...] = ()) -> list[str]:
    return [each.what for each in waits_of(view, watched, audited)]


def test_a_program_says_what_it_waits_for(tmp_path: Path) -> None:
    game = InMemoryGame(tmp_path)
    assert told(view_of(game, PROVER)) == []
    game.prover(CHEATING).look()
    assert told(view_of(game, PROVER)) == ["claim 0 to become final: it can be contested"]
    assert told(view_of(game, CHALLENGER)) == []
    assert told(view_of(game, CHALLENGER), 0) == ["claim 0 to become final: it can be contested"]
    assert told(view_of(game, CHALLENGER), 0, audited=(0,)) == ["the audit of claim 0, which can be contested"]
    game.challenger().step()
    assert told(view_of(game, PROVER)) == ["this party's own move in dispute 0"]
    (wait,) = waits_of(view_of(game, CHALLENGER))
    assert wait.what == "the prover's move in dispute 0"
    assert wait.until == game.coordinator.clock() + game.coordinator.rules.clock
    view = view_of(game, CHALLENGER)
    late = replace(view, now=view.now + game.coordinator.rules.clock)
    assert [each.sentence(late.now) for each in waits_of(late)] == [
        "waiting for the prover's move in dispute 0, whose time is over"
    ]
    paused = replace(view, state=replace(view.state, pausing=Pausing(since=view.now)))
    (pause, _) = waits_of(paused)
    assert pause.until == view.now + view.rules.pause_max


def test_every_phase_without_a_clock_says_what_is_awaited() -> None:
    assert {phase for phase, row in PHASES.items() if row.awaited} | {Phase.SETTLED} == set(Phase)


def test_the_accounts_of_all_parties_balance(tmp_path: Path) -> None:
    game = InMemoryGame(tmp_path)
    rules = game.coordinator.rules
    prover = game.prover(CHEATING)
    prover.look()
    (posted,) = accounts(rules, game.coordinator.entries)
    assert (posted.roles, posted.paid_in, posted.held, posted.gained) == (
        ("prover of claim 0",),
        rules.prover_bond,
        rules.prover_bond,
        0,
    )
    game.play(prover, game.challenger(), game.referee())
    ended = {each.party: each for each in accounts(rules, game.coordinator.entries)}
    assert ended[PROVER].gained == -rules.prover_bond
    reward = rules.prover_bond * rules.reward // 1000
    assert (ended[CHALLENGER].gained, ended[CHALLENGER].owed) == (reward, 0)
    assert ended[CHALLENGER].roles == ("challenger in dispute 0",)
    assert ended[TREASURY].gained == rules.prover_bond - reward
    assert sum(each.gained for each in ended.values()) == 0


def test_a_dispute_ends_at_a_place_even_if_its_files_are_gone(tmp_path: Path) -> None:
    game = InMemoryGame(tmp_path)
    game.play(game.prover(CHEATING), game.challenger(), game.referee())
    history = dispute_history(game.coordinator.rules, game.coordinator.entries, 0)

    def gone(name: Digest) -> Path:
        raise UnavailableError("the board is not there")

    ending = ending_of(history, gone)
    assert (ending.record, ending.operator and ending.operator[0]) == (CHEAT.step, CHEAT.operator)
    sentence = dispute_ending(game.coordinator.state.disputes[0], 0, ending)
    assert sentence.startswith(f"dispute 0 ended at record {CHEAT.step}, operator {CHEAT.operator} of ")
    assert sentence.endswith(": challenger's objection upheld, prover at fault")
    assert dispute_ending(replace(game.coordinator.state.disputes[0], fault=None), 0, ending).startswith(
        "dispute 0 is open at record"
    )
