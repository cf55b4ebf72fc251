"""The contract as the chain shows it: location, code and rules, and the accepted moves in its log."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from eth_utils.crypto import keccak
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rlp import encode as rlp_encode  # type: ignore[import-untyped]

from tallystick.core.documents import explain
from tallystick.core.errors import MalformedError, RuleError, UnavailableError, UsageError
from tallystick.disputes.coordinators.coordinator import MoveEntry
from tallystick.disputes.coordinators.ethereum import endpoints
from tallystick.disputes.coordinators.ethereum.encoding import (
    artefact,
    decode_answer,
    decode_deployment,
    decode_event,
    decode_move,
    encode_call,
)
from tallystick.disputes.coordinators.ethereum.endpoints import (
    URLS_MAX,
    AddressHex,
    DataHex,
    Endpoint,
    Endpoints,
    EventLog,
    HashHex,
    Header,
    Quantity,
    Reverted,
)
from tallystick.disputes.game.game import apply
from tallystick.disputes.game.moves import Contest, Finalise, Post
from tallystick.disputes.game.state import Phase, Rules, State, Status
from tallystick.verdicts.verdict import Fault

# The location of a contract in one line of text: `ethereum:URL[,URL…]:0xADDRESS[@BLOCK][#BOARD]`.

SCHEME: Final = "ethereum:"
_FORM: Final = re.compile(
    r"(?P<urls>.+):(?P<contract>0x[0-9a-fA-F]{40})(@(?P<block>[0-9]{1,15}))?(#(?P<board>https?://.+))?"
)


@dataclass(frozen=True)
class ContractLocation:
    """The RPC servers of a chain, a contract's address on it, the block that made it, and the URL of its board."""

    urls: tuple[str, ...]
    contract: str
    block: int | None = None
    board: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a location, with or without `ethereum:` before it; raises `UsageError`."""
        match = _FORM.fullmatch(text.removeprefix(SCHEME))
        if match is None:
            raise UsageError("a contract is named by ethereum:URL:0xADDRESS, with 40 hexadecimal digits")
        urls = tuple(match["urls"].split(","))
        if len(urls) > URLS_MAX or not all(url.startswith(("http://", "https://")) for url in urls):
            raise UsageError(f"between one and {URLS_MAX} URLs of RPC servers, each http:// or https://")
        block = int(match["block"]) if match["block"] else None
        return cls(urls, match["contract"].lower(), block, match["board"])

    def __str__(self) -> str:
        block = "" if self.block is None else f"@{self.block}"
        board = "" if self.board is None else f"#{self.board}"
        return f"{SCHEME}{','.join(self.urls)}:{self.contract}{block}{board}"


# The deployment of a contract: its code and its rules, read from the transaction that made it.
#
# A contract's statements about itself prove nothing. But its address is the hash of its creator and of that account's
# nonce, `keccak256(rlp([sender, nonce]))` (Ethereum yellow paper, §7). The data of that transaction has to be the code
# of this version, followed by the rules.


@dataclass(frozen=True)
class Deployment:
    """A contract's rules, its board if it has one, and the block from which its log begins."""

    rules: Rules
    board: str | None
    block: int


