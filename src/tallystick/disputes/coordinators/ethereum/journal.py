"""The transactions that a key has signed and that are not final, and their offers for gas (EIP-1559)."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from tallystick.core.canonical_json import decode
from tallystick.core.documents import Count, Document
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.files import sync_folder

# The offer of a transaction for its gas (EIP-1559), and how it is raised: pure arithmetic, in wei per gas.

BASE_FEES_COVERED: Final = 2
"""A block's base fee grows by at most an eighth (EIP-1559), so twice the current fee is enough for five full blocks."""
RAISE_NUMERATOR: Final = 9
RAISE_DENOMINATOR: Final = 8
"""A replacement offers an eighth more in both numbers; nodes require at least a tenth more to replace the first."""
GWEI: Final = 10**9


@dataclass(frozen=True)
class GasOffer:
    """The maximum price of a unit of gas, and the tip in it for the block's proposer."""

    fee_max: int
    tip: int


@dataclass(frozen=True)
class FeeRules:
    """The limits of offers: at most `fee_max`, and a tip of at least `tip_min`."""

    fee_max: int = 500 * GWEI
    tip_min: int = 1


def first_offer(base_fee: int, tip_asked: int, rules: FeeRules) -> GasOffer:
    """An offer that the next blocks accept, if `fee_max` allows it."""
    tip = min(max(tip_asked, rules.tip_min), rules.fee_max)
    return GasOffer(min(BASE_FEES_COVERED * base_fee + tip, rules.fee_max), tip)


def raised(offer: GasOffer, base_fee: int, tip_asked: int, rules: FeeRules) -> GasOffer | None:
    """An offer that replaces `offer`; `None` if it would exceed `fee_max`."""
    market = first_offer(base_fee, tip_asked, rules)
    tip = max(_eighth_more(offer.tip), market.tip)
    higher = GasOffer(max(_eighth_more(offer.fee_max), market.fee_max, tip), tip)
    return higher if higher.fee_max <= rules.fee_max else None


def _eighth_more(amount: int) -> int:
    return -(-amount * RAISE_NUMERATOR // RAISE_DENOMINATOR)


# A journal of the transactions that a key has signed and that are not final: on disk before they are sent.
#
# After a crash, a program reads here what it may have sent, and sends the same bytes again instead of signing new ones.
# Each line is one entry. An unfinished last line was never acted on, and is cut off.

JOURNAL_BYTES_MAX: Final = 64 << 20
LOCK_PAUSE_S: Final = 0.05
Hex = Annotated[str, Field(pattern=r"^0x([0-9a-f]{2})*$")]
Wei = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,30})$")]
"""Amounts in wei exceed the largest integer of canonical JSON, so they are strings of decimal digits."""


class Signed(Document):
    """One signed transaction: its `purpose`, its fields, and the `raw` bytes that may have been sent."""

    kind: Literal["signed"] = "signed"
    nonce: Count
    purpose: str
    turn: str = ""
    to: Hex
    data: Hex
    value: Wei
    gas: Count
    fee_max: Wei
    tip: Wei
    hash: Hex
    raw: Hex

    @property
    def offer(self) -> GasOffer:
        """Its offer for gas."""
        return GasOffer(int(self.fee_max), int(self.tip))


class Closed(Document):
    """The end of all transactions of a nonce: the reason is `final`, or why they were given up."""

    kind: Literal["closed"] = "closed"
    nonce: Count
    reason: str


@dataclass(frozen=True)
class Pending:
    """The pending transactions of one nonce: the same call, with a higher offer in each attempt."""

    attempts: tuple[Signed, ...]

    @property
    def last(self) -> Signed:
        """The last attempt, which has the highest offer."""
        return self.attempts[-1]

    @property
    def nonce(self) -> int:
        """The nonce, which at most one of the attempts can use."""
        return self.last.nonce


class JournalLockedError(UnavailableError):
    """Another process has locked the journal."""


class TransactionJournal:
    """A file of signed transactions, for one key on one chain."""

    def __init__(
        self,
        path: Path,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path, self._sleep, self._clock = path, sleep, clock

    @contextmanager
    def locked(self, patience_s: float) -> Iterator[OpenJournal]:
        """The journal, locked for this process; waits at most `patience_s` seconds for the lock.

        Raises:
            JournalLockedError: Another process holds the lock for longer.
            UnavailableError: It cannot be read or written.
            MalformedError: It is damaged before its last line.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise UnavailableError(f"{self.path}: {error.strerror}") from None
        try:
            self._lock(handle, patience_s)
            yield OpenJournal(self.path, handle)
        finally:
            os.close(handle)

    def _lock(self, handle: int, patience_s: float) -> None:
        ends_at = self._clock() + patience_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if self._clock() >= ends_at:
                    raise JournalLockedError(f"{self.path.name}: another program sends with this key") from None
                self._sleep(LOCK_PAUSE_S)


class OpenJournal:
    """A journal that this process has locked."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path, self._handle = path, handle
        self._open: dict[int, Pending] = {}
        for line in self._lines():
            self._take(_read(line, path.name))

    @property
    def pending(self) -> tuple[Pending, ...]:
        """The pending transactions, in the order of their nonces."""
        return tuple(self._open[nonce] for nonce in sorted(self._open))

    def sign(self, signed: Signed) -> None:
        """Store a signed transaction durably."""
        self._write(signed)

    def close(self, nonce: int, reason: str) -> None:
        """Store that nothing is pending for a nonce any more."""
        self._write(Closed(nonce=nonce, reason=reason))

    def _lines(self) -> list[bytes]:
        """The complete lines; an unfinished last line is cut off."""
        size = os.fstat(self._handle).st_size
        if size > JOURNAL_BYTES_MAX:
            raise MalformedError(f"{self.path.name}: longer than {JOURNAL_BYTES_MAX} bytes")
        data = os.pread(self._handle, size, 0)
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.ftruncate(self._handle, whole)
        return data[:whole].splitlines()

    def _write(self, fact: Signed | Closed) -> None:
        line, size = fact.to_bytes() + b"\n", os.fstat(self._handle).st_size
        try:
            if os.write(self._handle, line) != len(line):
                os.ftruncate(self._handle, size)
                raise UnavailableError(f"{self.path.name}: no space left for a line")
            os.fsync(self._handle)
            if not size:
                sync_folder(self.path.parent)
        except OSError as error:
            raise UnavailableError(f"{self.path.name}: {error.strerror}") from None
        self._take(fact)
        if not self._open:
            os.ftruncate(self._handle, 0)

    def _take(self, fact: Signed | Closed) -> None:
        if isinstance(fact, Closed):
            self._open.pop(fact.nonce, None)
        else:
            earlier = self._open.get(fact.nonce)
            self._open[fact.nonce] = Pending((*(earlier.attempts if earlier else ()), fact))


def _read(line: bytes, what: str) -> Signed | Closed:
    document = decode(line, what, bytes_max=JOURNAL_BYTES_MAX)
    is_closed = isinstance(document, dict) and document.get("kind") == "closed"
    return Closed.from_json(document, what) if is_closed else Signed.from_json(document, what)
