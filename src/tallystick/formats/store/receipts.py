"""Signed receipts on disk, and committed hidden states that are kept there for challenges."""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from tallystick.core.errors import MalformedError, ProofError, TallyError, UnavailableError, UsageError
from tallystick.core.files import read_document, write_atomically
from tallystick.core.safetensors import read_state, write_state
from tallystick.formats.hidden_states import CommittedStates, commit_states
from tallystick.formats.receipt import RECEIPT_BYTES_MAX, Receipt, SignedReceipt, StatesCommitment
from tallystick.formats.store.log import mend_tail, read_lines

# Signed receipts on disk: one canonical line each, in the order in which they were issued.
#
#     receipts.jsonl                      {"key":…,"receipt":{…},"signature":…}, a line feed, and so on
#     states/<request id>.safetensors     the hidden states that the receipt of this request commits to, if it does
#
# A line that a crash left unfinished is no receipt. Reading is strict and holds one line at a time.


class ReceiptLog:
    """Appends receipts to a file, which no second writer can open at the same time.

    Raises:
        UsageError: another writer holds the file.
        MalformedError: the last whole line is no receipt.
    """

    def __init__(self, path: Path, sync: bool = False) -> None:
        self.path, self._syncs = path, sync
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mend_tail(path)
            self.last = _last_receipt(path)
            self._size = os.fstat(self._handle).st_size
        except BaseException as error:
            os.close(self._handle)
            if isinstance(error, BlockingIOError):
                raise UsageError(f"{path}: another provider writes to it; sequence numbers need one writer") from None
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, signed: SignedReceipt, canonical: bytes | None = None) -> None:
        """Write one receipt, whose canonical bytes may be at hand; with `sync`, it survives a loss of power.

        Raises:
            UsageError: the receipt is longer than a reader takes.
            OSError: the disk refuses it; the file is as it was.
        """
        line = (canonical or signed.to_bytes()) + b"\n"
        if len(line) > RECEIPT_BYTES_MAX:
            raise UsageError(f"{self.path.name}: a receipt of {len(line)} bytes, more than {RECEIPT_BYTES_MAX}")
        try:
            if os.write(self._handle, line) != len(line):
                raise OSError(f"{self.path.name}: the last receipt could not be written whole")
            if self._syncs:
                os.fsync(self._handle)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._handle, self._size)
            raise
        self._size += len(line)
        self.last = signed

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def read_receipts(path: Path) -> Iterator[SignedReceipt]:
    """The receipts of a file in order; their signatures are not checked.

    Raises:
        UnavailableError: there is no such file.
        MalformedError: a line is too long, unfinished, or no receipt; names the line and the field.
    """
    for number, line in enumerate(read_lines(path, RECEIPT_BYTES_MAX), 1):
        yield SignedReceipt.from_bytes(line, f"{path.name}: line {number}")


def find_receipt(path: Path, request_id: str) -> SignedReceipt:
    """The last receipt of a request in a file; raises `UnavailableError` if there is none."""
    last = None
    for signed in read_receipts(path):
        if signed.receipt.request.id == request_id:
            last = signed
    if last is None:
        raise UnavailableError(f"{path.name}: no receipt of request {request_id}")
    return last