class _Making(BaseModel):
    """The transaction that made a contract."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    hash: HashHex
    sender: Annotated[AddressHex, Field(alias="from")]
    to: None
    nonce: Quantity
    input: DataHex
    block: Annotated[Quantity, Field(alias="blockNumber")]


def read_deployment(server: Endpoint, address: str, first_block: int = 0) -> Deployment:
    """The deployment of the contract at `address`, searched for from `first_block` on.

    Raises:
        UnavailableError: There is no such contract on this chain, it was made from other code or with invalid rules,
            or the server contradicts itself.
    """
    if not endpoints.code(server, address):
        raise UnavailableError(f"{server.name}: there is no contract at {address}")
    latest = endpoints.header(server, "latest").number
    events = endpoints.logs(server, address, artefact().topic("Founded"), min(first_block, latest), latest)
    if not events:
        raise UnavailableError(f"{server.name}: {address} is no coordinator, or was made before block {first_block}")
    making = _making(server, events[0].transaction)
    if contract_address(making.sender, making.nonce) != address or making.block != events[0].block:
        raise UnavailableError(f"{server.name}: {address} was not made by the transaction that is said to have made it")
    try:
        rules, board = decode_deployment(bytes.fromhex(making.input[2:]))
    except MalformedError as error:
        raise UnavailableError(f"{server.name}: {address}: {error}") from None
    return Deployment(rules, board, making.block)


def contract_address(sender: str, nonce: int) -> str:
    """The address of a contract that an account makes with its transaction number `nonce`."""
    return "0x" + keccak(rlp_encode([bytes.fromhex(sender[2:]), nonce]))[12:].hex()


def _making(server: Endpoint, transaction: str) -> _Making:
    answer: Any = server.ask("eth_getTransactionByHash", transaction)
    try:
        return _Making.model_validate(answer)
    except ValidationError as error:
        if isinstance(answer, dict) and answer.get("to"):
            raise UnavailableError(f"{server.name}: the contract was made by another contract") from None
        raise UnavailableError(f"{server.name}: bad transaction {transaction}: {explain(error)}") from None


# Compare the contract's own view of its state with the state that its log gives in the game.

PHASES: Final = tuple(Phase)
STATUSES: Final = tuple(Status)
FAULTS: Final = (None, Fault.PROVER, Fault.CHALLENGER, Fault.NOBODY)


def check_view(
    server: Endpoint, contract: str, state: State, entries: Sequence[MoveEntry], new: int, block: int
) -> None:
    """Compare the contract's own view at `block` with `state`, for all that the moves from number `new` on changed.

    Raises:
        UnavailableError: They differ, so the server left out or invented an event.
    """
    _is(server, "the number of moves", ask(server, contract, block, "moves"), (len(entries),))
    pausing = state.pausing
    expected = (pausing.since is not None, pausing.since or 0, pausing.total, pausing.allowed_from)
    _is(server, "the pause", ask(server, contract, block, "pausing"), expected)
    claims, disputes = _touched(state, entries[new:])
    for number in claims:
        _is(server, f"claim {number}", ask(server, contract, block, "claims", number), _claim(state, number))
    for number in disputes:
        seen = ask(server, contract, block, "disputeAt", number)[:4]
        _is(server, f"dispute {number}", seen, _dispute(state, number))


def ask(server: Endpoint, contract: str, block: int | str, function: str, *values: Any) -> tuple[Any, ...]:
    """The values that one of the contract's view functions returns at a block; raises `UnavailableError`."""
    fields = {"to": contract, "data": "0x" + encode_call(function, values).hex()}
    answer = endpoints.call(server, fields, block)
    if isinstance(answer, Reverted):
        raise UnavailableError(f"{server.name}: the contract does not answer {function}")
    try:
        return decode_answer(function, answer)
    except MalformedError as error:
        raise UnavailableError(f"{server.name}: {error}") from None


def _claim(state: State, number: int) -> tuple[Any, ...]:
    claim = state.claims[number]
    status, root, seal = STATUSES.index(claim.status), bytes.fromhex(claim.root), bytes.fromhex(claim.seal)
    numbers = (claim.levels, claim.bond, claim.size, claim.disputes)
    return (claim.prover, claim.deadline, status, *numbers, root, seal)


def _dispute(state: State, number: int) -> tuple[Any, ...]:
    dispute = state.disputes[number]
    return (PHASES.index(dispute.phase), FAULTS.index(dispute.fault), dispute.turn, dispute.deadline)


def _touched(state: State, entries: Iterable[MoveEntry]) -> tuple[list[int], list[int]]:
    """The numbers of the claims and disputes that the moves were about, or that they opened: these come last."""
    claims: set[int] = set()
    disputes: set[int] = set()
    posts = contests = 0
    for entry in entries:
        move: Any = entry.move
        posts += isinstance(move, Post)
        contests += isinstance(move, Contest)
        claims |= {move.claim} if isinstance(move, Contest | Finalise) else set()
        disputes |= {move.dispute} if hasattr(move, "dispute") else set()
    claims |= set(range(len(state.claims) - posts, len(state.claims)))
    disputes |= set(range(len(state.disputes) - contests, len(state.disputes)))
    claims |= {state.disputes[number].claim for number in disputes}
    return sorted(claims), sorted(disputes)


