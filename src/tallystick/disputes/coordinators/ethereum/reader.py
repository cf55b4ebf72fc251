"""Read the accepted moves from the contract's log, up to the last block that cannot be undone.

No single server is trusted. Its events must be in order and without a gap, and in blocks that it still has under their
numbers. The game must allow the moves, and their state must be the one that the contract reports at the same block. A
server that fails a check is left out. Among several consistent histories, the accepted one is not longer than those of
at least half of the servers, and less than half of the servers contradict it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tallystick.disputes.coordinators.coordinator import MoveEntry
from tallystick.disputes.coordinators.ethereum import chain
from tallystick.disputes.coordinators.ethereum.chain import EventLog, Header
from tallystick.disputes.coordinators.ethereum.encoding import artefact, decode_event, decode_move
from tallystick.disputes.coordinators.ethereum.endpoints import Endpoint, Endpoints
from tallystick.disputes.coordinators.ethereum.view import check_view
from tallystick.disputes.game.game import apply
from tallystick.disputes.game.state import State
from tallystick.errors import MalformedError, RuleError, UnavailableError

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
        heads = self.endpoints.each(lambda server: chain.final_header(server, self.depth))
        ahead = [(server, head) for server, head in heads if head.number >= self.known.number]
        found, failures = [], []
        for server, head in ahead:
            try:
                found.append((server, self._read_from(server, head)))
            except (UnavailableError, MalformedError) as error:
                failures.append(str(error))
        if ahead and not found:
            raise UnavailableError("; ".join(failures))
        return _believed(found) if found else self.known

    def _read_from(self, server: Endpoint, head: Header) -> History:
        known = self.known
        if head.hash == known.hash:
            return known
        if chain.header(server, known.number).hash != known.hash:
            LOG.warning("%s: block %d, taken for final, is another one now: reading anew", server.name, known.number)
            known = self._start
        return extended(server, self.contract, known, head)


def _believed(found: Sequence[tuple[Endpoint, History]]) -> History:
    """The longest of several consistent histories that a minority of servers cannot have invented.

    Raises:
        UnavailableError: At least half of the servers contradict each of them.
    """
    ranked = sorted(found, key=lambda each: -each[1].number)
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
        return shorter.hash == longer.hash or chain.header(server, shorter.number).hash == shorter.hash
    except UnavailableError:
        return True


def extended(server: Endpoint, contract: str, known: History, head: Header) -> History:
    """The history up to `head`, checked; raises `UnavailableError`, `MalformedError`."""
    logs = chain.logs(server, contract, artefact().topic("Moved"), known.number + 1, head.number)
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
    for number, found in sorted({(log.block, log.block_hash) for log in logs}):
        header = head if number == head.number else chain.header(server, number)
        if header.hash != found:
            raise UnavailableError(f"{server.name}: an event stands in a block {number} that is no part of the chain")
