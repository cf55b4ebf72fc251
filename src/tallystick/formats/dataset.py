"""The data of a run under one root: the source, the tokenizer and the tokens."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from tallystick.core.digests import Digest
from tallystick.core.documents import Count, DigestText, Document, HashBytes, Positive

CHUNK_BYTES: Final = 1 << 20
VOCABULARY_MAX: Final = 1 << 20
RecordKind = Literal["text", "jsonl", "arrays", "shards"]
DatasetKind = Literal["text", "jsonl", "digits", "corpus"]
RECORDS_OF: Final[dict[DatasetKind, RecordKind]] = {
    "text": "text",
    "jsonl": "jsonl",
    "digits": "arrays",
    "corpus": "shards",
}


class RecordCommit(Document):
    """The kind and the number of records, and the RFC 6962 root over them; its digest identifies the records."""

    digest_noun: ClassVar[str] = "dataset"

    kind: RecordKind
    count: Positive
    root: HashBytes


class TokensCommit(Document):
    """The number of tokens, the size of the vocabulary, and the RFC 6962 root over ordered chunks of 1 MiB."""

    digest_noun: ClassVar[str] = "tokens"

    chunk_bytes: Annotated[int, Field(ge=CHUNK_BYTES, le=CHUNK_BYTES)] = CHUNK_BYTES
    count: Count
    vocabulary: Annotated[int, Field(ge=1, le=VOCABULARY_MAX)]
    root: HashBytes


class DatasetCommitment(Document):
    """The commitment to the data of a run; the digits have neither tokenizer nor tokens."""

    digest_noun: ClassVar[str] = "dataset"

    kind: DatasetKind
    source: RecordCommit
    tokenizer: DigestText | None = None
    tokens: TokensCommit | None = None
    version: Literal[1] = 1

    @model_validator(mode="after")
    def _has_the_parts_of_its_kind(self) -> Self:
        if self.source.kind != RECORDS_OF[self.kind]:
            raise ValueError(f"source.kind: must be {RECORDS_OF[self.kind]!r}")
        if {self.tokenizer is None, self.tokens is None} != {self.kind == "digits"}:
            raise ValueError("tokenizer and tokens belong to data of every kind but digits")
        return self

    @property
    def root(self) -> Digest:
        """The data root: it is the key of the batch order, and is in every record."""
        return self.identity

    @property
    def count(self) -> int:
        """The number of tokens, or of examples if there are no tokens."""
        return self.source.count if self.tokens is None else self.tokens.count