def write_states(folder: Path, receipt: Receipt, committed: CommittedStates) -> None:
    """Keep the states that a receipt commits to."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_layers(_states_path(folder, receipt), committed)


def read_states(folder: Path, receipt: Receipt) -> CommittedStates:
    """The states that a receipt commits to, ready to be opened.

    Raises:
        UnavailableError: the receipt commits to none, or they were not kept.
        MalformedError: the file does not hold the layers of the receipt.
        ProofError: what is kept is not what the receipt commits to.
    """
    stated, path = receipt.states, _states_path(folder, receipt)
    if stated is None or not path.is_file():
        raise UnavailableError(f"no states are kept of request {receipt.request.id}")
    return _read_layers(path, stated)


def _write_layers(path: Path, committed: CommittedStates, *, durable: bool = True) -> None:
    write_state(path, {f"layer.{layer}": rows for layer, rows in committed.states.items()}, durable=durable)


def _read_layers(path: Path, stated: StatesCommitment) -> CommittedStates:
    state = read_state(path)
    if set(state) != {f"layer.{layer}" for layer in stated.layers}:
        raise MalformedError(f"{path.name}: not the states of layers {', '.join(map(str, stated.layers))}")
    rows = {layer: state[f"layer.{layer}"] for layer in stated.layers}
    committed = commit_states(rows, stated.layers, stated.block, prompt=stated.prompt)
    if committed.statement != stated:
        raise ProofError(f"{path.name}: not the states that the receipt commits to")
    return committed


def _states_path(folder: Path, receipt: Receipt) -> Path:
    return folder / f"{receipt.request.id}.safetensors"


def _last_receipt(path: Path) -> SignedReceipt | None:
    size = path.stat().st_size
    if not size:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.rfind(b"\n", 0, size - 1) + 1
        line = data[start : min(size - 1, start + RECEIPT_BYTES_MAX)]
    return SignedReceipt.from_bytes(line, f"{path.name}: last line")


# Committed hidden states on disk, for challenges that come when memory was needed for newer answers.
#
# A request has two files: `<id>.safetensors` with the states and `<id>.json` with the commitment, written last. A
# thread of its own writes, so that no answer waits for the disk. What is read is committed to again: states that do not
# give the root count as lost, and so do those that the disk had no room for.

WAITING_BYTES_MAX: Final = 256 << 20
"""The most bytes that wait to be written; what comes on top of them is not kept."""
STATES: Final = ".safetensors"
STATEMENT: Final = ".json"
LOG: Final = logging.getLogger("tallystick.serving")


class SpilledStates:
    """States by request in a folder, at most `bytes_max` bytes; the oldest are deleted first, an earlier server's too.

    Raises `UsageError` if the folder cannot be used.
    """

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self.folder, self.bytes_max = folder, bytes_max
        self._lock, self._pool = threading.Lock(), ThreadPoolExecutor(1, "states")
        self._waiting: dict[str, CommittedStates] = {}
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._has_warned = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._find()
        except OSError as error:
            raise UsageError(f"{folder}: states cannot be kept there: {error.strerror}") from None
        self._make_room()

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def size_bytes(self) -> int:
        """The bytes of all files."""
        return sum(self._sizes.values())

    def take(self, request_id: str, states: CommittedStates) -> None:
        """Have states written soon; returns at once."""
        with self._lock:
            waiting = sum(queued.size_bytes for queued in self._waiting.values())
            if self._waiting and waiting + states.size_bytes > WAITING_BYTES_MAX:
                self._warn("the disk is slower than the answers")
                return
            self._waiting[request_id] = states
        self._pool.submit(self._write, request_id, states)

    def of(self, request_id: str) -> CommittedStates | None:
        """The states of a request; None if they are not there, or are not what was committed to."""
        with self._lock:
            if request_id in self._waiting:
                return self._waiting[request_id]
            if request_id not in self._sizes:
                return None
        statement = self._path(request_id, STATEMENT)
        try:
            stated = StatesCommitment.from_bytes(read_document(statement), statement.name)
            return _read_layers(self._path(request_id, STATES), stated)
        except (TallyError, OSError) as error:
            LOG.warning("the states of %s in %s are lost: %s", request_id, self.folder, error)
            return None

    def close(self) -> None:
        """Wait until everything is written."""
        self._pool.shutdown()

    def _write(self, request_id: str, states: CommittedStates) -> None:
        path, statement = self._path(request_id, STATES), self._path(request_id, STATEMENT)
        try:
            if states.size_bytes <= self.bytes_max:
                _write_layers(path, states, durable=False)
                write_atomically(statement, states.statement.to_bytes(), durable=False)
                with self._lock:
                    self._sizes[request_id] = path.stat().st_size + statement.stat().st_size
                self._make_room()
        except (UnavailableError, OSError) as error:
            self._delete(request_id)
            self._warn(str(error))
        finally:
            with self._lock:
                self._waiting.pop(request_id, None)

    def _find(self) -> None:
        """What an earlier server left; files without their other half are deleted."""
        pairs = {path.stem: path for path in self.folder.glob(f"*{STATEMENT}")}
        for path in self.folder.glob(f"*{STATES}"):
            if path.stem not in pairs:
                path.unlink()
        for name in sorted(pairs, key=lambda name: pairs[name].stat().st_mtime_ns):
            states = self._path(name, STATES)
            if states.is_file():
                self._sizes[name] = pairs[name].stat().st_size + states.stat().st_size
            else:
                pairs[name].unlink()

    def _make_room(self) -> None:
        while self.size_bytes > self.bytes_max:
            self._delete(next(iter(self._sizes)))

    def _delete(self, request_id: str) -> None:
        with self._lock:
            self._sizes.pop(request_id, None)
        for suffix in (STATEMENT, STATES):
            self._path(request_id, suffix).unlink(missing_ok=True)

    def _path(self, request_id: str, suffix: str) -> Path:
        return self.folder / f"{request_id}{suffix}"

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            LOG.warning("states of old answers are not kept in %s and cannot be challenged: %s", self.folder, reason)
        self._has_warned = True
