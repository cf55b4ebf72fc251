"""States, claims and moves of disputes, as lines and as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from tallystick.disputes.coordinators import coordinator as boards
from tallystick.disputes.game import state as game_state
from tallystick.disputes.parties import game_view, player as players, progress as dispute_progress
from tallystick.tally.cli.output import page, talk

# Claims, and the moves of a dispute, as tables.

PIPE_WIDTH: Final = 200
BAR: Final = 12


def disputes_table(progress: Sequence[dispute_progress.DisputeProgress], now: int) -> Table:
    """Disputes with their ranges and clocks at the coordinator's time `now`."""
    columns = (Column(name, no_wrap=True) for name in ("dispute", "claim", "level", "leaves", "", "phase"))
    table = Table(*columns, "to move", box=None)
    for dispute in progress:
        shown = dispute_progress.bar(dispute.low, dispute.high, dispute.size, BAR)
        table.add_row(
            f"{dispute.number}",
            f"{dispute.claim}",
            dispute.level,
            dispute.leaves,
            shown,
            dispute.phase,
            ended_or_turn(dispute, now),
        )
    return table


def ended_or_turn(dispute: dispute_progress.DisputeProgress, now: int) -> str:
    """How a dispute ended, or who is to move, and until when."""
    if dispute.phase == "settled":
        return dispute_progress.ENDS[dispute.fault or "nobody"]
    return dispute.mover + dispute_progress.deadline(None if dispute.seconds is None else now + dispute.seconds, now)


def claims_table(state: game_state.State, time: int) -> Table:
    """Claims with what is left of their windows at game time `time`."""
    names = ("claim", "prover", "root", "leaves", "status", "window", "disputes", "bond")
    table = Table(*(Column(name, no_wrap=True) for name in names), box=None)
    for number, claim in enumerate(state.claims):
        window = dispute_progress.span(max(0, claim.deadline - time)) if claim.status == "open" else ""
        cells = (claim.prover[:12], claim.root[:12], f"{claim.size}", claim.status.value, window)
        table.add_row(f"{number}", *cells, f"{claim.disputes}", f"{claim.bond:,}")
    return table


def accounts_table(accounts: Sequence[game_view.PartyAccount], now: int) -> Table:
    """Who paid in, took out and is owed what; `gained` counts what is held as coming back."""
    money = ("paid in", "held", "taken out", "owed", "gained")
    table = Table(Column("party", no_wrap=True), box=None)
    for name in money:
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("payable", no_wrap=True)
    table.add_column("role")
    for account in accounts:
        sums = (
            f"{account.paid_in:,}",
            f"{account.held:,}",
            f"{account.taken_out:,}",
            f"{account.owed:,}",
            f"{account.gained:+,}",
        )
        table.add_row(account.party[:12], *sums, _payable(account, now), roles_in_words(account))
    return table


def account_line(account: game_view.PartyAccount, view: game_view.GameView) -> str:
    """The money of one party, on one line."""
    who = f"{roles_in_words(account)} {account.party[:12]}".strip()
    own = " (this party)" if account.party == view.party else ""
    parts = [f"paid in {account.paid_in:,}", f"took out {account.taken_out:,}"]
    parts += [f"has {account.held:,} held"] if account.held else []
    parts += [f"is owed {account.owed:,}, payable {_payable(account, view.now)}"] if account.owed else []
    return f"{who}{own}: {', '.join(parts)}; {account.gained:+,}"


def claim_line(view: game_view.GameView, number: int) -> str:
    """What became of a claim, on one line."""
    claim = view.state.claims[number]
    disputes = [f"{n}" for n, each in enumerate(view.state.disputes) if each.claim == number]
    over = f"contested in dispute {', '.join(disputes)}" if disputes else "nobody has contested it"
    return f"claim {number} is {claim.status.value}: {over}"


def roles_in_words(account: game_view.PartyAccount) -> str:
    """The roles of a party, at most three of them."""
    more = f" and {len(account.roles) - 3} more" if len(account.roles) > 3 else ""
    return ", ".join(account.roles[:3]) + more


def _payable(account: game_view.PartyAccount, now: int) -> str:
    """From when on the last credit can be taken out."""
    ripe = max((each.ripe for each in account.credits), default=None)
    if ripe is None:
        return ""
    return f"from {dispute_progress.clock_time(ripe, now)}" if ripe > now else "now"


