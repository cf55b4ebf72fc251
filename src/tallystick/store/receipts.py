"""Signed receipts on disk: one canonical line each, in the order in which they were issued.

    receipts.jsonl                      {"key":…,"receipt":{…},"signature":…}, a line feed, and so on
    states/<request id>.safetensors     the hidden states that the receipt of this request commits to, if it does

A line that a crash left unfinished is no receipt. Reading is strict and holds one line at a time.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tallystick.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.store.log import read_lines
from tallystick.store.log_writer import mend_tail
from tallystick.tensors.safetensors import read_state, write_state
from tallystick.transcripts.receipt import RECEIPT_BYTES_MAX, Receipt, SignedReceipt
from tallystick.workloads.hidden_states import CommittedStates, commit_states


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
            _lock(self._handle, path)
            mend_tail(path)
            self.last = _last_receipt(path)
            self._size = os.fstat(self._handle).st_size
        except BaseException:
            os.close(self._handle)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    """The receipts of a file in order; nothing is said about their signatures.

    Raises:
        UnavailableError: there is no such file.
        MalformedError: a line is too long, unfinished, or no receipt; names the line and the field.
    """
    for number, line in enumerate(read_lines(path, RECEIPT_BYTES_MAX), 1):
        yield SignedReceipt.from_bytes(line, f"{path.name}: line {number}")


def find_receipt(path: Path, request_id: str) -> SignedReceipt:
    """The last receipt of a request in a file; raises `UnavailableError` if there is none."""
    found = None
    for signed in read_receipts(path):
        if signed.receipt.request.id == request_id:
            found = signed
    if found is None:
        raise UnavailableError(f"{path.name}: no receipt of request {request_id}")
    return found


def write_states(folder: Path, receipt: Receipt, committed: CommittedStates) -> None:
    """Keep the states that a receipt commits to."""
    folder.mkdir(parents=True, exist_ok=True)
    write_state(_states_path(folder, receipt), {f"layer.{layer}": each for layer, each in committed.states.items()})


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


def _lock(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"{path}: another provider writes to it; sequence numbers need one writer") from None


def _last_receipt(path: Path) -> SignedReceipt | None:
    size = path.stat().st_size
    if not size:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.rfind(b"\n", 0, size - 1) + 1
        line = data[start : min(size - 1, start + RECEIPT_BYTES_MAX)]
    return SignedReceipt.from_bytes(line, f"{path.name}: last line")
