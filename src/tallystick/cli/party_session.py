"""What commands of all parties share: the connection, the party's folder, and the display of a game in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tallystick.cli.dispute_display import Display
from tallystick.cli.options import device_option

if TYPE_CHECKING:
    from tallystick.disputes.evidence.judging import DisputeJudge
    from tallystick.disputes.parties.board_cache import BoardCache
    from tallystick.disputes.parties.connect import CoordinatorConnection
    from tallystick.disputes.parties.game_view import GameView
    from tallystick.disputes.parties.player import Player, Polling
    from tallystick.disputes.parties.task import PartyRole
    from tallystick.disputes.parties.waiting import Wait
    from tallystick.disputes.parties.workspace import Workspace
    from tallystick.graphs.engine import Engine

COORDINATOR = typer.Option(..., "--coordinator", help="A database file, a URL, or ethereum:RPC:ADDRESS.")
KEY = typer.Option(..., "--key", help="The key of the party that moves.")
BOARD = typer.Option(None, "--board", help="Where data lies, if not at this coordinator: another one, or a folder.")
BOARD_KEY = typer.Option(None, "--board-key", help="The key by which that board knows this party.")
WORK = typer.Option(None, "--work", help="The party's folder; one under the state folder of this user by default.")
POLL = typer.Option(2.0, "--poll", min=0.05, max=3600, help="Seconds between looks.")
DEVICE = device_option("Compute on cpu or cuda.")
WATCH = typer.Option(False, "--watch", help="Go on until Ctrl-C; without it, do what can be done now.")
UNTIL_SETTLED = typer.Option(
    False, "--until-settled", help="Go on until there are claims, all of them are settled, and all is paid out."
)
PROFILE = typer.Option(None, "--profile", help="Calibrated thresholds besides the proven bounds (`tally calibrate`).")
BUDGET = typer.Option([], "--budget", help="What the errors of a whole opening add up to; once for each graph.")
INITIAL = typer.Option([], "--initial", help="Weights that a run may begin with; once for each directory.")


@dataclass(frozen=True)
class PartySession:
    """One party at a coordinator, with its folder and what it fetched from the board."""

    connection: CoordinatorConnection
    workspace: Workspace
    cache: BoardCache

    def player(self, roles: Sequence[PartyRole]) -> Player:
        """The program of this party."""
        from tallystick.disputes.parties.player import Player

        return Player(self.connection.coordinator, self.workspace, roles, patience=self.connection.patience)


@contextmanager
def party_session(
    coordinator: str,
    key: Path,
    board: str | None = None,
    board_key: Path | None = None,
    work: Path | None = None,
    delegation: Path | None = None,
) -> Iterator[PartySession]:
    """Connect as a party, or as a delegate of one, and hold its folder.

    Raises `UnavailableError` where another program of it does.
    """
    from tallystick.disputes.parties.board_cache import BoardCache
    from tallystick.disputes.parties.connect import connected
    from tallystick.disputes.parties.workspace import Workspace

    with (
        connected(coordinator, key, board, board_key, delegation) as connection,
        Workspace(work or connection.folder()) as workspace,
    ):
        connection.keep_receipts(workspace.folder)
        yield PartySession(connection, workspace, BoardCache(connection.board, workspace.folder / "data"))


def dispute_judge(
    profile: Path | None,
    budgets: Iterable[Path],
    engine: Engine | None = None,
    device: str = "cpu",
    initial: Iterable[Path] = (),
) -> DisputeJudge:
    """A judge by these calibrations, who has the weights in the directories `initial`.

    Raises `UnavailableError` or `MalformedError` for a file or a directory that is none.
    """
    from tallystick.api.settings import read_budgets, read_profile
    from tallystick.disputes.evidence.judging import DisputeJudge
    from tallystick.store.origin import open_origin

    thresholds = None if profile is None else read_profile(profile)
    origins = tuple(open_origin(each) for each in initial)
    return DisputeJudge(engine, device, thresholds, budgets=read_budgets(budgets), origins=origins)


def drive(
    session: PartySession,
    player: Player,
    until: Callable[[GameView], bool],
    poll: float,
    is_watching: bool = True,
    waits: Callable[[GameView], Iterable[Wait]] | None = None,
) -> GameView:
    """Play until `until`, or once, with the disputes of the player on stderr; returns the last look.

    `waits` says what the program waits for; without it, what its disputes, its claims and its money wait for.
    """
    from tallystick.disputes.parties.player import Polling
    from tallystick.disputes.parties.waiting import waits_of

    with Display.on(player, session.cache, waits or waits_of) as display:
        if is_watching:
            return _until_interrupted(player, lambda view: until(view) or display.wait(view), Polling(poll), display)
        player.look(Polling(poll))
        assert player.view is not None  # set by `look`
        display.show(player.view)
        return player.view


def _until_interrupted(
    player: Player, until: Callable[[GameView], bool], polling: Polling, display: Display
) -> GameView:
    """Ctrl-C ends a program as it would end by itself: it can be started again."""
    try:
        return player.run(until, polling, after=display.show)
    except KeyboardInterrupt:
        if player.view is None:
            raise
        return player.view
