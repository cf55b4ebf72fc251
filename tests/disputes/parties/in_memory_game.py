"""The programs of all parties at a coordinator in memory: a prover that counts, a challenger, a referee, members."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tallystick.disputes.coordinators.coordinator import Board, Coordinator
from tallystick.disputes.game.game import apply
from tallystick.disputes.game.moves import value_of
from tallystick.disputes.game.protocols import DisputeView, Doubt, Doubter, Judge, Trace
from tallystick.disputes.game.state import PostedClaim, Rules, State, broken
from tallystick.disputes.parties import programs
from tallystick.disputes.parties.game_view import BoardCache
from tallystick.disputes.parties.player import DueMoves, PartyRole, Player, Workspace
from tallystick.disputes.parties.programs import play_out
from tallystick.disputes.parties.prover import ClaimOffer
from tallystick.verdicts.verdict import Fault
from tests.support.in_memory import InMemoryCoordinator, MemoryBoard
from tests.support.toy_game import Cheat, Counting, CountingDoubter, CountingJudge, CountingTrace


def party(number: int) -> str:
    return f"{number:064x}"


PROVER, CHALLENGER, REFEREE, BEACON, TREASURY = map(party, range(1, 6))
MEMBERS = tuple(party(100 + number) for number in range(15))
CHEAT = Cheat(step=7, operator=4)


def rules(**changes: Any) -> Rules:
    """Short clocks, four ways, committees of three."""
    given: dict[str, Any] = {
        "treasury": TREASURY,
        "members": MEMBERS,
        "referee": REFEREE,
        "beacon": BEACON,
        "ways": 4,
        "committee": 3,
        "clock": 6000,
        "extension": 900,
        "challenge_window": 50_000,
        "appeals": 1,
        **changes,
    }
    return Rules(**given)


Wrap = Callable[[Any], Any]


def plain(thing: Any) -> Any:
    return thing


class Accuser(CountingDoubter):
    """Contests every claim, whatever it says."""

    def doubt(self, claim: PostedClaim, statement: Path) -> Doubt:
        return Doubt(0, claim.size, "I say so")


@dataclass
class InMemoryGame:
    """Programs of parties at one coordinator; each can be killed and started again in the folder that it had."""

    folder: Path
    coordinator: InMemoryCoordinator = field(default_factory=lambda: InMemoryCoordinator(rules()))
    board: Board = field(default_factory=MemoryBoard)
    said: list[str] = field(default_factory=list)
    places: list[Workspace] = field(default_factory=list)

    def player(
        self,
        name: str,
        roles: Callable[[BoardCache, Workspace], Sequence[PartyRole]],
        wrap: Callable[[Coordinator], Coordinator] = plain,
        wrap_board: Callable[[Board], Board] = plain,
    ) -> Player:
        workspace = Workspace(self.folder / name[-6:])
        cache = BoardCache(wrap_board(self.board), workspace.folder / "data")
        self.places.append(workspace)
        return Player(wrap(self.coordinator.connect(name)), workspace, roles(cache, workspace), say=self.said.append)

    def prover(self, counting: Counting, levels: int = 2, trace: Trace | None = None, **wraps: Wrap) -> Player:
        offer = ClaimOffer(counting.root(levels), len(counting.leaves(levels)), counting.statement(levels), levels)
        own = trace or CountingTrace(counting, levels)
        return self.player(PROVER, lambda cache, work: programs.prover(cache, work, lambda _: own, offer), **wraps)

    def challenger(
        self,
        doubter: Doubter | None = None,
        judge: Judge | None = None,
        name: str = CHALLENGER,
        naming: Callable[[DisputeView], tuple[int, int] | None] | None = None,
        **wraps: Wrap,
    ) -> Player:
        own = doubter or CountingDoubter()
        return self.player(
            name, lambda cache, work: programs.challenger(cache, work, lambda _: own, judge, naming=naming), **wraps
        )

    def referee(self, judge: Judge | None = None, waits: bool = False, **wraps: Wrap) -> Player:
        own = judge or CountingJudge()
        return self.player(REFEREE, lambda cache, _: programs.referee(cache, own, lambda _: waits), **wraps)

    def member(self, name: str, judge: Judge | None = None, **wraps: Wrap) -> Player:
        return self.player(name, lambda cache, work: programs.member(cache, work, judge or CountingJudge()), **wraps)

    def members(self, lying: int = 0, of: int = len(MEMBERS)) -> list[Player]:
        """Members, the first of whom say that the challenger is at fault, whatever they see."""
        liar = CountingJudge(bribed=Fault.CHALLENGER)
        return [self.member(name, liar if i < lying else None) for i, name in enumerate(MEMBERS[:of])]

    def beacon(self, **keeping: Any) -> Player:
        return self.player(BEACON, lambda *_: (DueMoves(everybody=True, **keeping),))

    def play(self, *players: Player) -> None:
        play_out(players, self.coordinator.clock.advance, lambda: self.check())

    def check(self) -> bool:
        assert not list(broken(self.coordinator.state))
        return False

    def leave(self) -> None:
        for workspace in self.places:
            workspace.close()

    def paid(self, name: str) -> int:
        """What a party took out, less what it put in."""
        state, found = State(self.coordinator.rules), 0
        for entry in self.coordinator.entries:
            after = apply(state, entry.move, entry.time)
            if entry.move.actor == name:
                found += after.paid_out - state.paid_out - value_of(entry.move)
            state = after
        return found
