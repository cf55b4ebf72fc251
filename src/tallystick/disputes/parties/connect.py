"""Connect to a coordinator by its name: a database, a URL, or `ethereum:RPC:ADDRESS`; with a board and a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

from tallystick.core.digests import Digest, digest
from tallystick.core.errors import UsageError
from tallystick.core.files import read_document
from tallystick.disputes.coordinators.coordinator import Board, Coordinator
from tallystick.disputes.coordinators.local.signed import Delegation
from tallystick.disputes.parties.player import PATIENCE
from tallystick.formats.signing import SigningKey

if TYPE_CHECKING:
    from tallystick.disputes.coordinators.local.client import RemoteCoordinator


ETHEREUM: Final = "ethereum:"
ETHEREUM_PATIENCE: Final = 1800
"""Seconds after which a move that is in no final block counts as lost: longer than two epochs, until finality."""


@dataclass(frozen=True)
class CoordinatorConnection:
    """One party's connection to a coordinator and its board; `identity` differs between coordinators."""

    coordinator: Coordinator
    board: Board
    identity: Digest
    patience: int = PATIENCE
    remote: RemoteCoordinator | None = None
    delegation: Delegation | None = None
    """What another party delegated to this one."""

    def keep_receipts(self, folder: Path) -> None:
        """Keep the receipts of a remote coordinator in `folder`, so that it cannot deny a move later."""
        if self.remote is not None:
            self.remote.keep_receipts(folder / "receipts.jsonl")

    def folder(self) -> Path:
        """The default folder for the files of this party that have to outlive its program."""
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
        party = self.coordinator.party.removeprefix("0x") if self.delegation is None else self.delegation.delegate
        return Path(state) / "tallystick" / "disputes" / self.identity.removeprefix("sha256:")[:16] / party[:40]


class NoBoard:
    """A board without data, for commands that only read the game."""

    def put(self, data: bytes) -> Digest:
        """Raise `UsageError`."""
        raise UsageError("the data of moves has to lie somewhere: name a board with --board")

    def get(self, name: Digest) -> bytes:
        """Raise `UsageError`."""
        raise UsageError("the data of moves lies at a board: name it with --board")


@contextmanager
def connected(
    text: str,
    key: Path | None = None,
    board: str | None = None,
    board_key: Path | None = None,
    delegation: Path | None = None,
) -> Iterator[CoordinatorConnection]:
    """Connect to the coordinator that `text` names, as the party with `key`; without a key, only to read.

    `board` says where the data of moves lies: at another coordinator, which knows the party by `board_key`, or in a
    folder that the parties share. The default is the coordinator's own board; a contract has none. With a `delegation`,
    a file that a party signed for the key, it answers for that party.

    Raises:
        UsageError: the name or the key makes no sense.
        UnavailableError: the coordinator does not answer, or there is no such database.
    """
    with _opened(text, key, delegation) as place:
        if board is None:
            yield place
        else:
            with _board_at(board, board_key) as other:
                yield replace(place, board=other)


@contextmanager
def _opened(text: str, key: Path | None, delegation: Path | None = None) -> Iterator[CoordinatorConnection]:
    if text.startswith(ETHEREUM):
        if delegation is not None:
            raise UsageError("--delegation: the contract knows no delegates; a watchtower there needs the prover's key")
        yield _contract(text, key)
        return
    signing, signed = _signing_key(key), None
    if delegation is not None:
        signed = Delegation.from_bytes(read_document(delegation).strip(), delegation.name)
    if text.startswith(("http://", "https://")):
        from tallystick.disputes.coordinators.local.client import RemoteCoordinator

        with closing(RemoteCoordinator(text)) as remote:
            yield CoordinatorConnection(
                remote.connect(signing, signed),
                remote.board(signing, signed),
                remote.identity,
                remote=remote,
                delegation=signed,
            )
        return
    from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator

    with closing(LocalCoordinator.open(text)) as local:
        own = local.connect(signing, signed)
        yield CoordinatorConnection(own, own, local.identity, delegation=signed)


@contextmanager
def _board_at(text: str, key: Path | None) -> Iterator[Board]:
    if Path(text).is_dir():
        from tallystick.disputes.coordinators.ethereum.board import FolderBoard

        yield FolderBoard(Path(text))
        return
    with _opened(text, key) as place:
        yield place.board


def _contract(text: str, key: Path | None) -> CoordinatorConnection:
    from tallystick.disputes.coordinators.ethereum.client import connect
    from tallystick.disputes.coordinators.ethereum.keys import EthereumKey

    contract = connect(text, EthereumKey.read(key) if key else None)
    identity = digest("coordinator", f"{contract.chain_id}:{contract.contract}".encode())
    return CoordinatorConnection(contract, NoBoard(), identity, ETHEREUM_PATIENCE)


def _signing_key(key: Path | None) -> SigningKey:
    """The key in a file; without a file, a new key that is not stored, of an unknown party."""
    if key is None:
        return SigningKey.generate()
    if not key.is_file():
        raise UsageError(f"{key}: not there; `tally new-key {quote(str(key))}` makes one")
    return SigningKey.read(key)
