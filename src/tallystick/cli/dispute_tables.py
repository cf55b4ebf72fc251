"""Claims, and the moves of a dispute, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tallystick.cli.party_session import BAR

if TYPE_CHECKING:
    from rich.table import Table

    from tallystick.disputes.game.state import State
    from tallystick.disputes.parties.history import HistoryEntry

PIPE_WIDTH: Final = 200


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