def moves_table(history: Sequence[dispute_progress.HistoryEntry]) -> Table:
    """Every move of a dispute with the range that it left."""
    table = Table(Column("after", justify="right", no_wrap=True), Column("who", no_wrap=True), "move", box=None)
    table.add_column("leaves", no_wrap=True)
    table.add_column("", no_wrap=True)
    for past in history:
        at, passed = past.after, past.entry.time - history[0].entry.time
        leaves, shown = f"{at.level} {at.low}–{at.high - 1}", dispute_progress.bar(at.low, at.high, at.size, BAR)
        table.add_row(dispute_progress.span(passed) if passed else "", past.role, past.summary, leaves, shown)
    return table


def print_table(table: Table) -> None:
    """Print a table on stdout, as wide as it is where no terminal has to show it."""
    console = page()
    if not console.is_terminal:
        console.width = max(console.width, PIPE_WIDTH)
    console.print(table)


# What the programs of disputes show while they play: states of disputes, and what is waited for.


@dataclass
class Display:
    """The open disputes of one party, and what it waits for: live in a terminal, elsewhere a line for each change."""

    changes: DisputeChanges
    live: Live | None
    print: Callable[[str], None]
    waits: Callable[[game_view.GameView], Iterable[dispute_progress.Wait]]
    waited: set[str] = field(default_factory=set)
    progress: Sequence[dispute_progress.DisputeProgress] = ()

    @classmethod
    @contextmanager
    def on(
        cls,
        player: players.Player,
        cache: game_view.BoardCache,
        waits: Callable[[game_view.GameView], Iterable[dispute_progress.Wait]],
    ) -> Iterator[Display]:
        """Show what `player` sees, and what it says, for as long as this lasts; `cache` has what lies at the board."""
        console = talk()

        def say(line: str) -> None:
            console.print(line, soft_wrap=True)

        player.say, changes = say, DisputeChanges(player.coordinator, cache, say)
        if not console.is_terminal:
            yield cls(changes, None, say, waits)
            return
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield cls(changes, live, say, waits)

    def show(self, view: game_view.GameView) -> None:
        """Show where this party's disputes stand."""
        progress = [
            dispute_progress.progress_of(view.state, n, view.now)
            for n in range(len(view.state.disputes))
            if view.is_in(n)
        ]
        self.changes.show(view, progress, self.live is not None)
        if self.live is not None:
            self.live.update(self._live(view, [each for each in progress if each.phase != "settled"]), refresh=True)

    def wait(self, view: game_view.GameView) -> bool:
        """Show what is waited for, now that nothing is left to do; outside a terminal once, until it changes.

        Returns `False`: the program goes on.
        """
        waits = list(self.waits(view))
        if self.live is not None:
            self.live.update(self._live(view, self.progress, [wait.sentence(view.now) for wait in waits]), refresh=True)
            return False
        apart = [wait for wait in waits if not wait.is_in_dispute]  # the line of a dispute says its own
        for wait in apart:
            if wait.what not in self.waited:
                self.print(wait.sentence(view.now))
        self.waited = {wait.what for wait in apart}
        return False

    def _live(
        self, view: game_view.GameView, progress: Sequence[dispute_progress.DisputeProgress], lines: Sequence[str] = ()
    ) -> Group:
        self.progress = progress
        return Group(*([disputes_table(progress, view.now)] if progress else []), *map(Text, lines))


@dataclass
class DisputeChanges:
    """A line for each new state of a dispute: what it waits for, and at its end how and why it ended."""

    coordinator: boards.Coordinator
    cache: game_view.BoardCache
    print: Callable[[str], None]
    seen: dict[int, tuple[Any, ...]] = field(default_factory=dict)

    def show(
        self, view: game_view.GameView, progress: Iterable[dispute_progress.DisputeProgress], only_ends: bool = False
    ) -> None:
        """Print the states that are new; with `only_ends`, those of disputes that have ended."""
        for dispute in progress:
            stands = (dispute.phase, dispute.level, dispute.low, dispute.high, dispute.fault)
            if self.seen.get(dispute.number) == stands:
                continue
            self.seen[dispute.number] = stands
            if dispute.phase == "settled":
                self._show_end(view, dispute.number)
            elif not only_ends:
                self.print(line(view, dispute))

    def _show_end(self, view: game_view.GameView, number: int) -> None:
        history = dispute_progress.dispute_history(self.coordinator.rules, self.coordinator.entries(), number)
        ending = dispute_progress.ending_of(history, self.cache.folder_of)
        for text in dispute_progress.ending_lines(view.state.disputes[number], number, ending):
            self.print(text)


def line(view: game_view.GameView, dispute: dispute_progress.DisputeProgress) -> str:
    """Where an open dispute stands, and what it waits for, on one line."""
    where = f"{dispute.level} {dispute.leaves} {dispute_progress.bar(dispute.low, dispute.high, dispute.size, BAR)}"
    return f"dispute {dispute.number}: {where} {dispute_progress.wait_in(view, dispute.number).sentence(view.now)}"
