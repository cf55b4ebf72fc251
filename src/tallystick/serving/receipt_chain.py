"""Receipts without hidden states: numbered, linked and signed by one key; any engine may have computed the answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from tallystick.attestation.signing import SigningKey, sign_receipt
from tallystick.commitments.digests import Digest
from tallystick.errors import UsageError
from tallystick.serving.receipts import ReceiptBook
from tallystick.serving.telemetry import AnswerSpans
from tallystick.store.receipts import ReceiptLog
from tallystick.transcripts.receipt import Answer, EngineStatement, Receipt, Request, SignedReceipt, Tokens
from tallystick.transcripts.sampler import Sampler


@dataclass(frozen=True)
class ReceiptContents:
    """The contents of one receipt, before it is numbered and signed."""

    request: Request
    answer: Answer
    sampler: Sampler
    engine: EngineStatement
    started_ns: int


class ReceiptChain:
    """Signs receipts for the model `model` in the order of the calls; thread-safe.

    Raises `UsageError` if another process writes to the journal, or if the journal belongs to another key.
    """

    def __init__(
        self,
        model: Digest,
        key: SigningKey,
        journal: Path | None = None,
        *,
        private: bool = False,
        spans: AnswerSpans | None = None,
    ) -> None:
        self.model, self.key, self._is_private = model, key, private
        self._log = None if journal is None else ReceiptLog(journal)
        self._last: Receipt | None = None
        if self._log is not None and self._log.last is not None:
            self._check_own(self._log.last)
            self._last = self._log.last.receipt
        self.book = ReceiptBook(journal, spans)
        self._lock = Lock()

    def issue(self, statement: ReceiptContents) -> SignedReceipt:
        """Sign a receipt and write it to the journal, then return it; raises `OSError` if it cannot be written."""
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
            self.book.add(signed, statement.started_ns)
        return signed

    def close(self) -> None:
        """Close the journal."""
        if self._log is not None:
            self._log.close()
        self.book.close()

    def _shown(self, statement: ReceiptContents) -> dict[str, Any]:
        """The fields of the receipt; a private chain states digests and counts of tokens, not the ids."""
        prompt, tokens = self._tokens(statement.request.prompt), self._tokens(statement.answer.tokens)
        return {
            "request": statement.request.model_copy(update={"prompt": prompt}),
            "answer": statement.answer.model_copy(update={"tokens": tokens}),
            "sampler": statement.sampler,
            "engine": statement.engine,
        }

    def _tokens(self, tokens: Tokens) -> Tokens:
        return tokens.model_copy(update={"ids": None}) if self._is_private else tokens

    def _check_own(self, last: SignedReceipt) -> None:
        if last.key != self.key.public:
            assert self._log is not None
            self._log.close()
            raise UsageError(f"{self._log.path}: the journal of another key; give each key its own")
