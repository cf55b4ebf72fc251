"""A coordinator that is a contract: set up, and used for one account or through a relay."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol

from pydantic import Field

from tallystick.core.digests import Digest
from tallystick.core.documents import Count, Document
from tallystick.core.errors import ProofError, RuleError, UnavailableError, UsageError
from tallystick.disputes.coordinators.coordinator import MoveEntry
from tallystick.disputes.coordinators.ethereum import endpoints as chain
from tallystick.disputes.coordinators.ethereum.board import RemoteAttester
from tallystick.disputes.coordinators.ethereum.contract import (
    ContractLocation,
    Deployment,
    History,
    LogReader,
    ask,
    read_deployment,
)
from tallystick.disputes.coordinators.ethereum.encoding import (
    ATTESTED,
    GWEI,
    encode_call,
    encode_deployment,
    encode_move,
)
from tallystick.disputes.coordinators.ethereum.endpoints import Endpoint, Endpoints, HttpEndpoint, RetryRules
from tallystick.disputes.coordinators.ethereum.journal import TransactionJournal
from tallystick.disputes.coordinators.ethereum.keys import EthereumKey, relayed_move, signer_of
from tallystick.disputes.coordinators.ethereum.sender import NOWHERE, Call, Sender, SendingRules
from tallystick.disputes.game.moves import BisectionMove, Draw, Move, value_of
from tallystick.disputes.game.state import Money, Rules, State

# A move that its party signs and another account sends and pays for, so that the party's account needs no money.

CALL_HEX_MAX = 1 << 19


class Relayed(Document):
    """One signed move, valid once, until `deadline` in seconds, at one contract of one chain; `value` in gwei."""

    kind: Literal["relayed"] = "relayed"
    version: Literal[1] = 1
    chain: Count
    contract: Annotated[str, Field(pattern=r"^0x[0-9a-f]{40}$")]
    signer: Annotated[str, Field(pattern=r"^0x[0-9a-f]{40}$")]
    nonce: Count
    deadline: Count
    value: Money
    call: Annotated[str, Field(pattern=r"^([0-9a-f]{2})+$", max_length=CALL_HEX_MAX)]
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{130}$")]

    @property
    def arguments(self) -> tuple[str, int, int, bytes, bytes]:
        """The arguments of the contract's `relay`."""
        call, signature = bytes.fromhex(self.call), bytes.fromhex(self.signature)
        return self.signer, self.nonce, self.deadline, call, signature


def sign_relayed(
    key: EthereumKey, chain: int, contract: str, nonce: int, deadline: int, call: bytes, value: int
) -> Relayed:
    """A signed move of the key's account, for anybody to send."""
    document = relayed_move(chain, contract, key.address, nonce, deadline, call)
    return Relayed(
        chain=chain,
        contract=contract,
        signer=key.address,
        nonce=nonce,
        deadline=deadline,
        value=value,
        call=call.hex(),
        signature=key.sign_typed(document).hex(),
    )


def check_relayed(relayed: Relayed, chain: int, contract: str) -> None:
    """Raise `ProofError` unless the move was signed by its signer for this contract on this chain."""
    if (relayed.chain, relayed.contract) != (chain, contract):
        raise ProofError("the move was signed for another chain or another contract")
    signer, nonce, deadline, call, signature = relayed.arguments
    document = relayed_move(chain, contract, signer, nonce, deadline, call)
    if signer_of(document, signature) != signer:
        raise ProofError("the signature is not one of the signer over this move")


# A coordinator that is a contract: the protocol `Coordinator` for one account, through any of several RPC servers.
#
# It reads the contract's log only up to the last block that cannot be undone. A move is signed here, and first tried as
# a call without a transaction, so that a refusal costs nothing. Its transaction is then watched until its block is
# final.

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
        self._sender: Sender | None = None
        if key is not None:
            path = (folder or default_folder()) / f"{self.chain_id}-{key.address}.jsonl"
            journal = TransactionJournal(path, endpoints.sleep)
            self._sender = Sender(endpoints, key, self.chain_id, journal, settings.depth, settings.sending)
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
        return ContractLocation(self.endpoints.urls, self.contract, self.deployment.block)

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
    coordinator = EthereumCoordinator(_connected(where.urls, settings), where, key, folder, settings, attester)
    if rules is not None and coordinator.rules != rules:
        raise UsageError(f"the contract {where.contract} has other rules than those that were expected")
    return coordinator


def default_folder() -> Path:
    """The folder for the journals of pending transactions: one for each account and chain of this user."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "tallystick" / "ethereum"


def _chain_id(server: Endpoint) -> int:
    return chain.quantity(server, "eth_chainId")


def _of_one_chain(endpoints: Endpoints, chain_id: int) -> Endpoints:
    """The servers that follow this chain or do not answer; raises `UnavailableError` if they are no majority."""
    others = [server for server, answer in endpoints.each(_chain_id) if answer != chain_id]
    if 2 * len(others) >= len(endpoints.servers):
        raise UnavailableError(f"{', '.join(server.name for server in others)}: not of chain {chain_id} as the others")
    for server in others:
        LOG.warning("%s is left out: it follows another chain than chain %d", server.name, chain_id)
    kept = [server for server in endpoints.servers if server not in others]
    return Endpoints(kept, endpoints.patience, endpoints.sleep)


def _beginning(server: Endpoint, place: ContractLocation) -> tuple[Deployment, chain.Header]:
    """The deployment of the contract, and the header of the block before it."""
    deployment = read_deployment(server, place.contract, place.block or 0)
    return deployment, chain.header(server, max(0, deployment.block - 1))


def _attester(place: ContractLocation, chain_id: int, board: str | None) -> Attester | None:
    if board is None or place.board is None:
        return None
    return RemoteAttester(place.board, board, chain_id, place.contract)


# Set up a contract. The transaction that makes it fixes its rules permanently.


def deploy(
    servers: Sequence[str] | Endpoints,
    rules: Rules,
    key: EthereumKey,
    board: str | None = None,
    folder: Path | None = None,
    settings: Settings = Settings(),
) -> ContractLocation:
    """Make a contract with these rules, and wait until a block contains it; the same call after a crash continues.

    `servers` are URLs, or connected ones. `board` is the address whose attestation the contract requires for the data
    of moves; without one it requires none.

    Raises:
        MalformedError: A party in the rules is no Ethereum address.
        RuleError: The contract refuses the rules.
        UnavailableError: No server takes the transaction, or no block contains it within the timeout.
    """
    data = encode_deployment(rules, board)
    endpoints = servers if isinstance(servers, Endpoints) else _connected(servers, settings)
    chain_id = endpoints.agreed(_chain_id)
    journal = TransactionJournal((folder or default_folder()) / f"{chain_id}-{key.address}.jsonl", endpoints.sleep)
    sender = Sender(endpoints, key, chain_id, journal, settings.depth, settings.sending)
    receipt = sender.submit(Call(NOWHERE, data, 0, f"found {rules.identity} {board}"))
    if receipt is None or receipt.contract is None:
        raise UnavailableError("the contract is not in a block yet: ask again later with the same rules")
    return ContractLocation(endpoints.urls, receipt.contract, receipt.block)


def _connected(urls: Sequence[str], settings: Settings) -> Endpoints:
    return Endpoints([HttpEndpoint(url, settings.timeout_s) for url in urls], settings.patience)
