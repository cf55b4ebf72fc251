"""A contract on a local node as a world of the conformance suite; every block is final at once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tallystick.core.errors import UnavailableError
from tallystick.disputes.coordinators.coordinator import Board, Coordinator, MoveEntry
from tallystick.disputes.coordinators.ethereum.client import EthereumCoordinator, connect, deploy
from tallystick.disputes.coordinators.ethereum.contract import ContractLocation
from tallystick.disputes.coordinators.ethereum.keys import EthereumKey
from tallystick.disputes.game.moves import Draw, Move
from tallystick.disputes.game.state import Rules
from tests.disputes.coordinators.conformance import NAMES, MakeRules
from tests.disputes.coordinators.ethereum.chains import ETHER, QUICK
from tests.support.ethereum_node import LocalNode, running_node
from tests.support.in_memory import MemoryBoard

AT_ONCE = replace(QUICK, depth=0)


@dataclass(frozen=True)
class InMemoryConnection:
    """One party's connection; blocks pass before a draw, whose nonce is the hash of one of them."""

    coordinator: EthereumCoordinator
    node: LocalNode

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
        if isinstance(move, Draw):
            self.node.mine(2)
        self.coordinator.submit(move)


@dataclass
class ChainWorld:
    """A contract, its parties and the chain's clock."""

    node: LocalNode
    place: ContractLocation
    folder: Path
    _board: MemoryBoard = field(default_factory=MemoryBoard)
    _seats: dict[str, InMemoryConnection] = field(default_factory=dict)

    def party(self, name: str) -> str:
        return key_of(name).address

    def connect(self, name: str) -> Coordinator:
        if name not in self._seats:
            found = connect(str(self.place), key_of(name), self.folder, settings=AT_ONCE)
            self._seats[name] = InMemoryConnection(found, self.node)
        return self._seats[name]

    def board(self, name: str) -> Board:
        return self._board

    def advance(self, seconds: int) -> None:
        self.node.advance(seconds)


def key_of(name: str) -> EthereumKey:
    return EthereumKey((2001 + NAMES.index(name)).to_bytes(32))


@contextmanager
def found(make_rules: MakeRules) -> Iterator[ChainWorld]:
    """A fresh contract on a fresh node; skips where there is no node."""
    try:
        with running_node() as node, tempfile.TemporaryDirectory() as folder:
            for name in NAMES:
                node.ask("anvil_setBalance", key_of(name).address, hex(ETHER))
            rules = make_rules(lambda name: key_of(name).address)
            place = deploy([node.url], rules, key_of("bystander"), folder=Path(folder), settings=AT_ONCE)
            yield ChainWorld(node, place, Path(folder))
    except UnavailableError as error:
        if "anvil" not in str(error):
            raise
        pytest.skip(str(error))
