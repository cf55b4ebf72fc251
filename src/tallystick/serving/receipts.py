"""The receipts that a server has issued, in the order of their numbers, for customers and auditors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Final

from tallystick.errors import UnavailableError
from tallystick.serving.telemetry import AnswerSpans
from tallystick.store.log import read_lines
from tallystick.transcripts.receipt import RECEIPT_BYTES_MAX, SignedReceipt

KEPT_MAX: Final = 4096
KEPT_BYTES_MAX: Final = 256 << 20
PAGE: Final = 1000
"""The most receipts in one listing."""


class ReceiptBook:
    """Receipts by request and by number. The latest are in memory; the journal, if there is one, has all.

    New ones are reported as `spans`, if there are any.
    """

    def __init__(self, journal: Path | None = None, spans: AnswerSpans | None = None) -> None:
        self._journal, self._spans = journal, spans
        self._kept: OrderedDict[str, tuple[int, bytes]] = OrderedDict()
        self._bytes = self._latest = 0
        self._lock = Lock()
        if journal is not None and journal.exists():
            for line in read_lines(journal, RECEIPT_BYTES_MAX):
                self._keep(SignedReceipt.from_bytes(line, journal.name))

    def add(self, signed: SignedReceipt, started_ns: int) -> None:
        """Add a receipt of an answer that was asked for at `started_ns`, nanoseconds since 1970."""
        self._keep(signed)
        if self._spans is not None:
            self._spans.ended(signed, started_ns)

    def close(self) -> None:
        """Send the spans that still wait."""
        if self._spans is not None:
            self._spans.close()

    def _keep(self, signed: SignedReceipt) -> None:
        """Keep a receipt in memory; the oldest ones are dropped."""
        line = signed.to_bytes()
        with self._lock:
            self._latest = signed.receipt.sequence
            self._kept[signed.receipt.request.id] = signed.receipt.sequence, line
            self._bytes += len(line)
            while len(self._kept) > KEPT_MAX or (self._bytes > KEPT_BYTES_MAX and len(self._kept) > 1):
                self._bytes -= len(self._kept.popitem(last=False)[1][1])

    def of(self, request_id: str) -> bytes:
        """The canonical JSON of the receipt of a request; raises `UnavailableError` if it is not in memory."""
        with self._lock:
            if request_id not in self._kept:
                raise UnavailableError("no receipt of this request is held")
            return self._kept[request_id][1]

    def after(self, sequence: int) -> list[bytes]:
        """The receipts with numbers above `sequence`, in order, at most `PAGE`."""
        if self._journal is not None and self._journal.exists():
            return list(islice(self._journalled(sequence), PAGE))
        with self._lock:
            return [line for number, line in self._kept.values() if number > sequence][:PAGE]

    def _journalled(self, sequence: int) -> Iterator[bytes]:
        """Line k of a journal is receipt number k; a line that is still being written is skipped."""
        assert self._journal is not None
        return islice(read_lines(self._journal, RECEIPT_BYTES_MAX), sequence, max(sequence, self._latest))
