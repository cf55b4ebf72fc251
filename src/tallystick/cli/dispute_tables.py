"""Claims, and the moves of a dispute, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.table import Table

    from tallystick.disputes.game.state import State
    from tallystick.disputes.parties.accounts import PartyAccount
    from tallystick.disputes.parties.game_view import GameView
    from tallystick.disputes.parties.history import HistoryEntry
    from tallystick.disputes.parties.progress import DisputeProgress

PIPE_WIDTH: Final = 200
BAR: Final = 12


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
    from tallystick.disputes.parties.endings import ENDS
    from tallystick.disputes.parties.waiting import deadline

    if each.phase == "settled":
        return ENDS[each.fault or "nobody"]
    return each.mover + deadline(None if each.seconds is None else now + each.seconds, now)


def claims_table(state: State, time: int) -> Table:
    """Claims with what is left of their windows at game time `time`."""
    from rich.table import Column, Table

    from tallystick.disputes.parties.progress import span

    names = ("claim", "prover", "root", "leaves", "status", "window", "disputes", "bond")
    table = Table(*(Column(name, no_wrap=True) for name in names), box=None)
    for number, claim in enumerate(state.claims):
        window = span(max(0, claim.deadline - time)) if claim.status == "open" else ""
        cells = (claim.prover[:12], claim.root[:12], f"{claim.size}", claim.status.value, window)
        table.add_row(f"{number}", *cells, f"{claim.disputes}", f"{claim.bond:,}")
    return table


def accounts_table(accounts: Sequence[PartyAccount], now: int) -> Table:
    """Who paid in, took out and is owed what; `gained` counts what is held as coming back."""
    from rich.table import Column, Table

    money = ("paid in", "held", "taken out", "owed", "gained")
    table = Table(Column("party", no_wrap=True), box=None)
    for name in money:
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("payable", no_wrap=True)
    table.add_column("role")
    for each in accounts:
        sums = (f"{each.paid_in:,}", f"{each.held:,}", f"{each.taken_out:,}", f"{each.owed:,}", f"{each.gained:+,}")
        table.add_row(each.party[:12], *sums, _payable(each, now), roles_in_words(each))
    return table


def account_line(account: PartyAccount, view: GameView) -> str:
    """The money of one party, on one line."""
    who = f"{roles_in_words(account)} {account.party[:12]}".strip()
    own = " (this party)" if account.party == view.party else ""
    parts = [f"paid in {account.paid_in:,}", f"took out {account.taken_out:,}"]
    parts += [f"has {account.held:,} held"] if account.held else []
    parts += [f"is owed {account.owed:,}, payable {_payable(account, view.now)}"] if account.owed else []
    return f"{who}{own}: {', '.join(parts)}; {account.gained:+,}"


def claim_line(view: GameView, number: int) -> str:
    """What became of a claim, on one line."""
    claim = view.state.claims[number]
    disputes = [f"{n}" for n, each in enumerate(view.state.disputes) if each.claim == number]
    over = f"contested in dispute {', '.join(disputes)}" if disputes else "nobody has contested it"
    return f"claim {number} is {claim.status.value}: {over}"


def roles_in_words(account: PartyAccount) -> str:
    """The roles of a party, at most three of them."""
    more = f" and {len(account.roles) - 3} more" if len(account.roles) > 3 else ""
    return ", ".join(account.roles[:3]) + more


def _payable(account: PartyAccount, now: int) -> str:
    """From when on the last credit can be taken out."""
    from tallystick.disputes.parties.waiting import clock_time

    ripe = max((each.ripe for each in account.credits), default=None)
    if ripe is None:
        return ""
    return f"from {clock_time(ripe, now)}" if ripe > now else "now"


def moves_table(history: Sequence[HistoryEntry]) -> Table:
    """Every move of a dispute with the range that it left."""
    from rich.table import Column, Table

    from tallystick.disputes.parties.progress import bar, span

    table = Table(Column("after", justify="right", no_wrap=True), Column("who", no_wrap=True), "move", box=None)
    table.add_column("leaves", no_wrap=True)
    table.add_column("", no_wrap=True)
    for each in history:
        at, passed = each.after, each.entry.time - history[0].entry.time
        leaves, shown = f"{at.level} {at.low}–{at.high - 1}", bar(at.low, at.high, at.size, BAR)
        table.add_row(span(passed) if passed else "", each.role, each.summary, leaves, shown)
    return table


def print_table(table: Table) -> None:
    """Print a table on stdout, as wide as it is where no terminal has to show it."""
    from tallystick.cli.output import page

    console = page()
    if not console.is_terminal:
        console.width = max(console.width, PIPE_WIDTH)
    console.print(table)
