"""Disputes over a counter, played by the programs of all parties at a contract on a local node."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tallystick.core.errors import UnavailableError
from tallystick.disputes.coordinators.coordinator import Board, Coordinator, MoveEntry
from tallystick.disputes.coordinators.ethereum.client import EthereumCoordinator
from tallystick.disputes.game.moves import Move
from tallystick.disputes.game.state import Phase, Rules, State
from tallystick.disputes.parties import programs
from tallystick.disputes.parties.game_view import BoardCache
from tallystick.disputes.parties.player import PartyRole, Player, Workspace
from tallystick.disputes.parties.programs import play_out
from tallystick.disputes.parties.prover import ClaimOffer
from tests.disputes.coordinators.ethereum.chains import KEYS, MEMBERS, Chain
from tests.support.in_memory import MemoryBoard
from tests.support.toy_game import Cheat, Counting, CountingDoubter, CountingJudge, CountingTrace

CHEAT = Cheat(step=3, operator=4)
SMALL = Counting(steps=6, width=9, cheat=CHEAT)
After = Callable[[Move], None]


def nothing(move: Move) -> None:
    """What happens to the chain after a move, where nothing does."""


@dataclass(frozen=True)
class Watched:
    """A connection after each of whose moves something happens to the chain, and then its block becomes final."""

    coordinator: EthereumCoordinator
    chain: Chain
    after: After

    @property
    def party(self) -> str:
        return self.coordinator.party

    @property
    def rules(self) -> Rules:
        return self.coordinator.rules

    def now(self) -> int:
        return self.coordinator.now()

    def entries(self, start: int = 0) -> Sequence[MoveEntry]:
        return self.coordinator.entries(start)

    def submit(self, move: Move) -> None:
        self.coordinator.submit(move)
        self.after(move)
        self.coordinator.entries()  # as the program does again and again: what was undone is sent again
        self.chain.final()


@dataclass
class ChainGame:
    """The programs of parties at one chain; each can be killed and started again in the folder that it had."""

    chain: Chain
    board: Board = field(default_factory=MemoryBoard)
    said: list[str] = field(default_factory=list)
    after: After = nothing
    urls: tuple[str, ...] = ()

    def player(self, role: str, roles: Callable[[BoardCache, Workspace], Sequence[PartyRole]]) -> Player:
        workspace = Workspace(self.chain.folder / "work" / role)
        cache = BoardCache(self.board, workspace.folder / "data")
        connection: Coordinator = Watched(self.chain.anew(role, None, *self.urls), self.chain, self.after)
        return Player(connection, workspace, roles(cache, workspace), say=self.said.append)

    def prover(self, counting: Counting, levels: int = 2) -> Player:
        offer = ClaimOffer(counting.root(levels), len(counting.leaves(levels)), counting.statement(levels), levels)
        trace = CountingTrace(counting, levels)
        return self.player("prover", lambda cache, work: programs.prover(cache, work, lambda _: trace, offer))

    def challenger(self, **more: Any) -> Player:
        return self.player(
            "challenger", lambda cache, work: programs.challenger(cache, work, lambda _: CountingDoubter(), **more)
        )

    def referee(self, judge: CountingJudge | None = None) -> Player:
        return self.player("referee", lambda cache, _: programs.referee(cache, judge or CountingJudge()))

    def members(self, count: int = len(MEMBERS)) -> list[Player]:
        return [
            self.player(name, lambda cache, work: programs.member(cache, work, CountingJudge()))
            for name in MEMBERS[:count]
        ]

    def play(
        self,
        *players: Player,
        until: Callable[[State], bool] | None = None,
        waits: Callable[[], None] | None = None,
    ) -> State:
        """Let them play until nobody moves any more, or until the state of final moves is as wanted.

        Where a server does not answer them they look again, after `waits`.
        """

        def is_over() -> bool:
            return until is not None and until(self.chain.at("treasury").state)

        for _ in range(1000):
            try:
                play_out(players, self.advance, is_over)
                break
            except UnavailableError:
                if waits:
                    waits()
        return self.chain.anew("treasury").state

    def advance(self, second: int) -> None:
        """Let the chain's time pass until `second`, and make it final."""
        now = int(self.chain.node.ask("eth_getBlockByNumber", "latest", False)["timestamp"], 16)
        if second > now:
            self.chain.node.ask("evm_setNextBlockTimestamp", second)
        self.chain.node.mine()
        self.chain.final()

    def reset(self) -> None:
        shutil.rmtree(self.chain.folder / "work", ignore_errors=True)


def is_settled(state: State) -> bool:
    """Whether there was a dispute, and all are over."""
    return bool(state.disputes) and all(dispute.phase is Phase.SETTLED for dispute in state.disputes)


def made_by(chain: Chain, role: str, state_entries: Sequence[MoveEntry]) -> list[Move]:
    """The accepted moves of a role."""
    return [entry.move for entry in state_entries if entry.move.actor == KEYS[role].address]
