"""What commands of all parties share, and what their programs print while they play."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TextIO

import typer

from tallystick.core.errors import UnavailableError, UsageError
from tallystick.disputes.evidence import judging
from tallystick.disputes.game import state as game_state
from tallystick.disputes.parties import (
    auditing as party_audits,
    connect,
    game_view,
    player as players,
    progress as dispute_progress,
    prover as proving,
)
from tallystick.formats.store import directories
from tallystick.programs import execution
from tallystick.tally import operators as operators_api
from tallystick.tally.cli import dispute_display as display
from tallystick.tally.cli.options import device_option
from tallystick.tally.cli.output import talk
from tallystick.verdicts import words

# What commands of all parties share: the connection, the party's folder, and the display of a game in the terminal.

COORDINATOR = typer.Option(..., "--coordinator", help="A database file, a URL, or ethereum:RPC:ADDRESS.")
BOARD = typer.Option(None, "--board", help="Where data lies, if not at this coordinator: another one, or a folder.")
KEY = typer.Option(..., "--key", help="The key of the party that moves.")
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
class PartyOptions:
    """At which coordinator a party moves, and the key by which it does."""

    coordinator: str = COORDINATOR
    key: Path = KEY


@dataclass(frozen=True)
class ProgramOptions:
    """Where a party's program has its files, and how often it looks."""

    board: str | None = BOARD
    board_key: Path | None = BOARD_KEY
    work: Path | None = WORK
    poll: float = POLL


@dataclass(frozen=True)
class ProverOptions:
    """What a prover computes with, and the calibrations of its own judge."""

    device: str = DEVICE
    profile: Path | None = PROFILE
    budget: list[Path] = BUDGET


@dataclass(frozen=True)
class JudgeOptions(ProverOptions):
    """What a judge computes with, its calibrations, and the weights that it has."""

    initial: list[Path] = INITIAL

    def judge(self, engine: execution.Engine | None = None) -> judging.DisputeJudge:
        """The judge; with an `engine`, as a member of a committee."""
        return dispute_judge(self.profile, self.budget, engine, self.device, self.initial)


@dataclass(frozen=True)
class PartySession:
    """One party at a coordinator, with its folder and what it fetched from the board."""

    connection: connect.CoordinatorConnection
    workspace: players.Workspace
    cache: game_view.BoardCache

    def player(self, roles: Sequence[players.PartyRole]) -> players.Player:
        """The program of this party."""
        return players.Player(self.connection.coordinator, self.workspace, roles, patience=self.connection.patience)


@contextmanager
def party_session(
    party: PartyOptions, program: ProgramOptions, delegation: Path | None = None
) -> Iterator[PartySession]:
    """Connect as a party, or as a delegate of one, and hold its folder.

    Raises `UnavailableError` where another program of it does.
    """
    with (
        connect.connected(party.coordinator, party.key, program.board, program.board_key, delegation) as connection,
        players.Workspace(program.work or connection.folder()) as workspace,
    ):
        connection.keep_receipts(workspace.folder)
        yield PartySession(connection, workspace, game_view.BoardCache(connection.board, workspace.folder / "data"))


def dispute_judge(
    profile: Path | None,
    budgets: Iterable[Path],
    engine: execution.Engine | None = None,
    device: str = "cpu",
    initial: Iterable[Path] = (),
) -> judging.DisputeJudge:
    """A judge by these calibrations, who has the weights in the directories `initial`.

    Raises `UnavailableError` or `MalformedError` for a file or a directory that is none.
    """
    thresholds = None if profile is None else operators_api.read_profile(profile)
    origins = tuple(directories.open_origin(each) for each in initial)
    return judging.DisputeJudge(
        engine, device, thresholds, budgets=operators_api.read_budgets(budgets), origins=origins
    )


def drive(
    session: PartySession,
    player: players.Player,
    until: Callable[[game_view.GameView], bool],
    poll: float,
    is_watching: bool = True,
    waits: Callable[[game_view.GameView], Iterable[dispute_progress.Wait]] | None = None,
) -> game_view.GameView:
    """Play until `until`, or once, with the disputes of the player on stderr; returns the last look.

    `waits` says what the program waits for; without it, what its disputes, its claims and its money wait for.
    """
    with display.Display.on(player, session.cache, waits or dispute_progress.waits_of) as shown:
        if not is_watching:
            player.look(players.Polling(poll))
            assert player.view is not None  # set by `look`
            shown.show(player.view)
            return player.view
        try:
            return player.run(lambda view: until(view) or shown.wait(view), players.Polling(poll), after=shown.show)
        except KeyboardInterrupt:  # a program that is stopped ends as it would by itself: it can be started again
            if player.view is None:
                raise
            return player.view


