"""The referee: rules at once where a check decides, and convenes a committee where none does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from weakref import finalize

from tallystick.disputes.coordinators import Board, Coordinator
from tallystick.disputes.moves import Convene, Move, Rule
from tallystick.disputes.parties import Judge
from tallystick.disputes.players.keeper import Keeper
from tallystick.disputes.players.player import Player
from tallystick.disputes.players.ruling import find
from tallystick.disputes.players.shelf import Shelf
from tallystick.disputes.players.task import Task, is_pressing
from tallystick.disputes.players.watch import View
from tallystick.disputes.players.workspace import Workspace

REASON = "reason.txt"
REASON_MAX = 4096


@dataclass
class Referee:
    """Rules on what its judge finds; its reason lies at the board under the digest that the ruling names."""

    shelf: Shelf
    judge: Judge

    def tasks(self, view: View) -> Iterator[Task]:
        """The disputes that wait for a ruling."""
        for option in view.options:
            if option.kind == "rule":
                left = view.state.disputes[option.dispute].deadline - view.time
                key = f"rule-{view.name_of(option.dispute)}"
                yield Task(key, max(left, 0), partial(self._rule, view, option.dispute, left))

    def _rule(self, view: View, number: int, left: int) -> Move:
        is_last_call = is_pressing(left, view.rules.referee_window)
        fault, reason = find(view, number, self.shelf, self.judge, is_last_call)
        if fault is None:
            return Convene(actor=view.party, dispute=number)
        kept = self.shelf.publish({REASON: reason[:REASON_MAX].encode()})
        return Rule(actor=view.party, dispute=number, fault=fault, reason=kept)


def referee_of(coordinator: Coordinator, board: Board, judge: Judge | None = None) -> Player:
    """The referee's program; `look()` rules on everything that waits. It keeps nothing when it ends."""
    from tallystick.disputes.opened import Judge as OpenedJudge

    workspace = Workspace(Path(mkdtemp(prefix="tallystick-referee-")))
    shelf = Shelf(board, workspace.folder / "data")
    player = Player(coordinator, workspace, (Referee(shelf, judge or OpenedJudge()), Keeper()))
    finalize(player, rmtree, workspace.folder, ignore_errors=True)
    return player
