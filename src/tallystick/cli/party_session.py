"""What commands of all parties share: the connection, the party's folder, and the display of a game in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table

    from tallystick.disputes.evidence.judging import DisputeJudge
    from tallystick.disputes.parties.board_cache import BoardCache
    from tallystick.disputes.parties.connect import CoordinatorConnection
    from tallystick.disputes.parties.game_view import GameView
    from tallystick.disputes.parties.player import Player, Polling
    from tallystick.disputes.parties.progress import DisputeProgress
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
DEVICE = typer.Option("cpu", "--device", help="Compute on cpu or cuda.")
WATCH = typer.Option(False, "--watch", help="Go on until Ctrl-C; without it, do what can be done now.")
UNTIL_SETTLED = typer.Option(
    False, "--until-settled", help="Go on until there are claims, all of them are settled, and all is paid out."
)
PROFILE = typer.Option(None, "--profile", help="Calibrated thresholds besides the proven bounds (`tally calibrate`).")
BUDGET = typer.Option([], "--budget", help="What the errors of a whole opening add up to; once for each graph.")
BAR = 12
JSON = typer.Option(False, "--json", help="Print JSON.")


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
    coordinator: str, key: Path, board: str | None = None, board_key: Path | None = None, work: Path | None = None
) -> Iterator[PartySession]:
    """Connect as a party, and hold its folder; raises `UnavailableError` where another program of it does."""
    from tallystick.disputes.parties.board_cache import BoardCache
    from tallystick.disputes.parties.connect import connected
    from tallystick.disputes.parties.workspace import Workspace

    with (
        connected(coordinator, key, board, board_key) as connection,
        Workspace(work or connection.folder()) as workspace,
    ):
        connection.keep_receipts(workspace.folder)
        yield PartySession(connection, workspace, BoardCache(connection.board, workspace.folder / "data"))


def dispute_judge(
    profile: Path | None, budgets: Iterable[Path], engine: Engine | None = None, device: str = "cpu"
) -> DisputeJudge:
    """A judge by these calibrations; raises `UnavailableError` or `MalformedError` for a file that is none."""
    from tallystick.api.settings import read_budgets, read_profile
    from tallystick.disputes.evidence.judging import DisputeJudge

    thresholds = None if profile is None else read_profile(profile)
    return DisputeJudge(engine, device, thresholds, budgets=read_budgets(budgets))


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

    with Display.on(session, player, waits or waits_of) as display:
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


@dataclass
class Display:
    """The open disputes of one party, and what it waits for: live in a terminal, elsewhere a line for each change."""

    session: PartySession
    live: Live | None
    print: Callable[[str], None]
    waits: Callable[[GameView], Iterable[Wait]]
    seen: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    waited: set[str] = field(default_factory=set)
    progress: Sequence[DisputeProgress] = ()

    @classmethod
    @contextmanager
    def on(
        cls, session: PartySession, player: Player, waits: Callable[[GameView], Iterable[Wait]]
    ) -> Iterator[Display]:
        """Show what `player` sees, and what it says, for as long as this lasts."""
        from rich.live import Live

        from tallystick.cli.output import talk

        console = talk()

        def say(line: str) -> None:
            console.print(line, markup=False, soft_wrap=True)

        player.say = say
        if not console.is_terminal:
            yield cls(session, None, say, waits)
            return
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield cls(session, live, say, waits)

    def show(self, view: GameView) -> None:
        """Show where this party's disputes stand."""
        from tallystick.disputes.parties.progress import progress_of

        progress = [progress_of(view.state, n, view.now) for n in range(len(view.state.disputes)) if view.is_in(n)]
        for each in progress:
            stands = (each.phase, each.level, each.low, each.high, each.fault)
            if self.seen.get(each.number) != stands:
                self.seen[each.number] = stands
                self._show_change(view, each)
        if self.live is not None:
            self.live.update(self._live(view, [each for each in progress if each.phase != "settled"]), refresh=True)

    def _show_change(self, view: GameView, each: DisputeProgress) -> None:
        if each.phase == "settled":
            for told in settled_lines(self.session, view, each.number):
                self.print(told)
        elif self.live is None:
            self.print(line(view, each))

    def wait(self, view: GameView) -> bool:
        """Show what is waited for, now that nothing is left to do; outside a terminal once, until it changes.

        Returns `False`: the program goes on.
        """
        waits = list(self.waits(view))
        if self.live is not None:
            self.live.update(self._live(view, self.progress, [each.sentence(view.now) for each in waits]), refresh=True)
            return False
        apart = [each for each in waits if not each.is_in_dispute]  # the line of a dispute says its own
        for each in apart:
            if each.what not in self.waited:
                self.print(each.sentence(view.now))
        self.waited = {each.what for each in apart}
        return False

    def _live(self, view: GameView, progress: Sequence[DisputeProgress], lines: Sequence[str] = ()) -> Group:
        from rich.console import Group
        from rich.text import Text

        self.progress = progress
        return Group(*([disputes_table(progress, view.now)] if progress else []), *map(Text, lines))


def settled_lines(session: PartySession, view: GameView, number: int) -> Iterator[str]:
    """How a dispute ended, and why, with what lies at the board."""
    from tallystick.api.verdict_text import printable
    from tallystick.disputes.parties.endings import dispute_ending, ending_of
    from tallystick.disputes.parties.history import dispute_history

    coordinator = session.connection.coordinator
    history = dispute_history(coordinator.rules, coordinator.entries(), number)
    ending = ending_of(history, session.cache.folder_of)
    yield printable(dispute_ending(view.state.disputes[number], number, ending))
    if ending.why:
        yield f"because: {printable(ending.why)}"


def line(view: GameView, each: DisputeProgress) -> str:
    """Where an open dispute stands, and what it waits for, on one line."""
    from tallystick.disputes.parties.progress import bar
    from tallystick.disputes.parties.waiting import wait_in

    where = f"{each.level} {each.low}–{each.high - 1} of {each.size} {bar(each.low, each.high, each.size, BAR)}"
    return f"dispute {each.number}: {where} {wait_in(view, each.number).sentence(view.now)}"


ENDS = {
    "prover": "challenger's objection upheld, prover at fault",
    "challenger": "challenger's objection dismissed, challenger at fault",
    "nobody": "undecided, nobody at fault",
}


def disputes_table(progress: Sequence[DisputeProgress], now: int) -> Table:
    """Disputes with their ranges and clocks at the coordinator's time `now`."""
    from rich.table import Column, Table

    from tallystick.disputes.parties.progress import bar

    columns = (Column(name, no_wrap=True) for name in ("dispute", "claim", "level", "leaves", "", "phase"))
    table = Table(*columns, "to move", box=None)
    for each in progress:
        leaves = f"{each.low}–{each.high - 1} of {each.size}"
        shown = bar(each.low, each.high, each.size, BAR)
        table.add_row(
            f"{each.number}", f"{each.claim}", each.level, leaves, shown, each.phase, ended_or_turn(each, now)
        )
    return table


def ended_or_turn(each: DisputeProgress, now: int) -> str:
    """How a dispute ended, or who is to move, and until when."""
    from tallystick.disputes.parties.waiting import deadline

    if each.phase == "settled":
        return ENDS[each.fault or "nobody"]
    return each.mover + deadline(None if each.seconds is None else now + each.seconds, now)
