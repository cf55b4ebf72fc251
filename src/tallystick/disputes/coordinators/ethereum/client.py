"""A coordinator that is a contract: the protocol `Coordinator` for one account, through any of several RPC servers.

It reads the contract's log only up to the last block that cannot be undone. A move is signed here, and first tried as a
call without a transaction, so that a refusal costs nothing. Its transaction is then watched until its block is final.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from tallystick.commitments.digests import Digest
from tallystick.disputes.coordinators.coordinator import MoveEntry
from tallystick.disputes.coordinators.ethereum import chain
from tallystick.disputes.coordinators.ethereum.deployment import Deployment, read_deployment
from tallystick.disputes.coordinators.ethereum.encoding import ATTESTED, GWEI, encode_call, encode_move
from tallystick.disputes.coordinators.ethereum.endpoints import Endpoint, Endpoints, HttpEndpoint, RetryRules
from tallystick.disputes.coordinators.ethereum.journal import TransactionJournal
from tallystick.disputes.coordinators.ethereum.keys import EthereumKey
from tallystick.disputes.coordinators.ethereum.location import ContractLocation
from tallystick.disputes.coordinators.ethereum.reader import History, LogReader
from tallystick.disputes.coordinators.ethereum.relay import Relayed, check_relayed, sign_relayed
from tallystick.disputes.coordinators.ethereum.sender import Call, Sender, SendingRules
from tallystick.disputes.coordinators.ethereum.view import ask
from tallystick.disputes.game.moves import BisectionMove, Draw, Move, value_of
from tallystick.disputes.game.rules import Rules
from tallystick.disputes.game.state import State
from tallystick.errors import RuleError, UnavailableError, UsageError

LOG: Final = logging.getLogger(__name__)
NOBODY: Final = "0x" + "00" * 20
"""The party of a connection without a key."""


class ReorganisedError(UnavailableError):
    """A deep reorganisation removed moves that counted as final: read from the first move again."""


class Attester(Protocol):
    """A board that attests the data it keeps."""

    def attest(self, dispute: int, turn: int, data: Digest) -> bytes:
        """Its signature over the data of a turn; raises `UnavailableError` if it does not keep all of it."""
        ...


@dataclass(frozen=True)
class Settings:
    """How to connect, and what sending may cost.

    `depth` is the number of blocks until a block is final; `None` means the chain's own `finalized` block.
    `timeout_s` is the timeout for one answer of one server.
    """

    depth: int | None = None
    timeout_s: float = 10.0
    patience: RetryRules = field(default_factory=RetryRules)
    sending: SendingRules = field(default_factory=SendingRules)


class EthereumCoordinator:
    """One account's connection to one contract; without a key it only reads.

    The journal of pending transactions is in `folder`.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        place: ContractLocation,
        key: EthereumKey | None = None,
        folder: Path | None = None,
        settings: Settings = Settings(),
        attester: Attester | None = None,
    ) -> None:
        self.chain_id = endpoints.agreed(_chain_id)
        self.endpoints = endpoints = _of_one_chain(endpoints, self.chain_id)
        self.contract, self.settings = place.contract, settings
        self.deployment, before = endpoints.agreed(lambda server: _beginning(server, place))
        self.attester = attester or _attester(place, self.chain_id, self.deployment.board)
        start = History(State(self.deployment.rules), before.number, before.hash)
        self._reader = LogReader(endpoints, self.contract, start, settings.depth)
        self._key = key
        self._sender = self._sender_for(key, folder or default_folder()) if key else None
        self._returned: tuple[MoveEntry, ...] = ()

    @property
    def party(self) -> str:
        """The party that moves through this connection."""
        return self._key.address if self._key else NOBODY

    @property
    def rules(self) -> Rules:
        """The rules with which the contract was made."""
        return self.deployment.rules

    @property
    def place(self) -> ContractLocation:
        """The location of the contract for other parties, with the URLs of the servers as they were given."""
        urls = tuple(server.url for server in self.endpoints.servers if isinstance(server, HttpEndpoint))
        return ContractLocation(urls, self.contract, self.deployment.block)

    @property
    def state(self) -> State:
        """The state after the final moves; raises `UnavailableError`."""
        return self._reader.read().state

    def now(self) -> int:
        """The time of the latest block in seconds: the median of all servers, and never before the last final block."""
        heads = self.endpoints.each(lambda server: chain.header(server, "latest"))
        times = sorted(head.timestamp for _, head in heads)
        return max(times[(len(times) - 1) // 2], self._reader.known.timestamp)

    def entries(self, start: int = 0) -> Sequence[MoveEntry]:
        """The accepted moves from number `start` on in final blocks; also sends pending transactions again.

        Raises:
            ReorganisedError: Moves that were returned before are undone; ask for all moves from 0 on.
            UnavailableError: No server gives a consistent history.
        """
        if self._sender:
            self._sender.tend()
        entries = self._reader.read().entries
        if start and entries[: len(self._returned)] != self._returned:
            raise ReorganisedError("moves that were final are undone by a deep reorganisation; read them all again")
        self._returned = entries
        return entries[start:]

    def submit(self, move: Move) -> None:
        """Make a move; returns when a block contains it, or when its transaction is on disk and pending.

        Raises:
            RuleError: The contract refuses it now, or another move of this turn is pending.
            UnavailableError: No server takes it; the next call sends the signed transaction again.
            UsageError: The connection has no key, or the contract requires a board's attestation.
        """
        if move.actor != self.party:
            raise RuleError("actor", "nobody moves for another")
        call = encode_move(move, self._attestation(move))
        turn = f"dispute {move.dispute} turn {move.turn}" if isinstance(move, BisectionMove) else ""
        self._send(call, value_of(move), self._purpose(move), turn)

    def sign_relayed(self, move: Move, deadline: int) -> Relayed:
        """A signed move of this party that any account may send and pay for until `deadline`, in seconds."""
        if self._key is None or move.actor != self.party:
            raise UsageError("only a party itself signs its moves")
        nonce = self.endpoints.agreed(lambda server: ask(server, self.contract, "latest", "nonces", self.party))[0]
        call = encode_move(move, self._attestation(move))
        return sign_relayed(self._key, self.chain_id, self.contract, int(nonce), deadline, call, value_of(move))

    def send_relayed(self, relayed: Relayed) -> None:
        """Send another party's signed move and pay for it; raises as `submit` does, and `ProofError`."""
        check_relayed(relayed, self.chain_id, self.contract)
        turn = f"relay {relayed.signer} {relayed.nonce}"
        self._send(encode_call("relay", relayed.arguments), relayed.value, relayed.to_bytes().decode(), turn)

    def _send(self, data: bytes, value: int, purpose: str, turn: str) -> None:
        if self._sender is None:
            raise UsageError("this connection only reads: give a key file to make moves")
        here = f"{self.contract} "
        self._sender.submit(Call(self.contract, data, value * GWEI, here + purpose, here + turn if turn else ""))

    def _sender_for(self, key: EthereumKey, folder: Path) -> Sender:
        journal = TransactionJournal(folder / f"{self.chain_id}-{key.address}.jsonl", self.endpoints.sleep)
        return Sender(self.endpoints, key, self.chain_id, journal, self.settings.depth, self.settings.sending)

    def _attestation(self, move: Any) -> bytes:
        """The board's attestation of the data of a move; empty if the contract requires none."""
        if move.kind not in ATTESTED or self.deployment.board is None:
            return b""
        if self.attester is None:
            raise UsageError(
                f"the contract requires the attestation of its board {self.deployment.board}: name the board"
            )
        return self.attester.attest(move.dispute, move.turn, move.data)

    def _purpose(self, move: Move) -> str:
        """The text by which two submissions are the same: the move, without a nonce that the contract replaces."""
        if isinstance(move, Draw) and self.rules.beacon is None:
            move = move.model_copy(update={"nonce": "00" * 32})
        return move.to_bytes().decode()


def connect(
    place: str,
    key: EthereumKey | None = None,
    folder: Path | None = None,
    rules: Rules | None = None,
    settings: Settings = Settings(),
    attester: Attester | None = None,
) -> EthereumCoordinator:
    """Connect to the contract at `ethereum:URL[,URL…]:0xADDRESS[@BLOCK][#BOARD]`.

    `BOARD` is the URL at which the contract's board attests; `attester` replaces it.

    Raises:
        UsageError: The location cannot be read, or the contract has other rules than `rules`.
        UnavailableError: No server answers, there is no such contract, or it was made from other code.
    """
    where = ContractLocation.parse(place)
    endpoints = Endpoints([HttpEndpoint(url, settings.timeout_s) for url in where.urls], settings.patience)
    found = EthereumCoordinator(endpoints, where, key, folder, settings, attester)
    if rules is not None and found.rules != rules:
        raise UsageError(f"the contract {where.contract} has other rules than those that were expected")
    return found


def default_folder() -> Path:
    """The folder for the journals of pending transactions: one for each account and chain of this user."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "tallystick" / "ethereum"


def _chain_id(server: Endpoint) -> int:
    return chain.quantity(server, "eth_chainId")


def _of_one_chain(endpoints: Endpoints, chain_id: int) -> Endpoints:
    """The servers that follow this chain or do not answer; raises `UnavailableError` if they are no majority."""
    others = [server for server, found in endpoints.each(_chain_id) if found != chain_id]
    if 2 * len(others) >= len(endpoints.servers):
        raise UnavailableError(f"{', '.join(server.name for server in others)}: not of chain {chain_id} as the others")
    for server in others:
        LOG.warning("%s is left out: it follows another chain than chain %d", server.name, chain_id)
    kept = [server for server in endpoints.servers if server not in others]
    return Endpoints(kept, endpoints.patience, endpoints.sleep)


def _beginning(server: Endpoint, place: ContractLocation) -> tuple[Deployment, chain.Header]:
    """The deployment of the contract, and the header of the block before it."""
    found = read_deployment(server, place.contract, place.block or 0)
    return found, chain.header(server, max(0, found.block - 1))


def _attester(place: ContractLocation, chain_id: int, board: str | None) -> Attester | None:
    if board is None or place.board is None:
        return None
    from tallystick.disputes.coordinators.ethereum.attesting import RemoteAttester  # needs an HTTP server's libraries

    return RemoteAttester(place.board, board, chain_id, place.contract)
