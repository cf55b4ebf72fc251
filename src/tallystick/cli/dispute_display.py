"""What the programs of disputes show while they play: states of disputes, and what is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tallystick.cli.dispute_tables import BAR, disputes_table

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

    from tallystick.disputes.coordinators.coordinator import Coordinator
    from tallystick.disputes.parties.board_cache import BoardCache
    from tallystick.disputes.parties.game_view import GameView
    from tallystick.disputes.parties.player import Player
    from tallystick.disputes.parties.progress import DisputeProgress
    from tallystick.disputes.parties.waiting import Wait


@dataclass
class Display:
    """The open disputes of one party, and what it waits for: live in a terminal, elsewhere a line for each change."""

    changes: DisputeChanges
    live: Live | None
    print: Callable[[str], None]
    waits: Callable[[GameView], Iterable[Wait]]
    waited: set[str] = field(default_factory=set)
    progress: Sequence[DisputeProgress] = ()

    @classmethod
    @contextmanager
    def on(cls, player: Player, cache: BoardCache, waits: Callable[[GameView], Iterable[Wait]]) -> Iterator[Display]:
        """Show what `player` sees, and what it says, for as long as this lasts; `cache` has what lies at the board."""
        from rich.live import Live

        from tallystick.cli.output import talk

        console = talk()

        def say(line: str) -> None:
            console.print(line, soft_wrap=True)

        player.say, changes = say, DisputeChanges(player.coordinator, cache, say)
        if not console.is_terminal:
            yield cls(changes, None, say, waits)
            return
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield cls(changes, live, say, waits)

    def show(self, view: GameView) -> None:
        """Show where this party's disputes stand."""
        from tallystick.disputes.parties.progress import progress_of

        progress = [progress_of(view.state, n, view.now) for n in range(len(view.state.disputes)) if view.is_in(n)]
        self.changes.show(view, progress, self.live is not None)
        if self.live is not None:
            self.live.update(self._live(view, [each for each in progress if each.phase != "settled"]), refresh=True)

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


@dataclass
class DisputeChanges:
    """A line for each new state of a dispute: what it waits for, and at its end how and why it ended."""

    coordinator: Coordinator
    cache: BoardCache
    print: Callable[[str], None]
    seen: dict[int, tuple[Any, ...]] = field(default_factory=dict)

    def show(self, view: GameView, progress: Iterable[DisputeProgress], only_ends: bool = False) -> None:
        """Print the states that are new; with `only_ends`, those of disputes that have ended."""
        for each in progress:
            stands = (each.phase, each.level, each.low, each.high, each.fault)
            if self.seen.get(each.number) == stands:
                continue
            self.seen[each.number] = stands
            if each.phase == "settled":
                self._show_end(view, each.number)
            elif not only_ends:
                self.print(line(view, each))

    def _show_end(self, view: GameView, number: int) -> None:
        from tallystick.disputes.parties.endings import dispute_ending, ending_of
        from tallystick.disputes.parties.history import dispute_history
        from tallystick.presentation.verdict_text import printable

        history = dispute_history(self.coordinator.rules, self.coordinator.entries(), number)
        ending = ending_of(history, self.cache.folder_of)
        self.print(printable(dispute_ending(view.state.disputes[number], number, ending)))
        if ending.why:
            self.print(f"because: {printable(ending.why)}")


def line(view: GameView, each: DisputeProgress) -> str:
    """Where an open dispute stands, and what it waits for, on one line."""
    from tallystick.disputes.parties.progress import bar
    from tallystick.disputes.parties.waiting import wait_in

    where = f"{each.level} {each.low}–{each.high - 1} of {each.size} {bar(each.low, each.high, each.size, BAR)}"
    return f"dispute {each.number}: {where} {wait_in(view, each.number).sentence(view.now)}"
