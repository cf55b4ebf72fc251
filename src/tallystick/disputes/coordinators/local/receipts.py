"""The receipts that a party keeps, and with which it compares the entries that the coordinator shows later."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from tallystick.disputes.coordinators.local.signed import ChainEntry, Charter, MoveReceipt
from tallystick.documents.files import sync_folder
from tallystick.errors import MalformedError, ProofError


class ReceiptFile:
    """Receipts by number, in memory and, if there is a path, as one canonical line each in a file."""

    def __init__(self, path: Path | None, charter: Charter) -> None:
        self._path, self._charter, self._lock = path, charter, threading.Lock()
        self._entries: dict[int, ChainEntry] = {}
        for line in [] if path is None else _lines(path):
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
        held = self._entries.get(entry.number)
        if held is not None and held != entry:
            raise ProofError(f"entry {entry.number}: the coordinator signed a receipt for another move at this number")

    @property
    def count(self) -> int:
        """The number of entries that the coordinator must have at least."""
        return max(self._entries, default=-1) + 1

    def _hold(self, entry: ChainEntry) -> None:
        self.compare(entry)
        self._entries[entry.number] = entry


def _lines(path: Path) -> list[bytes]:
    """The complete lines of a file; a line that a crash left unfinished is cut off. Empty if there is no file."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    return whole.splitlines()