# What the programs of the parties print while they play: what was claimed, what was found, and how they end.

EXITS: Final = {"final": 0, "slashed": 1, "open": 3}
KEPT: Final = "all moves are kept"


@dataclass
class Posting:
    """A prover's claim: its number is printed as soon as it stands, though its end may be days away."""

    poster: proving.PostingRole
    stdout: TextIO = field(default_factory=lambda: sys.stdout)
    printed: int | None = None

    def is_over(self, view: game_view.GameView) -> bool:
        """Whether the claim is closed, no dispute over it is open, and its prover is owed nothing."""
        number = self._number(view)
        if number is None or view.state.claims[number].status == "open" or view.party in view.state.owed:
            return False
        return not any(each.claim == number and each.phase != "settled" for each in view.state.disputes)

    def ending(self, view: game_view.GameView, once: bool) -> int:
        """The exit code of a program that ends `once` all is done that can be, or that was stopped.

        Raises:
            UsageError, UnavailableError: there is no claim, though it was tried; or not yet.
        """
        number = self._number(view)
        if number is None:
            if once:
                raise UsageError("the claim was not posted; what went wrong stands above")
            raise UnavailableError("stopped before the claim was posted")
        status = view.state.claims[number].status.value
        if once and status == "open":
            return 0
        if status == "open":
            _say(f"stopped: claim {number} is open; {KEPT}: start again before somebody disputes it")
        elif not self.is_over(view):
            _say(f"claim {number} is {status}; {KEPT}: start again to take out what is owed")
        return EXITS[status]

    def _number(self, view: game_view.GameView) -> int | None:
        number = self.poster.number(view)
        if number is not None and self.printed is None:
            self.printed = number
            is_shown = self.stdout.isatty()  # then by way of the live table, which else would draw over it
            print(f"claim {number}", file=sys.stdout if is_shown else self.stdout, flush=True)
            if warning := dispute_progress.before_silence(view, number):
                _say(warning)
        return number


@dataclass
class Watching:
    """What a program shows that has no claim of its own; `claims` are those that it looks at, `None` for all.

    With `ends`, it is over when there are claims, none of them can be disputed any more, and all is paid out.
    """

    player: players.Player
    claims: tuple[int, ...] | None = None
    ends: bool = False

    def show(self, view: game_view.GameView) -> None:
        """Print what is new; called when nothing was left to do."""

    def is_over(self, view: game_view.GameView) -> bool:
        """Whether the program may end."""
        self.show(view)
        return self.ends and self.is_settled(view)

    def has_missed(self, view: game_view.GameView) -> bool:
        """Whether something could not be checked."""
        return False

    def is_settled(self, view: game_view.GameView) -> bool:
        """Whether there are claims, none of them can be disputed any more, and this party is owed nothing."""
        numbers = self.numbers(view)
        is_there = bool(numbers) and numbers[-1] < len(view.state.claims)
        return is_there and not any(self._is_open(view, each) for each in numbers) and view.party not in view.state.owed

    def waits(self, view: game_view.GameView) -> Iterator[dispute_progress.Wait]:
        """What the program waits for; new claims where there is nothing else."""
        waits = list(dispute_progress.waits_of(view, self.watched(view) if self.ends else (), self.audited(view)))
        yield from waits or [dispute_progress.Wait("claims (Ctrl-C ends this program)")]

    def audited(self, view: game_view.GameView) -> Collection[int]:
        """The claims that this program recomputes now or next."""
        return ()

    def numbers(self, view: game_view.GameView) -> list[int]:
        """The numbers of the claims that the program looks at."""
        return sorted(range(len(view.state.claims)) if self.claims is None else self.claims)

    def watched(self, view: game_view.GameView) -> list[int]:
        """Those of `numbers` that there are."""
        return [each for each in self.numbers(view) if each < len(view.state.claims)]

    @staticmethod
    def _is_open(view: game_view.GameView, number: int) -> bool:
        claim = view.state.claims[number]
        return bool(claim.disputes) or (claim.status == "open" and claim.deadline > view.time)


