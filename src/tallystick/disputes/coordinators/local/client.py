"""A party's client of a local coordinator behind HTTP, with the receipts by which it checks everything."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final

from tallystick.core.canonical_json import Json, decode
from tallystick.core.digests import Digest, parse_digest
from tallystick.core.errors import MalformedError, ProofError, RuleError, UnavailableError, UsageError
from tallystick.core.files import sync_folder
from tallystick.core.http.client import HttpAnswer, HttpClient, RequestLimits
from tallystick.core.http.problems import PROBLEM_BYTES_MAX, error_of
from tallystick.disputes.coordinators.coordinator import BLOB_BYTES_MAX, MoveEntry
from tallystick.disputes.coordinators.local.board import blob_digest
from tallystick.disputes.coordinators.local.signed import (
    ACCEPTED_BYTES_MAX,
    Accepted,
    ChainEntry,
    ChainState,
    Charter,
    Delegation,
    MoveReceipt,
    PartyConnection,
    put_message,
    sign_move,
)
from tallystick.disputes.game.moves import Move
from tallystick.disputes.game.state import Rules
from tallystick.formats.signing import SigningKey
from tallystick.formats.store.log import mend_tail

# The receipts that a party keeps, and with which it compares the entries that the coordinator shows later.


class ReceiptFile:
    """Receipts by number, in memory and, if there is a path, as one canonical line each in a file."""

    def __init__(self, path: Path | None, charter: Charter) -> None:
        self._path, self._charter, self._lock = path, charter, threading.Lock()
        self._entries: dict[int, ChainEntry] = {}
        if path is None or not path.exists():
            return
        mend_tail(path)  # a crash may have left the last line unfinished
        for line in path.read_bytes().splitlines():
            receipt = MoveReceipt.from_bytes(line, str(path))
            if receipt.entry.coordinator != charter.identity:
                raise MalformedError(f"{path}: the receipts of another coordinator")
            receipt.check(charter)
            self._hold(receipt.entry)

    def add(self, receipt: MoveReceipt) -> None:
        """Keep a receipt, on disk before this returns; raises `ProofError` if another entry has its number."""
        with self._lock:
            is_new = receipt.entry.number not in self._entries
            self._hold(receipt.entry)
            if is_new and self._path is not None:
                with self._path.open("ab") as file:
                    file.write(receipt.to_bytes() + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
                if len(self._entries) == 1:
                    sync_folder(self._path.parent)

    def compare(self, entry: ChainEntry) -> None:
        """Raise `ProofError` if a receipt says that another entry has this number."""
        kept = self._entries.get(entry.number)
        if kept is not None and kept != entry:
            raise ProofError(f"entry {entry.number}: the coordinator signed a receipt for another move at this number")

    @property
    def count(self) -> int:
        """The number of entries that the coordinator must have at least."""
        return max(self._entries, default=-1) + 1

    def _hold(self, entry: ChainEntry) -> None:
        self.compare(entry)
        self._entries[entry.number] = entry


# A party's client of a local coordinator behind HTTP. It checks everything that it can check.
#
# Every entry is checked when it comes: both signatures, its place in the hash chain, its time, and whether the rules
# allow the move. If a coordinator changes or drops an entry that it once showed, or leaves out a move for which it gave
# a receipt, a party that saw the entry notices it, and has the coordinator's signature as evidence.

ANSWER_BYTES_MAX: Final = 1 << 20
PAGE_BYTES_MAX: Final = (8 << 20) + ACCEPTED_BYTES_MAX


@dataclass(frozen=True)
class Account:
    """A party's money at the coordinator: what it can pay with, and what it can withdraw by one move."""

    purse: int
    withdrawable: int


