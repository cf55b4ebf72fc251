"""`kill -9` of a real process at a real database: started again it goes on, and every move is made once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")

from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator
from tallystick.disputes.game.state import Rules
from tallystick.formats.signing import SigningKey
from tests.disputes.parties import worker

ROOT = Path(__file__).parents[3]
KILLED = -9


class Game:
    """A coordinator in a file, and the two parties as processes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.database = folder, folder / "disputes.db"
        self.keys = {role: SigningKey.generate() for role in ("prover", "challenger")}
        for role, key in self.keys.items():
            key.write(folder / role)
        self.place = LocalCoordinator.create(self.database, Rules(treasury="1" * 64, ways=2))
        for key in self.keys.values():
            self.place.grant(key.public, 2_000_000)

    def run(self, role: str, point: int) -> subprocess.CompletedProcess[str]:
        """One process of a party, killed at a point, -1 for never."""
        command = [sys.executable, worker.__file__, self.database, self.folder / role, self.folder / f"{role}-work"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [*command, role, str(point)], env=environment, capture_output=True, text=True, check=False
        )

    @property
    def kinds(self) -> Counter[str]:
        return Counter(entry.move.kind for entry in self.place.entries())


def play(folder: Path, points: list[int]) -> Counter[str]:
    """A game until the last leaf; every process is killed at the next of `points`, and then started again."""
    game, left = Game(folder), list(points)
    while not game.kinds["reveal"]:
        for role in ("prover", "challenger"):
            if left:
                died = game.run(role, left.pop(0))
                assert died.returncode in (0, KILLED), died.stderr
            assert game.run(role, -1).returncode == 0
    kinds = game.kinds
    game.place.close()
    return kinds


def test_killed_processes_go_on(tmp_path: Path) -> None:
    game = Game(tmp_path)
    for role, point in (("prover", 9), ("prover", -1), ("challenger", 12), ("challenger", -1)):
        assert game.run(role, point).returncode == (0 if point < 0 else KILLED)
    assert game.kinds == {"post": 1, "contest": 1}
    game.place.close()


@pytest.mark.slow
@pytest.mark.parametrize("first", range(30))
def test_killed_processes_go_on_wherever_they_are_killed(tmp_path: Path, first: int) -> None:
    kinds = play(tmp_path, [first + step for step in (0, 7, 3, 11, 5, 2, 9, 1)])
    assert kinds == {"post": 1, "contest": 1, "partition": 2, "choose": 2, "descend": 1, "reveal": 1}


def test_a_killed_process_really_dies(tmp_path: Path) -> None:
    game = Game(tmp_path)
    assert game.run("prover", 3).returncode == KILLED
    assert not game.kinds
    assert game.run("prover", -1).returncode == 0
    assert game.kinds == {"post": 1}
    game.place.close()
