"""Receipts without hidden states: statements numbered, linked and signed by one key, whatever computed the answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from tallystick.attestation.signing import SigningKey, sign_receipt
from tallystick.commitments.digests import Digest
from tallystick.errors import UsageError
from tallystick.serving.receipts import ReceiptBook
from tallystick.store.receipts import ReceiptLog
from tallystick.transcripts.receipt import Answer, EngineStatement, Receipt, Request, SignedReceipt, Tokens
from tallystick.transcripts.sampler import Sampler


@dataclass(frozen=True)
class ReceiptContents:
    """What the receipt of one answer states."""

    request: Request
    answer: Answer
    sampler: Sampler
    engine: EngineStatement


class ReceiptChain:
    """Signs statements about the model `model` in the order in which they come; several threads may call it.

    Raises `UsageError` if another process writes to the journal, or it is another key's.
    """

    def __init__(self, model: Digest, key: SigningKey, journal: Path | None = None, *, private: bool = False) -> None:
        self.model, self.key, self._is_private = model, key, private
        self._log = None if journal is None else ReceiptLog(journal)
        self._last: Receipt | None = None
        if self._log is not None and self._log.last is not None:
            self._check_own(self._log.last)
            self._last = self._log.last.receipt
        self.book = ReceiptBook(journal)
        self._lock = Lock()

    def issue(self, statement: ReceiptContents) -> SignedReceipt:
        """The signed receipt of a statement, in the journal before it is returned; raises `OSError` if it cannot be."""
        with self._lock:
            receipt = Receipt(
                model=self.model,
                **self._shown(statement),
                sequence=self._last.sequence + 1 if self._last else 1,
                previous=self._last.identity if self._last else None,
            )
            signed = sign_receipt(receipt, self.key)
            if self._log is not None:
                self._log.append(signed)
            self._last = receipt
            self.book.add(signed)
        return signed

    def close(self) -> None:
        """Close the journal."""
        if self._log is not None:
            self._log.close()

    def _shown(self, said: ReceiptContents) -> dict[str, Any]:
        prompt, tokens = self._tokens(said.request.prompt), self._tokens(said.answer.tokens)
        return {
            "request": said.request.model_copy(update={"prompt": prompt}),
            "answer": said.answer.model_copy(update={"tokens": tokens}),
            "sampler": said.sampler,
            "engine": said.engine,
        }

    def _tokens(self, tokens: Tokens) -> Tokens:
        return tokens.model_copy(update={"ids": None}) if self._is_private else tokens

    def _check_own(self, last: SignedReceipt) -> None:
        if last.key != self.key.public:
            assert self._log is not None
            self._log.close()
            raise UsageError(f"{self._log.path}: the journal of another key; give each key its own")