class RemoteCoordinator:
    """A coordinator behind HTTP, expected to be the one of `identity`, or of the digest after `#` in `url`.

    Without either, the first answer is trusted. Receipts are kept in the file `receipts`, if one is given, and every
    later entry of the coordinator is compared with them.

    Raises:
        UnavailableError: there is no answer in time.
        ProofError: it is another coordinator than expected.
    """

    def __init__(
        self,
        url: str,
        identity: Digest | None = None,
        receipts: Path | None = None,
        effort: RequestLimits | None = None,
    ) -> None:
        url, _, named = url.partition("#")
        identity = parse_digest(named, "coordinator") if named else identity
        self._http = HttpClient(url, effort)
        try:
            answer = self._get("/v1/rules", ANSWER_BYTES_MAX)
            with _coordinators_answer():
                self.charter = Charter.from_bytes(answer, f"{url}: rules")
            if identity is not None and self.charter.identity != identity:
                raise ProofError(f"{url}: this is coordinator {self.charter.identity}, and not {identity}")
            self._receipts = ReceiptFile(receipts, self.charter)
        except BaseException:
            self._http.close()
            raise
        self._chain, self._entries, self._last = ChainState.empty(self.charter), list[MoveEntry](), b""
        self._lock = threading.RLock()

    def keep_receipts(self, path: Path) -> None:
        """Keep receipts in a file from now on, and compare the coordinator's entries with those already there.

        Raises `MalformedError` if the file holds receipts of another coordinator.
        """
        self._receipts = ReceiptFile(path, self.charter)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    @property
    def identity(self) -> Digest:
        """The digest by which signed moves name this coordinator."""
        return self.charter.identity

    @property
    def rules(self) -> Rules:
        """The rules; they never change."""
        return self.charter.rules

    def now(self) -> int:
        """The coordinator's time, in seconds."""
        return _count(self._object("/v1/time"), "time")

    def chain(self) -> ChainState:
        """The chain after all entries, each of them checked."""
        with self._lock:
            signed = self._receipts.count
            while self._read_page():
                pass
            if self._chain.count < signed:
                raise ProofError(
                    f"{self._http.url}: shows {self._chain.count} entries, and signed a receipt for entry {signed - 1}"
                )
            return self._chain

    def entries(self, start: int = 0) -> Sequence[MoveEntry]:
        """The accepted moves from number `start` on; raises `ProofError` if the coordinator contradicts itself."""
        with self._lock:
            self.chain()
            return self._entries[start:]

    def account(self, party: str) -> Account:
        """A party's money at the coordinator."""
        account = self._object(f"/v1/accounts/{party}")
        return Account(_count(account, "purse"), _count(account, "withdrawable"))

    def connect(self, key: SigningKey, delegation: Delegation | None = None) -> PartyConnection:
        """The coordinator and its board as the party with this key sees them, or the party that delegated to it."""
        return PartyConnection(self, key, delegation)

    board = connect

    def make(self, move: Move, key: SigningKey, delegation: Delegation | None = None) -> MoveReceipt:
        """Sign a move once, and send it until there is an answer; the receipt is checked and kept."""
        signed = sign_move(move, self.identity, key, delegation=delegation)
        answer = self._http.ask("POST", "/v1/moves", ANSWER_BYTES_MAX, signed.to_bytes(), _JSON)
        if answer.status != 200:
            raise error_of(answer.status, answer.body, self._http.url)
        with _coordinators_answer():
            receipt = MoveReceipt.from_bytes(answer.body, f"{self._http.url}: receipt")
        receipt.check(self.charter)
        if (receipt.entry.coordinator, receipt.entry.move) != (self.identity, signed.identity):
            raise ProofError(f"{self._http.url}: the receipt is for another move")
        self._receipts.add(receipt)
        return receipt

    def put(self, data: bytes, key: SigningKey, delegation: Delegation | None = None) -> Digest:
        """Keep `data` at the board, unless it is there already."""
        if len(data) > BLOB_BYTES_MAX:
            raise UsageError(f"a blob of {len(data)} bytes: the board takes {BLOB_BYTES_MAX} at most")
        name = blob_digest(BytesIO(data))
        path = f"/v1/blobs/{name}"
        if self._http.ask("HEAD", path, 0) == HttpAnswer(200, b"", str(len(data))):
            return name
        signature = key.sign(put_message(self.identity, name, len(data)))
        headers = {"Tally-Key": key.public, "Tally-Signature": signature, "Content-Type": "application/octet-stream"}
        if delegation is not None:
            headers["Tally-Delegation"] = delegation.to_bytes().decode()
        answer = self._http.ask("PUT", path, PROBLEM_BYTES_MAX, data, headers)
        if answer.status != 204:
            error = error_of(answer.status, answer.body, self._http.url)
            raise UsageError(str(error)) if isinstance(error, RuleError) else error
        return name

    def get(self, name: Digest) -> bytes:
        """The bytes under a blob digest, checked against it."""
        data = self._get(f"/v1/blobs/{name}", BLOB_BYTES_MAX)
        if blob_digest(BytesIO(data)) != name:
            raise UnavailableError(f"{self._http.url}: the board gives other bytes for {name}")
        return data

    def _read_page(self) -> bool:
        """Read more entries, from the last known one on, which must still be there; returns whether there were any."""
        start = max(self._chain.count - 1, 0)
        lines = self._get(f"/v1/entries?start={start}", PAGE_BYTES_MAX).splitlines()
        if self._chain.count:
            self._check_last(lines[:1])
            del lines[0]
        for line in lines:
            self._take_in(line)
        return bool(lines)

    def _check_last(self, lines: list[bytes]) -> None:
        """Raise `ProofError` if the last known entry has changed, `UnavailableError` if the answer is not readable."""
        number = self._chain.count - 1
        if lines == [self._last]:
            return
        for line in lines:
            self._accepted(line, number)
        self.now()  # another server may send an empty page too, but only a coordinator answers with a time
        raise ProofError(f"{self._http.url}: entry {number} is not the one that the coordinator showed before")

    def _accepted(self, line: bytes, number: int) -> Accepted:
        with _coordinators_answer():
            return Accepted.from_bytes(line, f"{self._http.url}: entry {number}")

    def _take_in(self, line: bytes) -> None:
        accepted = self._accepted(line, self._chain.count)
        self._chain, move = self._chain.read(accepted)
        entry = accepted.receipt.entry
        self._receipts.compare(entry)
        self._entries.append(MoveEntry(entry.number, entry.time, move))
        self._last = line

    def _object(self, path: str) -> dict[str, Json]:
        answer = self._get(path, ANSWER_BYTES_MAX)
        with _coordinators_answer():
            document = decode(answer, f"{self._http.url}{path}")
        if not isinstance(document, dict):
            raise UnavailableError(f"{self._http.url}{path}: no JSON object")
        return document

    def _get(self, path: str, bytes_max: int) -> bytes:
        answer = self._http.ask("GET", path, bytes_max)
        if answer.status != 200:
            raise error_of(answer.status, answer.body, self._http.url)
        return answer.body


_JSON: Final = {"Content-Type": "application/json"}


@contextmanager
def _coordinators_answer() -> Iterator[None]:
    """Raise `UnavailableError` for a malformed answer: a proxy or another program sent it, not the coordinator."""
    try:
        yield
    except MalformedError as error:
        raise UnavailableError(f"no answer of a coordinator: {error}") from None


def _count(document: dict[str, Json], name: str) -> int:
    value = document.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UnavailableError(f"the coordinator's answer has no number {name}")
    return value