@dataclass
class ChallengerFindings(Watching):
    """What a challenger found in each claim that it recomputed, printed once."""

    shown: set[int] = field(default_factory=set)
    begun: set[int] = field(default_factory=set)
    warned: set[int] = field(default_factory=set)

    def show(self, view: game_view.GameView) -> None:
        """Print what was found since, and what was not found in time or may not be."""
        self.begun |= set(self.audited(view))
        for number in sorted(self.missed(view)):
            self.player.say(f"claim {number}: not audited: its window ended first, and nothing is known about it")
            self.shown.add(number)
        for number in sorted(self.late(view)):
            left = dispute_progress.in_words(view.state.claims[number].deadline - view.time)
            self.player.say(f"claim {number}: its audit goes on, and its window ends in {left}: it may end first")
            self.warned.add(number)
        for number, claim in enumerate(view.state.claims):
            finding = self._found(claim) if number not in self.shown else None
            if finding is not None:
                self.shown.add(number)
                self.player.say(f"claim {number}: {finding}")

    def has_missed(self, view: game_view.GameView) -> bool:
        """Whether the window of a claim ended before its audit did."""
        return any(self._found(view.state.claims[each]) is None for each in self.begun)

    def missed(self, view: game_view.GameView) -> set[int]:
        """The claims whose windows ended before their audits did, and that was not said yet."""
        closed = {n for n in self.begun - self.shown if view.state.claims[n].deadline <= view.time}
        return {each for each in closed if self._found(view.state.claims[each]) is None}

    def late(self, view: game_view.GameView) -> set[int]:
        """The claims in whose audits only a quarter of the window is left, and that was not said yet."""
        claims, window = view.state.claims, view.rules.challenge_window
        return {
            n for n in self.audited(view) if players.is_nearly_over(claims[n].deadline - view.time, window)
        } - self.warned

    def audited(self, view: game_view.GameView) -> Collection[int]:
        """The open claims of others in which nothing was found yet, nor that there is nothing."""
        return {each for each in self.watched(view) if self._is_unknown(view, view.state.claims[each])}

    def waits(self, view: game_view.GameView) -> Iterator[dispute_progress.Wait]:
        """The audits in progress too, whether or not the program ends with its claims."""
        audited = () if self.ends else self.audited(view)
        known = list(dispute_progress.waits_of(view, audited, audited)) if audited else []
        yield from known or super().waits(view)

    def _is_unknown(self, view: game_view.GameView, claim: game_state.PostedClaim) -> bool:
        is_ours = claim.prover != view.party and claim.deadline > view.time and not claim.disputes
        return is_ours and claim.status == "open" and self._found(claim) is None

    def _found(self, claim: game_state.PostedClaim) -> str | None:
        finding = party_audits.AuditFinding.read(self.player.workspace.note(f"claims/{game_view.claim_name(claim)}"))
        if finding is None:
            return None
        if finding.doubt is not None:
            return f"differs: {words.printable(finding.doubt.reason)}"
        unseen = "".join(f"\n    could not have contested: {words.printable(each)}" for each in finding.unseen)
        return f"nothing to contest{unseen}"


@dataclass
class Stake(Watching):
    """What a member has staked, printed when it changes."""

    shown: int = 0

    def show(self, view: game_view.GameView) -> None:
        """Print it, if it changed."""
        member = view.state.members.get(view.party)
        if member is not None and member.stake != self.shown:
            self.shown = member.stake
            self.player.say(f"member {view.party[:12]}: stake {member.stake:,}")


def show_stop(view: game_view.GameView) -> None:
    """Print that a program was stopped, which disputes still wait for its party, and how to go on."""
    waiting = [n for n, each in enumerate(view.state.disputes) if each.phase != "settled" and view.is_in(n)]
    which = f"; still open: dispute {', '.join(map(str, waiting))}" if waiting else ""
    _say(f"stopped{which}; {KEPT}: start again to go on")


def show_money(session: PartySession, view: game_view.GameView, claims: Collection[int]) -> None:
    """Print what became of claims and of the disputes that the party was in, and who is owed what."""
    coordinator = session.connection.coordinator
    concerned = {n for n, account in enumerate(view.state.disputes) if view.is_in(n)}
    numbers = sorted({*claims, *(view.state.disputes[n].claim for n in concerned)})
    for number in numbers:
        _say(display.claim_line(view, number))
    parties = {view.state.claims[number].prover for number in numbers} | {view.party}
    parties |= {account.challenger for account in view.state.disputes if account.claim in numbers}
    if any(view.state.claims[number].status == "slashed" for number in numbers):
        parties.add(view.rules.treasury)
    for account in game_view.accounts(coordinator.rules, coordinator.entries()):
        if account.party in parties:
            _say(display.account_line(account, view))


def _say(line: str) -> None:
    talk().print(line, soft_wrap=True)
