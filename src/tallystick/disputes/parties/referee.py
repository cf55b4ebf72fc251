"""The referee: it rules at once if a check decides, and convenes a committee if none does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from weakref import finalize

from tallystick.disputes.coordinators.coordinator import Board, Coordinator
from tallystick.disputes.game.moves import Convene, Move, Rule
from tallystick.disputes.game.protocols import DisputeView, Judge
from tallystick.disputes.parties.board_cache import BoardCache
from tallystick.disputes.parties.due_moves import DueMoves
from tallystick.disputes.parties.game_view import GameView
from tallystick.disputes.parties.player import Player
from tallystick.disputes.parties.ruling import find
from tallystick.disputes.parties.task import PartyTask, is_nearly_over
from tallystick.disputes.parties.workspace import Workspace
from tallystick.errors import TallyError

REASON = "reason.txt"
REASON_MAX = 4096


def waits_never(answered: DisputeView) -> bool:
    """Never wait for the challenger to name an element."""
    return False


@dataclass
class Referee:
    """Rules what its judge finds; puts its reason at the board, under the digest that the ruling names.

    `waits` selects the disputes in which the challenger has half of the window to name an element first. These are
    disputes over large operators, because judging one element is much less work than judging all.
    """

    cache: BoardCache
    judge: Judge
    waits: Callable[[DisputeView], bool] = waits_never

    def tasks(self, view: GameView) -> Iterator[PartyTask]:
        """The disputes that wait for a ruling."""
        for option in view.options:
            if option.kind == "rule":
                left = view.state.disputes[option.dispute].deadline - view.time
                key = f"rule-{view.name_of(option.dispute)}"
                yield PartyTask(key, max(left, 0), partial(self._rule, view, option.dispute, left))

    def _rule(self, view: GameView, number: int, left: int) -> Move | None:
        if 2 * left > view.rules.referee_window and self._gives_time(view, number):
            return None
        is_last_try = is_nearly_over(left, view.rules.referee_window)
        fault, reason = find(view, number, self.cache, self.judge, is_last_try)
        if fault is None:
            return Convene(actor=view.party, dispute=number)
        kept = self.cache.publish({REASON: reason[:REASON_MAX].encode()})
        return Rule(actor=view.party, dispute=number, fault=fault, reason=kept)

    def _gives_time(self, view: GameView, number: int) -> bool:
        """Whether to wait for the challenger to name an element; not if the files cannot be read."""
        if view.state.disputes[number].element is not None:
            return False
        try:
            return self.waits(self.cache.answered(view, number))
        except TallyError:
            return False


def referee_of(coordinator: Coordinator, board: Board, judge: Judge | None = None) -> Player:
    """The referee's program; `look()` rules on all waiting disputes. Its temporary files are removed at its end."""
    from tallystick.disputes.evidence.judging import DisputeJudge as OpenedJudge

    workspace = Workspace(Path(mkdtemp(prefix="tallystick-referee-")))
    cache = BoardCache(board, workspace.folder / "data")
    own = OpenedJudge()
    role = Referee(cache, judge) if judge else Referee(cache, own, own.is_large)
    player = Player(coordinator, workspace, (role, DueMoves()))
    finalize(player, rmtree, workspace.folder, ignore_errors=True)
    return player
