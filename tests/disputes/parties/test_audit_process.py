"""Audits in a process apart: the program answers meanwhile, and nothing but an audit is lost when either is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tallystick.disputes.evidence.doubting import OpenedDoubter
from tallystick.disputes.game.protocols import Doubt, Doubter
from tallystick.disputes.parties import programs
from tallystick.disputes.parties.auditing import AuditProcess
from tallystick.disputes.parties.player import Player, Polling, Workspace
from tallystick.disputes.parties.programs import play_out
from tallystick.verdicts.verdict import Fault
from tests.disputes.parties import audit_doubters
from tests.disputes.parties.audit_doubters import ENDLESS, Killed, Mistaken, Recaller, Slow, claim_of
from tests.disputes.parties.in_memory_game import CHALLENGER, CHEAT, InMemoryGame
from tests.support.toy_game import Counting, CountingDoubter

HONEST, CHEATING, SLOW = Counting(), Counting(cheat=CHEAT), Counting(steps=ENDLESS)
QUICK = Polling(0.02)
ROOT = Path(__file__).parents[3]


class Game(InMemoryGame):
    """A game in which the challenger audits in a process of its own."""

    auditor: AuditProcess

    def apart(self, make: Callable[[], Doubter]) -> Player:
        """The challenger's program."""
        self.leave()
        return self.player(CHALLENGER, lambda *at: programs.challenger(*at, self._auditor(at[1], make)))

    def _auditor(self, workspace: Workspace, make: Callable[[], Doubter]) -> AuditProcess:
        self.auditor = AuditProcess(workspace, make, Recaller())
        return self.auditor

    def post(self, *runs: Counting) -> None:
        """Claims, each of a prover whose program ends then."""
        for run in runs:
            prover = self.prover(run)
            prover.look()
            prover.workspace.close()

    def wait(self, seconds: int) -> None:
        self.coordinator.clock.advance(self.coordinator.clock() + seconds)

    @property
    def contested(self) -> list[int]:
        return [dispute.claim for dispute in self.coordinator.state.disputes]


@pytest.fixture
def game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Game]:
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    game = Game(tmp_path)
    yield game
    game.auditor.close()
    game.leave()


def test_a_dispute_is_answered_while_an_audit_without_end_goes_on(game: Game) -> None:
    """A second claim whose audit takes days is no way to let the challenger's clock run out in the first dispute."""
    game.post(CHEATING)
    challenger = game.apart(Slow)
    challenger.look(QUICK)
    game.post(SLOW)
    assert challenger.step()  # the audit begins
    players = [game.prover(CHEATING), challenger, game.referee()]
    play_out(players, game.coordinator.clock.advance, lambda: game.coordinator.state.disputes[0].fault is not None)
    assert game.coordinator.state.disputes[0].fault is Fault.PROVER
    assert challenger.is_waiting
    assert game.contested == [0]


def test_looking_once_waits_for_the_audits(game: Game) -> None:
    """One at a time, and the claim first whose window closes first."""
    game.post(HONEST)
    game.wait(5)
    game.post(CHEATING)
    challenger = game.apart(CountingDoubter)
    challenger.step()
    assert game.auditor.worker is not None
    assert not game.contested
    challenger.look(QUICK)
    assert game.contested == [1]
    assert not challenger.is_waiting


def test_what_was_found_is_not_computed_again(game: Game) -> None:
    """The program was killed after the audit ended, and before it looked."""
    game.post(CHEATING)
    game.apart(CountingDoubter).step()
    assert game.auditor.worker is not None
    game.auditor.worker.process.join()
    game.apart(Mistaken).look(QUICK)
    assert game.contested == [0]
    assert not game.said


def test_an_audit_that_fails_is_begun_again_after_a_rest(game: Game) -> None:
    game.post(CHEATING)
    challenger = game.apart(Killed)
    for make, said in ((Mistaken, "exit code -9"), (CountingDoubter, "IndexError: list index out of range")):
        challenger.look(QUICK)
        assert said in game.said[-1]
        assert not game.contested
        game.auditor.make = make
        challenger.look(QUICK)  # it backoffs
        assert not challenger.is_waiting
        game.wait(300)
    challenger.look(QUICK)
    assert game.contested == [0]


def test_an_audit_ends_with_the_window_of_its_claim(game: Game) -> None:
    game.post(SLOW)
    challenger = game.apart(Slow)
    challenger.step()
    game.wait(game.coordinator.rules.challenge_window - 10)
    game.post(CHEATING)
    challenger.step()
    assert challenger.is_waiting
    assert not game.contested
    game.wait(10)
    challenger.look(QUICK)
    assert game.contested == [1]


def test_a_withheld_statement_is_contested_while_an_audit_without_end_goes_on(game: Game) -> None:
    game.post(SLOW, CHEATING)
    del game.board.blobs[game.coordinator.state.claims[1].statement]  # type: ignore[attr-defined]
    challenger = game.apart(Slow)
    challenger.step()
    game.wait(game.coordinator.rules.challenge_window - 100)
    challenger.step()
    assert game.contested == [1]
    assert game.auditor.worker is not None


def test_a_killed_program_leaves_no_audit_behind(tmp_path: Path) -> None:
    """Its output is closed only when nobody holds it any more."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, audit_doubters.__file__, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "auditing\n"
        assert program.poll() is None
        program.kill()
        assert program.communicate(timeout=60) == ("", None)


def test_what_another_process_found_is_taken_over(tmp_path: Path) -> None:
    """Of the leaves that it found all may be contested; a record is chosen by what was found."""
    claim, doubter = claim_of(9), OpenedDoubter(engine=None, contests_all=True)  # type: ignore[arg-type]
    doubter.recall(claim, tmp_path, Doubt(3, 4, "off"))
    assert doubter.doubt(claim, tmp_path) == Doubt(0, 9, "off")
    doubter.recall(claim, tmp_path, None)
    assert doubter.doubt(claim, tmp_path) is None
    assert "off" not in str(doubter.doubt(claim, tmp_path / "nothing"))