def _is(server: Endpoint, what: str, shown: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    if shown != expected:
        raise UnavailableError(f"{server.name}: contradicts itself: its log leads to {expected} as {what}, not {shown}")


# Read the accepted moves from the contract's log, up to the last block that cannot be undone.
#
# No single server is trusted. Its events must be in order and without a gap, and in blocks that it still has under
# their numbers. The game must allow the moves, and their state must be the one that the contract reports at the same
# block. A server that fails a check is left out. Among several consistent histories, the accepted one is not longer
# than those of at least half of the servers, and less than half of the servers contradict it.

LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class History:
    """The moves up to the block `number` with the hash `hash`, and the state after them."""

    state: State
    number: int
    hash: str
    timestamp: int = 0
    entries: tuple[MoveEntry, ...] = ()


class LogReader:
    """Reads one contract's log, through any of several servers."""

    def __init__(self, endpoints: Endpoints, contract: str, start: History, depth: int | None = None) -> None:
        self.endpoints, self.contract, self.depth = endpoints, contract, depth
        self._start = self.known = start

    def read(self) -> History:
        """The moves so far; reads on from the end of the last reading.

        Raises:
            UnavailableError: No server gives a consistent history.
        """
        self.known = self.endpoints.settled(self._read)
        return self.known

    def _read(self) -> History:
        heads = self.endpoints.each(lambda server: endpoints.final_header(server, self.depth))
        ahead = [(server, head) for server, head in heads if head.number >= self.known.number]
        histories, failures = [], []
        for server, head in ahead:
            try:
                histories.append((server, self._read_from(server, head)))
            except (UnavailableError, MalformedError) as error:
                failures.append(str(error))
        if ahead and not histories:
            raise UnavailableError("; ".join(failures))
        return _believed(histories) if histories else self.known

    def _read_from(self, server: Endpoint, head: Header) -> History:
        known = self.known
        if head.hash == known.hash:
            return known
        if endpoints.header(server, known.number).hash != known.hash:
            LOG.warning("%s: block %d, taken for final, is another one now: reading anew", server.name, known.number)
            known = self._start
        return extended(server, self.contract, known, head)


def _believed(histories: Sequence[tuple[Endpoint, History]]) -> History:
    """The longest of several consistent histories that a minority of servers cannot have invented.

    Raises:
        UnavailableError: At least half of the servers contradict each of them.
    """
    ranked = sorted(histories, key=lambda each: -each[1].number)
    for server, history in ranked[(len(ranked) - 1) // 2 :]:
        against = [other.name for other, its in ranked if not _agree((server, history), (other, its))]
        if 2 * len(against) < len(ranked):
            return history
    names = ", ".join(server.name for server, _ in ranked)
    raise UnavailableError(f"{names}: each has another chain than most of the others")


def _agree(one: tuple[Endpoint, History], other: tuple[Endpoint, History]) -> bool:
    """Whether the shorter of two histories is the beginning of the other."""
    (_, shorter), (server, longer) = sorted((one, other), key=lambda each: each[1].number)
    if shorter.entries != longer.entries[: len(shorter.entries)]:
        return False
    try:
        return shorter.hash == longer.hash or endpoints.header(server, shorter.number).hash == shorter.hash
    except UnavailableError:
        return True


def extended(server: Endpoint, contract: str, known: History, head: Header) -> History:
    """The history up to `head`, checked; raises `UnavailableError`, `MalformedError`."""
    logs = endpoints.logs(server, contract, artefact().topic("Moved"), known.number + 1, head.number)
    _stand_in_their_blocks(server, logs, known.number, head)
    state, entries = known.state, list(known.entries)
    for log in logs:
        entry = _entry(server, contract, log, len(entries))
        try:
            state = apply(state, entry.move, entry.time)
        except RuleError as error:
            raise UnavailableError(f"{server.name}: move {entry.number} is against the rules: {error}") from None
        entries.append(entry)
    check_view(server, contract, state, entries, len(known.entries), head.number)
    return History(state, head.number, head.hash, head.timestamp, tuple(entries))


def _entry(server: Endpoint, contract: str, log: EventLog, expected: int) -> MoveEntry:
    if log.address != contract:
        raise UnavailableError(f"{server.name}: gives an event of another contract")
    number, actor, time, value, call = decode_event(log.topics, bytes.fromhex(log.data[2:]))
    if number != expected:
        raise UnavailableError(f"{server.name}: move {expected} is missing, move {number} comes instead")
    return MoveEntry(number, time, decode_move(call, actor, value))


def _stand_in_their_blocks(server: Endpoint, logs: Sequence[EventLog], after: int, head: Header) -> None:
    """Check that events are in order and not after the head, and that each names the block that now has its number."""
    places = [(log.block, log.index) for log in logs]
    if places != sorted(set(places)) or any(not after < block <= head.number for block, _ in places):
        raise UnavailableError(f"{server.name}: gives events out of order")
    for number, block_hash in sorted({(log.block, log.block_hash) for log in logs}):
        header = head if number == head.number else endpoints.header(server, number)
        if header.hash != block_hash:
            raise UnavailableError(f"{server.name}: an event stands in a block {number} that is no part of the chain")
