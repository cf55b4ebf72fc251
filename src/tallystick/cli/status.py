"""What the programs of the parties print while they play: what was claimed, what was found, and how they end."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TextIO

from tallystick.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from tallystick.disputes.game.state import PostedClaim
    from tallystick.disputes.parties.game_view import GameView
    from tallystick.disputes.parties.player import Player
    from tallystick.disputes.parties.prover import PostingRole
    from tallystick.disputes.parties.workspace import Workspace

EXITS: Final = {"final": 0, "slashed": 1, "open": 3}


@dataclass
class Posting:
    """A prover's claim: its number is printed as soon as it stands, though its end may be days away."""

    poster: PostingRole
    stdout: TextIO = field(default_factory=lambda: sys.stdout)
    printed: int | None = None

    def is_over(self, view: GameView) -> bool:
        """Whether the claim is closed, no dispute over it is open, and its prover is owed nothing."""
        number = self._number(view)
        if number is None or view.state.claims[number].status == "open" or view.party in view.state.owed:
            return False
        return not any(each.claim == number and each.phase != "settled" for each in view.state.disputes)

    def ending(self, view: GameView, once: bool) -> int:
        """The exit code of a program that ends `once` all is done that can be, or that was stopped.

        Raises:
            UsageError, UnavailableError: there is no claim, though it was tried; or not yet.
        """
        number = self._number(view)
        if number is None:
            raise _not_posted(once)
        status = view.state.claims[number].status.value
        if once and status == "open":
            return 0
        if status == "open":
            _say(f"stopped: claim {number} is open; start again before somebody disputes it")
        elif not self.is_over(view):
            _say(f"claim {number} is {status}; start again to take out what is owed")
        return EXITS[status]

    def _number(self, view: GameView) -> int | None:
        number = self.poster.number(view)
        if number is not None and self.printed is None:
            self.printed = number
            is_shown = self.stdout.isatty()  # then by way of the live table, which else would draw over it
            print(f"claim {number}", file=sys.stdout if is_shown else self.stdout, flush=True)
        return number


@dataclass
class ChallengerFindings:
    """What a challenger found in each claim that it recomputed, printed once."""

    player: Player
    workspace: Workspace
    shown: set[int] = field(default_factory=set)

    def show(self, view: GameView) -> None:
        """Print what was found since."""
        for number, claim in enumerate(view.state.claims):
            found = self._found(claim) if number not in self.shown else None
            if found is not None:
                self.shown.add(number)
                self.player.say(f"claim {number}: {found}")

    def _found(self, claim: PostedClaim) -> str | None:
        from tallystick.disputes.parties.game_view import claim_name
        from tallystick.presentation.verdict_text import printable

        noted = self.workspace.note(f"claims/{claim_name(claim)}")
        if noted is None:
            return None
        doubt = noted.get("doubt")
        return f"differs: {printable(str(doubt['reason']))}" if isinstance(doubt, dict) else "nothing to contest"


@dataclass
class Stake:
    """What a member has staked, printed when it changes."""

    player: Player
    shown: int = 0

    def show(self, view: GameView) -> None:
        """Print it, if it changed."""
        member = view.state.members.get(view.party)
        if member is not None and member.stake != self.shown:
            self.shown = member.stake
            self.player.say(f"member {view.party[:12]}: stake {member.stake:,}")


def show_nothing(_: GameView) -> None:
    """Print nothing besides the disputes."""


def show_end(view: GameView) -> None:
    """Print that a program was stopped, and which disputes still wait for its party."""
    waiting = [n for n, each in enumerate(view.state.disputes) if each.phase != "settled" and view.is_in(n)]
    which = ", ".join(map(str, waiting))
    _say(f"stopped; still open: dispute {which}" if waiting else "stopped")


def _not_posted(once: bool) -> UsageError | UnavailableError:
    if once:
        return UsageError("the claim was not posted; what went wrong stands above")
    return UnavailableError("stopped before the claim was posted")


def _say(line: str) -> None:
    from tallystick.cli.output import talk

    talk().print(line, markup=False, soft_wrap=True)
