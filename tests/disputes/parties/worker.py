"""A party's program in a process of its own at a local coordinator; kills itself with signal 9 at a point.

python worker.py DATABASE KEY FOLDER prover|challenger POINT
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path

from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator
from tallystick.disputes.parties import player as workspace, programs
from tallystick.disputes.parties.game_view import BoardCache
from tallystick.disputes.parties.player import Player, Workspace
from tallystick.disputes.parties.prover import ClaimOffer
from tallystick.formats.signing import SigningKey
from tests.disputes.parties.kills import Reaper, Watched
from tests.support.toy_game import Cheat, Counting, CountingDoubter, CountingTrace

CHEATING = Counting(2, 2, cheat=Cheat(1, 0))


class Executioner(Reaper):
    """Kills the process, and not just the program in it."""

    def point(self) -> None:
        self.passed += 1
        if self.passed == self.at + 1:
            os.kill(os.getpid(), signal.SIGKILL)


def player(database: Path, key: SigningKey, folder: Path, role: str, reaper: Reaper) -> Player:
    place = LocalCoordinator.open(database)
    space = Workspace(folder)
    cache = BoardCache(Watched(place.board(key), reaper), folder / "data")
    offer = ClaimOffer(CHEATING.root(), CHEATING.steps, CHEATING.statement())
    roles = {
        "prover": lambda: programs.prover(cache, space, lambda _: CountingTrace(CHEATING), offer),
        "challenger": lambda: programs.challenger(cache, space, lambda _: CountingDoubter()),
    }
    return Player(Watched(place.connect(key), reaper), space, roles[role](), patience=0)


def main(database: str, key: str, folder: str, role: str, point: str) -> None:
    """Do all that can be done now, or die."""
    reaper = Executioner(int(point))
    workspace.write_atomically = partial(reaper.around, workspace.write_atomically)
    player(Path(database), SigningKey.read(Path(key)), Path(folder), role, reaper).look()
    print(reaper.passed)


if __name__ == "__main__":
    main(*sys.argv[1:])
